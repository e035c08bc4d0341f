//! Memory that all processes of a run share: open file descriptions, locks of files, counts, and the places
//! of `syscall` instructions that were found already.
//!
//! Guarantees:
//!
//! 1. A description belongs to at most one file while a process uses it ([`Description::refs`]). A process
//!    that is killed keeps its descriptions used until the run ends.
//! 2. A lock whose holder has died is taken over.
//!
//! A process that writes nonsense here harms the processes of its own run only: the memory decides neither
//! permissions nor contents of the store, which belong to the file system itself.

use crate::kernel::{self, Result};
use crate::sites::{Found, Site};
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use vfs::{Errno, Ino};

/// Open file descriptions of a run.
pub(crate) const DESCRIPTIONS: usize = 1 << 16;
const OBJECTS: usize = 1 << 10;
const SITES: usize = 1 << 16;
/// Bits for the files that have shared mappings. Files whose numbers differ by a multiple share one.
const MAPPED_BITS: usize = 1 << 20;

/// A reason for which a call was not answered in the process, or a kind of answer. `--stats` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Reason {
    /// Answered in the process.
    Answered,
    /// A mapping that others see (`MAP_SHARED`), or a call on the contents of a file that has one.
    SharedMapping,
    /// A file of the store is executed.
    Execute,
    /// A lock of a part of a file, or of a file.
    Lock,
    /// A call without an answer here: `ioctl`, `inotify_add_watch`, file handles.
    Other,
}

impl Reason {
    /// All reasons, with what `--stats` prints.
    pub const ALL: [(Self, &str); 5] = [
        (Self::Answered, "answered in the process"),
        (Self::SharedMapping, "to the mount: shared mappings"),
        (Self::Execute, "to the mount: programs executed"),
        (Self::Lock, "to the mount: locks"),
        (Self::Other, "to the mount: other calls"),
    ];
}

/// A lock between processes. 0, or the id of the thread that holds it; with [`WAITED`] if others wait.
pub(crate) struct Lock(AtomicU32);

const WAITED: u32 = 1 << 31;

/// Holds a [`Lock`].
pub(crate) struct Held<'a>(&'a Lock);

impl Lock {
    pub(crate) fn lock(&self) -> Held<'_> {
        let me = kernel::thread_id();
        loop {
            match self.0.compare_exchange(0, me, Acquire, Relaxed) {
                Ok(_) => return Held(self),
                Err(now) if now & !WAITED == me => return Held(self), // of a thread with our id that died
                Err(now) => self.wait_for(now),
            }
        }
    }

    fn wait_for(&self, now: u32) {
        let waited = now | WAITED;
        if now != waited
            && self
                .0
                .compare_exchange(now, waited, Relaxed, Relaxed)
                .is_err()
        {
            return;
        }
        kernel::wait(&self.0, waited, 100_000_000);
        if self.0.load(Relaxed) == waited && !kernel::thread_exists(now & !WAITED) {
            let _ = self.0.compare_exchange(waited, 0, AcqRel, Relaxed);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, Release) & WAITED != 0 {
            kernel::wake(&self.0.0);
        }
    }
}

/// An open file description: what all duplicates of a descriptor share.
pub(crate) struct Description {
    /// Processes that use it; 0 if it is free.
    pub(crate) refs: AtomicU32,
    /// A number that differs for each file which the description has had.
    generation: AtomicU32,
    /// A [`Backing`].
    backing: AtomicU32,
    /// `O_APPEND` and the other flags of `open`.
    pub(crate) flags: AtomicU32,
    /// Serialises calls that use the offset.
    pub(crate) offset_lock: Lock,
    name_len: AtomicU32,
    pub(crate) ino: AtomicU64,
    /// `Attr::generation` of the inode.
    ino_generation: AtomicU64,
    /// Offset of a file, or cookie of a directory.
    pub(crate) offset: AtomicU64,
    /// The directory in which the file was opened, or 0.
    parent: AtomicU64,
    name: [AtomicU8; 256],
}

