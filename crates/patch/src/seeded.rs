//! Bugs that can be put back, to test the tests. Built only for tests and with the feature
//! `seeded-bugs`; without them every question is answered no at compile time.

/// A bug that a crash test must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A block goes as it is, with changes that must wait.
    LoseRollback,
    /// The commit block is written without waiting for the log's other blocks.
    CommitWithoutBody,
    /// Replay takes a transaction without a commit block, and blocks whatever their
    /// checksums.
    ReplayUncommitted,
    /// Freed blocks are not revoked.
    NoRevoke,
    /// Data wait for the commit that must wait for them.
    DataAfterCommit,
    /// The tail of the log moves on before what it protects is home.
    TailBeforeHome,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 6] = [
        Self::LoseRollback,
        Self::CommitWithoutBody,
        Self::ReplayUncommitted,
        Self::NoRevoke,
        Self::DataAfterCommit,
        Self::TailBeforeHome,
    ];
}

#[cfg(any(test, feature = "seeded-bugs"))]
mod armed {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static ARMED: Cell<(Option<Bug>, u64)> = const { Cell::new((None, 0)) };
    }

    /// Puts one bug back for what this thread does, and clears the counter; `None` takes
    /// it out again.
    pub fn arm(bug: Option<Bug>) {
        ARMED.set((bug, 0));
    }

    /// How often the armed bug took effect.
    pub fn fired() -> u64 {
        ARMED.get().1
    }

    pub(crate) fn hit(bug: Bug) -> bool {
        let (armed, fired) = ARMED.get();
        let hit = armed == Some(bug);
        ARMED.set((armed, fired + u64::from(hit)));
        hit
    }
}

#[cfg(any(test, feature = "seeded-bugs"))]
pub(crate) use armed::hit;
#[cfg(any(test, feature = "seeded-bugs"))]
pub use armed::{arm, fired};

#[cfg(not(any(test, feature = "seeded-bugs")))]
#[inline(always)]
pub(crate) fn hit(_: Bug) -> bool {
    false
}
