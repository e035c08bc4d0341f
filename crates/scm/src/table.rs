//! Identity tables, and the table of a new store.
//!
//! Guarantees: an identity table is read in pieces, so that its size does not matter. A new table
//! is durable as a whole before its superblock.

use crate::error::ScmError;
use crate::files::Run;
use crate::format::{Geometry, SuperBlock, changes_off};
use crate::identity::Identity;
use medium::{MediumError, Pmem, Rule, WORD_BYTES};
use std::sync::atomic::{Ordering, fence};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes that are read or stored at once.
const PIECE_BYTES: usize = 1 << 16;

/// Makes the table of an empty store.
///
/// # Errors
/// [`ScmError`] if the sizes are not possible, or the memory fails.
pub fn format(table: &impl Pmem, geometry: &Geometry) -> Result<(), ScmError> {
    if !geometry.is_valid() || geometry.table_bytes() > table.len() {
        let what = "these sizes of a store are not possible".to_owned();
        return Err(ScmError::Invalid(what));
    }
    zero(table, 0, geometry.table_bytes());
    table.fence(Rule::InitialiseBeforePoint)?;
    let block = SuperBlock::new(geometry);
    table.store(0, block.as_bytes());
    table.flush(0, size_of::<SuperBlock>() as u64);
    table.fence(Rule::DurableBeforeReturn)?;
    Ok(())
}

/// The sizes in a table's superblock.
pub(crate) fn geometry(table: &impl Pmem) -> Result<Geometry, ScmError> {
    let mut block = SuperBlock::new_zeroed();
    table.read(0, block.as_mut_bytes())?;
    Ok(block.geometry(table.len())?)
}

/// Stores zeros, and flushes them.
pub(crate) fn zero(memory: &impl Pmem, off: u64, bytes: u64) {
    let zeros = [0; PIECE_BYTES];
    let end = off + bytes;
    for at in (off..end).step_by(PIECE_BYTES) {
        let piece = (end - at).min(PIECE_BYTES as u64);
        memory.store(at, &zeros[..piece as usize]);
        memory.flush(at, piece);
    }
}

/// The identity of a page.
pub(crate) fn identity(table: &impl Pmem, page: u64) -> Result<Identity, MediumError> {
    let word = table.load(page / 2 * WORD_BYTES)?;
    Ok(Identity::from_raw((word >> (page % 2 * 32)) as u32))
}

/// The number of changes to an identity table of `pages` pages, from any number on.
pub(crate) fn changes(table: &impl Pmem, pages: u64) -> Result<u64, MediumError> {
    table.load(changes_off(pages))
}

/// Counts a change, before it is made. The count orders concurrent reads, so that a crash may lose
/// it.
pub(crate) fn count_change(table: &impl Pmem, pages: u64) -> Result<(), MediumError> {
    let next = changes(table, pages)?.wrapping_add(1);
    table.store_word(changes_off(pages), next);
    fence(Ordering::Release);
    Ok(())
}

/// Stores the identity of each page of a run, and flushes it.
pub(crate) fn set(table: &impl Pmem, run: Run, identity: Identity) {
    let one = identity.raw().to_le_bytes();
    let count = (PIECE_BYTES / one.len()).min(run.pages as usize);
    let numbers = one.repeat(count);
    for at in (run.first..run.end()).step_by(count) {
        let bytes = (run.end() - at).min(count as u64) * 4;
        table.store(at * 4, &numbers[..bytes as usize]);
    }
    table.flush(run.first * 4, run.pages * 4);
}

/// The runs of equal identities in a part of an identity table, in order, also those of free pages.
pub(crate) fn runs(table: &impl Pmem, within: Run) -> Result<Vec<(Run, Identity)>, MediumError> {
    let mut found: Vec<(Run, Identity)> = Vec::new();
    let mut piece = vec![0; PIECE_BYTES.min(within.pages as usize * 4)];
    let step = piece.len().max(4) / 4;
    for at in (within.first..within.end()).step_by(step) {
        let bytes = (within.end() - at).min(step as u64) as usize * 4;
        table.read(at * 4, &mut piece[..bytes])?;
        for (number, page) in piece[..bytes].as_chunks::<4>().0.iter().zip(at..) {
            let identity = Identity::from_raw(u32::from_le_bytes(*number));
            match found.last_mut() {
                Some((run, same)) if *same == identity => run.pages += 1,
                _ => {
                    let run = Run {
                        first: page,
                        pages: 1,
                    };
                    found.push((run, identity));
                }
            }
        }
    }
    Ok(found)
}

/// The maximal runs of pages that have another identity.
pub(crate) fn foreign_runs(runs: &[(Run, Identity)], identity: Identity) -> Vec<Run> {
    let mut foreign: Vec<Run> = Vec::new();
    for (run, _) in runs.iter().filter(|(_, found)| *found != identity) {
        match foreign.last_mut() {
            Some(last) if last.end() == run.first => last.pages += run.pages,
            _ => foreign.push(*run),
        }
    }
    foreign
}
