//! Groups: no change of a later group without all changes of the earlier ones.

use crate::bounds::bound;
use crate::scripts::groups::GROUPS;
use crate::{MODES, holds_on, quick};
use crash::Options;
use ext2::Ext2System;
use patch::Optimised;
use patch::stack::Mode;

fn options() -> Options {
    Options {
        ops: 0,
        scripts: GROUPS.map(String::from).to_vec(),
        ..quick()
    }
}

#[test]
fn changes_of_a_later_group_follow_those_of_the_earlier_ones() {
    for mode in MODES {
        holds_on(Ext2System::new(mode), &options());
    }
}

#[test]
fn groups_keep_their_order_without_the_optimisations_of_the_graph() {
    let options = Options {
        states_per_point: bound(8, 64),
        samples: bound(2, 16),
        ..options()
    };
    for mode in MODES {
        holds_on(Ext2System::new(mode).optimised(Optimised::None), &options);
    }
}

#[test]
fn groups_keep_their_order_where_the_format_has_none() {
    for optimised in [Optimised::Both, Optimised::None] {
        holds_on(
            Ext2System::new(Mode::Async).optimised(optimised),
            &options(),
        );
    }
}
