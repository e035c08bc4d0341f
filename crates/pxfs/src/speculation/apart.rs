//! Pages that a call fills before others wait for it.
//!
//! They are of the reserve, and nothing else uses them: neither another call nor the service. The call then uses them in
//! the change that it records, or puts them back. Those that the recorded calls need stay in the reserve.

use super::{Host, Speculation};
use medium::Pmem;
use vfs::Result;

/// Pages that a call has taken out of the reserve of a session.
pub(super) struct Apart {
    pub(super) pages: Vec<u64>,
    pub(super) session: u64,
}

impl<P: Pmem, H: Host> Speculation<P, H> {
    /// Takes pages out of the reserve, which no other call uses then. `None` if there is no space for them.
    pub(super) fn take_apart(&self, count: usize) -> Result<Option<Apart>> {
        {
            // No call relies on the reserve meanwhile.
            let _gate = self.fs.gate.read();
            if let Some(apart) = self.try_take_apart(count) {
                return Ok(Some(apart));
            }
        }
        let _gate = self.fs.gate.write();
        self.refill([count + self.fs.store.taken_private(), 0])?;
        Ok(self.try_take_apart(count))
    }

    fn try_take_apart(&self, count: usize) -> Option<Apart> {
        let state = &mut *self.state.lock();
        let pages = self.fs.store.take_apart(count)?;
        for page in &pages {
            state.reserve.take_page(*page);
        }
        let session = state.session;
        Some(Apart { pages, session })
    }

    /// Puts pages back that were taken apart, unless they belong to a session that has ended.
    pub(super) fn put_back(&self, apart: Apart) {
        let state = &mut *self.state.lock();
        if state.session == apart.session {
            apart
                .pages
                .iter()
                .for_each(|page| state.reserve.put_page(*page));
            self.fs.store.put_back(apart.pages);
        }
    }
}
