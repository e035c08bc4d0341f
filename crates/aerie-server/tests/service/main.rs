//! The service and clients, in this process and in processes of their own.
//!
//! A test can start this program again as a client, also as another user. The harness is therefore not
//! the standard one. Tests with other users need root. `tools/fuzz` makes a program of libFuzzer of it.
// libFuzzer has its own `main`, and calls only what `fuzz` uses.
#![cfg_attr(fuzzing, no_main, allow(dead_code))]

mod classes;
mod durable;
mod ends;
mod fuzz;
mod hostile;
mod kv;
mod pair;
mod paths;
mod peer;
mod protected;
mod world;

#[path = "../../../crash/tests/scripts/bounds.rs"]
mod bounds;

use libtest_mimic::{Arguments, Trial};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::process::ExitCode;
use world::{OWN, Role, World};

/// The first argument of a client; its role, user and directory follow.
const CLIENT: &str = "client";

/// With it, `tools/fuzz` gets seeds in the directory that follows.
const SEEDS: &str = "seeds";

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| drop(fuzz::converse(input)));

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, first, role, user, dir] = &arguments[..]
        && first == CLIENT
    {
        if user != OWN {
            become_user(user.parse().unwrap());
        }
        act(role, &World::at(dir.as_ref()));
        return ExitCode::SUCCESS;
    }
    if let [_, first, dir] = &arguments[..]
        && first == SEEDS
    {
        fuzz::write_seeds(dir.as_ref());
        return ExitCode::SUCCESS;
    }
    let tests = [
        durable::TESTS,
        pair::TESTS,
        ends::TESTS,
        hostile::TESTS,
        classes::TESTS,
        kv::TESTS,
        paths::TESTS,
        fuzz::TESTS,
        protected::TESTS,
    ];
    let trial = |(name, test): &(&str, fn())| {
        let test = *test;
        Trial::test(*name, move || {
            test();
            Ok(())
        })
    };
    let trials = tests.concat().iter().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn act(role: &str, world: &World) {
    let roles: Vec<(&str, Role)> = [
        pair::CLIENTS,
        ends::CLIENTS,
        classes::CLIENTS,
        kv::CLIENTS,
        protected::CLIENTS,
    ]
    .concat();
    let (_, act) = roles
        .iter()
        .find(|(name, _)| *name == role)
        .expect("a role of a client");
    act(world);
}

/// Takes a user id, and the group of the same number.
pub(crate) fn become_user(id: u32) {
    become_member(id, &[]);
}

/// The same, with supplementary groups.
pub(crate) fn become_member(id: u32, groups: &[u32]) {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
    // Otherwise the kernel refuses all of /proc/self.
    set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
}
