//! Clients of other users, honest and hostile, in processes of their own.
//!
//! Each test starts this program again as a client, which takes another user's credentials. The
//! harness is therefore not the standard one. Those tests need root.

mod ends;
mod floods;
mod moves;
mod rights;
mod windows;
mod world;

use libtest_mimic::{Arguments, Trial};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::process::ExitCode;
use world::{OWN, Role, World};

/// The first argument of a client; its role, credentials and directory follow.
const CLIENT: &str = "client";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, first, role, credentials, dir] = &arguments[..]
        && first == CLIENT
    {
        if credentials != OWN {
            become_user(credentials);
        }
        act(role, &World(dir.into()));
        return ExitCode::SUCCESS;
    }
    let tests = [
        windows::TESTS,
        rights::TESTS,
        moves::TESTS,
        ends::TESTS,
        floods::TESTS,
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
        rights::CLIENTS,
        moves::CLIENTS,
        ends::CLIENTS,
        floods::CLIENTS,
    ]
    .concat();
    let (_, act) = roles
        .iter()
        .find(|(name, _)| *name == role)
        .expect("a role of a client");
    act(world);
}

/// Takes user id, group id and supplementary group ids, separated by commas.
fn become_user(credentials: &str) {
    let mut ids = credentials.split(',').map(|id| id.parse().unwrap());
    let (uid, gid) = (
        Uid::from_raw(ids.next().unwrap()),
        Gid::from_raw(ids.next().unwrap()),
    );
    let groups: Vec<Gid> = ids.map(Gid::from_raw).collect();
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
    // Otherwise the kernel refuses all of /proc/self, which would hide what the tests look at.
    set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
}
