//! The state of a process: its connection to the store, its descriptors, its working directory.
//!
//! Guarantees:
//!
//! 1. A process that makes no call on the store connects to nothing.
//! 2. A child has a connection of its own. It gets one at its first call on the store. A process whose connection
//!    has ended gets a new one; a call fails if changes are lost with the old one.
//! 3. A description keeps its file in this process's file system while a descriptor of the process, its
//!    working directory, or a call, uses it. It is used in [`Shared`] while a process uses it.
//!
//! After a fork other threads do not exist in the child. Calls hold the gate shared and a fork holds it
//! alone, so that no lock of this library is taken at that moment.

mod callers;
mod file;
mod limit;
mod place;
mod reserved;
mod vfork;

pub(crate) use callers::Caller;
pub(crate) use file::{File, open_flags};
pub(crate) use place::Working;
pub(crate) use reserved::Reserved;

use crate::Backend;
use crate::abi::{FD_LIMIT, FDS, HAS_FILES, OWN, Surroundings, thread};
use crate::custody::{Custodian, Id};
use crate::kernel::{self, Result};
use crate::own::Descriptor;
use crate::shared::{Backing, DESCRIPTIONS, Reason, Shared};
use callers::Callers;
use std::collections::HashMap;
use std::ffi::CString;
use std::hash::Hash;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use vfs::{Ctx, Errno, FileSystem, Ino, OpenFlags, Paths};

/// For each description, the number of its users in this process, with [`REFERS`] added if the process's
/// file system has it open.
static LOCAL: [AtomicU32; DESCRIPTIONS] = [const { AtomicU32::new(0) }; DESCRIPTIONS];
const REFERS: u32 = 1 << 31;
/// The device number of files where the store is not mounted.
const DEVICE: u64 = 0x5e1;

static PROCESS: OnceLock<Process> = OnceLock::new();

/// A lock that stands for one of a file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockOf {
    /// Those of a process, on an inode.
    Process(Ino),
    /// Those of an open file description.
    Description(u32),
}

/// A connection of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connection(*mut &'static dyn FileSystem);

/// The state of this process.
pub(crate) struct Process {
    /// The absolute path of the mount point, without `/` at its end.
    pub(crate) at: Vec<u8>,
    /// The store, as the backend names it.
    pub(crate) store: String,
    /// The path of this library.
    pub(crate) library: String,
    pub(crate) shared: &'static Shared,
    /// The descriptor of `shared`.
    pub(crate) memory: u32,
    /// The descriptor of which those of the store are duplicates.
    pub(crate) placeholder: u32,
    pub(crate) backend: &'static dyn Backend,
    /// The connection, or null. It lasts until the process ends, also one that another one has followed, since threads of
    /// the backend use it. A child of a fork leaves that of its parent as it is.
    fs: AtomicPtr<&'static dyn FileSystem>,
    connecting: Mutex<()>,
    /// Whether changes are lost of which no call has told the program.
    has_lost: AtomicBool,
    /// Whether a child that is being made shares the table of descriptors.
    pub(crate) shares_descriptors: AtomicBool,
    pub(crate) gate: RwLock<()>,
    callers: Callers,
    users_differ: AtomicBool,
    /// Those of the process itself.
    own_surroundings: Surroundings,
    /// No file may be larger; `u64::MAX` without a limit.
    size_limit: AtomicU64,
    /// Where paths have led.
    pub(crate) paths: Paths,
    /// No descriptor of the store is greater.
    highest: AtomicU32,
    /// Descriptors of files that have the locks.
    locks: Mutex<HashMap<LockOf, u32>>,
    /// Keeps files of the kernel for the processes of the run.
    pub(crate) custodian: Custodian,
    /// The files of the kernel for descriptions, by their numbers.
    pub(crate) kernel_files: Mutex<HashMap<u32, Arc<Descriptor>>>,
    /// Held by threads that close or replace descriptors.
    descriptors: Mutex<()>,
    /// Held by threads that change the working directory.
    moving: Mutex<()>,
    /// [`Shared::backed`] when this process last looked.
    pub(crate) seen_backed: AtomicU32,
    /// Descriptors on the mount of files that have shared mappings, with their access.
    pub(crate) mapped: Mutex<HashMap<Ino, (Arc<Descriptor>, OpenFlags)>>,
    /// The id of the process. A fork sets it to 0 in the child.
    alive: &'static AtomicU32,
}

