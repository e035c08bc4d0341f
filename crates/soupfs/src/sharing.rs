//! Shares the steps of a round among several persisters.
//!
//! The stores of one step have no order among each other, so that its parts can be made by several
//! threads at once. A fence covers the flushes of its own thread. So each part ends with a fence, and
//! the step ends when all its parts have. The next step then begins as it does with one persister: the
//! order of the steps is the same, and a crash leaves no state that it could not leave with one.

use crate::error::Res;
use crate::seeded::{Bug, hit};
use medium::{Pmem, Rule};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// Parts of a step for each persister, so that one that is late has fewer of them.
const PARTS: usize = 8;

/// The threads that make the parts of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One for each persister.
    AtOnce,
    /// One for each persister, serially, so that a trace is always the same.
    InTurn,
    /// That of the round, serially.
    Own,
}

/// The way in which steps are shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing {
    /// Threads that take part in a step, that of the round included.
    pub persisters: usize,
    /// Least number of items in a part: a thread costs some microseconds.
    pub least: usize,
    /// The threads that make the parts.
    pub threads: Threads,
}

impl Sharing {
    /// That of a mount.
    pub(crate) fn among(persisters: usize) -> Self {
        Self {
            persisters,
            least: 512,
            threads: Threads::AtOnce,
        }
    }

    /// Shares each step, however small, in a way that repeats.
    pub(crate) fn in_turn(persisters: usize, threads: Threads) -> Self {
        Self {
            persisters,
            least: 1,
            threads,
        }
    }

    /// Has the persisters do `work` for all items. Returns the results of the parts, in order. `rule`
    /// is that of the fence that ends the step; `None` if the work flushes nothing.
    pub(crate) fn share<P: Pmem, T: Sync, R: Send>(
        &self,
        pm: &P,
        items: &[T],
        rule: Option<Rule>,
        work: impl Fn(&[T]) -> Res<R> + Sync,
    ) -> Res<Vec<R>> {
        let Self {
            persisters,
            least,
            threads,
        } = *self;
        if persisters < 2 || items.len() < 2 * least {
            return Ok(vec![work(items)?]);
        }
        let size = items.len().div_ceil(persisters * PARTS).max(least);
        let parts: Vec<&[T]> = items.chunks(size).collect();
        let results: Vec<_> = parts.iter().map(|_| Mutex::new(None)).collect();
        let make = |n: usize| {
            let done = work(parts[n]).and_then(|result| {
                if let Some(rule) = rule.filter(|rule| !hit(without_fence(*rule))) {
                    pm.fence(rule)?;
                }
                Ok(result)
            });
            *results[n].lock() = Some(done);
        };
        match threads {
            Threads::AtOnce => make_all(persisters, parts.len(), &make),
            Threads::InTurn => (0..parts.len()).for_each(|n| match n % persisters {
                0 => make(n),
                _ => thread::scope(|scope| drop(scope.spawn(|| make(n)))),
            }),
            Threads::Own => (0..parts.len()).for_each(make),
        }
        results.into_iter().filter_map(Mutex::into_inner).collect()
    }
}

/// The bug that leaves out the fences of the parts of a step.
fn without_fence(rule: Rule) -> Bug {
    match rule {
        Rule::InitialiseBeforePoint => Bug::InitPartWithoutFence,
        Rule::LinkBeforeUnlink => Bug::PublishPartWithoutFence,
        Rule::NullifyBeforeReuse => Bug::FinishPartWithoutFence,
        _ => Bug::GrowPartWithoutFence,
    }
}

/// Makes all parts, on as many threads. If one cannot be started, the others do its work.
fn make_all(threads: usize, parts: usize, make: &(impl Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(n) = Some(next.fetch_add(1, Relaxed)).filter(|n| *n < parts) {
            make(n);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(parts) {
            let thread = thread::Builder::new().name("persister".into());
            if let Err(e) = thread.spawn_scoped(scope, work) {
                tracing::debug!("a persister could not be started: {e}");
            }
        }
        work();
    });
}
