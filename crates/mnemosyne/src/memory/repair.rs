//! Repair: gives up damaged parts, so that the rest can be used again.
//!
//! # Guarantees
//!
//! 1. Everything that is given up is named. Nothing is given up that is not damaged, except records
//!    after a damaged one in the same log.
//! 2. Without consent nothing on the medium changes, nor if the repair is rejected: it first runs
//!    on an overlay.
//! 3. A crash leaves the directory as it was, or partly repaired.
//!
//! # Losses
//!
//! - Records of logs (M10, M11): the transactions of a log from a damaged record on. Unless the
//!   machine crashed, their words are stored already. Otherwise some or all may be missing.
//! - Roots that are damaged, whose name is not text or that of another root (M6), or that are
//!   dangling (M16).
//! - Damaged bits of blocks (M13): the blocks count as allocated, so that only room is lost.
//! - After a crash of the machine that the durability did not cover (see `boot`): the last stores.
//!
//! Some structures can neither be guessed nor omitted, and the error names them. These are the root
//! `selvedge.base`, the region table, the first lines of logs and segments, and the kinds of heap
//! pages.

use super::boot::BootNote;
use super::files::SystemFiles;
use super::inspection::ReadOnly;
use super::roots::{Targets, bad_roots};
use super::{
    Backing, Directory, DirectoryOptions, DurableMemory, MemoryError, Options, Region, RegionKind,
};
use crate::heap::{Damage, HeapError, Segment};
use crate::seeded::{Bug, hit};
use crate::tx::{AreaError, Space, Stop};
use medium::{Pmem, WORD_BYTES};
use serde::Serialize;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use wordlog::LogError;

/// A part that a repair gives up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// The invariant that is violated, numbered as in `format.md`. `boot`: the file that shows a
    /// crash of the machine.
    pub invariant: &'static str,
    /// The part that is lost.
    pub what: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// Finds the damaged parts of the directory at `path`, which no program may have open, and gives
/// them up if that `is_accepted`.
///
/// # Errors
/// [`MemoryError`]: the directory does not exist, it cannot be read, or something else is damaged.
/// Then nothing has changed, unless the medium failed.
pub fn repair(path: impl AsRef<Path>, is_accepted: bool) -> Result<Vec<Loss>, MemoryError> {
    repair_within(path, DirectoryOptions::default().bytes, is_accepted)
}

/// As [`repair`], with that many bytes of addresses.
///
/// # Errors
/// [`MemoryError`].
pub fn repair_within(
    path: impl AsRef<Path>,
    bytes: u64,
    is_accepted: bool,
) -> Result<Vec<Loss>, MemoryError> {
    let path = path.as_ref();
    let losses = would_give_up(path, bytes)?;
    if !is_accepted || losses.is_empty() {
        return Ok(losses);
    }
    let options = DirectoryOptions {
        bytes,
        must_exist: true,
        accept_loss: true,
        ..DirectoryOptions::default()
    };
    repair_regions(Directory::open(path, &options)?)?;
    Ok(losses)
}

/// Finds the parts that a repair would give up. Nothing changes.
pub(super) fn would_give_up(path: &Path, bytes: u64) -> Result<Vec<Loss>, MemoryError> {
    let backing = ReadOnly::open(path, bytes)?;
    let has_crashed = BootNote::is_of_crash(&SystemFiles, backing.directory.path())?;
    let crash = has_crashed.then(|| Loss {
        invariant: "boot",
        what: "the last stores before the machine crashed may be missing or incomplete".to_owned(),
    });
    let losses = repair_regions(backing)?;
    Ok(crash.into_iter().chain(losses).collect())
}