/// The file that the kernel has for a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Backing {
    /// A placeholder.
    None,
    /// A file on the mount, for locks.
    Locks,
    /// A file on the mount, whose offset is that of the description. Programs without this library may use it.
    Whole,
}

impl Description {
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Relaxed)
    }

    /// Whether a process uses it.
    pub(crate) fn is_used(&self) -> bool {
        self.refs.load(Acquire) > 0
    }

    pub(crate) fn backing(&self) -> Backing {
        match self.backing.load(Acquire) {
            0 => Backing::None,
            1 => Backing::Locks,
            _ => Backing::Whole,
        }
    }

    pub(crate) fn set_backing(&self, backing: Backing) {
        self.backing.store(backing as u32, Release);
    }

    pub(crate) fn ino(&self) -> Ino {
        Ino(self.ino.load(Relaxed))
    }

    /// The inode, and its generation: another file may have its number when this one is gone.
    pub(crate) fn inode(&self) -> (Ino, u64) {
        (self.ino(), self.ino_generation.load(Relaxed))
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// The directory and the name by which the file was opened.
    pub(crate) fn opened_as(&self) -> Option<(Ino, Vec<u8>)> {
        let parent = self.parent.load(Relaxed);
        let len = (self.name_len.load(Relaxed) as usize).min(self.name.len());
        let name = self.name[..len]
            .iter()
            .map(|byte| byte.load(Relaxed))
            .collect();
        (parent != 0).then_some((Ino(parent), name))
    }
}

/// A machine-code object whose sites are known.
struct Object {
    /// Key; 0 if the entry is free.
    key: AtomicU64,
    first: AtomicU32,
    count: AtomicU32,
}

/// The memory. All bits 0 is its valid first state.
pub(crate) struct Shared {
    counts: [AtomicU64; Reason::ALL.len()],
    next: AtomicU32,
    /// Changes when a description gets a file of the kernel.
    backed: AtomicU32,
    /// Whether a bit is set.
    has_mapped: AtomicU32,
    mapped: [AtomicU64; MAPPED_BITS / 64],
    objects_lock: Lock,
    sites_used: AtomicU32,
    objects: [Object; OBJECTS],
    sites: [[AtomicU32; 2]; SITES],
    descriptions: [Description; DESCRIPTIONS],
}

