//! Barriers: the calls before one are durable before those after it, without a sync.

use crate::bounds::bound;
use crate::{MODES, MORE_SCHEDULES, holds_on, quick};
use crash::{Options, Schedule};
use ext2::Ext2System;
use patch::Optimised;
use patch::stack::Mode;

/// Calls around barriers: other files, the same file, data alone, names alone, reused blocks.
pub const BARRIERS: [&str; 7] = [
    "create f 644\nwrite f 0 3000 1\nsync\n\
     create n 644\nwrite n 0 3000 2\nbarrier\nunlink f\nbarrier\ncreate f 600\n",
    "create f 644\nwrite f 0 3000 1\nsync\n\
     create n 644\nwrite n 0 3000 2\nbarrier\nrename n f replace\nbarrier\nwrite f 100 50 3\n",
    "create f 644\nwrite f 0 2000 1\ncreate g 644\nwrite g 0 2000 2\nsync\n\
     write f 0 2000 3\nbarrier\nwrite g 0 2000 4\nbarrier\nwrite f 500 500 5\nbarrier\nwrite g 5 5 6\n",
    "create f 644\nwrite f 0 5000 1\nsync\n\
     append f 3000 2\nbarrier\ntruncate f 100\nbarrier\nappend f 2000 3\n",
    "mkdir A 755\nmkdir B 755\ncreate A/n 644\nsync\n\
     link A/n B/m\nbarrier\nunlink A/n\nbarrier\nrename B/m A/n replace\nbarrier\nrmdir B\n",
    "create f 644\nwrite f 0 3000 1\ncreate g 644\nsync\n\
     unlink f\nbarrier\nwrite g 0 3000 2\nbarrier\nchmod g 600\nbarrier\nsetxattr g user.a 10 3 set\n",
    "create f 644\nsync\nopen 0 f\nunlink f\nbarrier\nwrite @0 0 2000 1\nbarrier\ncreate n 644\n\
     fsync n\nbarrier\nclose 0\ncreate m 644\nbarrier\nwrite m 0 100 2\n",
];

fn options() -> Options {
    Options {
        ops: 0,
        scripts: BARRIERS.map(String::from).to_vec(),
        schedules: bound(MORE_SCHEDULES.to_vec(), Schedule::ALL.to_vec()),
        ..quick()
    }
}

#[test]
fn changes_after_a_barrier_follow_those_before_it() {
    for mode in MODES.into_iter().chain([Mode::Async]) {
        holds_on(Ext2System::new(mode), &options());
    }
    holds_on(
        Ext2System::new(Mode::SoftUpdates).optimised(Optimised::None),
        &options(),
    );
}
