//! Patchgroups of mounts, with real processes: the client, `depend`, `order`, and `pg list`.

use crate::fixture::{Fixture, alone, finish, run, selvedge, stderr, stdout, wait_for};
use pg::Group;
use rustix::process::Uid;
use rustix::thread::set_thread_uid;
use serde_json::Value;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// The image types and modes that keep an order.
const MOUNTS: [(&str, &str); 3] = [
    ("ext2", "allow_other,mode=softupdates"),
    ("ext2", "allow_other,mode=journal"),
    ("bpfs", "allow_other"),
];

/// Numbers of errors.
mod code {
    use rustix::io::Errno;

    pub(super) const BUSY: i32 = Errno::BUSY.raw_os_error();
    pub(super) const INVAL: i32 = Errno::INVAL.raw_os_error();
    pub(super) const PERM: i32 = Errno::PERM.raw_os_error();
}

/// Runs a test on a fresh mount of each of them, with its directory open to all users.
fn on_each(test: impl Fn(&Path)) {
    for (engine, options) in MOUNTS {
        let place = Fixture::new();
        make(&place, engine);
        place.mount(&["--type", engine, "-o", options]);
        test(&place.dir());
        place.umount();
    }
}

fn make(place: &Fixture, engine: &str) {
    let size = ["--size", "64M", "--type", engine];
    run(0, &[&["mkfs"], &size[..], &[place.image_str()]].concat());
}

fn list(dir: &Path) -> Vec<Value> {
    let output = run(0, &["pg", "list", "--json", dir.to_str().unwrap()]);
    let list: Value = serde_json::from_str(&stdout(&output)).unwrap();
    list["groups"].as_array().unwrap().clone()
}

fn errno(result: io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn depend(dir: &Path) -> Command {
    let mut command = selvedge();
    command.arg("depend").current_dir(dir);
    command
}

fn order(dir: &Path) -> Command {
    let mut command = selvedge();
    command.arg("order").current_dir(dir);
    command
}

#[test]
fn the_client_makes_orders_engages_and_syncs_groups() {
    let test = |dir: &Path| {
        let (before, after) = (Group::new(dir).unwrap(), Group::new(dir).unwrap());
        {
            let _engaged = before.engage().unwrap();
            fs::write(dir.join("a"), "a").unwrap();
            assert_eq!(errno(after.depend(&before)), Some(code::BUSY));
        }
        after.depend(&before).unwrap();
        assert_eq!(errno(before.engage()), Some(code::INVAL));
        assert_eq!(errno(after.depend(&after)), Some(code::INVAL));
        {
            let _engaged = after.engage().unwrap();
            fs::remove_file(dir.join("a")).unwrap();
            after.barrier().unwrap();
        }
        after.sync().unwrap();
        assert_eq!(errno(after.order()), Some(code::BUSY));
        let listed = list(dir);
        let about = |at: usize| (listed[at]["sealed"] == true, listed[at]["pending"] == 0);
        assert_eq!((about(0), about(1)), ((true, true), (false, true)));
        drop((before, after));
        wait_for("the end of the groups", || list(dir).is_empty());
    };
    alone(
        "groups::the_client_makes_orders_engages_and_syncs_groups",
        || on_each(test),
    );
}

#[test]
fn a_process_has_a_group_until_its_last_guard_is_dropped() {
    let test = |dir: &Path| {
        let (before, after) = (Group::new(dir).unwrap(), Group::new(dir).unwrap());
        let outer = before.engage().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(before.engage().unwrap()));
        });
        drop(before.engage().unwrap());
        assert_eq!(errno(after.depend(&before)), Some(code::BUSY));
        drop(outer);
        after.depend(&before).unwrap();
        assert_eq!(errno(before.engage()), Some(code::INVAL));
    };
    alone(
        "groups::a_process_has_a_group_until_its_last_guard_is_dropped",
        || on_each(test),
    );
}

