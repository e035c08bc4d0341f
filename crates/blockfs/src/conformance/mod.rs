//! A suite that every format must pass. It tests the statements of [`Format`] through the steps.
//!
//! A format states how an image of it is made and opened ([`Subject`]), and its tests run
//! [`check`] on that, on each stack that they support. Images are small, since the suite fills
//! them several times: 512 to 4096 free blocks, and 24 to 256 free inodes.
//!
//! The suite tests the format alone. The crash explorer tests the promises of a file system with
//! this format, in every state that a crash can leave.

mod attributes;
mod blocks;
mod crashes;
mod disks;
mod durability;
mod inodes;
mod names;
mod space;

use crate::{Format, FormatError, Heads, NewInode, Piece, after};
use disks::Disks;
use medium::block::MemoryDevice;
use patch::stack::{Mode, Stack};
use patch::{Cache, Journal, Op, PatchId, Rule, Store, StoreError};
use std::sync::Arc;
use vfs::{Errno, FileType, Ino, StatFs, Timestamp};

/// A format to be tested.
pub trait Subject {
    /// The format.
    type Format: Format;

    /// A new image that holds nothing but an empty root directory.
    fn image(&self) -> Arc<MemoryDevice>;

    /// Opens the image in a store, after a crash as well.
    ///
    /// # Errors
    /// The defect of the image, in one line.
    fn open(&self, store: Arc<dyn Store>) -> Result<Self::Format, String>;
}

/// A statement of [`Format`] that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The check that found it.
    pub check: &'static str,
    /// The violation.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

/// Runs all checks on a stack, such as `uhfs > toy > cache > disk`. Each begins with a new image.
/// A journal has its log on device 1. Stacks without an order are not crashed.
pub fn check<S: Subject>(subject: &S, stack: &str) -> Vec<Failure> {
    let stack: Stack = match stack.parse() {
        Ok(stack) => stack,
        Err(error) => {
            let (check, what) = ("stack", format!("{error}"));
            return vec![Failure { check, what }];
        }
    };
    let checks: &[Check<S>] = &[
        ("inode fields", inodes::keep_their_fields),
        ("inode numbers", inodes::are_used_again),
        ("inodes run out", inodes::run_out),
        ("sizes", inodes::have_a_largest_size),
        ("orphans", inodes::are_noted_as_orphans),
        ("names", names::are_found),
        ("cookies", names::are_listed_from_any_cookie),
        ("replaced names", names::are_replaced),
        ("room in directories", names::leave_room),
        ("holes", blocks::fill_holes_with_zeros),
        ("blocks", blocks::hold_what_was_written),
        ("freed blocks", blocks::are_freed_in_parts),
        ("no space", space::runs_out_without_effect),
        ("reserve", space::is_kept),
        ("attributes", attributes::are_replaced),
        ("targets", attributes::have_a_longest_target),
        ("unmounts", durability::survives_unmounts),
    ];
    // A store without an order promises nothing after a crash.
    let of_crashes: &[Check<S>] = match stack.mode() {
        Mode::Async => &[],
        Mode::SoftUpdates | Mode::JournalMetadata | Mode::JournalOrdered | Mode::Journal => &[
            ("synced steps", durability::keeps_synced_steps),
            ("crashes", crashes::leave_what_can_be_used),
            ("attempts", crashes::are_survived_by_attempts),
        ],
    };
    let suite = Suite { subject, stack };
    let run = |&(check, run): &Check<S>| {
        let what = run(&suite).err()?.0;
        Some(Failure { check, what })
    };
    checks.iter().chain(of_crashes).filter_map(run).collect()
}

/// A format, and the stack below it.
struct Suite<'s, S> {
    subject: &'s S,
    stack: Stack,
}

/// The violation that a check found.
#[derive(Debug)]
struct Wrong(String);

type Outcome = Result<(), Wrong>;

/// A check and its name.
type Check<S> = (&'static str, fn(&Suite<'_, S>) -> Outcome);

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self(what)
    }
}

impl From<FormatError> for Wrong {
    fn from(error: FormatError) -> Self {
        Self(format!("a step failed: {error}"))
    }
}

impl From<StoreError> for Wrong {
    fn from(error: StoreError) -> Self {
        FormatError::from(error).into()
    }
}

impl From<Errno> for Wrong {
    fn from(errno: Errno) -> Self {
        Self(format!("a call failed: {errno}"))
    }
}

/// Returns from a check unless something holds.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Wrong(format!($($what)+)));
        }
    };
}
use ensure;

/// A mounted image.
struct Bench<S: Subject> {
    disks: Disks,
    cache: Arc<Cache>,
    journal: Option<Arc<Journal>>,
    format: S::Format,
}

