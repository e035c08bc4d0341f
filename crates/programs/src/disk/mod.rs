//! A file system in the explorer's memory, to put directories of durable memory on.
//!
//! It promises no more than POSIX, so that a crash may leave any state that some file system
//! would leave:
//!
//! 1. A change of a name (made, renamed, removed) is one word of its directory's history, so it is
//!    atomic. Synchronising the directory makes it durable, and nothing else does. Until then a
//!    crash may leave it out and keep others, earlier or later ones.
//! 2. A file's length is a word of its own. Synchronising the file makes length and contents
//!    durable, but not the name. A fence makes flushed stores of a mapping durable, but not the
//!    length.
//! 3. A file that is longer than what was stored in it holds zeros there.
//! 4. With durability `process` flushes and fences of a mapping do nothing.
//! 5. Each crash is a power failure: the next [`mount`](Disk::mount) is another boot of the machine.
//!    A killed process leaves all its changes to the other processes of its boot.
//!
//! No file or directory reuses the place of an earlier one.

mod arena;

pub use arena::Arena;

use crash::program::Memory;
use medium::{ArenaError, LINE_BYTES, MapOptions, MediumError, OpenError, Pmem, Rule, WORD_BYTES};
use mnemosyne::memory::Files;
use paging::{Pool, PoolError};
use parking_lot::Mutex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most boots: of a run, and of recoveries.
const BOOTS: u64 = 4;
/// Numbers for files in each boot, of which the first is unused.
const FILES: u64 = 24;
/// Numbers for directories in each boot, of which the first is that of the root or unused.
const DIRECTORIES: u64 = 4;
/// Most changes of names in one directory.
const CHANGES: u64 = 128;
/// Bytes of the longest file.
const FILE_BYTES: u64 = 40 << 10;

const DIRECTORY_BYTES: u64 = CHANGES * WORD_BYTES;
const AT_DIRECTORIES: u64 = LINE_BYTES;
const AT_LENGTHS: u64 = AT_DIRECTORIES + BOOTS * DIRECTORIES * DIRECTORY_BYTES;
const AT_DATA: u64 = AT_LENGTHS + BOOTS * FILES * LINE_BYTES;

/// Bytes of memory that a disk takes. Zeros are an empty one.
pub const DISK_BYTES: u64 = AT_DATA + BOOTS * FILES * FILE_BYTES;

/// Names of files and directories, besides those of regions.
const NAMES: [&str; 6] = ["above", "memory", "regions", "boot", "pool", "frames"];
/// Prefix of a region's name; a number follows.
const REGION: &str = "region-";
/// Suffix of the name of an incomplete file; a number follows.
const UNFINISHED: &str = ".new-";

/// A file or directory, by number. Directory 0 is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    File(u64),
    Directory(u64),
}

/// A change of names in a directory.
#[derive(Debug, Clone, Copy)]
enum Change {
    Link(u64, Node),
    Unlink(u64, Node),
    Rename(u64, u64, Node),
}

impl Change {
    /// The word stored for it, which is not 0.
    fn word(self) -> u64 {
        let (what, from, to, node) = match self {
            Self::Link(name, node) => (1, 0, name, node),
            Self::Unlink(name, node) => (2, name, 0, node),
            Self::Rename(from, to, node) => (3, from, to, node),
        };
        let (is_directory, number) = match node {
            Node::File(number) => (0, number),
            Node::Directory(number) => (1, number),
        };
        what | is_directory << 4 | from << 8 | to << 24 | number << 40
    }

    fn of(word: u64) -> Option<Self> {
        let number = word >> 40;
        let node = match word >> 4 & 1 {
            0 => Node::File(number),
            _ => Node::Directory(number),
        };
        let (from, to) = (word >> 8 & 0xffff, word >> 24 & 0xffff);
        match word & 0xf {
            1 => Some(Self::Link(to, node)),
            2 => Some(Self::Unlink(from, node)),
            3 => Some(Self::Rename(from, to, node)),
            _ => None,
        }
    }
}

/// The number of a name in changes.
fn number_of(name: &str) -> Option<u64> {
    let (name, suffix) = match name.split_once(UNFINISHED) {
        Some((name, suffix)) => (name, suffix.parse::<u64>().ok()? + 1),
        None => (name, 0),
    };
    let base = match name.strip_prefix(REGION) {
        Some(slot) => slot.parse::<usize>().ok()? + NAMES.len(),
        None => NAMES.iter().position(|known| *known == name)?,
    };
    Some(base as u64 | suffix << 8)
}

