//! Values of which each thread uses its own, so that threads seldom wait for each other.

use crate::sync::thread_local;
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Values: threads share them if there are more.
const COUNT: usize = 8;

/// A value for each thread.
#[derive(Default)]
pub(crate) struct Shards<T>([CachePadded<T>; COUNT]);

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT: AtomicUsize = AtomicUsize::new(0);

impl<T> Shards<T> {
    /// The value of this thread.
    pub(crate) fn own(&self) -> &T {
        let number = OWN.with(|own| {
            if own.get() == usize::MAX {
                own.set(NEXT.fetch_add(1, Relaxed) % COUNT);
            }
            own.get()
        });
        &self.0[number]
    }

    /// All values.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &**shard)
    }
}
