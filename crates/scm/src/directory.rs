//! A store in a directory: a file for each class, which the kernel protects.
//!
//! Guarantees:
//!
//! 1. The directory has mode 0700 and all its files have mode 0600, and they belong to this user;
//!    anything else is refused. So a client of another user can open none of them, also not again
//!    through a descriptor that it received.
//! 2. A descriptor for a client is opened for it alone. The table is never shared.
//! 3. No file is locked except for the table, so that no client can lock a file of the manager.

use crate::error::ScmError;
use crate::files::{Class, Files, Part, Place, Run, Share};
use crate::format::{Geometry, PAGE_BYTES, identity_bytes};
use crate::identity::Identity;
use crate::private::{allocate, check_private};
use crate::table;
use medium::{EffectiveDurability, MapOptions, MappedPmem, Reserve, Rule, create_private_file};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const TABLE: &str = "table";
/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// The files of a store in a directory.
pub struct Directory {
    dir: File,
    path: PathBuf,
    table: MappedPmem,
    options: MapOptions,
}

impl Directory {
    /// Makes an empty store in a directory that is new or empty.
    ///
    /// # Errors
    /// [`ScmError`], also if the directory has entries.
    pub fn create(
        path: impl AsRef<Path>,
        geometry: &Geometry,
        options: &MapOptions,
    ) -> Result<Self, ScmError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(ScmError::system("make", name, e));
            }
            _ => {}
        }
        let mut entries =
            std::fs::read_dir(path).map_err(|e| ScmError::system("read", &name, e))?;
        if entries.next().is_some() {
            return Err(ScmError::Invalid(format!("{name} is not empty")));
        }
        if geometry.only.is_some() {
            let what = "a store in a directory can have all identities".to_owned();
            return Err(ScmError::Invalid(what));
        }
        let file = path.join(TABLE);
        create_private_file(&file, geometry.table_bytes(), Reserve::Whole)?;
        let store = Self::open(path, options)?;
        table::format(&store.table, geometry)?;
        store.sync_dir()?;
        Ok(store)
    }

    /// Opens the files of a store, and locks its table.
    ///
    /// # Errors
    /// [`ScmError::Exposed`] if others could open the directory or the table; errors of the files.
    pub fn open(path: impl AsRef<Path>, options: &MapOptions) -> Result<Self, ScmError> {
        let path = path.as_ref().to_owned();
        let dir = File::open(&path);
        let dir = dir.map_err(|e| ScmError::system("open", path.display().to_string(), e))?;
        check_private(&dir, &path, 0o700)?;
        let mut options = *options;
        options.no_links = true;
        let table = MappedPmem::open(path.join(TABLE), &options)?;
        let store = Self {
            dir,
            path,
            table,
            options,
        };
        store.open_file(TABLE, OFlags::RDONLY)?;
        Ok(store)
    }

    /// The durability of the files in force.
    pub fn durability(&self) -> EffectiveDurability {
        self.table.durability()
    }

    /// Whether a directory has the files of a store.
    pub fn is_at(path: &Path) -> bool {
        path.join(TABLE).is_file()
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn error(&self, doing: &'static str, name: &str, e: impl Into<std::io::Error>) -> ScmError {
        ScmError::system(doing, self.path_of(name).display().to_string(), e)
    }

    /// Whether the files survive a crash of the machine only if they are synchronised.
    fn has_to_sync(&self) -> bool {
        self.table.durability() != EffectiveDurability::Process
    }

    fn sync_dir(&self) -> Result<(), ScmError> {
        match self.has_to_sync() {
            true => self
                .dir
                .sync_all()
                .map_err(|e| self.error("synchronise", "", e)),
            false => Ok(()),
        }
    }

    /// Opens a file that exists, if others cannot open it.
    fn open_file(&self, name: &str, access: OFlags) -> Result<Option<File>, ScmError> {
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(self.error("open", name, e)),
        };
        check_private(&file, &self.path_of(name), 0o600)?;
        Ok(Some(file))
    }

    fn class_file(&self, class: Class) -> Result<Option<File>, ScmError> {
        let access = match self.options.read_only {
            true => OFlags::RDONLY,
            false => OFlags::RDWR,
        };
        self.open_file(&class_name(class), access)
    }

    /// Opens the file of a class, which is made if it does not exist, and restores its size.
    fn made_class_file(&self, class: Class) -> Result<File, ScmError> {
        let name = class_name(class);
        let bytes = class.place.pages * PAGE_BYTES;
        if let Some(file) = self.class_file(class)? {
            self.set_len(&file, &name, bytes)?;
            return Ok(file);
        }
        create_private_file(self.path_of(&name), bytes, Reserve::Sparse)?;
        self.sync_dir()?;
        let file = self.class_file(class)?;
        file.ok_or_else(|| self.error("open", &name, Errno::NOENT))
    }

    /// A client that may write can change the size of a file.
    fn set_len(&self, file: &File, name: &str, bytes: u64) -> Result<(), ScmError> {
        let failed = |e| self.error("resize", name, e);
        match file.metadata().map_err(failed)?.len() == bytes {
            true => Ok(()),
            false => file.set_len(bytes).map_err(failed),
        }
    }

    fn reserve(&self, file: &File, name: &str, run: Run) -> Result<(), ScmError> {
        allocate(file, FallocateFlags::empty(), bytes_of(run)).map_err(|e| match e {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ScmError::NoRoom {
                what: self.path_of(name).display().to_string(),
                pages: run.pages,
            },
            e => self.error("allocate room in", name, e),
        })
    }

    fn punch_in(&self, file: &File, name: &str, run: Run) -> Result<(), ScmError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        allocate(file, flags, bytes_of(run)).map_err(|e| self.error("punch a hole in", name, e))
    }

    /// The files of partitions: their names, numbers and identities.
    fn entries(&self) -> Result<Vec<(String, u32, Option<Identity>)>, ScmError> {
        let entries = std::fs::read_dir(&self.path).map_err(|e| self.error("read", "", e))?;
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.map_err(|e| self.error("read", "", e))?.file_name();
            if let Some(name) = name.to_str()
                && let Some((number, identity)) = parse(name)
            {
                found.push((name.to_owned(), number, identity));
            }
        }
        Ok(found)
    }

    fn remove_if(&self, is_unwanted: impl Fn(u32) -> bool) -> Result<(), ScmError> {
        let mut has_removed = false;
        for (name, ..) in self
            .entries()?
            .into_iter()
            .filter(|(_, n, _)| is_unwanted(*n))
        {
            std::fs::remove_file(self.path_of(&name))
                .map_err(|e| self.error("remove", &name, e))?;
            has_removed = true;
        }
        match has_removed {
            true => self.sync_dir(),
            false => Ok(()),
        }
    }
}

