//! Commits of several threads at once.
//!
//! One thread is stopped at a step of its commit. Others commit and truncate meanwhile; then the
//! first one continues. One program for each step covers every single interruption of one thread.
//! Each program runs in the same order every time.

use crash::program::{Memory, Program};
use medium::{MediumError, Pmem, Rule};
use mnemosyne::tx::{self, Area, Stop};
use parking_lot::{Condvar, Mutex};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, ThreadId};
use wordlog::Kind;

/// Memory that stops a thread before one of its stores, flushes and fences.
pub struct Stopping {
    inner: Memory,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    /// The thread to stop, and the number of its steps before that.
    whom: Option<(ThreadId, u64)>,
    is_stopped: bool,
}

impl Stopping {
    /// Memory that stops no thread yet.
    pub fn new(inner: Memory) -> Self {
        Self {
            inner,
            gate: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Stops this thread after that many steps.
    pub fn stop_after(&self, steps: u64) {
        self.gate.lock().whom = Some((thread::current().id(), steps));
    }

    /// Waits until the thread is stopped, or no longer to be stopped. Returns whether it is stopped.
    pub fn wait_until_stopped(&self) -> bool {
        let mut gate = self.gate.lock();
        self.changed
            .wait_while(&mut gate, |gate| gate.whom.is_some() && !gate.is_stopped);
        gate.is_stopped
    }

    /// Lets the stopped thread continue, and stops no thread from now on.
    pub fn go_on(&self) {
        *self.gate.lock() = Gate::default();
        self.changed.notify_all();
    }

    fn step(&self) {
        let mut gate = self.gate.lock();
        let Some((who, left)) = &mut gate.whom else {
            return;
        };
        if *who != thread::current().id() {
            return;
        }
        if *left > 0 {
            *left -= 1;
            return;
        }
        gate.is_stopped = true;
        self.changed.notify_all();
        self.changed.wait_while(&mut gate, |gate| gate.is_stopped);
    }
}

impl medium::layer::PmemLayer for Stopping {
    type Below = Memory;

    fn below(&self) -> &Memory {
        &self.inner
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.step();
        self.inner.store(off, bytes);
    }
    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.step();
        self.inner.store_nt(off, bytes);
    }
    fn flush(&self, off: u64, len: u64) {
        self.step();
        self.inner.flush(off, len);
    }
    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.step();
        self.inner.fence(rule)
    }
}

/// Three threads. The first one is stopped in its second commit; the others commit meanwhile.
pub struct Threads {
    pub kind: Kind,
    /// Lines of each log.
    pub lines: u64,
    /// Commits of each of the others.
    pub commits: u64,
    /// The step of its commit at which the first one is stopped.
    pub stop_after: u64,
    /// Runs first in each thread.
    pub prepare: fn(),
    /// Whether the commit has such a step.
    pub was_stopped: AtomicBool,
}

const THREADS: u64 = 3;
const LINE: u64 = 64;

/// A mark: number of transactions that a thread has begun.
fn begun(thread: u64, count: u64) -> u64 {
    thread << 32 | count
}

/// A mark: number of transactions of a thread that have returned.
fn returned(thread: u64, count: u64) -> u64 {
    1 << 48 | begun(thread, count)
}