impl Shared {
    /// Maps the memory in the file `fd`, which has [`size_of`] bytes.
    pub(crate) fn map(fd: u32) -> Result<&'static Self> {
        let args = [
            0,
            size_of::<Self>() as u64,
            3,
            libc::MAP_SHARED as u64,
            fd.into(),
            0,
        ];
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = kernel::result(unsafe { crate::raw::syscall(libc::SYS_mmap, args) })?;
        // SAFETY: the mapping has the size of the structure, is never unmapped, and all fields are
        // atomics, which other processes may change.
        Ok(unsafe { &*(address as *const Self) })
    }

    pub(crate) fn count(&self, reason: Reason) {
        self.counts[reason as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn counted(&self, reason: Reason) -> u64 {
        self.counts[reason as usize].load(Relaxed)
    }

    /// The number of times that a description has got a file of the kernel.
    pub(crate) fn backed(&self) -> u32 {
        self.backed.load(Acquire)
    }

    /// A description has got a file of the kernel, which the processes that share it are to get, too.
    pub(crate) fn has_backed(&self) {
        self.backed.fetch_add(1, Release);
    }

    /// A process makes a shared mapping of the file. This is known until the run ends.
    pub(crate) fn set_mapped(&self, ino: Ino) {
        let (word, bit) = self.mapped_bit(ino);
        word.fetch_or(bit, Release);
        self.has_mapped.store(1, Release);
    }

    /// Whether a process has, or had, a shared mapping of the file, or of one that shares its bit.
    pub(crate) fn is_mapped(&self, ino: Ino) -> bool {
        let (word, bit) = self.mapped_bit(ino);
        self.has_mapped() && word.load(Acquire) & bit != 0
    }

    /// Whether there was a shared mapping of any file.
    pub(crate) fn has_mapped(&self) -> bool {
        self.has_mapped.load(Acquire) != 0
    }

    fn mapped_bit(&self, ino: Ino) -> (&AtomicU64, u64) {
        let number = ino.0 as usize % MAPPED_BITS;
        (&self.mapped[number / 64], 1 << (number % 64))
    }

    pub(crate) fn description(&self, number: u32) -> &Description {
        &self.descriptions[number as usize % DESCRIPTIONS]
    }

    /// Takes a free description. `ENFILE` if all are in use.
    pub(crate) fn reserve(&self) -> Result<u32> {
        let first = self.next.load(Relaxed);
        let mut numbers = (0..DESCRIPTIONS as u32).map(|n| (first + n) % DESCRIPTIONS as u32);
        let is_free = |number: &u32| {
            let refs = &self.description(*number).refs;
            refs.load(Relaxed) == 0 && refs.compare_exchange(0, 1, AcqRel, Relaxed).is_ok()
        };
        let number = numbers.find(is_free).ok_or(Errno::NFILE)?;
        self.next.store(number, Relaxed);
        let description = self.description(number);
        description.generation.fetch_add(1, Relaxed);
        description.set_backing(Backing::None);
        Ok(number)
    }

    /// Fills a description that was taken: with a file, of this number and generation.
    pub(crate) fn describe(
        &self,
        number: u32,
        (ino, ino_generation): (Ino, u64),
        flags: u32,
        opened_as: Option<(Ino, &[u8])>,
    ) {
        let description = self.description(number);
        let (parent, name) = opened_as.unwrap_or((Ino(0), b""));
        description.flags.store(flags, Relaxed);
        description.ino.store(ino.0, Relaxed);
        let generation = &description.ino_generation;
        generation.store(ino_generation, Relaxed);
        description.offset.store(0, Relaxed);
        description.parent.store(parent.0, Relaxed);
        description
            .name_len
            .store(name.len().min(255) as u32, Relaxed);
        for (to, from) in description.name.iter().zip(name) {
            to.store(*from, Relaxed);
        }
    }

    /// The known sites of an object.
    pub(crate) fn sites(&self, key: u64) -> Option<Vec<Site>> {
        let mut known = self
            .objects
            .iter()
            .take_while(|object| object.key.load(Acquire) != 0);
        let object = known.find(|object| object.key.load(Relaxed) == key)?;
        let first = object.first.load(Relaxed) as usize;
        let sites = self
            .sites
            .get(first..first + object.count.load(Relaxed) as usize)?;
        Some(
            sites
                .iter()
                .map(|words| unpack(words[0].load(Relaxed), words[1].load(Relaxed)))
                .collect(),
        )
    }

    /// Keeps the sites of an object, if there is room.
    pub(crate) fn keep_sites(&self, key: u64, found: &Found) {
        let _held = self.objects_lock.lock();
        let first = self.sites_used.load(Relaxed) as usize;
        let object = self
            .objects
            .iter()
            .find(|object| object.key.load(Relaxed) == 0);
        let room = self.sites.get(first..first + found.sites.len());
        let (Some(object), Some(room), None) = (object, room, self.sites(key)) else {
            return;
        };
        for (words, site) in room.iter().zip(&found.sites) {
            let packed =
                u32::from(site.before) << 24 | u32::from(site.after) << 16 | u32::from(site.number);
            words[0].store(site.start, Relaxed);
            words[1].store(packed, Relaxed);
        }
        self.sites_used.fetch_add(found.sites.len() as u32, Relaxed);
        object.first.store(first as u32, Relaxed);
        object.count.store(found.sites.len() as u32, Relaxed);
        object.key.store(key, Release);
    }
}

fn unpack(start: u32, packed: u32) -> Site {
    Site {
        start,
        before: (packed >> 24) as u8,
        after: (packed >> 16) as u8,
        number: packed as u16,
    }
}