impl Files for Directory {
    type Memory = MappedPmem;

    fn table(&self) -> &MappedPmem {
        &self.table
    }

    fn allow(&self, _: Identity) -> Result<(), ScmError> {
        Ok(())
    }

    fn make(&self, place: Place) -> Result<(), ScmError> {
        self.remove(place)?;
        let name = identities_name(place.number);
        create_private_file(
            self.path_of(&name),
            identity_bytes(place.pages),
            Reserve::Whole,
        )?;
        if let Some(file) = self.open_file(&name, OFlags::RDONLY)?
            && self.has_to_sync()
        {
            file.sync_all()
                .map_err(|e| self.error("synchronise", &name, e))?;
        }
        self.sync_dir()
    }

    fn remove(&self, place: Place) -> Result<(), ScmError> {
        self.remove_if(|number| number == place.number)
    }

    fn keep(&self, places: &[Place]) -> Result<(), ScmError> {
        self.remove_if(|number| places.iter().all(|place| place.number != number))
    }

    fn identities(&self, place: Place) -> Result<MappedPmem, ScmError> {
        let name = identities_name(place.number);
        let access = match self.options.read_only {
            true => OFlags::RDONLY,
            false => OFlags::RDWR,
        };
        let file = self.open_file(&name, access)?;
        let file = file.ok_or_else(|| self.error("open", &name, Errno::NOENT))?;
        let path = self.path_of(&name);
        Ok(MappedPmem::map_descriptor(
            file.into(),
            path,
            &self.options,
        )?)
    }

    fn classes(&self, place: Place) -> Result<Vec<Identity>, ScmError> {
        let entries = self.entries()?.into_iter();
        let mine = entries.filter(|(_, number, _)| *number == place.number);
        Ok(mine.filter_map(|(.., identity)| identity).collect())
    }

    fn allocate(&self, class: Class, run: Run) -> Result<(), ScmError> {
        let (file, name) = (self.made_class_file(class)?, class_name(class));
        // A hostile client may have stored to the pages.
        self.punch_in(&file, &name, run)?;
        self.reserve(&file, &name, run)
    }

