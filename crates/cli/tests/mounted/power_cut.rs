//! Mounts whose power is cut.

use crate::fixture::{Fixture, Server, finish, run, selvedge, stderr, stdout, wait_for};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Writes numbered files until the file system is gone; returns how many calls that made
/// one had returned.
fn write_until_the_end(place: &Fixture) -> usize {
    let write = |i: usize| fs::write(place.dir().join(i.to_string()), contents(i));
    (0..).take_while(|i| write(*i).is_ok()).count()
}

/// Whether the power is gone.
fn is_dark(place: &Fixture) -> bool {
    fs::read_dir(place.dir()).is_ok_and(|mut dir| matches!(dir.next(), Some(Err(_))))
}

/// Unmounts what has no power any more, which ends its server.
fn end(place: &Fixture, server: &mut Server) {
    assert!(place.is_mounted());
    place.umount();
    assert_eq!(server.wait(), Some(0));
}

fn contents(i: usize) -> String {
    format!("{i} ").repeat(i * 37 % 5_000)
}

fn check(place: &Fixture, returned: usize) {
    place.fsck();
    place.mount(&[]);
    for i in 0..returned {
        let there = fs::read_to_string(place.dir().join(i.to_string())).unwrap();
        assert!(there == contents(i), "file {i} of {returned}");
    }
    let others = fs::read_dir(place.dir()).unwrap().count() - returned;
    assert!(others <= 1, "only the file in flight may be there too");
    // It takes changes.
    fs::write(place.dir().join("new"), "new").unwrap();
    for i in 0..returned {
        fs::remove_file(place.dir().join(i.to_string())).unwrap();
    }
    place.umount();
    place.fsck();
}

#[test]
fn returned_calls_survive_a_power_cut_at_any_fence_store_or_call() {
    let cuts = [
        ("after=1", "words"),
        ("after=100", "words"),
        ("after=101", "lines"),
        ("after=777", "lines"),
        ("after-stores=1", "lines"),
        ("after-stores=20001", "words"),
        ("after-calls=1", "words"),
        ("after-calls=150", "lines"),
    ];
    for (after, model) in cuts {
        let place = Fixture::with_image();
        let report = place.path("report");
        let spec = format!(
            "--simulate-power-cut={after},seed=7,model={model},report={}",
            report.display()
        );
        let mut server = place.serve(&[&spec]);
        let returned = write_until_the_end(&place);
        end(&place, &mut server);
        let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
        assert_eq!(report["seed"], 7);
        assert_eq!(report["model"], model);
        check(&place, returned);
    }
}

/// The first file takes one call, each further one two, its creation and its write: the
/// ninth call writes file 4.
#[test]
fn the_nth_call_is_cut_within_or_at_its_end() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..10 {
        let place = Fixture::with_image();
        let spec = format!("--simulate-power-cut=after-calls=9,seed={seed}");
        let mut server = place.serve(&[&spec]);
        let returned = write_until_the_end(&place);
        end(&place, &mut server);
        assert!((4..=5).contains(&returned), "{returned}");
        place.fsck();
        place.mount(&[]);
        let last = fs::read_to_string(place.dir().join("4")).unwrap();
        match last {
            last if last == contents(4) => new += 1,
            last if last.is_empty() && returned == 4 => old += 1,
            last => panic!("{returned} returned, file 4 has {last}"),
        }
        assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 5);
        place.umount();
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

