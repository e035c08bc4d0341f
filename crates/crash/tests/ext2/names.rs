//! The order of names with the optimisations of the patch graph switched off, one by one and all.
//! With them, two changes often reach the medium in one write although no rule demands it.

use super::bounds::bound;
use super::{quick, run, scripts};
use crash::Options;
use crash::block::explore_script;
use ext2::Ext2System;
use oracle::script::generate::Tree;
use patch::Optimised;
use patch::stack::Mode;

fn soft(optimised: Optimised) -> Ext2System {
    Ext2System::new(Mode::SoftUpdates).optimised(optimised)
}

/// Options without crashes in recovery, in which soft updates write nothing.
fn options() -> Options {
    Options {
        recovery_depth: 0,
        ..quick()
    }
}

/// All scripts of one call on a tree, and some of two.
fn holds(optimised: Optimised, tree: Tree, pairs: u64) {
    let options = Options {
        trees: vec![tree],
        ops: 2,
        sample: Some(pairs),
        ..options()
    };
    let outcome = run(&soft(optimised), &options);
    assert_eq!(outcome.failures.first(), None, "{optimised}");
    assert!(outcome.complete);
}

#[test]
fn order_of_names_holds_with_any_optimisations() {
    for optimised in [Optimised::Hard, Optimised::Overlap, Optimised::Both] {
        holds(optimised, Tree::Names, bound(30, 100));
    }
}

#[test]
fn order_holds_without_optimisations() {
    for tree in [Tree::Small, Tree::Names] {
        holds(Optimised::None, tree, bound(60, 200));
    }
}

#[test]
fn order_holds_for_objects_just_made_moved_or_removed() {
    let usual = vec![Optimised::None, Optimised::Both];
    for optimised in bound(usual, Optimised::ALL.to_vec()) {
        for script in scripts::of_names() {
            let failure = explore_script(&soft(optimised), &script, &options());
            assert_eq!(failure.expect("a script"), None, "{optimised}: {script}");
        }
    }
}

/// A change of a name holds back the times of its inode, of which a later call changes both parts.
#[test]
fn times_are_old_or_new() {
    let before = "mkdir B 755\ncreate f 644\nutimens f 1000000001 1000000000\nsync\n";
    for optimised in Optimised::ALL {
        for name in [
            "rename f B/f replace",
            "link f B/f\nunlink f",
            "link f B/f\nwrite f 0 30 1",
        ] {
            for times in ["- 5625869645", "5625869645 -", "5625869645 7625869646"] {
                let script = format!("{before}{name}\nutimens B/f {times}\nchmod B/f 600\n");
                let failure = explore_script(&soft(optimised), &script, &options());
                assert_eq!(failure.expect("a script"), None, "{optimised}: {script}");
            }
        }
    }
}

#[test]
fn fsync_covers_the_path_of_a_file() {
    for optimised in [Optimised::Both, Optimised::None] {
        for script in scripts::of_paths() {
            let failure = explore_script(&soft(optimised), &script, &options());
            assert_eq!(failure.expect("a script"), None, "{optimised}: {script}");
        }
    }
}
