//! The calls on groups, their errors, and their effects.

use crate::fixture::{Bench, INIT, Seen, by, number};
use groups::{Grouped, keeps_order};
use oracle::ModelFs;
use pg::protocol;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{Ctx, Errno, FileSystem, Ino};

const REQUESTS: [u32; 5] = [
    protocol::ENGAGE,
    protocol::DISENGAGE,
    protocol::SYNC,
    protocol::BARRIER,
    protocol::ORDER,
];

#[test]
fn changes_join_the_groups_that_are_engaged() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let (a, b) = (bench.group(&cx), bench.group(&cx));
    assert_eq!(bench.write(&cx), []);
    bench.engage(&cx, a).unwrap();
    bench.engage(&cx, b).unwrap();
    bench.engage(&cx, a).unwrap();
    assert_eq!(bench.write(&cx), [number(a), number(b)]);
    bench.disengage(&cx, a).unwrap();
    bench.disengage(&cx, a).unwrap();
    assert_eq!(bench.write(&cx), [number(b)]);
    bench.fs.forget(b, 1);
    assert_eq!(bench.write(&cx), []);
    assert!(bench.seen().contains(&Seen::Removed(number(b))));
}

#[test]
fn a_group_that_another_waits_for_is_sealed() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let (before, after, third) = (bench.group(&cx), bench.group(&cx), bench.group(&cx));
    bench.engage(&cx, before).unwrap();
    bench.disengage(&cx, before).unwrap();
    bench.depend(&cx, after, before).unwrap();
    assert!(
        bench
            .seen()
            .contains(&Seen::Depend(number(after), number(before)))
    );
    assert_eq!(bench.engage(&cx, before), Err(Errno::INVAL));
    assert_eq!(
        bench.call(&cx, before, protocol::BARRIER),
        Err(Errno::INVAL)
    );
    assert_eq!(bench.depend(&cx, before, third), Err(Errno::INVAL));
    // Others may wait for it too, and it can be synced and ended.
    bench.depend(&cx, third, before).unwrap();
    bench.call(&cx, before, protocol::SYNC).unwrap();
    bench.disengage(&cx, before).unwrap();
    bench.fs.forget(before, 1);
}

#[test]
fn a_group_that_was_engaged_gets_no_befores() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let (a, b) = (bench.group(&cx), bench.group(&cx));
    bench.engage(&cx, a).unwrap();
    assert_eq!(bench.depend(&cx, a, b), Err(Errno::BUSY));
    bench.disengage(&cx, a).unwrap();
    assert_eq!(bench.depend(&cx, a, b), Err(Errno::BUSY));
    assert_eq!(bench.call(&cx, a, protocol::ORDER), Err(Errno::BUSY));
    assert!(
        !bench.list()[1].sealed,
        "the refused call has sealed nothing"
    );
}

#[test]
fn a_group_of_a_live_process_is_busy_and_that_of_a_dead_one_is_not() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let (before, after) = (bench.group(&cx), bench.group(&cx));
    let child = bench.world.fork(INIT);
    bench.engage(&by(child, 1), before).unwrap();
    assert_eq!(bench.depend(&cx, after, before), Err(Errno::BUSY));
    assert_eq!(bench.list()[0].engaged, [child]);
    bench.world.exit(child, INIT);
    assert!(bench.list()[0].engaged.is_empty());
    bench.depend(&cx, after, before).unwrap();
}

#[test]
fn no_cycle_can_be_made() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let [a, b, c] = [(); 3].map(|()| bench.group(&cx));
    assert_eq!(bench.depend(&cx, a, a), Err(Errno::INVAL));
    bench.depend(&cx, b, a).unwrap();
    bench.depend(&cx, c, b).unwrap();
    assert_eq!(bench.depend(&cx, a, c), Err(Errno::INVAL));
    assert_eq!(bench.depend(&cx, b, c), Err(Errno::INVAL));
    assert_eq!(bench.list()[1].after, [number(a)]);
}

#[test]
fn only_its_owner_names_a_group() {
    let bench = Bench::new();
    let (own, other, root) = (by(INIT, 1), by(INIT, 2), by(INIT, 0));
    let group = bench.group(&own);
    for cx in [&other, &root] {
        for request in REQUESTS {
            assert_eq!(bench.call(cx, group, request), Err(Errno::PERM));
        }
        let theirs = bench.group(cx);
        assert_eq!(bench.depend(cx, theirs, group), Err(Errno::PERM));
        assert_eq!(bench.depend(cx, group, theirs), Err(Errno::PERM));
        assert_eq!(bench.depend(&own, group, theirs), Err(Errno::PERM));
        assert_eq!(bench.fs.fsync(cx, group, false), Err(Errno::PERM));
    }
    bench.engage(&own, group).unwrap();
    assert_eq!(bench.write(&own), [number(group)]);
    assert_eq!(bench.write(&other), [], "a set-user-id program");
}

