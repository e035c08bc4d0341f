//! Processes get the groups of their parents.

use crate::fixture::{Bench, INIT, by, number};
use vfs::Ctx;

/// A process that has engaged a group, both of user 1.
fn engaged() -> (Bench, u32, vfs::Ino) {
    let bench = Bench::new();
    let parent = bench.world.fork(INIT);
    let group = bench.group(&by(parent, 1));
    (bench, parent, group)
}

#[test]
fn a_child_made_after_an_engage_has_the_group_and_an_earlier_one_has_not() {
    let (bench, parent, group) = engaged();
    let before = bench.world.fork(parent);
    bench.engage(&by(parent, 1), group).unwrap();
    let after = bench.world.fork(parent);
    assert_eq!(bench.write(&by(before, 1)), []);
    assert_eq!(bench.write(&by(after, 1)), [number(group)]);
    assert_eq!(bench.write(&by(INIT, 1)), []);
}

#[test]
fn a_child_keeps_the_group_that_its_parent_disengages() {
    let (bench, parent, group) = engaged();
    bench.engage(&by(parent, 1), group).unwrap();
    let child = bench.world.fork(parent);
    let grandchild = bench.world.fork(child);
    bench.disengage(&by(parent, 1), group).unwrap();
    let later = bench.world.fork(parent);
    assert_eq!(bench.write(&by(parent, 1)), []);
    assert_eq!(bench.write(&by(child, 1)), [number(group)]);
    assert_eq!(bench.write(&by(grandchild, 1)), [number(group)]);
    assert_eq!(bench.write(&by(later, 1)), []);
}

#[test]
fn a_grandchild_has_what_its_parent_had_when_it_was_made() {
    let (bench, parent, group) = engaged();
    bench.engage(&by(parent, 1), group).unwrap();
    let child = bench.world.fork(parent);
    let early = bench.world.fork(child);
    bench.disengage(&by(child, 1), group).unwrap();
    let late = bench.world.fork(child);
    assert_eq!(bench.write(&by(early, 1)), [number(group)]);
    assert_eq!(bench.write(&by(late, 1)), []);
    let other = bench.group(&by(child, 1));
    bench.engage(&by(child, 1), other).unwrap();
    assert_eq!(
        bench.write(&by(bench.world.fork(child), 1)),
        [number(other)]
    );
    assert_eq!(bench.write(&by(parent, 1)), [number(group)]);
}

#[test]
fn an_orphan_keeps_the_groups_with_which_it_made_a_call() {
    let (bench, parent, group) = engaged();
    bench.engage(&by(parent, 1), group).unwrap();
    let child = bench.world.fork(parent);
    assert_eq!(bench.write(&by(child, 1)), [number(group)]);
    bench.world.exit(parent, INIT);
    assert_eq!(bench.write(&by(child, 1)), [number(group)]);
    assert_eq!(bench.list()[0].engaged, [child]);
}

#[test]
fn an_orphan_that_made_no_call_has_the_groups_of_its_new_parent() {
    // `depend` and `order` inherit the orphans of their commands, and have engaged the groups.
    let (bench, reaper, group) = engaged();
    bench.engage(&by(reaper, 1), group).unwrap();
    let shell = bench.world.fork(reaper);
    let daemon = bench.world.fork(shell);
    bench.world.exit(shell, reaper);
    assert_eq!(bench.write(&by(daemon, 1)), [number(group)]);
}

#[test]
fn a_process_with_an_id_that_is_used_again_has_no_old_groups() {
    let (bench, parent, group) = engaged();
    bench.engage(&by(parent, 1), group).unwrap();
    assert_eq!(bench.write(&by(parent, 1)), [number(group)]);
    bench.world.exit(parent, INIT);
    bench.world.fork_as(parent, INIT);
    assert_eq!(bench.write(&by(parent, 1)), []);
    assert!(bench.list()[0].engaged.is_empty());
}

#[test]
fn processes_that_have_ended_are_forgotten_and_the_others_are_not() {
    let (bench, parent, group) = engaged();
    bench.engage(&by(parent, 1), group).unwrap();
    let keeper = bench.world.fork(parent);
    assert_eq!(bench.write(&by(keeper, 1)), [number(group)]);
    bench.disengage(&by(parent, 1), group).unwrap();
    for _ in 0..2000 {
        let child = bench.world.fork(keeper);
        assert_eq!(bench.write(&by(child, 1)), [number(group)]);
        bench.world.exit(child, INIT);
    }
    assert_eq!(bench.write(&by(keeper, 1)), [number(group)]);
    assert_eq!(bench.write(&by(parent, 1)), []);
}

#[test]
fn write_back_joins_all_open_groups() {
    let (bench, parent, group) = engaged();
    let other = bench.group(&by(INIT, 2));
    let sealed = bench.group(&by(INIT, 2));
    let after = bench.group(&by(INIT, 2));
    bench.depend(&by(INIT, 2), after, sealed).unwrap();
    bench.engage(&by(parent, 1), group).unwrap();
    let write_back = Ctx {
        is_write_back: true,
        ..by(0, 0)
    };
    let open = [group, other, after].map(number);
    assert_eq!(bench.write(&write_back), open);
}