impl<S: Subject> Bench<S> {
    /// Mounts a new image.
    fn new(suite: &Suite<'_, S>) -> Result<Self, Wrong> {
        Self::mount(suite, Disks::new(suite)?)
    }

    fn mount(suite: &Suite<'_, S>, disks: Disks) -> Result<Self, Wrong> {
        Self::mount_on(suite, disks, |store| store)
    }

    /// Mounts an image on the store that `layer` makes of the stack's.
    fn mount_on(
        suite: &Suite<'_, S>,
        disks: Disks,
        layer: fn(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Result<Self, Wrong> {
        let assembled = disks.assemble(&suite.stack)?;
        let format = suite.subject.open(layer(assembled.store))?;
        Ok(Self {
            disks,
            cache: assembled.cache,
            journal: assembled.journal,
            format,
        })
    }

    /// Mounts a copy of the disks, as after a crash.
    fn crashed(&self, suite: &Suite<'_, S>) -> Result<Self, Wrong> {
        Self::mount(suite, self.disks.crashed()?)
    }

    /// Runs steps as one operation.
    fn steps<T>(&self, f: impl FnOnce(&Op) -> crate::Result<T>) -> crate::Result<T> {
        let store = self.format.store();
        let op = store.begin(self.format.cost(4), patch::Caller::SYSTEM)?;
        let done = f(&op);
        store.end(op);
        done
    }

    /// Makes everything durable.
    fn sync(&self) -> Outcome {
        self.steps(|op| self.format.write_back(op))?;
        Ok(self.format.store().sync_all()?)
    }

    /// Makes an inode without a name.
    fn make(&self, kind: FileType) -> crate::Result<Ino> {
        Ok(self.make_after(kind)?.0)
    }

    /// Makes an inode without a name. Returns it with the befores of a name for it.
    fn make_after(&self, kind: FileType) -> crate::Result<(Ino, Heads)> {
        let new = NewInode {
            kind,
            perm: 0o644,
            nlink: 1 + u32::from(kind == FileType::Directory),
            uid: 0,
            gid: 0,
            rdev: 0,
            now: Timestamp(1_000_000_000_000_000_000),
        };
        let root = self.format.root();
        self.steps(|op| self.format.allocate_inode(op, root, &new))
    }

    /// Makes an inode and its name in the root.
    fn make_named(&self, kind: FileType, name: &[u8]) -> crate::Result<(Ino, PatchId)> {
        let (ino, ready) = self.make_after(kind)?;
        let root = self.format.root();
        let named = self.steps(|op| {
            let mut befores = after(Rule::InitialiseBeforePoint, ready);
            if kind == FileType::Directory {
                let made = self.format.init_directory(op, ino, root)?;
                befores.extend(after(Rule::InitialiseBeforePoint, made));
            }
            self.format.add_name(op, root, name, ino, kind, &befores)
        })?;
        Ok((ino, named))
    }

    fn remove_named(&self, name: &[u8]) -> crate::Result<()> {
        let root = self.format.root();
        self.steps(|op| self.format.remove_name(op, root, name, &[]))?;
        Ok(())
    }

    /// Writes a whole block of one byte.
    fn write(&self, ino: Ino, index: u64, byte: u8) -> crate::Result<Heads> {
        let bytes = vec![byte; self.format.block_bytes() as usize];
        let piece = Piece::from_start(&bytes);
        let written = self.steps(|op| self.format.write_block(op, ino, index, piece, &[]))?;
        let mut patches = written.filled;
        patches.push(written.patch);
        Ok(patches)
    }

    /// The contents of a block. A hole is zeros.
    fn read(&self, ino: Ino, index: u64) -> crate::Result<Vec<u8>> {
        match self.format.block_of(ino, index)? {
            Some(lba) => Ok(self.format.store().read(lba)?.to_vec()),
            None => Ok(vec![0; self.format.block_bytes() as usize]),
        }
    }

    /// Frees an inode and all its blocks.
    fn unmake(&self, ino: Ino) -> crate::Result<()> {
        while self
            .steps(|op| self.format.free_blocks(op, ino, 0..u64::MAX, 64, &[]))?
            .more
        {}
        self.steps(|op| self.format.free_inode(op, ino, &[], false))
    }

    /// Free blocks and inodes.
    fn free(&self) -> crate::Result<(u64, u64)> {
        let StatFs {
            blocks_free,
            inodes_free,
            ..
        } = self.format.statfs()?;
        Ok((blocks_free, inodes_free))
    }

    /// Compares the format's state in memory with the stored one.
    fn audit(&self) -> Outcome {
        self.cache.verify()?;
        match self.format.audit().first() {
            Some(finding) => Err(Wrong(finding.to_string())),
            None => Ok(()),
        }
    }
}

/// Whether a step found no room.
fn is_no_space<T>(result: &crate::Result<T>) -> bool {
    matches!(result, Err(FormatError::NoSpace))
}