#[test]
fn children_over_fork_and_exec_have_the_group() {
    let test = |dir: &Path| {
        let group = Group::new(dir).unwrap();
        let engaged = group.engage().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "echo x > file; (cat; true)"])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("the write of the child", || dir.join("file").exists());
        let has = |pid: u32| {
            let engaged = list(dir)[0]["engaged"].as_array().unwrap().clone();
            engaged.contains(&pid.into())
        };
        assert!(has(child.id()) && has(std::process::id()));
        drop(engaged);
        assert!(has(child.id()) && !has(std::process::id()));
        let after = Group::new(dir).unwrap();
        assert_eq!(errno(after.depend(&group)), Some(code::BUSY));
        drop(child.stdin.take());
        child.wait().unwrap();
        after.depend(&group).unwrap();
    };
    alone("groups::children_over_fork_and_exec_have_the_group", || {
        on_each(test)
    });
}

#[test]
fn groups_end_with_the_last_process_that_has_them() {
    on_each(|dir| {
        for kill in [false, true] {
            let name = dir.join(format!(".selvedge-patchgroup.{kill}"));
            let mut child = Command::new("sh")
                .args(["-c", "exec 5<>\"$1\"; echo ready; read line", "sh"])
                .arg(&name)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            child
                .stdout
                .take()
                .unwrap()
                .read_exact(&mut [0; 6])
                .unwrap();
            assert_eq!(list(dir).len(), 1);
            match kill {
                true => child.kill().unwrap(),
                false => drop(child.stdin.take()),
            }
            child.wait().unwrap();
            wait_for("the end of the group", || list(dir).is_empty());
        }
    });
}

#[test]
fn calls_on_groups_of_a_killed_server_fail() {
    alone("groups::calls_on_groups_of_a_killed_server_fail", || {
        for (engine, _) in MOUNTS {
            let place = Fixture::new();
            make(&place, engine);
            let mut server = place.serve(&[]);
            let (group, after) = (Group::new(place.dir()), Group::new(place.dir()));
            let (group, after) = (group.unwrap(), after.unwrap());
            let engaged = group.engage().unwrap();
            server.signal("KILL");
            server.wait();
            for call in [Group::sync, Group::barrier, Group::order] {
                assert!(errno(call(&group)).is_some());
            }
            assert!(group.engage().is_err() && after.depend(&group).is_err());
            drop(engaged);
            assert!(Group::new(place.dir()).is_err());
        }
    });
}

#[test]
fn another_user_cannot_use_a_group() {
    alone("groups::another_user_cannot_use_a_group", || {
        on_each(|dir| {
            let (group, after) = (Group::new(dir).unwrap(), Group::new(dir).unwrap());
            thread::scope(|scope| {
                let other = scope.spawn(|| {
                    // The call changes this thread alone, which has the descriptors but not the rights.
                    set_thread_uid(Uid::from_raw(65534)).unwrap();
                    for call in [Group::sync, Group::barrier, Group::order] {
                        assert_eq!(errno(call(&group)), Some(code::PERM));
                    }
                    assert_eq!(errno(group.engage()), Some(code::PERM));
                    assert_eq!(errno(after.depend(&group)), Some(code::PERM));
                    let own = Group::new(dir).unwrap();
                    assert_eq!(errno(own.depend(&group)), Some(code::PERM));
                    own.sync().unwrap();
                });
                other.join().unwrap();
            });
            group.sync().unwrap();
        });
    });
}

#[test]
fn depend_runs_commands_in_turn_until_one_fails() {
    on_each(|dir| {
        finish(0, depend(dir).args(["echo 1 > a", "cat a > b; rm a"]));
        assert_eq!(fs::read_to_string(dir.join("b")).unwrap(), "1\n");
        assert!(!dir.join("a").exists());
        finish(7, depend(dir).args(["exit 7", "rm b"]));
        assert!(dir.join("b").exists());
        finish(128 + 9, depend(dir).args(["kill -KILL $$", "rm b"]));
        let graph = [
            "--graph",
            "x: echo x > x",
            "y: echo y > y",
            "z after x,y: cat x y > z",
        ];
        finish(0, depend(dir).args(graph).arg("--sync-at-exit"));
        assert_eq!(fs::read_to_string(dir.join("z")).unwrap(), "x\ny\n");
        wait_for("the end of the groups", || list(dir).is_empty());
    });
}

#[test]
fn depend_passes_a_signal_on_and_waits_for_its_child() {
    on_each(|dir| {
        let mut child = depend(dir)
            .arg("trap 'echo caught > caught; exit 3' TERM; echo > ready; while :; do sleep 0.01; done")
            .spawn()
            .unwrap();
        wait_for("the command", || dir.join("ready").exists());
        finish(
            0,
            Command::new("kill").args(["-s", "TERM", &child.id().to_string()]),
        );
        assert_eq!(child.wait().unwrap().code(), Some(3));
        assert!(dir.join("caught").exists());
    });
}