#[test]
fn changes_of_all_users_join_a_group_of_root() {
    let bench = Bench::new();
    let root = by(INIT, 0);
    let group = bench.group(&root);
    bench.engage(&root, group).unwrap();
    let child = bench.world.fork(INIT);
    assert_eq!(bench.write(&by(child, 7)), [number(group)]);
}

#[test]
fn an_unknown_group_request_or_process_is_an_error() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    let gone = bench.group(&cx);
    bench.fs.forget(gone, 1);
    for request in REQUESTS {
        assert_eq!(bench.call(&cx, gone, request), Err(Errno::BADF));
    }
    assert_eq!(bench.depend(&cx, group, gone), Err(Errno::BADF));
    assert_eq!(bench.depend(&cx, gone, group), Err(Errno::BADF));
    assert_eq!(bench.depend(&cx, group, bench.file), Err(Errno::BADF));
    assert_eq!(bench.depend(&cx, group, Ino(u64::MAX)), Err(Errno::BADF));
    let short = bench.fs.control(&cx, group, protocol::DEPEND, &[0; 7]);
    assert_eq!(short, Err(Errno::INVAL));
    assert_eq!(bench.call(&cx, group, 0xf507), Err(Errno::NOTTY));
    assert_eq!(
        bench.call(&cx, bench.file, protocol::ENGAGE),
        Err(Errno::NOTTY)
    );
    let invisible = by(INIT + 1000, 1);
    assert_eq!(bench.engage(&invisible, group), Err(Errno::SRCH));
    assert_eq!(bench.disengage(&invisible, group), Err(Errno::SRCH));
    assert_eq!(bench.write(&invisible), []);
}

#[test]
fn errors_of_the_order_are_returned() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    bench.below.fails.store(true, SeqCst);
    assert_eq!(bench.call(&cx, group, protocol::SYNC), Err(Errno::IO));
    assert_eq!(bench.call(&cx, group, protocol::BARRIER), Err(Errno::IO));
    assert_eq!(bench.fs.fsync(&cx, group, false), Err(Errno::IO));
}

#[test]
fn a_user_has_a_limited_number_of_groups() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let groups: Vec<Ino> = (0..4096).map(|_| bench.group(&cx)).collect();
    assert_eq!(bench.try_group(&cx), Err(Errno::NFILE));
    bench.group(&by(INIT, 2));
    bench.fs.forget(groups[17], 1);
    bench.group(&cx);
    assert_eq!(bench.try_group(&cx), Err(Errno::NFILE));
}

#[test]
fn a_file_system_without_order_has_no_groups() {
    let bench = Bench::with(false, false).unwrap();
    assert_eq!(bench.try_group(&by(INIT, 1)), Err(Errno::OPNOTSUPP));
    assert!(bench.list().is_empty());
    assert!(!keeps_order(&*bench.below) && keeps_order(&*Bench::new().below));
    assert_eq!(bench.write(&by(INIT, 1)), []);
    let plain = Grouped::new(Arc::new(ModelFs::default()), bench.world.clone(), false);
    FileSystem::statfs(&plain).unwrap();
}

#[test]
fn a_list_describes_the_groups() {
    let bench = Bench::new();
    let (cx, other) = (by(INIT, 1), by(INIT, 2));
    let (a, b, c) = (bench.group(&cx), bench.group(&other), bench.group(&cx));
    bench.call(&cx, a, protocol::ORDER).unwrap();
    bench.depend(&cx, c, a).unwrap();
    let list = bench.list();
    let about = |at: usize| {
        (
            list[at].group,
            list[at].uid,
            list[at].sealed,
            list[at].order,
        )
    };
    assert_eq!(about(0), (number(a), 1, true, true));
    assert_eq!(about(1), (number(b), 2, false, false));
    assert_eq!(list[2].after, [number(a)]);
    assert_eq!((list[2].pid, list[2].pending), (INIT, 7));
}

#[test]
fn a_change_that_drops_set_id_bits_joins_the_group_of_its_user() {
    let bench = Bench::new();
    let cx = by(INIT, 1);
    let group = bench.group(&cx);
    bench.engage(&cx, group).unwrap();
    let drops = |uid: u32| Ctx {
        uid,
        drops_set_id: true,
        ..by(INIT, 1)
    };
    assert_eq!(bench.write(&drops(cx.uid)), [number(group)]);
    assert_eq!(bench.write(&drops(cx.uid + 1)), []);
}
