//! The choice of mode `log`: which edits go through the redo log.

use super::Tx;
use crate::edit::{Edit, Edits, What};
use crate::error::Res;
use crate::format::BLOCK;
use crate::log::{PAYLOAD_MAX, Records};
use crate::volume::{Tree, Volume};
use medium::Pmem;
use smallvec::SmallVec;

/// The visible edits of an operation: those that go through the log, and the rest.
pub(super) struct Plan<'a> {
    pub records: Records,
    pub rest: Edits<'a>,
}

impl<'a, P: Pmem> Tx<'_, 'a, P> {
    /// Decides whether all visible edits fit in a record, and whether that writes less than copies
    /// would. `None`: the crawler applies them.
    pub(super) fn plan(&mut self, edits: &[Edit<'a>]) -> Res<Option<Plan<'a>>> {
        if let [only] = edits
            && only.start / 8 == (only.end - 1) / 8
        {
            return Ok(None); // one store does it
        }
        let mut plan = Plan {
            records: Records::with_capacity(edits.len()),
            rest: Edits::new(),
        };
        let (mut cost, mut copied, mut words) = (16, 0, 0);
        for edit in edits {
            let tree = self.tree(edit.tree)?;
            let size = tree.size;
            if edit.start >= size {
                plan.rest.push(*edit); // beyond the end, so hidden
                continue;
            }
            let bytes: SmallVec<[u8; 8]>;
            let shown = match edit.what {
                What::Bytes(b) => b,
                What::Word(word) => {
                    bytes = SmallVec::from_slice(&word.to_le_bytes());
                    &bytes
                }
                What::Zeros | What::Hole | What::Reserve | What::Blank => return Ok(None),
            };
            let keep = shown.len().min((size - edit.start) as usize);
            if keep < shown.len() {
                let What::Bytes(all) = edit.what else {
                    return Ok(None);
                };
                let tail = Edit {
                    tree: edit.tree,
                    start: size,
                    end: edit.end,
                    what: What::Bytes(&all[keep..]),
                };
                plan.rest.push(tail);
            }
            if keep as u64 > PAYLOAD_MAX {
                return Ok(None);
            }
            if !records_of(
                self.vol,
                &tree,
                edit.start,
                &shown[..keep],
                &mut plan.records,
            )? {
                return Ok(None); // a hole: nothing to store into
            }
        }
        for (addr, bytes) in &plan.records {
            cost += 16 + 2 * (bytes.len() as u64).next_multiple_of(8);
            copied += BLOCK;
            words += (addr % 8 + bytes.len() as u64).div_ceil(8);
        }
        let payload = cost / 2 + 8 * plan.records.len() as u64;
        let worth = words > 1 && cost < copied && payload <= PAYLOAD_MAX;
        Ok(worth.then_some(plan))
    }
}

/// Splits a change at block boundaries and finds the place of each part. Returns false if a
/// part lies in a hole.
fn records_of<P: Pmem>(
    vol: &Volume<P>,
    tree: &Tree,
    start: u64,
    bytes: &[u8],
    records: &mut Records,
) -> Res<bool> {
    let mut at = start;
    let mut rest = bytes;
    while !rest.is_empty() {
        let leaf = vol.leaf(tree, at / BLOCK)?;
        if leaf.is_null() {
            return Ok(false);
        }
        let take = rest.len().min((BLOCK - at % BLOCK) as usize);
        records.push((
            leaf.addr() + at % BLOCK,
            SmallVec::from_slice(&rest[..take]),
        ));
        rest = &rest[take..];
        at += take as u64;
    }
    Ok(true)
}
