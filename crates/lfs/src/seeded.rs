//! Bugs that can be put back, to test the tests. Built only with the feature
//! `seeded-bugs`; without it every question is answered no at compile time.

/// A bug that a crash test must find: an order that is not stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A name may reach the medium before its inode.
    NameBeforeInode,
    /// A block may be filled anew before the pointers of its former owner are gone.
    ReuseBeforeNullify,
    /// A rename may remove the old name before the new one is there.
    OldNameFirst,
    /// A pointer may reach the medium before what it points to.
    PointBeforeFill,
    /// An open file without a name may lose its blocks before its name is gone.
    EmptyBeforeUnlink,
    /// A name of a file may go before another one is there.
    UnlinkBeforeLink,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 6] = [
        Self::NameBeforeInode,
        Self::ReuseBeforeNullify,
        Self::OldNameFirst,
        Self::PointBeforeFill,
        Self::EmptyBeforeUnlink,
        Self::UnlinkBeforeLink,
    ];
}

#[cfg(feature = "seeded-bugs")]
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

#[cfg(feature = "seeded-bugs")]
pub(crate) use armed::hit;
#[cfg(feature = "seeded-bugs")]
pub use armed::{arm, fired};

#[cfg(not(feature = "seeded-bugs"))]
#[inline(always)]
pub(crate) fn hit(_: Bug) -> bool {
    false
}