/// The state that a program passes to the next one.
pub(crate) struct Start {
    pub(crate) at: Vec<u8>,
    pub(crate) store: String,
    pub(crate) library: String,
    pub(crate) memory: u32,
    pub(crate) placeholder: u32,
    pub(crate) custodian: u32,
    /// The number and the generation of the working directory, if it is in the store.
    pub(crate) cwd: Option<(Ino, u64)>,
    /// Descriptors and their descriptions.
    pub(crate) files: Vec<(u32, u32)>,
    /// Descriptors that have the record locks of the process, and the inodes.
    pub(crate) locks: Vec<(u32, Ino)>,
}

/// The state of this process, which exists as soon as calls arrive.
pub(crate) fn process() -> &'static Process {
    PROCESS
        .get()
        .expect("made before any instruction is replaced")
}

/// The table of descriptors of this process, or of this child of `vfork`.
pub(crate) fn table() -> &'static [AtomicU32; FD_LIMIT] {
    match thread().fds.load(Relaxed) {
        0 => &FDS,
        // SAFETY: `vfork` made the table, of this size and zeroed, and keeps it until the child has ended.
        address => unsafe { &*(address as *const [AtomicU32; FD_LIMIT]) },
    }
}

/// A zeroed word that is zeroed again in a child.
fn word_wiped_by_fork() -> Result<&'static AtomicU32> {
    let args = [
        0,
        4096,
        3,
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64,
        u64::MAX,
        0,
    ];
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = kernel::result(unsafe { crate::raw::syscall(libc::SYS_mmap, args) })?;
    let args = [page, 4096, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
    // SAFETY: the page was made above.
    kernel::result(unsafe { crate::raw::syscall(libc::SYS_madvise, args) })?;
    // SAFETY: the page is zeroed, never unmapped, and used as this word only.
    Ok(unsafe { &*(page as *const AtomicU32) })
}

impl Process {
    /// Makes the state. Descriptors that the executing program passed on are adopted.
    pub(crate) fn start(start: Start, backend: &'static dyn Backend) -> Result<&'static Self> {
        let shared = Shared::map(start.memory)?;
        let alive = word_wiped_by_fork()?;
        alive.store(kernel::process_id(), Relaxed);
        let process = Self {
            at: start.at,
            store: start.store,
            library: start.library,
            shared,
            memory: start.memory,
            placeholder: start.placeholder,
            backend,
            fs: AtomicPtr::new(null_mut()),
            connecting: Mutex::new(()),
            has_lost: AtomicBool::new(false),
            shares_descriptors: AtomicBool::new(false),
            gate: RwLock::new(()),
            callers: Callers::default(),
            users_differ: AtomicBool::new(false),
            own_surroundings: Surroundings::unknown(),
            size_limit: AtomicU64::new(u64::MAX),
            paths: Paths::default(),
            highest: AtomicU32::new(0),
            locks: Mutex::new(HashMap::new()),
            custodian: Custodian(start.custodian),
            kernel_files: Mutex::new(HashMap::new()),
            descriptors: Mutex::new(()),
            moving: Mutex::new(()),
            seen_backed: AtomicU32::new(0),
            mapped: Mutex::new(HashMap::new()),
            alive,
        };
        for fd in [start.memory, start.placeholder, start.custodian] {
            crate::own::mark(fd)?;
        }
        for (fd, ino) in start.locks {
            if kernel::set_closes_on_exec(fd, true).is_ok() {
                crate::own::mark(fd)?;
                process.locks_held().insert(LockOf::Process(ino), fd);
            }
        }
        for (fd, number) in start.files {
            if kernel::closes_on_exec(fd) == Ok(false) {
                process.note(fd, number);
                LOCAL[number as usize].fetch_add(1, Relaxed);
            }
        }
        process.learn_size_limit();
        let cwd = start.cwd.map(|inode| process.described(inode));
        process.set_cwd(cwd.transpose()?);
        PROCESS.set(process).map_err(|_| Errno::ALREADY)?;
        Ok(self::process())
    }

    /// The file system of this process.
    pub(crate) fn fs(&self) -> Result<&'static dyn FileSystem> {
        match self.connected() {
            Some(fs) => Ok(fs),
            None => self.connect(),
        }
    }