    fn copy(&self, from: Class, to: Class, run: Run) -> Result<(), ScmError> {
        let (source, target) = (self.made_class_file(from)?, self.made_class_file(to)?);
        let end = run.end() * PAGE_BYTES;
        let mut piece = vec![0; PIECE_BYTES.min((run.pages * PAGE_BYTES) as usize)];
        for at in (run.first * PAGE_BYTES..end).step_by(piece.len()) {
            let piece = &mut piece[..(end - at).min(PIECE_BYTES as u64) as usize];
            let read = read_at(&source, piece, at);
            read.map_err(|e| self.error("read", &class_name(from), e))?;
            let written = target.write_all_at(piece, at);
            written.map_err(|e| self.error("write", &class_name(to), e))?;
        }
        Ok(())
    }

    fn punch(&self, class: Class, run: Run) -> Result<(), ScmError> {
        match self.class_file(class)? {
            Some(file) => self.punch_in(&file, &class_name(class), run),
            None => Ok(()),
        }
    }

    fn sync(&self, class: Class, _: Rule) -> Result<(), ScmError> {
        match self.class_file(class)? {
            Some(file) if self.has_to_sync() => {
                let synced = file.sync_data();
                synced.map_err(|e| self.error("synchronise", &class_name(class), e))
            }
            _ => Ok(()),
        }
    }

    fn restore(&self, class: Class, runs: &[Run]) -> Result<(), ScmError> {
        let (file, name) = (self.made_class_file(class)?, class_name(class));
        runs.iter()
            .try_for_each(|run| self.reserve(&file, &name, *run))
    }

    fn room_bytes(&self, class: Class) -> Result<u64, ScmError> {
        let Some(file) = self.class_file(class)? else {
            return Ok(0);
        };
        let found = file.metadata();
        let found = found.map_err(|e| self.error("look at", &class_name(class), e))?;
        Ok(found.blocks() * 512)
    }

    fn contents(&self, class: Class, run: Run) -> Result<Option<u64>, ScmError> {
        let Some(file) = self.class_file(class)? else {
            return Ok(None);
        };
        let from = rustix::fs::SeekFrom::Data(run.first * PAGE_BYTES);
        match rustix::fs::seek(&file, from) {
            Ok(at) => Ok(Some(at / PAGE_BYTES).filter(|page| *page < run.end())),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(self.error("look at", &class_name(class), e)),
        }
    }

    fn share(&self, place: Place, part: Part, writable: bool) -> Result<Share, ScmError> {
        let (name, bytes, access) = match part {
            Part::Identities => {
                let name = identities_name(place.number);
                (name, identity_bytes(place.pages), OFlags::RDONLY)
            }
            Part::Class(identity) => {
                let access = match writable {
                    true => OFlags::RDWR,
                    false => OFlags::RDONLY,
                };
                let name = class_name(place.class(identity));
                (name, place.pages * PAGE_BYTES, access)
            }
        };
        let file = self.open_file(&name, access)?;
        let none = || ScmError::Denied("no extent has had this identity".to_owned());
        let descriptor = OwnedFd::from(file.ok_or_else(none)?);
        let base = 0;
        Ok(Share {
            descriptor,
            base,
            bytes,
        })
    }
}

/// Offset and bytes of a run.
fn bytes_of(run: Run) -> (u64, u64) {
    (run.first * PAGE_BYTES, run.pages * PAGE_BYTES)
}

/// Reads bytes. Those after the end of the file are zeros: a client may have cut it.
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => {
                bytes[done..].fill(0);
                return Ok(());
            }
            Ok(read) => done += read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn identities_name(number: u32) -> String {
    format!("identities-{number:08x}")
}

fn class_name(class: Class) -> String {
    let (number, identity) = (class.place.number, class.identity.raw());
    format!("class-{number:08x}-{identity:08x}")
}

/// The number of the partition in the name of a file, and the identity if it is that of a class.
fn parse(name: &str) -> Option<(u32, Option<Identity>)> {
    let hex = |text: &str| {
        u32::from_str_radix(text, 16)
            .ok()
            .filter(|_| text.len() == 8)
    };
    if let Some(number) = name.strip_prefix("identities-") {
        return Some((hex(number)?, None));
    }
    let (number, identity) = name.strip_prefix("class-")?.split_once('-')?;
    let identity = Identity::from_raw(hex(identity)?);
    Some((hex(number)?, Some(identity)))
}