/// The lines that the `count`-th transaction of a thread stores its count to: two lines of the
/// thread, and one that all threads share. While the first thread is stopped, its third line is
/// its own as well.
fn places(thread: u64, count: u64) -> [u64; 3] {
    let shared = match (thread, count) {
        (0, 2) => 3,
        _ => 0,
    };
    [2 * thread + 4, 2 * thread + 5, shared]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Threads {
    fn area(&self) -> Area {
        Area {
            start: 0,
            logs: THREADS + 1,
            log_bytes: (self.lines + 1) * LINE,
            kind: self.kind,
        }
    }

    fn recover<P: Pmem + Clone>(&self, pm: P) -> Result<tx::Memory<P>, String> {
        let options = tx::Options {
            locks: 64,
            ..tx::Options::default()
        };
        Area::recover(pm, 0, options).map_err(text)
    }

    fn place(&self, line: u64) -> u64 {
        self.area().bytes() + line * LINE
    }

    fn commit<P: Pmem + Clone>(
        &self,
        session: &mut tx::TxSession<P>,
        thread: u64,
        count: u64,
    ) -> Result<(), String> {
        let done = session.run(|tx| {
            for line in places(thread, count) {
                tx.store(self.place(line), thread << 32 | count)?;
            }
            Ok::<_, Stop<Infallible>>(())
        });
        done.map_err(text)
    }
}

impl Program for Threads {
    type Opened = Memory;

    fn bytes(&self) -> u64 {
        self.place(2 * THREADS + 4)
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.area().format(&pm).map_err(text)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let pm = Arc::new(Stopping::new(pm));
        let memory = self.recover(pm.clone())?;
        // Each session has a log of its own, in the order of their making.
        let mut sessions: Vec<_> = (0..THREADS).map(|_| memory.session()).collect();
        mark(begun(0, 1));
        // This log must stay less than half full: a thread that truncates would delay the others.
        self.commit(&mut memory.session(), 0, 1)?;
        mark(returned(0, 1));
        let (first, others) = sessions.split_at_mut(1);
        mark(begun(0, 2));
        let ready = Barrier::new(2);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                (self.prepare)();
                pm.stop_after(self.stop_after);
                ready.wait();
                let done = self.commit(&mut first[0], 0, 2);
                pm.go_on();
                done
            });
            ready.wait();
            self.was_stopped
                .store(pm.wait_until_stopped(), Ordering::Relaxed);
            let mut done = Ok(());
            for (session, of) in others.iter_mut().zip(1..) {
                for count in 1..=self.commits {
                    mark(begun(of, count));
                    // A new thread each time: a fence covers only flushes of its own thread.
                    let other = thread::scope(|scope| {
                        let commit = || {
                            (self.prepare)();
                            self.commit(session, of, count)
                        };
                        scope.spawn(commit).join()
                    });
                    done = done.and(other.expect("no panic"));
                    mark(returned(of, count));
                }
            }
            pm.go_on();
            done.and(first.join().expect("no panic"))
        })?;
        mark(returned(0, 2));
        memory.truncate().map_err(text)
    }

    fn open(&self, pm: Memory) -> Result<Memory, String> {
        self.recover(pm.clone())?;
        Ok(pm)
    }

    fn check(&self, pm: &mut Memory, marks: &[u64]) -> Result<u64, String> {
        let load = |line| pm.load(self.place(line)).map_err(text);
        let mut seen = Vec::new();
        for thread in 0..THREADS {
            let last = |of: fn(u64, u64) -> u64| {
                let counts = (1..=self.commits.max(2)).rev();
                counts
                    .into_iter()
                    .find(|count| marks.contains(&of(thread, *count)))
                    .unwrap_or(0)
            };
            let there = load(2 * thread + 4)?;
            let count = there & 0xffff_ffff;
            if there != load(2 * thread + 5)? {
                return Err(format!("half of a transaction of thread {thread}"));
            }
            if !(last(returned)..=last(begun)).contains(&count) {
                let (from, to) = (last(returned), last(begun));
                return Err(format!("{count} of thread {thread}, not {from} to {to}"));
            }
            seen.push(count);
        }
        // The shared line holds the last store that is there.
        let stored = seen.iter().enumerate().rev().find(|(_, count)| **count > 0);
        let shared = stored.map_or(0, |(thread, count)| match thread {
            0 => 1,
            thread => (thread as u64) << 32 | count,
        });
        if load(0)? != shared {
            return Err(format!(
                "{:#x} in the shared line, not {shared:#x}",
                load(0)?
            ));
        }
        if (load(3)? == 2) != (seen[0] == 2) {
            return Err("the stopped transaction is there in part".into());
        }
        Ok(seen.iter().fold(0, |h, count| h << 8 | count))
    }
}