fn name_of(number: u64) -> String {
    let base = (number & 0xff) as usize;
    let name = match NAMES.get(base) {
        Some(name) => (*name).to_owned(),
        None => format!("{REGION}{:04}", base - NAMES.len()),
    };
    match number >> 8 {
        0 => name,
        suffix => format!("{name}{UNFINISHED}{}", suffix - 1),
    }
}

/// A directory in memory.
#[derive(Default)]
struct Directory {
    names: BTreeMap<u64, Node>,
    /// Used words of its history.
    used: u64,
    /// Number of durable words, from the first.
    synced: u64,
}

impl Directory {
    fn apply(&mut self, change: Change) {
        let unlink = |names: &mut BTreeMap<_, _>, name, node| {
            if names.get(&name) == Some(&node) {
                names.remove(&name);
            }
        };
        match change {
            Change::Link(name, node) => drop(self.names.insert(name, node)),
            Change::Unlink(name, node) => unlink(&mut self.names, name, node),
            Change::Rename(from, to, node) => {
                unlink(&mut self.names, from, node);
                self.names.insert(to, node);
            }
        }
    }
}

/// State of the machine in memory.
#[derive(Default)]
struct Caches {
    directories: BTreeMap<u64, Directory>,
    /// By file: lines with stores that are not synchronised.
    changed: BTreeMap<u64, BTreeSet<u64>>,
    made_files: u64,
    made_directories: u64,
    suffixes: u64,
}

/// A mounted disk.
pub struct Disk {
    pm: Memory,
    boot: u64,
    caches: Mutex<Caches>,
}

type Result<T, E = io::Error> = std::result::Result<T, E>;

impl Disk {
    /// Boots the machine.
    pub fn mount(pm: Memory) -> Result<Arc<Self>, String> {
        let text = |e: MediumError| e.to_string();
        let boot = pm.load(0).map_err(text)? + 1;
        pm.store_word(0, boot);
        pm.flush(0, WORD_BYTES);
        pm.fence(Rule::DurableBeforeReturn).map_err(text)?;
        Ok(Arc::new(Self {
            pm,
            boot,
            caches: Mutex::default(),
        }))
    }

    /// Starts a process, which is killed after that many steps.
    pub fn process(self: &Arc<Self>, steps: usize) -> Process {
        Process {
            disk: self.clone(),
            left: Arc::new(AtomicUsize::new(steps)),
        }
    }

    fn load(&self, at: u64) -> Result<u64> {
        self.pm.load(at).map_err(io::Error::other)
    }

    fn fence(&self) -> Result<()> {
        self.pm
            .fence(Rule::DurableBeforeReturn)
            .map_err(io::Error::other)
    }

    /// Calls `look` with a directory, which it reads if needed.
    fn with<T>(&self, number: u64, look: impl FnOnce(&mut Directory) -> T) -> Result<T> {
        match self.caches.lock().directories.entry(number) {
            Entry::Occupied(mut known) => Ok(look(known.get_mut())),
            Entry::Vacant(unknown) => Ok(look(unknown.insert(self.directory(number)?))),
        }
    }

    /// Reads a directory as a crash left it.
    fn directory(&self, number: u64) -> Result<Directory> {
        let mut directory = Directory::default();
        for n in 0..CHANGES {
            let at = AT_DIRECTORIES + number * DIRECTORY_BYTES + n * WORD_BYTES;
            if let Some(change) = Change::of(self.load(at)?) {
                directory.apply(change);
                directory.used = n + 1;
            }
        }
        // Changes that survived a crash are durable.
        directory.synced = directory.used;
        Ok(directory)
    }

    fn change(&self, number: u64, change: Change) -> Result<()> {
        let n = self.with(number, |directory| {
            directory.apply(change);
            directory.used += 1;
            directory.used - 1
        })?;
        if n >= CHANGES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let at = AT_DIRECTORIES + number * DIRECTORY_BYTES + n * WORD_BYTES;
        self.pm.store_word(at, change.word());
        Ok(())
    }

    fn sync_names(&self, number: u64) -> Result<()> {
        let (from, to) = self.with(number, |directory| {
            let from = std::mem::replace(&mut directory.synced, directory.used);
            (from, directory.used)
        })?;
        let start = AT_DIRECTORIES + number * DIRECTORY_BYTES;
        if from < to {
            self.pm
                .flush(start + from * WORD_BYTES, (to - from) * WORD_BYTES);
        }
        self.fence()
    }

