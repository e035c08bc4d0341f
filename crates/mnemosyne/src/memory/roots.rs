//! Roots that are damaged or dangling.

use super::system::{RootWords, System};
use super::{BASE_ROOT, MemoryError, Region, RegionKind};
use crate::heap::{HeapError, Segment};
use medium::Pmem;
use std::collections::HashSet;

/// A root that is damaged or dangling.
pub(super) struct BadRoot {
    /// Its number.
    pub root: u64,
    /// The invariant that it breaks.
    pub invariant: &'static str,
    /// The violation.
    pub what: String,
    /// Its name, or the rest of it.
    pub name: Vec<u8>,
    /// Whether the name is as it was stored.
    pub is_name_whole: bool,
}

impl BadRoot {
    /// Whether this is, or may have been, the root with the base address: most bytes of that name
    /// match.
    pub(super) fn may_be_base(&self) -> bool {
        let pairs = self.name.iter().zip(BASE_ROOT.as_bytes());
        // Of two roots of the same name, programs find the first.
        self.what != DOUBLE && 2 * pairs.filter(|(is, was)| is == was).count() > BASE_ROOT.len()
    }

    /// The name as text.
    pub(super) fn shown_name(&self) -> String {
        format!("{:?}", String::from_utf8_lossy(&self.name))
    }
}

const DOUBLE: &str = "another root has its name";

/// All roots that are damaged or dangling. Without `targets` only the root with the base address is
/// checked for the latter.
///
/// # Errors
/// [`MemoryError`] if the roots cannot be read.
pub(super) fn bad_roots<P: Pmem>(
    pm: &P,
    system: &System,
    targets: Option<&Targets>,
) -> Result<Vec<BadRoot>, MemoryError> {
    let (mut found, mut names) = (Vec::new(), HashSet::new());
    for root in 0..system.roots {
        let bad = |invariant, what: String, name| BadRoot {
            root,
            invariant,
            what,
            name,
            is_name_whole: true,
        };
        match system.root_of(pm, root) {
            Ok(None) => {}
            Ok(Some((name, words))) => {
                if std::str::from_utf8(&name).is_err() {
                    found.push(bad("M6", "its name is not text".to_owned(), name));
                } else if let Some(what) = wrong_target(system, targets, &name, words) {
                    found.push(bad("M16", what, name));
                } else if !names.insert(name.clone()) {
                    found.push(bad("M6", DOUBLE.to_owned(), name));
                }
            }
            Err(MemoryError::Root { .. }) => {
                let what = "its checksum does not match, or its name is too long".to_owned();
                let name = system.remains_of_name(pm, root)?;
                found.push(BadRoot {
                    is_name_whole: false,
                    ..bad("M6", what, name)
                });
            }
            Err(why) => return Err(why),
        }
    }
    Ok(found)
}

/// The reason why a root is dangling, if it is.
fn wrong_target(
    system: &System,
    targets: Option<&Targets>,
    name: &[u8],
    RootWords { layout, off }: RootWords,
) -> Option<String> {
    if name == BASE_ROOT.as_bytes() {
        let fits = off == 0 && layout > 0 && layout.is_multiple_of(system.granule);
        return (!fits).then(|| format!("{layout:#x} is not a base address"));
    }
    let is_there = targets.is_none_or(|targets| targets.has_byte(off));
    (!is_there).then(|| {
        format!("no block is allocated and no region of a program is at {off:#x}, which it names")
    })
}

/// The objects that roots can name: allocated blocks, and regions that are not part of the heap.
pub(super) struct Targets {
    /// The offset and length of each object in bytes, ascending.
    ranges: Vec<(u64, u64)>,
}

impl Targets {
    /// Reads the objects of these regions.
    ///
    /// # Errors
    /// [`HeapError`] if a part of the heap is damaged.
    pub(super) fn read<P: Pmem>(pm: &P, regions: &[Region]) -> Result<Self, HeapError> {
        let mut ranges = Vec::new();
        for region in regions {
            match region.kind {
                RegionKind::Heap => match Segment::open(pm, region.start, region.len)? {
                    Some(segment) => ranges.extend(segment.blocks(pm)?),
                    None => return Err(HeapError::Foreign { off: region.start }),
                },
                RegionKind::Program | RegionKind::Static => {
                    ranges.push((region.start, region.len));
                }
            }
        }
        ranges.sort_unstable();
        Ok(Self { ranges })
    }

    /// Whether an object contains the byte at `off`.
    fn has_byte(&self, off: u64) -> bool {
        let after = self.ranges.partition_point(|(start, _)| *start <= off);
        let before = after.checked_sub(1).map(|at| self.ranges[at]);
        before.is_some_and(|(start, len)| off - start < len)
    }
}
