//! Requests of durability that are barriers.

use crate::fixture::{Bench, INIT, Seen, by, number};
use pg::protocol;
use vfs::{Errno, Ino};

#[test]
fn an_fsync_in_an_ordered_group_is_a_barrier_and_does_not_go_below() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    bench.call(&cx, group, protocol::ORDER).unwrap();
    bench.engage(&cx, group).unwrap();
    let child = bench.world.fork(INIT);
    for cx in [&cx, &by(child, 1)] {
        bench.fs.fsync(cx, bench.file, false).unwrap();
        bench.fs.fsync(cx, bench.file, true).unwrap();
        bench.fs.fsyncdir(cx, Ino::ROOT, false).unwrap();
        assert_eq!(bench.seen(), vec![Seen::Barrier(number(group)); 3]);
    }
    bench.disengage(&cx, group).unwrap();
    bench.fs.fsync(&cx, bench.file, false).unwrap();
    assert_eq!(bench.seen(), [Seen::Synced]);
}

#[test]
fn an_fsync_in_a_group_without_order_stays_an_fsync() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    bench.engage(&cx, group).unwrap();
    bench.fs.fsync(&cx, bench.file, false).unwrap();
    assert_eq!(bench.seen(), [Seen::Synced]);
}

#[test]
fn an_fsync_of_another_user_stays_an_fsync() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    bench.call(&cx, group, protocol::ORDER).unwrap();
    bench.engage(&cx, group).unwrap();
    bench.fs.fsync(&by(INIT, 2), bench.file, false).unwrap();
    assert_eq!(bench.seen(), [Seen::Synced]);
}

#[test]
fn a_failed_barrier_is_a_failed_fsync() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    bench.call(&cx, group, protocol::ORDER).unwrap();
    bench.engage(&cx, group).unwrap();
    bench
        .below
        .fails
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let failed = bench.fs.fsync(&cx, bench.file, false);
    assert_eq!(failed, Err(Errno::IO));
}

#[test]
fn with_the_option_all_changes_and_fsyncs_are_in_one_order() {
    let bench = Bench::with(true, true).unwrap();
    let all = 1;
    for cx in [by(INIT, 1), by(INIT + 999, 2), by(0, 0)] {
        assert_eq!(bench.write(&cx), [all]);
        bench.seen();
        bench.fs.fsync(&cx, bench.file, false).unwrap();
        assert_eq!(bench.seen(), [Seen::Barrier(all)]);
    }
    // Groups work as well; their sets have other numbers here.
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    bench.call(&cx, group, protocol::ORDER).unwrap();
    bench.engage(&cx, group).unwrap();
    assert_eq!(bench.write(&cx), [2, all]);
    bench.seen();
    bench.fs.fsync(&cx, bench.file, false).unwrap();
    assert_eq!(bench.seen(), [Seen::Barrier(2), Seen::Barrier(all)]);
    assert_eq!(bench.list().len(), 1, "the option's set is not a group");
}
