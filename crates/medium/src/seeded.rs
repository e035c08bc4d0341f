//! Bugs that can be put back, to test the tests.

/// Declares the bugs of a crate, each an order that is not kept: an enum `Bug` with
/// `Bug::ALL`, and `hit(bug)`, which code asks before it keeps the order.
///
/// With the crate's feature `seeded-bugs`, and in its own unit tests, `arm(Some(bug))` puts
/// one back for what this thread does, `arm(None)` takes it out again, and `fired()` tells
/// how often it took effect. Otherwise every question is answered no at compile time.
#[macro_export]
macro_rules! seeded_bugs {
    ($($(#[$doc:meta])* $bug:ident,)+) => {
        /// A bug that a crash test must find: an order that is not kept.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)+
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug),+];
        }

        #[cfg(any(test, feature = "seeded-bugs"))]
        mod armed {
            use super::Bug;
            use std::cell::Cell;

            thread_local! {
                static ARMED: Cell<(Option<Bug>, u64)> = const { Cell::new((None, 0)) };
            }

            /// Puts one bug back for what this thread does, and clears the counter; `None`
            /// takes it out again.
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
    };
}