/// New bytes in a set-user-id file would give them its owner's rights; an old file
/// without the bits would be a program that the cut broke.
#[test]
fn a_write_drops_the_set_id_bits_in_the_same_step() {
    let (mut old, mut new) = (0, 0);
    for after in 1..12 {
        let place = Fixture::with_image();
        place.mount(&[]);
        let path = place.dir().join("program");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        place.umount();
        let spec = format!("--simulate-power-cut=after={after},seed={after}");
        let mut server = place.serve(&[&spec, "-o", "allow_other,noatime"]);
        let mut shell = Command::new("sh");
        // Whether it returns is not the question.
        let script = "printf new 1<>program";
        let _ = shell
            .args(["-c", script])
            .current_dir(place.dir())
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap();
        // Such a fence may not exist.
        server.signal("USR1");
        wait_for("the cut", || is_dark(&place));
        end(&place, &mut server);
        place.mount(&[]);
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        match (fs::read_to_string(&path).unwrap().as_str(), mode) {
            ("old", 0o4777) => old += 1,
            ("new", 0o777) => new += 1,
            other => panic!("cut after {after} fences: {other:?}"),
        }
        place.umount();
        place.fsck();
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

#[test]
fn a_report_of_a_server_in_the_background_lies_where_it_was_asked_for() {
    let place = Fixture::with_image();
    let mount = |code, spec: &str| {
        let spec = format!("--simulate-power-cut={spec}");
        let args = ["mount", place.image_str(), place.dir_str(), &spec];
        let mut command = selvedge();
        finish(code, command.args(args).current_dir(place.path("")))
    };
    let refused = mount(32, "report=none/report");
    assert!(stderr(&refused).contains("none/report"), "{refused:?}");
    for wrong in ["after=0", "after=1,after-calls=1"] {
        mount(1, wrong);
    }
    let mut model = selvedge();
    model.args(["mount", "-t", "model", "none", place.dir_str()]);
    finish(1, model.arg("--simulate-power-cut"));
    assert!(!place.is_mounted());

    let said = mount(0, "after=1,seed=77,report=report");
    assert!(stdout(&said).contains("seed 77"), "{said:?}");
    assert!(!place.path("report").exists());
    write_until_the_end(&place);
    place.umount();
    let report = fs::read_to_string(place.path("report")).unwrap();
    assert!(report.contains("77"), "{report}");
}

/// All that can be done by path, and what the kernel may have kept.
#[test]
fn everything_fails_from_the_cut_to_the_unmount() {
    let place = Fixture::with_image();
    let below = place.dir().join("below");
    fs::write(&below, "of the directory below").unwrap();
    let mut server = place.serve(&["--simulate-power-cut=seed=1"]);
    let (file, dir) = (place.dir().join("file"), place.dir().join("dir"));
    fs::write(&file, "text").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::metadata(place.dir().join("none")).unwrap_err();
    let mut open = File::open(&file).unwrap();
    server.signal("USR1");
    wait_for("the cut", || is_dark(&place));
    // The kernel forgets after the power is gone.
    wait_for("the report", || place.path("image.power-cut.json").exists());
    let new = place.dir().join("new");
    let mut text = String::new();
    for result in [
        fs::read(&file).map(drop),
        fs::metadata(&file).map(drop),
        fs::metadata(place.dir().join("none")).map(drop),
        fs::read_dir(place.dir()).and_then(|mut d| d.next().map_or(Ok(()), |e| e.map(drop))),
        fs::write(&file, "new"),
        fs::write(&new, "new"),
        fs::create_dir(&new),
        fs::remove_file(&file),
        fs::remove_dir(&dir),
        fs::rename(&file, &new),
        open.read_to_string(&mut text).map(drop),
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
    drop(open);
    assert!(place.is_mounted());
    end(&place, &mut server);
    let names: Vec<_> = fs::read_dir(place.dir()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(below.exists());
}

#[test]
fn a_signal_cuts_the_power_of_a_mount_in_the_background() {
    let place = Fixture::with_image();
    place.mount(&["--simulate-power-cut", "--seed", "3"]);
    fs::write(place.dir().join("0"), contents(0)).unwrap();
    let busy = run(8, &["fsck", place.image_str()]);
    let said = crate::fixture::stderr(&busy);
    let pid = said
        .split("process ")
        .nth(1)
        .and_then(|s| s.split(' ').next());
    let pid: u32 = pid.unwrap().parse().unwrap();
    let status = Command::new("kill")
        .args(["-s", "USR1", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
    wait_for("the cut", || is_dark(&place));
    // The image is free the moment umount returns.
    place.umount();
    let report = fs::read(place.path("image.power-cut.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["seed"], 3);
    check(&place, 1);
}