    /// Makes a file or directory of this boot.
    fn new_node(&self, is_directory: bool) -> Result<Node> {
        let mut caches = self.caches.lock();
        let (made, most) = match is_directory {
            true => (&mut caches.made_directories, DIRECTORIES),
            false => (&mut caches.made_files, FILES),
        };
        *made += 1;
        // Directory 0 is the root, which always exists.
        if *made >= most || self.boot > BOOTS {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let number = (self.boot - 1) * most + *made;
        Ok(match is_directory {
            true => Node::Directory(number),
            false => Node::File(number),
        })
    }

    fn store(&self, file: u64, off: u64, bytes: &[u8]) {
        let lines = off / LINE_BYTES..(off + bytes.len() as u64).div_ceil(LINE_BYTES);
        let mut caches = self.caches.lock();
        caches.changed.entry(file).or_default().extend(lines);
        self.pm.store(data(file) + off, bytes);
    }

    /// Makes the stores to a file durable.
    fn sync_data(&self, file: u64) -> Result<()> {
        let changed = self.caches.lock().changed.remove(&file);
        for line in changed.into_iter().flatten() {
            self.pm.flush(data(file) + line * LINE_BYTES, LINE_BYTES);
        }
        self.fence()
    }
}

fn length(file: u64) -> u64 {
    AT_LENGTHS + file * LINE_BYTES
}

fn data(file: u64) -> u64 {
    AT_DATA + file * FILE_BYTES
}

/// A process that uses a disk.
#[derive(Clone)]
pub struct Process {
    disk: Arc<Disk>,
    left: Arc<AtomicUsize>,
}

impl Process {
    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    /// Takes one of its steps.
    fn step(&self) -> Result<()> {
        let take = |left: usize| left.checked_sub(1);
        let taken = self.left.fetch_update(Relaxed, Relaxed, take);
        match taken.is_ok() && !self.is_dead() {
            true => Ok(()),
            false => Err(io::Error::other("the process is killed")),
        }
    }

    /// The directory of a path, and the number of its name there.
    fn place(&self, path: &Path) -> Result<(u64, u64)> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let name = path.file_name().and_then(|name| name.to_str());
        let unknown = || io::Error::other(format!("{} is not a name of the model", path.display()));
        let name = name.and_then(number_of).ok_or_else(unknown)?;
        match self.find(path.parent().ok_or_else(missing)?)? {
            Some(Node::Directory(number)) => Ok((number, name)),
            _ => Err(missing()),
        }
    }

