//! The order of names with the optimisations of the patch graph switched off, one by one and all.
//! With them, two changes often reach the medium in one write although no rule demands it.

use super::{quick, run};
use crash::Options;
use crash::block::explore_script;
use ext2::Ext2System;
use oracle::script::generate::{LONG_TARGET, Tree};
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
        holds(optimised, Tree::Names, 100);
    }
}

#[test]
fn order_holds_without_optimisations() {
    for tree in [Tree::Small, Tree::Names] {
        holds(Optimised::None, tree, 200);
    }
}

/// Scripts of several calls on objects that were just made, moved or removed. `T` is a long
/// target.
const SCRIPTS: [&str; 24] = [
    "create A/x 644\ncreate A/y 644\ncreate A/z 644\nsync\nunlink A/x\nrename A/z B/z replace\ncreate A/z 644\n",
    "rename C/D A/D replace\nrename C A/D/C replace\n",
    "mkdir C/D/E 755\nmkdir C/D/E/F 755\nsync\nrename C/D/E A/E replace\nrename C A/E/F/C replace\n",
    "symlink T A/n\nrename A/n B/n replace\ncreate m 644\nfsync m\n",
    "symlink T A/n\nlink A/n B/n\ncreate m 644\nfsync m\n",
    "symlink T A/n\nrename A/n B/n replace\n",
    "symlink T A/n\nlink A/n B/m\n",
    "symlink T A/n\nrename A/n f replace\n",
    "mkdir n 755\nrename f n/f replace\n",
    "mkdir A/n 755\nlink f A/n/f\nunlink f\n",
    "mkdir A/n 755\nmkdir A/n/m 755\nrename f A/n/m/f replace\n",
    "mkdir A/n 755\nrename A/n B/n replace\nrmdir B/n\n",
    "mkdir A/n 755\nmkdir A/n/m 755\nrename A/n/m B/m replace\nrmdir A/n\nrmdir B/m\n",
    "rename C/D A/D replace\nrename A/D B/D replace\n",
    "rename C/D A/D replace\nrmdir A/D\n",
    "rename C/D A/D replace\nrmdir A/D\nrmdir C\nmkdir m 755\n",
    "rename C/D A/D replace\nrename A/D C/D replace\nrmdir C/D\nrmdir C\n",
    "rename C/D A/D replace\nrmdir C\nmkdir m 755\nrename A/D m/D replace\n",
    "mkdir n 755\nrename C/D n/D replace\nrmdir n/D\nrmdir n\n",
    "mkdir n 755\nrename C/D n/D replace\nrename n/D A/D replace\nrmdir n\n",
    "rename A/g B/g replace\nrmdir A\nrename B/g f replace\nrmdir B\n",
    "link A/g B/g\nunlink A/g\nrmdir A\n",
    "rmdir C/D\nrmdir C\nmkdir n 755\nmkdir m 755\nmkdir m/n 755\n",
    "mkdir C/D/n 755\nrmdir C/D/n\nrmdir C/D\nrmdir C\nmkdir n 755\ncreate n/m 644\n",
];

#[test]
fn order_holds_for_objects_just_made_moved_or_removed() {
    let target = "t".repeat(LONG_TARGET);
    for optimised in Optimised::ALL {
        for script in SCRIPTS {
            let script = script.replace("symlink T", &format!("symlink {target}"));
            let script = format!("{}sync\n{script}", Tree::Names.setup());
            let failure = explore_script(&soft(optimised), &script, &options());
            assert_eq!(failure.expect("a script"), None, "{optimised}: {script}");
        }
    }
}

/// An fsync waits for the names of the new directories that lead to the inode.
#[test]
fn fsync_covers_the_path_of_a_file() {
    for rest in [
        "mkdir n 755\ncreate n/m 644\nfsync n/m\n",
        "mkdir n 755\ncreate n/m 644\nfsync n/m\nwrite n/m 0 100 1\nfsync n/m\n",
        "mkdir n 755\ncreate n/m 644\nwrite n/m 0 100 1\nfdatasync n/m\n",
        "mkdir n 755\nmkdir n/m 755\nfsyncdir n/m\n",
        "mkdir n 755\nmkdir n/m 755\ncreate n/m/k 644\nfsync n/m/k\n",
        "mkdir n 755\nmkdir n/m 755\nfsyncdir n\ncreate n/m/k 644\nfsync n/m/k\n",
        "mkdir n 755\ncreate n/m 644\nrename n/m n/k replace\nfsync n/k\n",
        "mkdir n 755\ncreate n/m 644\nrename n k replace\nfsync k/m\n",
        "mkdir n 755\ncreate n/m 644\nrename n A/k replace\nfsync A/k/m\n",
        "mkdir n 755\ncreate n/m 644\nrename n/m A/m replace\nrmdir n\nfsync A/m\n",
        "mkdir n 755\nmkdir k 755\ncreate n/m 644\nrename n k/n replace\nfsync k/n/m\n",
        "mkdir n 755\nmkdir n/m 755\nmkdir k 755\nrename n/m k/m replace\nfsyncdir k/m\n",
        "mkdir n 755\nlink f n/m\nrename n k replace\nunlink f\nfsync k/m\n",
        "mkdir n 755\nrename f n/m replace\nrename n k replace\nfsync k/m\n",
        "mkdir n 755\ntmpfile 0 n 644\nlink @0 n/m\nfsync n/m\n",
    ] {
        for optimised in [Optimised::Both, Optimised::None] {
            let script = format!("{}sync\n{rest}", Tree::Names.setup());
            let failure = explore_script(&soft(optimised), &script, &options());
            assert_eq!(failure.expect("a script"), None, "{optimised}: {rest}");
        }
    }
}
