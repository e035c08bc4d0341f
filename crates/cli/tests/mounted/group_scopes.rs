//! The scope of patchgroups: processes that are killed or leave, mappings, and several mounts.

use crate::fixture::{Fixture, Server, alone, finish, run, selvedge, stdout, wait_for};
use pg::Group;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// A mount that writes nothing back by itself during a test.
fn quiet_mount(mode: &str) -> Fixture {
    let place = Fixture::new();
    let ext2 = ["mkfs", "--size", "64M", "--type", "ext2"];
    run(0, &[&ext2[..], &[place.image_str()]].concat());
    place.mount(&["-o", &format!("mode={mode},commit=600")]);
    place
}

fn list(dir: &Path) -> Vec<Value> {
    let output = run(0, &["pg", "list", "--json", dir.to_str().unwrap()]);
    let list: Value = serde_json::from_str(&stdout(&output)).unwrap();
    list["groups"].as_array().unwrap().clone()
}

/// The listed group with this number.
fn listed(dir: &Path, group: &Group) -> Value {
    let number = group.number().unwrap();
    let mut groups = list(dir).into_iter();
    groups.find(|g| g["group"] == number).expect("it is listed")
}

fn order(dirs: &[&Path]) -> Command {
    let mut command = selvedge();
    command.arg("order");
    for dir in dirs {
        command.arg("--dir").arg(dir);
    }
    command
}

/// Groups that depend on each other, each engaged while files are made and synced, for ever.
const ENDLESS: &str = "while :; do \"$1\" depend --dir \"$2\" \"echo x >'$2'/$$\" \
    \"sync '$2'/$$; rm '$2'/$$\" \"echo y >'$2'/y; sync '$2'/y\"; done";

#[test]
fn processes_that_are_killed_at_any_point_leave_no_group() {
    let mounts: [(&str, &[&str]); 3] = [
        ("ext2", &["-o", "mode=softupdates"]),
        ("ext2", &["-o", "mode=journal"]),
        ("bpfs", &[]),
    ];
    for (engine, options) in mounts {
        let place = Fixture::new();
        let mkfs = ["mkfs", "--size", "64M", "--type", engine];
        run(0, &[&mkfs[..], &[place.image_str()]].concat());
        place.mount(options);
        for delay in (0..12).map(|step| step * 9) {
            let mut child = Command::new("sh")
                .args(["-c", ENDLESS, "sh", env!("CARGO_BIN_EXE_selvedge")])
                .arg(place.dir())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .unwrap();
            thread::sleep(Duration::from_millis(30 + delay));
            let all = format!("-{}", child.id());
            finish(0, Command::new("kill").args(["-s", "KILL", "--", &all]));
            child.wait().unwrap();
            wait_for("the end of the groups", || list(&place.dir()).is_empty());
        }
        // The mount works, and another group can be used.
        let script = "echo z >z; sync z";
        let mut again = selvedge();
        again.args(["depend", "--sync-at-exit", script]);
        finish(0, again.current_dir(place.dir()));
        place.umount();
        place.fsck();
    }
}

#[test]
fn a_program_outlives_its_killed_launcher_with_its_group() {
    let place = quiet_mount("journal");
    let dir = place.dir();
    let program = "echo $$ >pid; while [ ! -e end ]; do sleep 0.02; done; echo x >x; sync x";
    let mut launcher = order(&[&dir])
        .args(["--", "sh", "-c", program])
        .current_dir(&dir)
        .spawn()
        .unwrap();
    wait_for("the program", || dir.join("pid").exists());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    // The program has inherited the descriptor of the group.
    let groups = list(&dir);
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0]["order"], true);
    fs::write(dir.join("end"), "").unwrap();
    wait_for("the end of the group", || list(&dir).is_empty());
    assert!(dir.join("x").exists());
    place.umount();
}

#[test]
fn no_group_is_left_after_the_server_was_killed() {
    let place = Fixture::new();
    let ext2 = ["mkfs", "--size", "64M", "--type", "ext2"];
    run(0, &[&ext2[..], &[place.image_str()]].concat());
    let options = ["-o", "mode=journal"];
    let mut server: Server = place.serve(&options);
    let mut child = order(&[&place.dir()])
        .args(["--", "sh", "-c", "echo >ready; while echo x >x; do :; done"])
        .current_dir(place.dir())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the program", || place.dir().join("ready").exists());
    server.signal("KILL");
    server.wait();
    // Its calls fail, and so it ends.
    child.wait().unwrap();
    run(0, &["umount", "--lazy", place.dir_str()]);
    place.mount(&options);
    assert_eq!(list(&place.dir()), [] as [Value; 0]);
    place.umount();
    place.fsck();
}