    #[cold]
    fn connect(&self) -> Result<&'static dyn FileSystem> {
        if self.is_vfork_child() {
            return Err(Errno::IO);
        }
        let _one_at_a_time = self
            .connecting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(fs) = self.connected() {
            return Ok(fs);
        }
        if self.has_lost() {
            return Err(Errno::IO); // `tell_loss` follows
        }
        let _quiet = kernel::Quiet::new(); // threads of the backend get no signals of the program
        let connected = self.backend.connect(&self.store).map_err(|error| {
            eprintln!(
                "selvedge run: cannot reach the store {}: {error}",
                self.store
            );
            Errno::IO
        })?;
        let fs: &'static dyn FileSystem = &**Box::leak(Box::new(connected));
        self.fs.store(Box::leak(Box::new(fs)), Release);
        Ok(fs)
    }

    /// The file system, if the process has used it.
    pub(crate) fn connected(&self) -> Option<&'static dyn FileSystem> {
        // SAFETY: the pointer is null or that of a leaked box, which nobody changes.
        unsafe { self.fs.load(Acquire).as_ref() }.copied()
    }

    /// The connection, to tell it from the one that follows it.
    pub(crate) fn connection(&self) -> Connection {
        Connection(self.fs.load(Acquire))
    }

    /// Leaves a connection by which a call has failed with `ENODEV`, if it has ended: the service ends that of a process
    /// which was stopped for long, and of all when it ends itself. The next call connects again, and fails with `EIO` if
    /// changes are lost with the connection. Returns whether it is left.
    pub(crate) fn leave_connection(&self, used: Connection) -> bool {
        let has_ended = |fs: &dyn FileSystem| matches!(fs.statfs(), Err(Errno::NODEV));
        if used.0.is_null() || self.is_vfork_child() {
            return false;
        }
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let Some(fs) = self.connected().filter(|_| self.connection() == used) else {
            return true; // another thread was here
        };
        if !has_ended(fs) {
            return false; // the answer of a call
        }
        let _ = self.finish(fs);
        self.fs.store(null_mut(), Release);
        self.forget_references();
        true
    }

    /// Sends what was not sent, and notes a loss.
    pub(crate) fn finish(&self, fs: &dyn FileSystem) -> Result<()> {
        let finished = self.backend.finish(fs);
        if !matches!(finished, Ok(()) | Err(Errno::NODEV)) {
            self.has_lost.store(true, Relaxed);
        }
        finished
    }

    /// Whether changes are lost of which no call has told the program.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Relaxed)
    }

    /// A call returns `EIO` to the program.
    pub(crate) fn tell_loss(&self) {
        self.has_lost.store(false, Relaxed);
    }

    /// The next connection has no references. The next use of a description opens its file again.
    fn forget_references(&self) {
        self.paths.clear();
        for local in &LOCAL {
            if local.load(Relaxed) & REFERS != 0 {
                local.fetch_and(!REFERS, AcqRel);
            }
        }
    }

    /// The caller of calls on paths.
    pub(crate) fn cx(&self) -> Result<Caller> {
        // A child of `vfork` may have another user than its parent, and so may a thread.
        let is_kept = thread().fds.load(Relaxed) == 0 && !self.users_differ.load(Relaxed);
        if let (true, Some(known)) = (is_kept, self.callers.known()) {
            return Ok(Caller::Kept(known));
        }
        let changes = self.callers.changes();
        let (uid, gid, groups) = kernel::credentials(false)?;
        let cx = Ctx {
            gid,
            groups,
            pid: kernel::process_id(),
            ..Ctx::somewhere(uid, gid)
        };
        Ok(match is_kept {
            true => Caller::Kept(self.callers.keep(cx, changes)),
            false => Caller::Own(Box::new(cx)),
        })
    }

    /// The caller of `access`, which asks for the real user.
    pub(crate) fn real_cx(&self) -> Result<Ctx> {
        let (uid, gid, groups) = kernel::credentials(true)?;
        Ok(Ctx {
            groups,
            ..Ctx::user(uid, gid)
        })
    }

    /// The caller of calls that an open descriptor permits.
    pub(crate) fn permitted(&self) -> Result<Ctx> {
        Ok(Ctx {
            checked: true,
            ..Ctx::clone(&*self.cx()?)
        })
    }

    /// From now on threads may have different users.
    pub(crate) fn separate_users(&self) {
        self.users_differ.store(true, Relaxed);
    }

    /// The process may have another user.
    pub(crate) fn forget_credentials(&self) {
        self.callers.forget();
    }

    /// The device number of the mount, if the store is mounted.
    pub(crate) fn mounted(&self) -> Option<u64> {
        static FOUND: OnceLock<Option<u64>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let at = CString::new(self.at.clone()).ok()?;
            let above = CString::new([&self.at[..], b"/.."].concat()).ok()?;
            let device = kernel::device(&at).ok()?;
            (device != kernel::device(&above).ok()?).then_some(device)
        })
    }

    /// The device number of the store's files.
    pub(crate) fn device(&self) -> u64 {
        self.mounted().unwrap_or(DEVICE)
    }

    /// Sets up this process if it is the child of a fork that nobody has seen.
    pub(crate) fn notice_fork(&self) {
        if self.alive.load(Relaxed) == 0 {
            self.become_child();
        }
    }

    /// Prepares for a fork: the child will use all descriptions.
    pub(crate) fn share_with_child(&self) {
        self.each_description(|number| {
            self.shared.description(number).refs.fetch_add(1, AcqRel);
        });
    }

    /// The process ends, and uses no description any more. A child of `vfork` has used none itself.
    pub(crate) fn end(&self) {
        if !self.is_vfork_child() {
            self.no_child();
        }
    }

    /// The fork has failed.
    pub(crate) fn no_child(&self) {
        self.each_description(|number| self.give_up(number));
    }

    /// Stops using a description.
    pub(crate) fn give_up(&self, number: u32) {
        let (id, description) = (self.id_of(number), self.shared.description(number));
        let has_file = description.backing() != Backing::None;
        if description.refs.fetch_sub(1, AcqRel) == 1 && has_file {
            self.custodian.drop(id);
        }
    }

    /// Stops using a description before the process becomes a program without this library. If no other process uses it, it
    /// stays in use: the program may not start. Returns whether it has stopped.
    pub(crate) fn leave(&self, number: u32) -> bool {
        let refs = &self.shared.description(number).refs;
        let fewer = |refs: u32| (refs > 1).then_some(refs - 1);
        refs.fetch_update(AcqRel, Relaxed, fewer).is_ok()
    }

    /// Uses a description again, if another process still does.
    pub(crate) fn come_back(&self, number: u32) {
        let refs = &self.shared.description(number).refs;
        let more = |refs: u32| (refs > 0).then_some(refs + 1);
        let _ = refs.fetch_update(AcqRel, Relaxed, more);
    }

    /// The description of this number, as it is now.
    pub(crate) fn id_of(&self, number: u32) -> Id {
        let generation = self.shared.description(number).generation();
        Id { number, generation }
    }

    /// The descriptions of the descriptors and of the working directory.
    fn descriptions(&self) -> impl Iterator<Item = u32> + use<> {
        let of_files = self.files().map(|(_, number)| number);
        of_files.chain(self.cwd_number())
    }

    /// Calls once for each description that has a descriptor, or is the working directory.
    fn each_description(&self, mut call: impl FnMut(u32)) {
        let mut numbers: Vec<u32> = self.descriptions().collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().for_each(&mut call);
    }

    /// The descriptors of the store, with their descriptions.
    pub(crate) fn files(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let highest = self.highest.load(Relaxed);
        let table = table();
        (0..=highest).filter_map(move |fd| match table[fd as usize].load(Relaxed) {
            0 | OWN => None,
            entry => Some((fd, entry - 1)),
        })
    }

    /// Starts the life of a child.
    pub(crate) fn become_child(&self) {
        self.alive.store(kernel::process_id(), Relaxed);
        thread().id.store(0, Relaxed);
        // The connection belongs to the parent, and ends with it: this process has nothing that keeps it open.
        self.fs.store(null_mut(), Release);
        self.has_lost.store(false, Relaxed);
        let shares_descriptors = self.shares_descriptors.load(Relaxed);
        if !shares_descriptors {
            let is_shared = |fd: &u32| *fd == self.custodian.0 || !kernel::is_socket(*fd);
            let sockets = crate::own::all().filter(|fd| !is_shared(fd));
            sockets.for_each(crate::own::close);
        }
        self.paths.clear();
        self.forget_credentials();
        self.descriptions()
            .for_each(|number| LOCAL[number as usize].store(0, Relaxed));
        self.descriptions().for_each(|number| {
            LOCAL[number as usize].fetch_add(1, Relaxed);
        });
        let mut locks = self.locks_held();
        locks.retain(|of, fd| match of {
            LockOf::Process(_) if shares_descriptors => true,
            LockOf::Process(_) => {
                crate::own::close(*fd);
                false
            }
            LockOf::Description(_) => true,
        });
    }

    fn note(&self, fd: u32, number: u32) {
        self.highest.fetch_max(fd, Relaxed);
        HAS_FILES.store(1, Relaxed);
        table()[fd as usize].store(number + 1, Release);
    }

    /// A descriptor that the kernel made as a duplicate of one of `number`.
    pub(crate) fn duplicated(&self, fd: u32, number: u32) -> Result<()> {
        if fd as usize >= FD_LIMIT {
            let _ = kernel::close(fd);
            return Err(Errno::MFILE);
        }
        LOCAL[number as usize].fetch_add(1, AcqRel);
        self.note(fd, number);
        Ok(())
    }

    /// Holds back other threads that close or replace descriptors.
    pub(crate) fn changes_descriptors(&self) -> MutexGuard<'_, ()> {
        let held = self.descriptors.lock();
        held.unwrap_or_else(PoisonError::into_inner)
    }

    /// The description of a descriptor of the store.
    pub(crate) fn number_of(&self, fd: u32) -> Option<u32> {
        match table().get(fd as usize)?.load(Acquire) {
            0 | OWN => None,
            entry => Some(entry - 1),
        }
    }

    /// Forgets a descriptor of the store. The kernel's is closed by the caller, afterwards.
    pub(crate) fn forget_fd(&self, fd: u32) {
        let Some(entry) = table().get(fd as usize) else {
            return;
        };
        match entry.load(Relaxed) {
            0 | OWN => {}
            old => {
                if entry.compare_exchange(old, 0, AcqRel, Relaxed).is_ok() {
                    self.drop_locks_of_process(self.shared.description(old - 1).ino());
                    self.drop_user(old - 1);
                }
            }
        }
    }

    /// The descriptors that have locks.
    pub(crate) fn locks_held(&self) -> MutexGuard<'_, HashMap<LockOf, u32>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The descriptors that have record locks of the process, with the inodes.
    pub(crate) fn record_locks(&self) -> Vec<(u32, Ino)> {
        let locks = self.locks_held();
        let records = locks.iter().filter_map(|(of, fd)| match of {
            LockOf::Process(ino) => Some((*fd, *ino)),
            LockOf::Description(_) => None,
        });
        records.collect()
    }

    /// Closing any descriptor of a file drops the process's locks of it.
    fn drop_locks_of_process(&self, ino: Ino) {
        if thread().fds.load(Relaxed) != 0 {
            return; // a child of `vfork` has no locks
        }
        // Its end drops them, too.
        remove_from(&self.mapped, &ino);
        let removed = remove_from(&self.locks, &LockOf::Process(ino));
        if let Some(fd) = removed {
            crate::own::close(fd);
        }
    }

    fn drop_user(&self, number: u32) {
        let local = &LOCAL[number as usize];
        if local.fetch_sub(1, AcqRel) & !REFERS != 1 {
            return;
        }
        let description = self.shared.description(number);
        let refers = local.swap(0, AcqRel) & REFERS != 0;
        if let (true, Some(fs)) = (refers, self.connected()) {
            fs.release(description.ino());
        }
        let lock = remove_from(&self.locks, &LockOf::Description(number));
        if let Some(fd) = lock {
            crate::own::close(fd);
        }
        drop(remove_from(&self.kernel_files, &number));
        self.give_up(number);
    }

    /// The open file that a path like `/dev/fd/3` names, if it is one of the store, and the rest of the path.
    pub(crate) fn named_by_number<'p>(&self, path: &'p [u8]) -> Option<(File, &'p [u8])> {
        let number = match path {
            b"/dev/stdin" => return Some((self.file(0)?, b"")),
            b"/dev/stdout" => return Some((self.file(1)?, b"")),
            b"/dev/stderr" => return Some((self.file(2)?, b"")),
            _ => of_descriptors(path)?,
        };
        let end = number.iter().position(|byte| *byte == b'/');
        let (number, rest) = number.split_at(end.unwrap_or(number.len()));
        let number: u32 = std::str::from_utf8(number).ok()?.parse().ok()?;
        Some((self.file(number.into())?, rest))
    }

    /// The file of a descriptor, if it is one of the store.
    pub(crate) fn file(&self, fd: u64) -> Option<File> {
        self.file_of(table().get(fd as u32 as usize)?)
    }

    /// The file whose description, plus 1, an entry has.
    fn file_of(&self, entry: &AtomicU32) -> Option<File> {
        loop {
            let number = match entry.load(Acquire) {
                0 | OWN => return None,
                entry => entry - 1,
            };
            let more = |users: u32| (users & !REFERS != 0).then_some(users + 1);
            if LOCAL[number as usize]
                .fetch_update(AcqRel, Relaxed, more)
                .is_err()
            {
                continue; // closed meanwhile
            }
            let file = File {
                number,
                description: self.shared.description(number),
            };
            if entry.load(Acquire) == number + 1 {
                return Some(file);
            }
        }
    }

    pub(crate) fn count(&self, reason: Reason) {
        self.shared.count(reason);
    }

    /// The id of the process itself.
    fn id(&self) -> u32 {
        self.alive.load(Relaxed)
    }
}

/// The rest of a path after the directory with the descriptors of this process.
fn of_descriptors(path: &[u8]) -> Option<&[u8]> {
    if let Some(number) = path.strip_prefix(b"/dev/fd/") {
        return Some(number);
    }
    let below = path.strip_prefix(b"/proc/")?;
    let slash = below.iter().position(|byte| *byte == b'/')?;
    let (process, rest) = below.split_at(slash);
    let number = std::str::from_utf8(process)
        .ok()
        .and_then(|text| text.parse().ok());
    let is_own = || number == Some(kernel::process_id());
    match process {
        b"self" | b"thread-self" => rest.strip_prefix(b"/fd/"),
        _ => rest.strip_prefix(b"/fd/").filter(|_| is_own()),
    }
}

/// Removes an entry of a table that is usually empty, after which the table is free for others.
fn remove_from<K: Eq + Hash, V>(table: &Mutex<HashMap<K, V>>, key: &K) -> Option<V> {
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    match table.is_empty() {
        true => None,
        false => table.remove(key),
    }
}
