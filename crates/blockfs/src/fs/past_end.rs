//! Blocks that a crash has left past the ends of files.
//!
//! A file that grows over them would have them as its data (U2). A mount of an image that was not
//! unmounted cleanly looks for them before a file grows or is cut for the first time. Files that
//! this mount has made have none. No patch orders the growth after their removal, so the removal is
//! made durable first. Nothing is written if there are none.

use super::known::Synced;
use super::{BlockFs, Refusal};
use crate::Format;
use crate::seeded::{Bug, hit};
use vfs::{Attr, Ino, Result};

/// Blocks that a crash has left past the end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PastEnd {
    /// Not looked for yet.
    #[default]
    Unknown,
    /// There are some. On the medium they may still be attached after their removal.
    Blocks,
    /// There are none.
    Nothing,
}

impl<F: Format> BlockFs<F> {
    /// Looks for blocks past the end of a file, before it grows or is cut.
    pub(super) fn look_past_end(&self, attr: &Attr) -> std::result::Result<PastEnd, Refusal> {
        if self.format.was_clean() {
            return Ok(PastEnd::Nothing);
        }
        let known = self.known.lock().get(&attr.ino).map(|known| known.past_end);
        if let Some(found @ (PastEnd::Blocks | PastEnd::Nothing)) = known {
            return Ok(found);
        }
        let end = attr.size.div_ceil(u64::from(self.format.block_bytes()));
        let found = match self.format.next_block(attr.ino, end, u64::MAX)? {
            Some(_) => PastEnd::Blocks,
            None => PastEnd::Nothing,
        };
        self.know_past_end(attr.ino, found);
        Ok(found)
    }

    /// Records whether blocks lie past the end of a file.
    pub(super) fn know_past_end(&self, ino: Ino, past_end: PastEnd) {
        self.known.lock().entry(ino).or_default().past_end = past_end;
    }

    /// Frees the blocks that a crash has left past the end of a file, before it grows to `end`.
    pub(super) fn trim(&self, ino: Ino, end: u64) -> Result<()> {
        if hit(Bug::GrowOverLeft) {
            return Ok(());
        }
        let found = self.look(|| {
            let attr = self.attr(ino)?;
            match attr.size < end {
                true => self.look_past_end(&attr),
                false => Ok(PastEnd::Nothing),
            }
        })?;
        if found == PastEnd::Blocks {
            self.finish_cut(&patch::Caller::SYSTEM, ino)?;
            self.sync_recent(ino, Synced::AllButTimes)?;
            self.know_past_end(ino, PastEnd::Nothing);
        }
        Ok(())
    }
}