#[test]
fn order_returns_the_status_of_its_program_and_waits_for_orphans() {
    on_each(|dir| {
        finish(
            5,
            order(dir).args(["--", "sh", "-c", "echo > f; sync f; exit 5"]),
        );
        finish(127, order(dir).args(["--", "/no/such/program"]));
        // The child of the shell becomes an orphan, and writes after the shell has ended.
        let orphan = "(while kill -0 $$ 2>&-; do sleep 0.01; done; echo late > late) & echo";
        finish(
            0,
            order(dir).args(["--sync-at-exit", "--", "sh", "-c", orphan]),
        );
        assert_eq!(fs::read_to_string(dir.join("late")).unwrap(), "late\n");
        let lag = ["--max-lag", "0.01", "--", "sh", "-c", "echo > g; sleep 0.1"];
        finish(0, order(dir).args(lag));
        wait_for("the end of the groups", || list(dir).is_empty());
    });
}

#[test]
fn commands_outside_of_a_mount_are_refused() {
    let place = Fixture::new();
    for command in [["depend", "true"].as_slice(), &["order", "--", "true"]] {
        let refused = finish(1, selvedge().args(command).current_dir(place.dir()));
        assert!(stderr(&refused).contains("not in a mount of Selvedge"));
    }
    let refused = run(1, &["pg", "list", place.dir_str()]);
    assert!(stderr(&refused).contains("not in a mount of Selvedge"));
}

#[test]
fn a_file_system_without_order_refuses_groups() {
    let place = Fixture::with_image();
    let mut mount = selvedge();
    mount.args(["mount", "--type", "model", "-o", "order"]);
    let refused = finish(32, mount.args([place.image_str(), place.dir_str()]));
    assert!(stderr(&refused).contains("keeps no order"));
    place.mount(&["--type", "model"]);
    let refused = finish(1, depend(&place.dir()).arg("true"));
    assert!(stderr(&refused).contains("keeps no order between changes"));
    place.umount();
}

/// Makes files in order with an fsync of each, until the power fails.
const PROGRAM: &str = "i=0; while echo $i > $i && sync $i; do i=$((i + 1)); done";

/// Cuts the power under an ordered program; the files that are left are a prefix.
fn leaves_a_prefix(mode: &str, after: &str, is_mount_ordered: bool) -> usize {
    let place = Fixture::new();
    make(&place, "ext2");
    let mut options = format!("mode={mode}");
    let spec = format!("--simulate-power-cut={after},seed=3");
    let mut command = match is_mount_ordered {
        true => {
            options.push_str(",order");
            Command::new("sh")
        }
        false => {
            let mut command = selvedge();
            command.args([
                "order",
                "--max-lag",
                "0.05",
                "--dir",
                place.dir_str(),
                "--",
                "sh",
            ]);
            command
        }
    };
    let mut server = place.serve(&["-o", &options, &spec]);
    let program = command.args(["-c", PROGRAM]).current_dir(place.dir());
    program
        .stderr(Stdio::null())
        .arg0("ordered")
        .status()
        .unwrap();
    place.umount();
    assert_eq!(server.wait(), Some(0));
    place.mount(&["-o", &format!("mode={mode}")]);
    let text = |i: usize| fs::read_to_string(place.dir().join(i.to_string())).ok();
    let whole = |i: &usize| text(*i) == Some(format!("{i}\n"));
    let prefix = (0..).take_while(whole).count();
    // The newest file may be there without its contents.
    assert!(text(prefix + 1).is_none(), "{mode} {after}: {prefix}");
    place.umount();
    prefix
}

#[test]
fn an_ordered_program_leaves_a_prefix_after_a_power_cut() {
    for mode in [
        "softupdates",
        "journal",
        "journal-ordered",
        "journal-metadata",
    ] {
        let mut longest = 0;
        for after in ["after=3", "after-calls=300"] {
            for is_mount_ordered in [false, true] {
                longest = longest.max(leaves_a_prefix(mode, after, is_mount_ordered));
            }
        }
        assert!(
            longest > 0,
            "{mode}: every cut was before the first barrier"
        );
    }
}
