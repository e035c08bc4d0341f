//! Batches of clients.
//!
//! - **B1** A crash leaves a prefix of the accepted operations of a batch. All of them are durable when
//!   [`Pxfs::apply`] returns.
//! - **B2** Batches run beside each other while they change different objects. Each operation sees all changes of
//!   another batch or none, and only those that are durable.
//! - **B3** A batch commits its operations, and goes on alone, when it needs an object that another one changes:
//!   no other batch and no call runs until its end. It does so, too, when it moves a directory, since moves of two
//!   batches could make a cycle, and when the pages or the room in its log do not suffice.
//! - **B4** A batch with claims waits for nothing but the gate, which others hold for one operation or for the
//!   stores of one commit. So there is no deadlock. A batch starts to run alone at most once, and then needs no
//!   claims, so that there is no livelock.
//!
//! In a store with one log, all batches run alone.

use crate::apply::{Done, Run, Stop};
use crate::fs::{Alone, Pxfs};
use crate::session::{Authority, Session};
use aerie_objects::{Result, Transaction};
use aerie_proto::ops::{Answers, Operation, REFUSED_MAX, Refused, operations};
use medium::Pmem;
use vfs::Errno;
use vfs::sync::RwLockReadGuard;

/// The locks of a batch, against others.
enum Turn<'a> {
    /// Other batches run, too.
    Shared(#[expect(dead_code, reason = "it is held")] RwLockReadGuard<'a, ()>),
    Alone(#[expect(dead_code, reason = "it is held")] Alone<'a>),
}

/// A part of a batch that becomes durable by one transaction.
pub(crate) struct Part<'a, P: Pmem> {
    fs: &'a Pxfs<P>,
    /// It ends before the turn.
    tx: Transaction<'a, P>,
    turn: Turn<'a>,
    is_empty: bool,
}

impl<'a, P: Pmem> Part<'a, P> {
    pub(crate) fn shared(fs: &'a Pxfs<P>) -> Result<Self> {
        if fs.store.most_open() == 1 {
            return Self::alone(fs);
        }
        let turn = Turn::Shared(fs.turns.read());
        Ok(Self {
            fs,
            tx: fs.store.begin_beside()?,
            turn,
            is_empty: true,
        })
    }

    fn alone(fs: &'a Pxfs<P>) -> Result<Self> {
        let turn = Turn::Alone(fs.alone());
        Ok(Self {
            fs,
            tx: fs.store.begin()?,
            turn,
            is_empty: true,
        })
    }

    /// Runs an operation, or nothing of it.
    pub(crate) fn run(
        &mut self,
        session: &mut Session,
        authority: &dyn Authority,
        operation: &Operation<'_>,
    ) -> Run<Done> {
        let _gate = match self.turn {
            Turn::Shared(_) => Some(self.fs.gate.read()),
            Turn::Alone(_) => None,
        };
        let (fs, tx) = (self.fs, &mut self.tx);
        fs.one(tx, session, Some(authority), operation)
    }

    /// Whether an operation may have another result in a transaction of its own that runs alone.
    pub(crate) fn is_in_vain(&self, done: &Run<Done>) -> bool {
        let is_shared = matches!(self.turn, Turn::Shared(_));
        match done {
            Err(Stop::Claimed) => is_shared,
            // The longest log may take it, and others may have taken pages that they do not need.
            Err(Stop::Refused(Errno::FBIG, _)) => is_shared || !self.is_empty,
            Err(Stop::Refused(Errno::NOSPC, _)) => is_shared,
            _ => false,
        }
    }

    /// Commits, and begins the next part of the batch, which runs alone.
    pub(crate) fn next(mut self) -> Result<Self> {
        let fs = self.fs;
        let stock = self.tx.take_stock();
        let done = self.commit();
        let begun = done.and_then(|()| Self::alone(fs));
        let mut next = begun?;
        next.tx.stock(stock);
        Ok(next)
    }

    pub(crate) fn commit(self) -> Result<()> {
        match self.turn {
            Turn::Shared(_) => self.tx.commit_beside(&self.fs.gate),
            Turn::Alone(_) => self.tx.commit(),
        }
    }
}

impl<P: Pmem> Pxfs<P> {
    /// Runs the operations of a batch in their order, and makes those durable that it accepts. Breaks the batch off
    /// after [`REFUSED_MAX`] refusals, so that the answers take a bounded memory.
    ///
    /// `batch` must be memory that no client can change. The choices of the accepted operations are
    /// taken from the reserve of the session.
    ///
    /// # Errors
    /// The store has failed: it must be opened again.
    pub fn apply(
        &self,
        session: &mut Session,
        authority: &dyn Authority,
        batch: &[u8],
    ) -> Result<Answers> {
        self.expect_batches();
        let mut answers = Answers::default();
        let mut part = Part::shared(self)?;
        for (number, operation) in (0..).zip(operations(batch)) {
            let operation = match operation {
                Ok(operation) => operation,
                Err(error) => {
                    let (errno, why) = (Errno::INVAL.raw_os_error(), error.to_string());
                    answers.refused.push(Refused { number, errno, why });
                    break;
                }
            };
            answers.count += 1;
            let mut done = part.run(session, authority, &operation);
            if part.is_in_vain(&done) {
                part = part.next()?;
                done = part.run(session, authority, &operation);
            }
            let (errno, why) = match done {
                Ok(done) => {
                    part.is_empty = false;
                    self.settle(session, done.after);
                    continue;
                }
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Claimed) => (Errno::BUSY, "another change is in the way".to_owned()),
                Err(Stop::Refused(errno, why)) => (errno, why),
            };
            let errno = errno.raw_os_error();
            answers.refused.push(Refused { number, errno, why });
            if answers.refused.len() >= REFUSED_MAX {
                break;
            }
        }
        part.commit()?;
        Ok(answers)
    }
}
