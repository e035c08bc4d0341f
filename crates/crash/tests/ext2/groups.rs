//! Groups: no change of a later group without all changes of the earlier ones.

use crate::bounds::bound;
use crate::scripts::groups::{GROUPS, pairs, triples};
use crate::{MODES, holds_on, quick};
use crash::{Options, Schedule};
use ext2::Ext2System;
use patch::Optimised;
use patch::stack::Mode;

/// Without a journal and with one.
const FEW: [Mode; 2] = [Mode::SoftUpdates, Mode::Journal];

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
        schedules: bound(vec![Schedule::Any(1)], Schedule::ALL.to_vec()),
        ..options()
    };
    for mode in bound(&FEW[..], &MODES) {
        holds_on(Ext2System::new(*mode).optimised(Optimised::None), &options);
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

/// Scripts of all calls and shapes, with few states of each. `make test` takes one of three or more, so
/// that it still has each call in each place, and each shape.
fn holds_in_all_modes(scripts: Vec<String>, stride: usize) {
    let options = Options {
        scripts: scripts.into_iter().step_by(bound(stride, 1)).collect(),
        states_per_point: bound(8, 32),
        samples: bound(2, 8),
        moments: bound(16, usize::MAX),
        schedules: bound(vec![Schedule::Any(1)], Schedule::ALL.to_vec()),
        ..options()
    };
    for mode in bound(&FEW[..], &MODES).iter().chain(&[Mode::Async]) {
        holds_on(Ext2System::new(*mode), &options);
    }
}

#[test]
fn every_pair_of_calls_keeps_the_order_of_two_groups() {
    holds_in_all_modes(pairs(), 3);
}

#[test]
fn calls_keep_every_order_of_three_groups() {
    holds_in_all_modes(triples(), 5);
}
