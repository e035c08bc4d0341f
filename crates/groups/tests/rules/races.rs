//! Calls of several threads at the same time.

use crate::fixture::{Bench, INIT, Seen, by, number};
use pg::protocol;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;
use vfs::{Errno, Ino};

const ROUNDS: usize = 60;

/// Fails if a test takes a minute: threads wait for each other.
fn ends(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Ok(()) => thread.join().unwrap(),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => thread.join().unwrap(),
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
    }
}

/// Times that a process engages a group. Two that take turns could keep it engaged for ever.
const ENGAGEMENTS: usize = 2000;

/// A process that engages the group, writes, and disengages it until it is sealed.
fn writer(bench: &Bench, group: Ino) {
    let pid = bench.world.fork(INIT);
    let cx = by(pid, 1);
    for _ in 0..ENGAGEMENTS {
        match bench.engage(&cx, group) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(e) => panic!("{e}"),
        }
        bench.fs.write(&cx, bench.file, 0, b"text").unwrap();
        bench.fs.fsync(&cx, bench.file, false).unwrap();
        bench.disengage(&cx, group).unwrap();
    }
    bench.world.exit(pid, INIT);
}

#[test]
fn no_change_joins_a_group_after_another_waits_for_it() {
    ends(|| {
        for _ in 0..ROUNDS {
            let bench = Bench::new();
            let cx = by(INIT, 1);
            let (before, after) = (bench.group(&cx), bench.group(&cx));
            bench.call(&cx, before, protocol::ORDER).unwrap();
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| writer(&bench, before));
                }
                scope.spawn(|| bench.list());
                while let Err(e) = bench.depend(&cx, after, before) {
                    assert_eq!(e, Errno::BUSY);
                    thread::yield_now();
                }
            });
            let seen = bench.seen();
            let depend = Seen::Depend(number(after), number(before));
            let sealed = seen.iter().position(|seen| *seen == depend).unwrap();
            let joins = |seen: &Seen| match seen {
                Seen::Changed(sets) => sets.contains(&number(before)),
                Seen::Barrier(set) => *set == number(before),
                Seen::Synced | Seen::Depend(..) | Seen::SyncSet(_) | Seen::Removed(_) => false,
            };
            assert!(!seen[sealed..].iter().any(joins));
        }
    });
}

#[test]
fn groups_that_end_during_calls_delay_no_other_call() {
    ends(|| {
        let bench = Arc::new(Bench::new());
        for _ in 0..ROUNDS {
            let cx = by(INIT, 1);
            let (a, b) = (bench.group(&cx), bench.group(&cx));
            for group in [a, b] {
                bench.call(&cx, group, protocol::ORDER).unwrap();
            }
            let pids = [(); 2].map(|()| bench.world.fork(INIT));
            // Each process has engaged the two groups in another order.
            for (pid, groups) in pids.into_iter().zip([[a, b], [b, a]]) {
                for group in groups {
                    bench.engage(&by(pid, 1), group).unwrap();
                }
            }
            thread::scope(|scope| {
                for pid in pids {
                    let bench = &bench;
                    scope.spawn(move || {
                        for _ in 0..20 {
                            let cx = by(pid, 1);
                            bench.fs.write(&cx, bench.file, 0, b"x").unwrap();
                            bench.fs.fsync(&cx, bench.file, false).unwrap();
                        }
                    });
                }
                scope.spawn(|| (0..10).for_each(|_| drop(bench.list())));
                scope.spawn(|| bench.fs.forget(a, 1));
                scope.spawn(|| bench.fs.forget(b, 1));
            });
            for pid in pids {
                bench.world.exit(pid, INIT);
            }
        }
        assert!(bench.list().is_empty());
    });
}

#[test]
fn groups_made_at_the_same_time_are_different() {
    let bench = Bench::new();
    let made = parking_lot::Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let group = bench.group(&by(INIT, 1));
                    assert!(made.lock().insert(group));
                }
            });
        }
    });
    assert_eq!(bench.list().len(), 800);
}
