//! Seeded bugs of the explorer itself. Its own tests arm them and check that the tests fail.
//! Outside tests [`hit`] is always false.

/// A bug of the explorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

#[cfg(test)]
pub(crate) use armed::{hit, with};

#[cfg(not(test))]
pub(crate) fn hit(_: Sabotage) -> bool {
    false
}

#[cfg(test)]
mod armed {
    use super::Sabotage;
    use std::cell::Cell;

    thread_local! {
        static ARMED: Cell<Option<Sabotage>> = const { Cell::new(None) };
        static FIRED: Cell<u64> = const { Cell::new(0) };
    }

    /// Runs `test` on this thread with the bug armed. Returns how often it fired.
    pub(crate) fn with<R>(bug: Option<Sabotage>, test: impl FnOnce() -> R) -> (R, u64) {
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
