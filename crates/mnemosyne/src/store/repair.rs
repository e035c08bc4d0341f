//! Giving up what is damaged, so that the rest can be used again.
//!
//! # Guarantees
//!
//! 1. Whatever is given up is named, and nothing is given up that is not damaged, but for records
//!    behind a damaged one in the same log.
//! 2. Without consent nothing on the medium changes.
//! 3. A crash leaves the directory as it was, or repaired in part.
//!
//! # What is given up
//!
//! Records of logs (M10, M11): the transactions of a log from a damaged record on. What they
//! wrote may be in place already, which it is if no crash of the machine came in between, or may
//! be missing, also in part. Roots that are damaged (M6), or that name what is not there (M16).
//! Of bits of blocks that are damaged (M13) nobody knows which are free: all count as allocated,
//! and none is lost but room. The region table, the first lines of logs and segments, and what a
//! page of the heap is, cannot be guessed: the error says so.

use super::check::Targets;
use super::inspection::ReadOnly;
use super::{Backing, Directory, DirectoryOptions, Options, Region, RegionKind, Store, StoreError};
use crate::heap::Segment;
use crate::log::LogError;
use crate::tx::{AreaError, Space, Stop};
use medium::WORD_BYTES;
use serde::Serialize;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;

/// Something that is given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// The invariant that is broken, numbered as in `format.md`.
    pub invariant: &'static str,
    /// What is lost.
    pub what: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// Finds out what is to be given up in the directory at `path`, which no program may have open,
/// and gives it up if that `is_accepted`.
///
/// # Errors
/// [`StoreError`]: there is none, it cannot be read, or something else is damaged.
pub fn repair(path: impl AsRef<Path>, is_accepted: bool) -> Result<Vec<Loss>, StoreError> {
    if !is_accepted {
        let backing = ReadOnly::open(path)?;
        let space = backing.pmem().clone();
        return give_up(backing, space);
    }
    let options = DirectoryOptions {
        must_exist: true,
        ..DirectoryOptions::default()
    };
    let directory = Directory::open(path, &options)?;
    let space = directory.arena().clone();
    give_up(directory, space)
}

fn give_up<B: Backing>(backing: B, space: B::Pmem) -> Result<Vec<Loss>, StoreError> {
    let mut records = Vec::new();
    let store = Store::open_with(backing, space, Options::default(), Some(&mut records))?;
    let mut losses: Vec<Loss> = records.into_iter().map(of_record).collect();
    let regions = store.regions()?;
    for region in regions
        .iter()
        .filter(|region| region.kind == RegionKind::Heap)
    {
        store.give_up_bits(region, &mut losses)?;
    }
    store.give_up_roots(&regions, &mut losses)?;
    store.memory().truncate()?;
    Ok(losses)
}

fn of_record(why: AreaError) -> Loss {
    let (invariant, start, position) = match why {
        AreaError::Log(LogError::Damaged { start, position }) => ("M10", start, position),
        AreaError::Record {
            start, position, ..
        } => ("M11", start, position),
        // No other error is of a record.
        why => {
            return Loss {
                invariant: "M9",
                what: why.to_string(),
            };
        }
    };
    let what = format!(
        "the transactions in the log at {start:#x} from the damaged record {position} on, which are \
         not known: what they wrote may be in place, missing, or there in part"
    );
    Loss { invariant, what }
}

impl<B: Backing> Store<B> {
    /// Takes all blocks of a superblock for allocated whose bits are damaged.
    fn give_up_bits(&self, region: &Region, losses: &mut Vec<Loss>) -> Result<(), StoreError> {
        let pm = self.backing().pmem();
        let slot = region.slot;
        let segment = Segment::open(pm, region.start, region.len)?;
        let segment = segment.ok_or(StoreError::NotASegment { slot })?;
        for (page, at, bits) in segment.damaged_bits(pm).map_err(StoreError::Heap)? {
            losses.push(Loss {
                invariant: "M13",
                what: format!(
                    "which blocks of the page at {page:#x} are free: all that share the damaged \
                     word at {at:#x} count as allocated"
                ),
            });
            self.set_word(at, bits)?;
        }
        Ok(())
    }

    /// Frees roots that are damaged, or name what is not there.
    fn give_up_roots(&self, regions: &[Region], losses: &mut Vec<Loss>) -> Result<(), StoreError> {
        let (pm, system) = (self.backing().pmem(), &self.shared.system);
        let targets = Targets::read(pm, regions).map_err(StoreError::Heap)?;
        for root in 0..system.roots {
            let loss = match system.root_of(pm, root) {
                Ok(None) => continue,
                Ok(Some((name, words))) => match targets.check(system, &name, words) {
                    Ok(()) => continue,
                    Err(what) => Loss {
                        invariant: "M16",
                        what: format!("the root {:?}: {what}", String::from_utf8_lossy(&name)),
                    },
                },
                Err(StoreError::Root { .. }) => Loss {
                    invariant: "M6",
                    what: format!(
                        "the root {root}, whose name may have been {:?}",
                        String::from_utf8_lossy(&system.remains_of_name(pm, root)?)
                    ),
                },
                Err(why) => return Err(why),
            };
            losses.push(loss);
            self.set_word(system.root(root) + 2 * WORD_BYTES, 0)?;
        }
        Ok(())
    }

    fn set_word(&self, off: u64, word: u64) -> Result<(), StoreError> {
        let at = self.memory().space().address(off);
        let set = self.memory().session().run(|tx| {
            tx.store(at, word)?;
            Ok::<_, Stop<Infallible>>(())
        });
        Ok(set?)
    }
}
