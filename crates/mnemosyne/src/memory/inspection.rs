//! Inspection of the durable memory of a program that is not running.
//!
//! Guarantee: nothing on the medium changes. Recovery runs on an overlay, so the memory is the same
//! as the program would find it.

use super::{
    BASE_ROOT, Backing, BackingError, Directory, DirectoryOptions, DurableMemory, MemoryError,
    Options, Region, RegionKind,
};
use crate::heap::HeapError;
use medium::{Arena, MapOptions, Overlay, Pmem};
use paging::Pool;
use std::path::Path;
use std::sync::Arc;

/// Memory whose stores do not change the medium.
pub type Seen = Arc<Overlay<Arc<Arena>>>;

/// The durable memory in a directory, read only.
pub struct Inspection {
    memory: DurableMemory<ReadOnly>,
}

/// A directory whose files do not change.
pub(super) struct ReadOnly {
    pub directory: Directory,
    pm: Seen,
}

impl ReadOnly {
    /// Opens the directory at `path`, which no program may have open, with that many bytes of
    /// addresses.
    pub(super) fn open(path: impl AsRef<Path>, bytes: u64) -> Result<Self, MemoryError> {
        let options = DirectoryOptions {
            bytes,
            map: MapOptions {
                read_only: true,
                ..MapOptions::default()
            },
            ..DirectoryOptions::default()
        };
        let directory = Directory::open(path, &options)?;
        let pm = Arc::new(Overlay::new(directory.arena().clone()));
        Ok(Self { directory, pm })
    }
}

/// A named root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// The name.
    pub name: String,
    /// The program's identification of the object's type.
    pub layout: u64,
    /// The offset of the object.
    pub off: u64,
}

/// An allocated block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocated {
    /// The offset of the first byte.
    pub off: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// Whether a root, a region of the program or another reachable block contains a word that may
    /// be a pointer into it.
    pub is_reached: bool,
}

impl Backing for ReadOnly {
    type Pmem = Seen;

    fn pmem(&self) -> &Seen {
        &self.pm
    }

    fn create(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(()) // nothing allocates here
    }

    fn open(&self, region: &Region) -> Result<bool, BackingError> {
        self.directory.open(region)
    }

    fn remove(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(()) // the program removes it
    }

    fn no_others(&self, regions: &[Region]) -> Result<(), BackingError> {
        self.directory.no_others(regions)
    }
}

impl Inspection {
    /// Opens the directory at `path`, which no program may have open.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MemoryError> {
        Self::open_within(path, DirectoryOptions::default().bytes)
    }

    /// As [`open`](Self::open), with that many bytes of addresses.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open_within(path: impl AsRef<Path>, bytes: u64) -> Result<Self, MemoryError> {
        let backing = ReadOnly::open(path, bytes)?;
        let pm = backing.pm.clone();
        let memory = DurableMemory::open(backing, pm, Options::default())?;
        Ok(Self { memory })
    }

    /// The memory.
    pub fn memory(&self) -> &Seen {
        self.memory.memory().space()
    }

    /// The pool that moves pages between persistent memory and the directory, if there is one.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.memory.backing().directory.pool()
    }

    /// The bytes of the system region, and of the logs in it.
    pub fn system_bytes(&self) -> (u64, u64) {
        let area = self.memory.memory().area();
        (self.memory.shared.system.bytes, area.bytes())
    }

    /// All regions but the system region.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn regions(&self) -> Result<Vec<Region>, MemoryError> {
        self.memory.regions()
    }

    /// All roots.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn roots(&self) -> Result<Vec<Root>, MemoryError> {
        let (pm, system) = (self.memory(), &self.memory.shared.system);
        let mut roots = Vec::new();
        for root in 0..system.roots {
            let Some((name, words)) = system.root_of(pm, root)? else {
                continue;
            };
            roots.push(Root {
                name: String::from_utf8_lossy(&name).into_owned(),
                layout: words.layout,
                off: words.off,
            });
        }
        Ok(roots)
    }

    /// The address at which the program maps its memory, if it is recorded: the layout of the root
    /// `selvedge.base`.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn base(&self) -> Result<Option<u64>, MemoryError> {
        let mut roots = self.roots()?.into_iter();
        Ok(roots
            .find(|root| root.name == BASE_ROOT)
            .map(|root| root.layout))
    }

    /// All allocated blocks, by offset. A block is reachable by words that may be pointers into it:
    /// offsets, or addresses of memory that is mapped at `base`.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn blocks(&self, base: u64) -> Result<Vec<Allocated>, MemoryError> {
        let pm = self.memory();
        let mut blocks = Vec::new();
        for segment in self.memory.heap().segments() {
            let found = segment.blocks(pm).map_err(|error| match error {
                HeapError::Medium(error) => MemoryError::Medium(error),
                other => MemoryError::Heap(other),
            })?;
            blocks.extend(found.into_iter().map(|(off, bytes)| Allocated {
                off,
                bytes,
                is_reached: false,
            }));
        }
        blocks.sort_unstable_by_key(|block| block.off);
        self.reach(&mut blocks, base)?;
        Ok(blocks)
    }

    /// Marks reachable blocks.
    fn reach(&self, blocks: &mut [Allocated], base: u64) -> Result<(), MemoryError> {
        let (roots, regions) = (self.roots()?, self.regions()?);
        let of_programs = regions
            .iter()
            .filter(|region| region.kind != RegionKind::Heap);
        let mut open: Vec<_> = of_programs
            .map(|region| (region.start, region.len))
            .collect();
        for root in roots {
            open.extend(reached(blocks, root.off, base));
        }
        let mut bytes = vec![0; 64 << 10];
        while let Some((mut at, len)) = open.pop() {
            let end = at + len;
            while at < end {
                let part = &mut bytes[..(end - at).min(64 << 10) as usize];
                self.memory().read(at, part)?;
                for word in part.as_chunks().0 {
                    open.extend(reached(blocks, u64::from_le_bytes(*word), base));
                }
                at += part.len() as u64;
            }
        }
        Ok(())
    }
}

/// The block that a word may point into, if it was not reached before.
fn reached(blocks: &mut [Allocated], word: u64, base: u64) -> Option<(u64, u64)> {
    let find = |off: u64| {
        let after = blocks.partition_point(|block| block.off <= off);
        let at = after.checked_sub(1)?;
        (off - blocks[at].off < blocks[at].bytes).then_some(at)
    };
    let at = find(word).or_else(|| find(word.checked_sub(base)?))?;
    let block = &mut blocks[at];
    (!std::mem::replace(&mut block.is_reached, true)).then_some((block.off, block.bytes))
}