/// Becomes a daemon without any descriptor. It makes a file, and ends when `end` is there.
const DAEMON: &str = "
import os, sys, time
directory = sys.argv[1]
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 65536)
def put(name):
    f = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT)
    os.write(f, b'x')
    os.fsync(f)
    os.close(f)
put('daemon.%d' % os.getpid())
while not os.path.exists(os.path.join(directory, 'end')):
    time.sleep(0.02)
put('late')
";

#[test]
fn a_daemon_that_closes_all_descriptors_stays_in_its_group() {
    let place = quiet_mount("journal");
    let dir = place.dir();
    let mut launcher = order(&[&dir])
        .args(["--", "python3", "-c", DAEMON])
        .arg(&dir)
        .spawn()
        .unwrap();
    let daemon = || {
        let names = fs::read_dir(&dir).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut pids = names.filter_map(|name| name.strip_prefix("daemon.")?.parse::<u32>().ok());
        pids.next()
    };
    wait_for("the daemon", || daemon().is_some());
    let pid = daemon().unwrap();
    let groups = list(&dir);
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0]["order"], true);
    let engaged = groups[0]["engaged"].as_array().unwrap();
    assert!(engaged.contains(&pid.into()), "{engaged:?}");
    assert_ne!(groups[0]["pending"], 0, "its fsync was a barrier");
    assert!(launcher.try_wait().unwrap().is_none(), "it waits");
    fs::write(dir.join("end"), "").unwrap();
    assert!(launcher.wait().unwrap().success());
    assert!(dir.join("late").exists());
    wait_for("the end of the group", || list(&dir).is_empty());
    place.umount();
}

#[test]
fn max_lag_makes_changes_durable_while_the_program_runs() {
    let place = quiet_mount("journal");
    let dir = place.dir();
    for lag in [None, Some("0.05")] {
        let mut command = order(&[&dir]);
        command.args(lag.map(|lag| ["--max-lag", lag]).into_iter().flatten());
        let mut program = command
            .args([
                "--",
                "sh",
                "-c",
                "echo x >f; sync f; echo >ready; read line",
            ])
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("the program", || dir.join("ready").exists());
        let pending = || list(&dir)[0]["pending"].as_u64().unwrap();
        match lag {
            Some(_) => wait_for("a sync of the group", || pending() == 0),
            None => {
                thread::sleep(Duration::from_millis(500));
                assert!(pending() > 0, "nothing else makes the changes durable");
            }
        }
        program.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(program.wait().unwrap().success());
        fs::remove_file(dir.join("ready")).unwrap();
        run(0, &["sync", place.dir_str()]);
    }
    place.umount();
}

/// Stores into a shared mapping of a file, and then calls msync.
const MAPPING: &str = "
import mmap, sys
with open(sys.argv[1], 'r+b') as f, mmap.mmap(f.fileno(), 4096) as m:
    m[0:4] = sys.argv[2].encode()
    m.flush()
";

#[test]
fn stores_to_a_mapping_join_all_open_groups_and_no_sealed_one() {
    alone(
        "group_scopes::stores_to_a_mapping_join_all_open_groups_and_no_sealed_one",
        || {
            let place = quiet_mount("softupdates");
            let (dir, file) = (place.dir(), place.dir().join("f"));
            fs::write(&file, [b'-'; 4096]).unwrap();
            run(0, &["sync", place.dir_str()]);
            let [sealed, open, later] = [(); 3].map(|()| Group::new(&dir).unwrap());
            later.depend(&sealed).unwrap();
            let pending = |group: &Group| listed(&dir, group)["pending"].as_u64().unwrap();
            let stored = |text: &str| {
                let mut python = Command::new("python3");
                finish(0, python.args(["-c", MAPPING]).arg(&file).arg(text));
                assert!(fs::read(&file).unwrap().starts_with(text.as_bytes()));
                let groups = [&sealed, &open, &later].map(|group| pending(group) > 0);
                run(0, &["sync", place.dir_str()]);
                groups
            };
            assert_eq!(stored("away"), [false, true, true], "no process is engaged");
            let engaged = open.engage().unwrap();
            assert_eq!(stored("here"), [false, true, true]);
            drop(engaged);
            open.sync().unwrap();
            assert_eq!(pending(&open), 0);
            drop((sealed, open, later));
            place.umount();
            place.fsck();
        },
    );
}

