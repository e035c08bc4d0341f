//! Ships beside calls.
//!
//! The service runs a batch while calls of the client go on. It changes the objects of the batch as the calls have
//! changed them on the overlay, in the same order. So the overlay stays what the client has seen, while the service
//! stores below it and afterwards: each line that the service stores is private here, or it is in memory that the batch
//! has freed or the service has chosen, to which nothing here leads. Only pages of entries and of pointers have other
//! places. Since lines lead to private pages, those of an object stay together: until the end of a ship after which a
//! short file was not changed, or during which nothing was recorded, or until a ship for which calls wait.
//!
//! After a refusal the overlay is not what the service has made. The calls that were recorded since are then shipped at
//! once, and the overlay is dropped.

use super::{Access, Dirty, Host, LARGEST_REQUEST, Speculation, changes_files};
use crate::seeded::{Bug, hit};
use aerie_objects::{ObjectId, PAGE, Reserve};
use aerie_proto::ops::{Answers, Batch};
use medium::Pmem;
use vfs::Result;

/// The calls that a ship takes, out of the state that others use.
pub(crate) struct Sent {
    batch: Batch,
    /// [`State::told_in_batch`](super::State).
    told: Vec<ObjectId>,
    dirty: Dirty,
    /// Numbers of pages and of headers that it has taken of the reserve.
    taken: (usize, usize),
    /// [`State::session`].
    session: u64,
}

impl<P: Pmem, H: Host> Speculation<P, H> {
    /// Ships what was recorded, while calls go on. Does nothing while another ship is under way. `calmly` runs what it
    /// gets while no thread has a pass.
    ///
    /// # Errors
    /// The connection is lost, or the memory has failed: all that was not shipped is undone.
    pub fn ship_beside(
        &self,
        calmly: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let Some(mut sent) = self.send() else {
            return Ok(());
        };
        let mut answers = Some(self.run_sent(&mut sent));
        let received = calmly(&mut || match answers.take() {
            Some(answers) => self.receive(&sent, answers),
            None => Ok(()),
        });
        let stocked = received.and_then(|()| self.stock_up(&sent));
        drop(sent);
        // From here on this thread takes no lock that a fork of the process needs.
        self.ships.end_beside(stocked)
    }

    /// Begins a ship. `None` while another one is under way.
    pub(crate) fn send(&self) -> Option<Sent> {
        if !self.ships.begin_beside() {
            return None;
        }
        let _gate = self.fs.gate.write();
        let state = &mut *self.state.lock();
        if state.batch.count() > 0 {
            self.give_back(state);
        }
        let batch = std::mem::take(&mut state.batch);
        state.is_sent = true;
        state.sends_changes = changes_files(&batch);
        Some(Sent {
            batch,
            told: std::mem::take(&mut state.told_in_batch),
            taken: self.fs.store.send(),
            dirty: std::mem::take(&mut state.dirty),
            session: state.session,
        })
    }

    /// Has the service run what was sent.
    pub(crate) fn run_sent(&self, sent: &mut Sent) -> Result<Answers> {
        self.flush(std::mem::take(&mut sent.dirty))?;
        if sent.batch.count() == 0 {
            return Ok(Answers::default());
        }
        self.host.ship(sent.batch.bytes())
    }

    /// Takes the answers to what was sent.
    pub(crate) fn receive(&self, sent: &Sent, answers: Result<Answers>) -> Result<()> {
        let _gate = self.fs.gate.write();
        let state = &mut *self.state.lock();
        if state.session != sent.session {
            // All was dropped.
            return answers.map(drop);
        }
        state.is_sent = false;
        let answers = answers.inspect_err(|errno| {
            self.drop_unshipped(state, Some(&sent.batch), *errno);
        })?;
        let refused = self.take_answers(state, (&sent.batch, &sent.told), &answers);
        let is_refused = refused.is_some() && !hit(Bug::RefusalKept);
        let settled = self.fs.store.receive(&refused.unwrap_or_default());
        self.fs.forget_xattrs_of(&settled);
        if state.batch.count() == 0 || hit(Bug::DroppedBeside) {
            self.restart(state);
        } else if is_refused {
            self.ship_batch(state)?;
        }
        Ok(())
    }

    /// Sees to it that twice as much is reserved as a ship has taken. The service serves one request at a time: a call
    /// that asks for more would wait for the end of the next ship. Threads that wait for this one come first.
    pub(crate) fn stock_up(&self, sent: &Sent) -> Result<()> {
        let (taken, left) = (sent.taken, self.fs.store.reserved());
        let missing = |taken: usize, left| (2 * taken).min(LARGEST_REQUEST).saturating_sub(left);
        let missing = (missing(taken.0, left.0), missing(taken.1, left.1));
        if missing == (0, 0) || self.ships.are_awaited() {
            return Ok(());
        }
        let more = self.host.reserve(missing.0, missing.1)?;
        if self.access == Access::ReadWrite && !self.ships.are_awaited() {
            self.populate(&more);
        }
        let _gate = self.fs.gate.write();
        let state = &mut *self.state.lock();
        if state.session == sent.session {
            self.extend(state, more);
        }
        Ok(())
    }

    /// Prepares pages of a reserve for the stores of calls.
    fn populate(&self, reserve: &Reserve) {
        let mut pages: Vec<u64> = reserve.pages().collect();
        pages.sort_unstable();
        for run in pages.chunk_by(|page, next| page + PAGE == *next) {
            let bytes = run.len() as u64 * PAGE;
            self.overlay().base().populate(run[0], bytes);
        }
    }

    /// Ends a ship for the tests, which take its steps.
    #[cfg(test)]
    pub(crate) fn end_beside(&self) {
        let _ = self.ships.end_beside(Ok(()));
    }
}
