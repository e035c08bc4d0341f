//! Bugs that can be put back, to test the tests. Built only with the feature
//! `seeded-bugs` and in this crate's own tests; without it every question is answered no at
//! compile time.

/// A bug that a crash test must find: an order that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A flush of a log does not wait for what was appended.
    UnfencedLog,
    /// A base log says where it ends before the records are there.
    TailBeforeRecords,
    /// Recovery leaves words of an append that a crash cut short.
    Unscrubbed,
    /// Room of a log is used again before a crash can no longer bring back its records.
    ReuseBeforeTruncated,
    /// Words are stored in place before the log has them.
    HomeBeforeLog,
    /// Logs are truncated one by one, without the low water: the lost-update hole.
    NoLowWater,
    /// Records are given back before their words are durable in place.
    ReclaimBeforeHome,
    /// Recovery does not make durable what it brings in place.
    UnflushedRecovery,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 8] = [
        Self::UnfencedLog,
        Self::TailBeforeRecords,
        Self::Unscrubbed,
        Self::ReuseBeforeTruncated,
        Self::HomeBeforeLog,
        Self::NoLowWater,
        Self::ReclaimBeforeHome,
        Self::UnflushedRecovery,
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
