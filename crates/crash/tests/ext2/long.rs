//! Scripts of thousands of calls, crashed at some moments: journals wrap around, blocks are freed
//! and reused, handles stay open.

use super::bounds::bound;
use super::{holds, quick};
use crash::block::explore_script;
use crash::{Options, Schedule};
use ext2::Ext2System;
use patch::stack::Mode;

#[test]
fn long_random_scripts() {
    for (mode, scripts) in [
        (Mode::SoftUpdates, 1),
        (Mode::JournalMetadata, 1),
        (Mode::JournalOrdered, 1),
        (Mode::Journal, bound(1, 2)),
    ] {
        let options = Options {
            ops: 0,
            random_scripts: scripts,
            random_len: bound(1000, 2000),
            moments: bound(20, 40),
            schedules: vec![Schedule::Sync, Schedule::Each],
            ..quick()
        };
        holds(mode, &options);
    }
}

fn script_holds(mode: Mode, script: &str) {
    let failure = explore_script(&Ext2System::new(mode), script, &quick());
    assert_eq!(failure.expect("a script"), None, "{mode}: {script}");
}

#[test]
fn times_beyond_the_format_become_the_nearest() {
    let script = "create f 644\nutimens f -9000000000000000000 9000000000000000000\n";
    script_holds(Mode::SoftUpdates, script);
}