#[test]
fn a_program_is_ordered_in_each_of_several_mounts() {
    let places = [quiet_mount("journal"), quiet_mount("softupdates")];
    let dirs = [places[0].dir(), places[1].dir()];
    let program =
        "for d do echo x >$d/f; sync $d/f; done; for d do echo >$d/ready; done; read line";
    let mut child = order(&[&dirs[0], &dirs[1]])
        .args(["--sync-at-exit", "--", "sh", "-c", program, "sh"])
        .args(&dirs)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the program", || dirs[1].join("ready").exists());
    for dir in &dirs {
        let groups = list(dir);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0]["order"], true);
        assert_ne!(groups[0]["pending"], 0, "the sync was a barrier");
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    for dir in &dirs {
        wait_for("the end of the group", || list(dir).is_empty());
    }
    for place in &places {
        place.umount();
        place.fsck();
    }
}

/// Writes with a flag of open(2). Prints whether the only group has changes that are not durable.
const SYNCHRONOUS: &str = "
import json, os, subprocess, sys
program, directory, flag = sys.argv[1:]
f = os.open(os.path.join(directory, flag), os.O_WRONLY | os.O_CREAT | getattr(os, flag))
os.write(f, b'x' * 5000)
output = subprocess.run([program, 'pg', 'list', '--json', directory], capture_output=True).stdout
groups = json.loads(output)['groups']
print(*[group['pending'] > 0 for group in groups])
";

#[test]
fn synchronous_writes_are_barriers_under_order_and_wait_without_it() {
    let place = quiet_mount("softupdates");
    let dir = place.dir();
    // Without `order`, O_DSYNC waits for all but the times of the file.
    for (flag, is_ordered, printed) in [
        ("O_SYNC", true, "True\n"),
        ("O_DSYNC", true, "True\n"),
        ("O_SYNC", false, "False\n"),
    ] {
        let program = ["python3", "-c", SYNCHRONOUS, env!("CARGO_BIN_EXE_selvedge")];
        let quoted = program.map(|word| format!("'{}'", word.replace('\'', "'\\''")));
        let line = format!("{} '{}' {flag}", quoted.join(" "), dir.display());
        let mut command = match is_ordered {
            true => order(&[&dir]),
            false => selvedge(),
        };
        match is_ordered {
            true => command.args(["--", "sh", "-c", &line]),
            false => command.arg("depend").arg("--dir").arg(&dir).arg(&line),
        };
        let output = finish(0, &mut command);
        assert_eq!(stdout(&output), printed, "{flag}, ordered: {is_ordered}");
        run(0, &["sync", place.dir_str()]);
    }
    place.umount();
}

#[test]
fn a_sync_of_a_group_leaves_the_changes_of_others() {
    alone(
        "group_scopes::a_sync_of_a_group_leaves_the_changes_of_others",
        || {
            let place = quiet_mount("softupdates");
            let dir = place.dir();
            for name in ["a", "b", "c"] {
                fs::write(dir.join(name), [b'-'; 4096]).unwrap();
            }
            run(0, &["sync", place.dir_str()]);
            let [before, after, other] = [(); 3].map(|()| Group::new(&dir).unwrap());
            let change = |group: &Group, name: &str| {
                let _engaged = group.engage().unwrap();
                let file = fs::OpenOptions::new().write(true).open(dir.join(name));
                file.unwrap().write_all(&[b'+'; 4096]).unwrap();
            };
            change(&before, "a");
            after.depend(&before).unwrap();
            change(&after, "b");
            change(&other, "c");
            let pending = |group: &Group| listed(&dir, group)["pending"].as_u64().unwrap() > 0;
            let all = || [&before, &after, &other].map(pending);
            assert_eq!(all(), [true; 3]);
            after.sync().unwrap();
            assert_eq!(all(), [false, false, true]);
            drop((before, after, other));
            place.umount();
        },
    );
}

#[test]
fn counters_are_valid_text_for_prometheus() {
    let place = quiet_mount("journal");
    let text = stdout(&run(0, &["stats", place.dir_str()]));
    let is_name = |name: &str| {
        let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let mut all = name.chars();
        all.next().is_some_and(is_first) && all.all(|c| is_first(c) || c.is_ascii_digit())
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut names = Vec::new();
    for pair in lines.chunks(2) {
        let [about, sample] = pair else {
            panic!("{pair:?}");
        };
        let name = about.strip_prefix("# TYPE ").unwrap();
        let name = name.strip_suffix(" untyped").unwrap();
        let value = sample.strip_prefix(name).unwrap();
        let value = value.strip_prefix(&format!("{{mount=\"{}\"}} ", place.dir_str()));
        assert!(is_name(name) && value.unwrap().parse::<f64>().is_ok());
        names.push(name);
    }
    names.sort_unstable();
    assert!(names.len() > 10 && names.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(text.ends_with('\n'));
    place.umount();
}
