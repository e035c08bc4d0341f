//! Seeded bugs of the explorer itself. Its own tests arm them and check that the tests fail.
//! Outside tests [`hit`] is always false.

/// Declares an enum. In tests `ALL` lists its variants, so that a test of each omits none.
macro_rules! listed {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$doc:meta])* $variant:ident,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$doc])* $variant,)+
        }

        #[cfg(test)]
        impl $name {
            /// Every variant.
            $vis const ALL: &[Self] = &[$(Self::$variant),+];
        }
    };
}
#[cfg(test)]
pub(crate) use listed;

listed! {
    /// A bug of the explorer.
    pub(crate) enum Sabotage {
        /// The last store or write of each operation is left out of the trace.
        LastChangeDropped,
        /// Link counts are not compared.
        LinkCountIgnored,
        /// The state after the return of an operation is not visited.
        FinalStateSkipped,
        /// A flush makes all issued writes durable, completed or not.
        FlushCoversIssued,
        /// Only prefixes of the writes that are not durable are tried.
        PrefixesOnly,
    }
}

#[cfg(test)]
pub(crate) use armed::{Toys, each_is_noticed, hit};

#[cfg(not(test))]
pub(crate) fn hit(_: Sabotage) -> bool {
    false
}

#[cfg(test)]
mod armed {
    use super::Sabotage;
    use std::cell::Cell;

    /// The tests that must notice a bug of the explorer.
    #[derive(PartialEq, Eq)]
    pub(crate) enum Toys {
        OnMemory,
        OnBlocks,
    }

    impl Sabotage {
        /// The tests that must notice it, one at least.
        pub(crate) fn noticed_by(self) -> &'static [Toys] {
            match self {
                Self::LastChangeDropped | Self::FinalStateSkipped => {
                    &[Toys::OnMemory, Toys::OnBlocks]
                }
                Self::LinkCountIgnored => &[Toys::OnMemory],
                Self::FlushCoversIssued | Self::PrefixesOnly => &[Toys::OnBlocks],
            }
        }
    }

    /// Demands that `works`, which tests the explorer on `toys`, fails with each bug that they must
    /// notice, and passes without one.
    pub(crate) fn each_is_noticed(toys: Toys, works: fn() -> bool) {
        for bug in Sabotage::ALL {
            if bug.noticed_by().contains(&toys) {
                let (works, fired) = with(Some(*bug), works);
                assert!(fired > 0, "{bug:?} did not fire");
                assert!(!works, "{bug:?} was not noticed");
            }
        }
        let (works, fired) = with(None, works);
        assert!(works && fired == 0);
    }

    thread_local! {
        static ARMED: Cell<Option<Sabotage>> = const { Cell::new(None) };
        static FIRED: Cell<u64> = const { Cell::new(0) };
    }

    /// Runs `test` on this thread with the bug armed. Returns how often it fired.
    fn with<R>(bug: Option<Sabotage>, test: impl FnOnce() -> R) -> (R, u64) {
        ARMED.set(bug);
        FIRED.set(0);
        let result = test();
        ARMED.set(None);
        (result, FIRED.get())
    }

    pub(crate) fn hit(bug: Sabotage) -> bool {
        let hit = ARMED.get() == Some(bug);
        FIRED.set(FIRED.get() + u64::from(hit));
        hit
    }
}
