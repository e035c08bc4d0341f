//! Bugs that can be seeded, to test the tests.

/// Declares the seeded bugs of a crate, each of which violates an order. The result is an enum
/// `Bug` with `Bug::ALL`, and `hit(bug)`, which code calls before it keeps the order.
///
/// With the crate's feature `seeded-bugs`, and in its own unit tests, `arm(Some(bug))` seeds a
/// bug and `arm(None)` removes it. `fired()` returns how often it took effect. Otherwise `hit`
/// is false at compile time.
///
/// A bug is armed for the arming thread only. In a crate whose work is done by several threads
/// the list begins with `process-wide;`, and a bug is armed for all of them.
#[macro_export]
macro_rules! seeded_bugs {
    (process-wide; $($bugs:tt)+) => {
        $crate::seeded_bugs!(@list $($bugs)+);

        #[cfg(any(test, feature = "seeded-bugs"))]
        mod armed {
            use super::Bug;
            use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

            /// The number of the armed bug; the initial value is not a bug's.
            static ARMED: AtomicUsize = AtomicUsize::new(usize::MAX);
            static FIRED: AtomicU64 = AtomicU64::new(0);

            /// Seeds one bug for the whole process, and clears the counter; `None` removes it.
            pub fn arm(bug: Option<Bug>) {
                FIRED.store(0, Relaxed);
                ARMED.store(bug.map_or(usize::MAX, |bug| bug as usize), Relaxed);
            }

            /// Number of times that the armed bug took effect.
            pub fn fired() -> u64 {
                FIRED.load(Relaxed)
            }

            pub(crate) fn hit(bug: Bug) -> bool {
                let hit = ARMED.load(Relaxed) == bug as usize;
                if hit {
                    FIRED.fetch_add(1, Relaxed);
                }
                hit
            }
        }
    };

    (@list $($(#[$doc:meta])* $bug:ident,)+) => {
        /// A seeded bug that a crash test must find: a violated order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)+
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug),+];
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

    ($($bugs:tt)+) => {
        $crate::seeded_bugs!(@list $($bugs)+);

        #[cfg(any(test, feature = "seeded-bugs"))]
        mod armed {
            use super::Bug;
            use std::cell::Cell;

            thread_local! {
                static ARMED: Cell<(Option<Bug>, u64)> = const { Cell::new((None, 0)) };
            }

            /// Seeds one bug for this thread, and clears the counter; `None` removes it.
            pub fn arm(bug: Option<Bug>) {
                ARMED.set((bug, 0));
            }

            /// Number of times that the armed bug took effect.
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
    };
}