    fn find(&self, path: &Path) -> Result<Option<Node>> {
        if path.parent().is_none() {
            return Ok(Some(Node::Directory(0)));
        }
        match self.place(path) {
            Ok((directory, name)) => self
                .disk
                .with(directory, |place| place.names.get(&name).copied()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn directory(&self, path: &Path) -> Result<u64> {
        match self.find(path)? {
            Some(Node::Directory(number)) => Ok(number),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn file(&self, path: &Path) -> Result<u64> {
        match self.find(path)? {
            Some(Node::File(number)) => Ok(number),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn link(&self, path: &Path, is_directory: bool) -> Result<Node> {
        let (directory, name) = self.place(path)?;
        if self.find(path)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.step()?;
        let node = self.disk.new_node(is_directory)?;
        self.disk.change(directory, Change::Link(name, node))?;
        Ok(node)
    }

    fn create_file(&self, path: &Path, len_bytes: u64) -> Result<u64> {
        let Node::File(file) = self.link(path, false)? else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        self.step()?;
        if len_bytes > FILE_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.disk.pm.store_word(length(file), len_bytes);
        Ok(file)
    }

    fn read_file(&self, path: &Path) -> Result<Vec<u8>> {
        let file = self.file(path)?;
        let mut bytes = vec![0; self.disk.load(length(file))? as usize];
        let read = self.disk.pm.read(data(file), &mut bytes);
        read.map_err(io::Error::other)?;
        Ok(bytes)
    }

    fn move_file(&self, from: &Path, to: &Path) -> Result<()> {
        let node = self.find(from)?.ok_or(io::ErrorKind::NotFound)?;
        let (directory, old) = self.place(from)?;
        let (_, new) = self.place(to)?;
        self.step()?;
        self.disk.change(directory, Change::Rename(old, new, node))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        let Some(node) = self.find(path)? else {
            return Ok(());
        };
        let (directory, name) = self.place(path)?;
        self.step()?;
        self.disk.change(directory, Change::Unlink(name, node))
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        let file = self.file(path)?;
        self.step()?;
        self.disk.pm.flush(length(file), WORD_BYTES);
        self.disk.sync_data(file)
    }
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> OpenError + 'a {
    move |source| OpenError::System {
        doing,
        path: path.to_owned(),
        source,
    }
}

impl Files for Process {
    type Arena = Arena;
    type Mapped = Arena;
    type Turn = ();

    fn make_directory(&self, path: &Path) -> Result<(), OpenError> {
        match self.link(path, true) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map(drop).map_err(failed("create", path)),
        }
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf, OpenError> {
        self.directory(path).map_err(failed("find", path))?;
        Ok(path.to_owned())
    }

    fn lock(&self, _directory: &Path) -> Result<(), OpenError> {
        Ok(()) // one process runs at a time
    }

    fn names(&self, path: &Path) -> Result<Vec<OsString>, OpenError> {
        let number = self.directory(path).map_err(failed("read", path))?;
        let list = |directory: &mut Directory| {
            let names = directory.names.keys();
            names.map(|name| name_of(*name).into()).collect()
        };
        self.disk.with(number, list).map_err(failed("read", path))
    }

    fn len_of(&self, path: &Path) -> Result<Option<u64>, OpenError> {
        let found = self.find(path).and_then(|node| match node {
            Some(Node::File(file)) => self.disk.load(length(file)).map(Some),
            Some(Node::Directory(_)) => Ok(Some(0)),
            None => Ok(None),
        });
        found.map_err(failed("find", path))
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenError> {
        let found = self.find(path).map_err(failed("find", path))?;
        Ok(found.is_some())
    }

    fn create(&self, path: &Path, len_bytes: u64) -> Result<(), OpenError> {
        let made = self.create_file(path, len_bytes).map(drop);
        made.map_err(failed("create", path))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
        let file = self.create_file(path, bytes.len() as u64);
        let file = file.map_err(failed("write", path))?;
        self.disk.store(file, 0, bytes);
        Ok(())
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
        let found = self.exists(path)?.then(|| self.read_file(path));
        found.transpose().map_err(failed("read", path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        self.move_file(from, to).map_err(failed("rename", from))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> Result<bool, OpenError> {
        if self.exists(to)? || !self.exists(from)? {
            return Ok(false);
        }
        self.rename(from, to).map(|()| true)
    }

    fn remove(&self, path: &Path) -> Result<(), OpenError> {
        self.unlink(path).map_err(failed("remove", path))
    }

    fn sync(&self, path: &Path) -> Result<(), OpenError> {
        self.sync_file(path).map_err(failed("sync", path))
    }

    fn sync_directory(&self, path: &Path) -> Result<(), OpenError> {
        let number = self.directory(path).map_err(failed("sync", path))?;
        let synced = self.step().and_then(|()| self.disk.sync_names(number));
        synced.map_err(failed("sync", path))
    }

    /// Returns a number that may be repeated after a crash, like the number of a process.
    fn unique(&self) -> String {
        let mut caches = self.disk.caches.lock();
        caches.suffixes += 1;
        (caches.suffixes - 1).to_string()
    }

    /// Returns false: one process runs at a time.
    fn is_at_work(&self, _unique: &str) -> bool {
        false
    }

    fn boot(&self) -> Result<String, OpenError> {
        Ok(self.disk.boot.to_string())
    }

    fn is_in_memory(&self, _path: &Path) -> Result<bool, OpenError> {
        Ok(false)
    }

    fn map(&self, path: &Path, options: &MapOptions) -> Result<Arena, OpenError> {
        let len_bytes = self.len_of(path)?.unwrap_or(0);
        let mapped = Arena::new(self.clone(), len_bytes);
        mapped.put(0, path, options)?;
        Ok(mapped)
    }

    fn reserve(&self, _base: Option<u64>, len_bytes: u64) -> Result<Arena, ArenaError> {
        Ok(Arena::new(self.clone(), len_bytes))
    }

    fn create_pool(
        &self,
        path: &Path,
        _len_bytes: u64,
        _page_bytes: Option<u64>,
        _options: &MapOptions,
    ) -> Result<(), PoolError> {
        Err(failed("make a pool in", path)(io::ErrorKind::Unsupported.into()).into())
    }

    fn open_pool(&self, path: &Path, _options: &MapOptions) -> Result<Pool, PoolError> {
        Err(failed("open the pool in", path)(io::ErrorKind::Unsupported.into()).into())
    }
}