/// Gives up the damaged parts of the regions of `backing`, which has mapped the system region, and
/// returns them. After a crash meanwhile the regions can be repaired again, or opened.
///
/// # Errors
/// [`MemoryError`]: something else is damaged. Some parts may have been given up by then.
/// [`repair`] avoids this by a first run on an [`Overlay`](medium::Overlay).
pub fn repair_regions<B: Backing>(backing: B) -> Result<Vec<Loss>, MemoryError> {
    let space = backing.pmem().clone();
    let mut records = Vec::new();
    let memory = DurableMemory::open_with(backing, space, Options::default(), Some(&mut records))?;
    let mut losses: Vec<Loss> = records.into_iter().map(of_record).collect();
    let regions = memory.regions()?;
    for region in regions
        .iter()
        .filter(|region| region.kind == RegionKind::Heap)
    {
        memory.give_up_bits(region, &mut losses)?;
    }
    memory.give_up_roots(&regions, &mut losses)?;
    memory.memory().truncate()?;
    Ok(losses)
}

fn of_record(why: AreaError) -> Loss {
    let (invariant, start, position) = match why {
        AreaError::Log(LogError::Damaged { start, position }) => ("M10", start, position),
        AreaError::Record {
            start, position, ..
        } => ("M11", start, position),
        // No other error is about a record.
        why => {
            return Loss {
                invariant: "M9",
                what: why.to_string(),
            };
        }
    };
    let what = format!(
        "the transactions in the log at {start:#x} from the damaged record {position} on, which are \
         unknown: their words may be stored, missing, or partly stored"
    );
    Loss { invariant, what }
}

impl<B: Backing> DurableMemory<B> {
    /// Marks all blocks of a superblock whose bits are damaged as allocated, and clears the bits of
    /// pages that have no small blocks.
    fn give_up_bits(&self, region: &Region, losses: &mut Vec<Loss>) -> Result<(), MemoryError> {
        let pm = self.backing().pmem();
        let slot = region.slot;
        let segment = Segment::open(pm, region.start, region.len)?;
        let segment = segment.ok_or(MemoryError::NotASegment { slot })?;
        for damage in segment.damage(pm)? {
            let Damage {
                page,
                descriptor,
                what,
                mend,
            } = damage;
            let words = mend.ok_or(MemoryError::Heap(HeapError::Damaged { descriptor, what }))?;
            let what = match words.iter().all(|(_, word)| *word == 0) {
                true => format!(
                    "nothing but the descriptor of the page at {page:#x}, which has no small blocks"
                ),
                false => format!(
                    "which blocks of the page at {page:#x} are free: all that share a damaged word \
                     of the descriptor at {descriptor:#x} count as allocated"
                ),
            };
            losses.push(Loss {
                invariant: "M13",
                what,
            });
            for (at, word) in words {
                self.set_word(at, word)?;
            }
        }
        Ok(())
    }

    /// Frees roots that are damaged or dangling.
    fn give_up_roots(&self, regions: &[Region], losses: &mut Vec<Loss>) -> Result<(), MemoryError> {
        let (pm, system) = (self.backing().pmem(), &self.shared.system);
        let targets = Targets::read(pm, regions).map_err(MemoryError::Heap)?;
        for bad in bad_roots(pm, system, Some(&targets))? {
            let (root, name) = (bad.root, bad.shown_name());
            if bad.may_be_base() {
                return Err(MemoryError::Base { root });
            }
            let what = match bad.is_name_whole {
                true => format!("the root {name} (root {root}): {}", bad.what),
                false => format!("the root {root}, whose name may have been {name}"),
            };
            losses.push(Loss {
                invariant: bad.invariant,
                what,
            });
            self.set_word(system.root(root) + 2 * WORD_BYTES, 0)?;
        }
        Ok(())
    }

    fn set_word(&self, off: u64, word: u64) -> Result<(), MemoryError> {
        if hit(Bug::UnloggedRepair) {
            self.backing().pmem().store_word(off, word);
            return Ok(());
        }
        let at = self.memory().space().address(off);
        let set = self.memory().session().run(|tx| {
            tx.store(at, word)?;
            Ok::<_, Stop<Infallible>>(())
        });
        Ok(set?)
    }
}
