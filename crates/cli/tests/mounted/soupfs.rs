//! Mounts of SoupFS: what is durable when, and the leaks of crashes.

use crate::fixture::{Fixture, Server, finish, run, selvedge, stderr, stdout, wait_for};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

fn image() -> Fixture {
    let place = Fixture::new();
    let mkfs = ["mkfs", "--type", "soupfs", "--size", "64M"];
    run(0, &[&mkfs[..], &[place.image_str()]].concat());
    place
}

fn contents(i: usize) -> String {
    format!("{i} ").repeat(i * 37 % 5_000)
}

/// Writes and syncs numbered files until the file system is gone. Returns the number of files whose
/// syncs have returned.
fn sync_until_the_end(place: &Fixture) -> usize {
    let write = |i: usize| {
        let path = place.dir().join(i.to_string());
        fs::write(&path, contents(i))?;
        File::open(&path)?.sync_all()
    };
    (0..).take_while(|i| write(*i).is_ok()).count()
}

/// The checker finds at most leaks, and none after it has reclaimed them.
fn reclaim(place: &Fixture) {
    let mut fsck = selvedge();
    let found = fsck.args(["fsck", "-p", place.image_str()]).output();
    let found = found.unwrap();
    let code = found.status.code();
    assert!(matches!(code, Some(0 | 1)), "{}", stdout(&found));
    place.fsck();
}

/// All synced files are there, and the file system takes changes.
fn check(place: &Fixture, synced: usize) {
    place.mount(&[]);
    for i in 0..synced {
        let there = fs::read_to_string(place.dir().join(i.to_string())).unwrap();
        assert!(there == contents(i), "file {i} of {synced}");
    }
    fs::write(place.dir().join("new"), "new").unwrap();
    for i in 0..synced {
        fs::remove_file(place.dir().join(i.to_string())).unwrap();
    }
    place.umount();
    reclaim(place);
}

fn ended(place: &Fixture, server: &mut Server) {
    place.umount();
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn synced_files_survive_a_power_cut() {
    for (after, model) in [
        ("after=1", "words"),
        ("after=99", "words"),
        ("after=340", "lines"),
        ("after-stores=20001", "words"),
        ("after-calls=150", "lines"),
    ] {
        for mode in ["in-place", "atomic"] {
            let place = image();
            let spec = format!("--simulate-power-cut={after},seed=7,model={model}");
            let mut server = place.serve(&[&spec, "--mode", mode]);
            let synced = sync_until_the_end(&place);
            ended(&place, &mut server);
            assert!(after == "after=1" || synced > 0, "{after}");
            check(&place, synced);
        }
    }
}

/// Kills the server, and finds what it has left.
fn killed(place: &Fixture, mut server: Server) {
    server.signal("KILL");
    server.wait();
    run(0, &["umount", "--lazy", place.dir_str()]);
    let info = stdout(&run(0, &["info", place.image_str()]));
    assert!(info.contains("left by a crash"), "{info}");
}

#[test]
fn synced_files_survive_a_killed_server() {
    let place = image();
    let server = place.serve(&["--bound", "3600"]);
    fs::write(place.dir().join("0"), contents(0)).unwrap();
    fs::write(place.dir().join("late"), "lost").unwrap();
    let file = File::open(place.dir().join("0")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    killed(&place, server);
    place.mount(&["-o", "ro"]);
    // The sync of one file does not wait for the others.
    assert!(!place.dir().join("late").exists());
    place.umount();
    check(&place, 1);
}

#[test]
fn each_change_is_durable_with_the_option_sync() {
    let place = image();
    let server = place.serve(&["--bound", "3600", "-o", "sync"]);
    for i in 0..20 {
        fs::write(place.dir().join(i.to_string()), contents(i)).unwrap();
    }
    killed(&place, server);
    check(&place, 20);
}

#[test]
fn changes_are_durable_after_the_bound() {
    let place = image();
    let mut server = place.serve(&["--bound", "1"]);
    fs::write(place.dir().join("0"), contents(0)).unwrap();
    fs::write(place.dir().join("1"), contents(1)).unwrap();
    let (copy, size) = (place.path("copy"), format!("size: {}\n", contents(1).len()));
    wait_for("the persister", || {
        fs::copy(place.image(), &copy).unwrap();
        let mut dump = selvedge();
        dump.args(["dump", "--path", "/1"]).arg(&copy);
        stdout(&dump.output().unwrap()).contains(&size)
    });
    server.signal("KILL");
    server.wait();
    run(0, &["umount", "--lazy", place.dir_str()]);
    check(&place, 2);
}

#[test]
fn fsck_reclaims_leaks_and_leaves_damage() {
    let place = image();
    place.fsck();
    let file = File::options().write(true).open(place.image()).unwrap();
    // The word of the last page in the bitmap: a line without a use.
    let word = 4096 + ((64 << 20) / 4096 - 1) * 8;
    file.write_all_at(&[1], word).unwrap();
    let leak = stdout(&run(4, &["fsck", "-n", place.image_str()]));
    assert!(leak.contains("selvedge fsck -p reclaims"), "{leak}");
    let json = stdout(&run(1, &["fsck", "-p", "--json", place.image_str()]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["reclaimed"], &json["clean"]),
        (&true.into(), &true.into())
    );
    place.fsck();
    // The type of the root inode.
    file.write_all_at(&[0, 0], 64).unwrap();
    let before = fs::read(place.image()).unwrap();
    for flag in ["-n", "-p"] {
        let damage = stdout(&run(4, &["fsck", flag, place.image_str()]));
        assert!(damage.contains("error: S1"), "{damage}");
    }
    assert!(fs::read(place.image()).unwrap() == before, "it has changed");
    let mount = ["mount", place.image_str(), place.dir_str()];
    run(32, &mount);
}

#[test]
fn options_without_a_meaning_are_refused() {
    let place = image();
    for (option, why) in [
        ("order", "keeps no order"),
        ("bound=0", "bound"),
        ("mode=log", "in-place or atomic"),
        ("offset=4096", "no known file system at byte 4096"),
    ] {
        let mut mount = selvedge();
        mount.args(["mount", place.image_str(), place.dir_str(), "-o", option]);
        let refused = mount.output().unwrap();
        let said = stderr(&refused);
        assert!(
            !refused.status.success() && said.contains(why),
            "{option}: {said}"
        );
        assert!(!place.is_mounted());
    }
    place.fsck();
}

#[test]
fn a_mount_reports_what_is_durable() {
    let place = image();
    let mount = ["mount", place.image_str(), place.dir_str()];
    let options = ["-o", "bound=5,mode=atomic"];
    let said = stdout(&run(0, &[&mount[..], &options].concat()));
    assert!(
        said.contains("durable changes survive a crash of this"),
        "{said}"
    );
    assert!(said.contains("after an fsync, or after 5 s"), "{said}");
    let info = stdout(&run(0, &["info", place.image_str()]));
    assert!(info.contains("durable changes survive"), "{info}");
    let json = stdout(&run(0, &["info", "--json", place.image_str()]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["mode"], &json["bound"]),
        (&"atomic".into(), &5.into())
    );
    place.umount();
    let dump = stdout(&run(0, &["dump", place.image_str(), "--path", "/"]));
    assert!(dump.starts_with("inode 1 "), "{dump}");
    let missing = ["dump", place.image_str(), "--path", "/missing"];
    finish(1, selvedge().args(missing));
}
