//! The case studies that need no server and no network: after a power cut, their own check passes.
//! `tools/cases/test` has the others.

use crate::fixture::{Fixture, finish, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of a case.
fn file(case: &str, name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("tools/cases").join(case).join(name)
}

fn is_installed(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// The workload, whose changes are ordered by its own patchgroups or by `selvedge order`.
fn workload(case: &str, place: &Fixture, has_groups: bool) -> Command {
    let program = file(case, "workload");
    let mut command = match has_groups {
        true => Command::new(program),
        false => {
            let mut order = Command::new(env!("CARGO_BIN_EXE_selvedge"));
            order.args(["order", "--dir", place.dir_str(), "--"]);
            order.arg(program);
            order
        }
    };
    command.arg(place.dir());
    command.env("SELVEDGE", env!("CARGO_BIN_EXE_selvedge"));
    command.env("CASE_GROUPS", if has_groups { "1" } else { "0" });
    command.env("CASE_COUNT", "10");
    command
}

/// Runs a workload to its end, and others until the power is cut.
fn keeps_its_check(case: &str, environment: &[(&str, &str)], has_groups: bool) {
    for stack in [
        "uhfs > ext2 > journal(full, commit=10ms) > cache(interval=10ms) > disk",
        "uhfs > ext2 > cache > disk",
    ] {
        for cut in [None, Some(60), Some(110), Some(160)] {
            let place = Fixture::new();
            let ext2 = ["--type", "ext2", "--size", "64M", "--journal"];
            run(0, &[&["mkfs"], &ext2[..], &[place.image_str()]].concat());
            let power = cut.map(|calls| format!("--simulate-power-cut=after-calls={calls},seed=1"));
            let options = power.as_deref().into_iter().chain(["--stack", stack]);
            place.mount(&options.collect::<Vec<_>>());
            let mut command = workload(case, &place, has_groups);
            command.envs(environment.iter().copied());
            match cut {
                None => drop(finish(0, &mut command)),
                // It fails with the file system, unless it has ended before.
                Some(_) => drop(command.output().expect("the workload starts")),
            }
            place.umount();
            place.mount(&["--stack", stack]);
            finish(0, Command::new(file(case, "check.sh")).arg(place.dir()));
            place.umount();
        }
    }
}

#[test]
fn gzip_loses_no_contents_under_depend() {
    if !is_installed("gzip") {
        return skip::test("gzip is not installed");
    }
    keeps_its_check("gzip", &[], true);
}

#[test]
fn git_keeps_a_sound_history_under_order() {
    if !is_installed("git") {
        return skip::test("git is not installed");
    }
    keeps_its_check("git", &[], false);
}

#[test]
fn moved_messages_survive_in_maildirs() {
    if !Path::new("/usr/bin/python3").exists() {
        return skip::test("python3 is not installed");
    }
    keeps_its_check("mail", &[("CASE_FORMAT", "maildir")], true);
}

#[test]
fn moved_messages_survive_in_mboxes() {
    if !Path::new("/usr/bin/python3").exists() {
        return skip::test("python3 is not installed");
    }
    keeps_its_check("mail", &[("CASE_FORMAT", "mbox")], true);
}

/// Runs a workload in a plain directory, damages the result, and expects the check to report it.
fn damage_is_found(case: &str, damage: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(file(case, "workload"));
    command.arg(dir.path()).env("CASE_COUNT", "3");
    finish(0, &mut command);
    finish(0, Command::new(file(case, "check.sh")).arg(dir.path()));
    let mut shell = Command::new("sh");
    finish(0, shell.args(["-ec", damage]).current_dir(dir.path()));
    let checked = Command::new(file(case, "check.sh"))
        .arg(dir.path())
        .output();
    assert!(!checked.unwrap().status.success(), "{case}: {damage}");
}

#[test]
fn the_checks_find_damage() {
    if !is_installed("gzip") || !is_installed("git") || !Path::new("/usr/bin/python3").exists() {
        return skip::test("gzip, git or python3 is not installed");
    }
    damage_is_found("gzip", "rm files/2.gz");
    damage_is_found("gzip", "printf x >files/2");
    damage_is_found(
        "git",
        "git -C work update-ref refs/heads/main $(git -C work rev-list --max-parents=0 main) && git -C work -c user.name=a -c user.email=b commit -q --allow-empty -m 'change 9'",
    );
    damage_is_found("mail", "rm mail/.archive/new/*M2P1*");
    damage_is_found(
        "mail",
        "for f in mail/.archive/new/*M2P1*; do truncate -s 1000 $f; done",
    );
}
