//! The server's life and death.

use crate::fixture::{Fixture, Server, finish, run, selvedge, stderr, stdout, wait_for};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

#[test]
fn returned_calls_survive_a_killed_server() {
    let place = Fixture::with_image();
    let mut server = place.serve(&[]);
    for i in 0..200 {
        let dir = place.dir().join(format!("d{}", i % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join(format!("f{i}")),
            format!("contents {i}\n").repeat(i),
        )
        .unwrap();
    }
    // Open and unlinked: gone after the crash, and not leaked.
    let mut open = File::create(place.dir().join("open")).unwrap();
    open.write_all(&[1; 100_000]).unwrap();
    fs::remove_file(place.dir().join("open")).unwrap();
    server.signal("KILL");
    assert_eq!(server.wait(), None);
    drop(open);

    // The dead mount is named, and can be removed.
    let refused = run(32, &["mount", place.image_str(), place.dir_str()]);
    assert!(
        stderr(&refused).contains("dead FUSE mount"),
        "{}",
        stderr(&refused)
    );
    run(0, &["umount", "--lazy", place.dir_str()]);

    place.fsck();
    place.mount(&[]);
    for i in 0..200 {
        let path = place.dir().join(format!("d{}/f{i}", i % 7));
        let expected = format!("contents {i}\n").repeat(i);
        assert_eq!(fs::read_to_string(path).unwrap(), expected);
    }
    assert!(!place.dir().join("open").exists());
}

#[test]
fn the_error_of_a_second_writer_names_the_holder_of_the_image() {
    let place = Fixture::with_image();
    let server = place.serve(&[]);
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    let refused = finish(32, selvedge().arg("mount").arg(place.image()).arg(&other));
    let holder = format!("in use by process {}", server.pid());
    assert!(stderr(&refused).contains(&holder), "{}", stderr(&refused));
    let refused = run(1, &["mkfs", "--force", "--size", "8M", place.image_str()]);
    assert!(stderr(&refused).contains(&holder), "{}", stderr(&refused));
    let refused = run(8, &["fsck", place.image_str()]);
    assert!(stderr(&refused).contains(&holder), "{}", stderr(&refused));
}

#[test]
fn a_read_only_mount_changes_no_byte() {
    let place = Fixture::with_image();
    place.mount(&[]);
    fs::write(place.dir().join("file"), "text").unwrap();
    place.umount();
    let before = fs::read(place.image()).unwrap();
    place.mount(&["-o", "ro"]);
    assert_eq!(
        fs::read_to_string(place.dir().join("file")).unwrap(),
        "text"
    );
    let refused = fs::write(place.dir().join("new"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    assert!(fs::remove_file(place.dir().join("file")).is_err());
    place.umount();
    assert!(fs::read(place.image()).unwrap() == before);
}

#[test]
fn a_mount_can_become_read_only() {
    let place = Fixture::with_image();
    place.mount(&[]);
    let remount = |options| run(0, &["mount", "none", place.dir_str(), "-o", options]);
    // As mount(8) asks for it.
    remount("remount,ro,relatime,user_id=0,group_id=0");
    assert!(fs::write(place.dir().join("new"), "").is_err());
    remount("remount,rw");
    fs::write(place.dir().join("new"), "").unwrap();
}

#[test]
fn a_remount_rejects_options_that_it_cannot_change() {
    let place = Fixture::with_image();
    place.mount(&["-o", "mode=at,threads=2,durability=msync"]);
    let remount = |code, options: &str| {
        let options = format!("remount,{options}");
        run(code, &["mount", "none", place.dir_str(), "-o", &options])
    };
    remount(0, "ro,mode=at,threads=2,durability=msync");
    for options in [
        "mode=log",
        "threads=3",
        "durability=auto",
        "durability=process",
        "allow_other",
        "fsname=other",
    ] {
        let refused = remount(32, options);
        let said = stderr(&refused);
        assert!(said.contains("cannot change while mounted"), "{said}");
    }
    place.umount();
    place.mount(&["-o", "allow_other"]);
    remount(0, "allow_other,durability=auto,mode=at");
}

#[test]
fn umount_reports_a_failed_file_system() {
    let place = Fixture::with_image();
    place.mount(&["--durability", "msync"]);
    fs::write(place.dir().join("file"), "text").unwrap();
    let image = File::options().write(true).open(place.image()).unwrap();
    image.set_len(0).unwrap();
    assert!(fs::write(place.dir().join("file"), "more").is_err());
    let failed = run(1, &["umount", place.dir_str()]);
    let said = stderr(&failed);
    assert!(said.contains("failed while it was mounted"), "{said}");
    assert!(!place.is_mounted());
}

#[test]
fn sigusr1_does_not_end_a_server_that_simulates_nothing() {
    let place = Fixture::with_image();
    let server = place.serve(&[]);
    server.signal("USR1");
    fs::write(place.dir().join("file"), "text").unwrap();
    place.umount();
    place.fsck();
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    let place = Fixture::with_image();
    let mount = ["mount", place.image_str(), place.dir_str()];
    let refused = run(32, &[&mount[..], &["--log", "/no/such/dir/log"]].concat());
    let said = stderr(&refused);
    assert!(said.contains("/no/such/dir/log"), "{said}");
    assert!(!place.is_mounted());
}

/// The kernel notifies the server, which cannot stop: that is not an error of either.
#[test]
fn an_interrupted_client_is_not_an_error() {
    let place = Fixture::new();
    let image = place.image_str();
    run(0, &["mkfs", "--type", "ext2", "--size", "16M", image]);
    let log = place.path("log");
    let slow = "stack=uhfs > ext2 > cache > delay(disk) > disk,threads=2";
    place.mount(&["-o", slow, "--log", log.to_str().unwrap()]);
    let path = place.dir().join("file");
    let file = format!("of={}", path.display());
    // A signal as good as always finds a write under way, unless the machine stalls.
    let interrupts = || {
        let _ = fs::remove_file(&path);
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "bs=8k", "count=200", "oflag=sync"]);
        let mut dd = dd.arg(&file).stderr(Stdio::null()).spawn().unwrap();
        wait_for("a write", || {
            let has_written = fs::metadata(&path).is_ok_and(|file| file.len() > 0);
            has_written || dd.try_wait().unwrap().is_some()
        });
        dd.kill().unwrap();
        dd.wait().unwrap().signal().is_some()
    };
    let interrupted = (0..100).any(|_| interrupts());
    place.umount();
    assert!(interrupted, "the test shows nothing");
    assert_eq!(fs::read_to_string(&log).unwrap(), "");
}

#[test]
fn a_mount_helper_prints_nothing_on_success() {
    let place = Fixture::with_image();
    let helper = place.path("mount.fuse.selvedge");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_selvedge"), &helper).unwrap();
    for (flags, is_quiet) in [(&["-o", "rw"][..], true), (&["-v"], false)] {
        let mut mount = Command::new(&helper);
        mount.args([place.image_str(), place.dir_str()]).args(flags);
        let said = finish(0, &mut mount);
        assert_eq!(stdout(&said).is_empty(), is_quiet, "{said:?}");
        assert!(said.stderr.is_empty(), "{said:?}");
        place.umount();
    }
}

#[test]
fn a_read_only_mount_prints_no_notes_on_tearing_and_drawings() {
    let place = Fixture::new();
    let image = place.image_str();
    run(0, &["mkfs", "--type", "ext2", "--size", "16M", image]);
    for (options, is_told) in [("rw", true), ("ro", false)] {
        let mount = ["mount", image, place.dir_str(), "-o", options];
        let said = stdout(&run(0, &mount));
        assert_eq!(
            said.contains("SIGUSR2") || said.contains("USR2"),
            is_told,
            "{said}"
        );
        assert_eq!(said.contains("tear"), is_told, "{said}");
        let info = stdout(&run(0, &["info", image]));
        assert!(is_told || !info.contains("graph"), "{info}");
        place.umount();
    }
}

#[test]
fn sigterm_unmounts() {
    let place = Fixture::with_image();
    let mut server = place.serve(&[]);
    fs::write(place.dir().join("file"), "text").unwrap();
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(!place.is_mounted());

    // In use: it ends all the same, and what was written stays.
    let mut server = place.serve(&[]);
    let mut open = File::create(place.dir().join("open")).unwrap();
    open.write_all(b"written").unwrap();
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert!(!place.is_mounted());
    assert!(open.write_all(b"more").is_err());
    place.fsck();
    place.mount(&[]);
    assert_eq!(
        fs::read_to_string(place.dir().join("open")).unwrap(),
        "written"
    );
}

/// On memory so slow that the recovery does not end by itself.
#[test]
fn a_signal_during_the_recovery_ends_the_mount() {
    let place = Fixture::with_image();
    let mut server = place.serve(&[]);
    fs::write(place.dir().join("file"), "text").unwrap();
    let orphan = File::create(place.dir().join("orphan")).unwrap();
    fs::remove_file(place.dir().join("orphan")).unwrap();
    server.signal("KILL");
    server.wait();
    drop(orphan);
    run(0, &["umount", "--lazy", place.dir_str()]);
    for signal in ["TERM", "INT", "HUP"] {
        let mut server = place.serve(&["--emulate-latency=1000000000000"]);
        server.signal(signal);
        assert_eq!(server.wait(), Some(32), "{signal}");
        assert!(!place.is_mounted());
    }
    place.fsck();
    place.mount(&[]);
    let file = place.dir().join("file");
    assert_eq!(fs::read_to_string(file).unwrap(), "text");
}

/// The image is a file of another server, which is stopped: the first signal's unmount cannot
/// store anything. That server must not unmount the next mount there.
#[test]
fn a_signal_during_the_close_unmounts_nothing_else() {
    let (outer, inner) = (Fixture::with_image(), Fixture::new());
    let outer_server = outer.serve(&[]);
    let image = outer.dir().join("image");
    let mkfs = ["mkfs", "--type", "ext2", "--size", "8M"];
    finish(0, selvedge().args(mkfs).arg(&image));
    for signal in ["TERM", "INT", "HUP"] {
        let log = inner.path("log");
        let mut mount = selvedge();
        mount.args(["mount", "--foreground"]).arg(&image);
        mount.arg(inner.dir()).stdout(Stdio::piped());
        mount.stderr(File::create(&log).unwrap());
        let mut server = Server::from(mount.spawn().unwrap());
        let file = inner.dir().join(signal);
        wait_for("the mount", || inner.is_mounted());
        fs::write(&file, "text").unwrap();

        let paused = outer_server.pause();
        server.signal("TERM");
        wait_for("the unmount", || !inner.is_mounted());
        run(0, &["mount", "--type", "model", "none", inner.dir_str()]);
        let said = || fs::read_to_string(&log).unwrap();
        wait_for("the second signal", || {
            // The main thread gets one of them and cannot take it while it waits for the
            // image. Another thread gets the next, and takes both.
            server.signal("USR1");
            server.signal(signal);
            !inner.is_mounted() || said().contains("unmounted already")
        });
        assert!(inner.is_mounted(), "{signal}: {}", said());
        drop(paused);
        assert_eq!(server.wait(), Some(0), "{signal}: {}", said());
        inner.umount();
        finish(0, selvedge().args(["fsck", "-n"]).arg(&image));
    }
    finish(0, selvedge().arg("mount").arg(&image).arg(inner.dir()));
    for signal in ["TERM", "INT", "HUP"] {
        let file = inner.dir().join(signal);
        assert_eq!(fs::read_to_string(file).unwrap(), "text");
    }
    inner.umount();
}

#[test]
fn a_mount_in_use_is_not_unmounted() {
    let place = Fixture::with_image();
    place.mount(&[]);
    let open = File::create(place.dir().join("file")).unwrap();
    let refused = run(1, &["umount", place.dir_str()]);
    assert!(stderr(&refused).contains("busy"), "{}", stderr(&refused));
    assert!(place.is_mounted());
    drop(open);
    place.umount();
    // The image is free the moment umount returns.
    place.fsck();
    let nothing = run(1, &["umount", place.dir_str()]);
    assert!(
        stderr(&nothing).contains("nothing is mounted"),
        "{}",
        stderr(&nothing)
    );
}

#[test]
fn a_mount_prints_the_crashes_that_data_survives() {
    let place = Fixture::with_image();
    let first = ["mount", place.image_str(), place.dir_str()];
    let said = run(0, &[&first[..], &["--durability", "process"]].concat());
    assert!(
        stdout(&said).contains("durability: process: "),
        "{}",
        stdout(&said)
    );
    assert!(
        stdout(&said).contains("not a crash of the machine"),
        "{}",
        stdout(&said)
    );
    place.umount();
    let said = run(0, &[&first[..], &["-o", "durability=msync"]].concat());
    assert!(
        stdout(&said).contains("survives a power failure"),
        "{}",
        stdout(&said)
    );
    fs::write(place.dir().join("file"), "text").unwrap();
    place.umount();
    let refused = run(32, &[&first[..], &["--durability", "dax"]].concat());
    assert!(
        stderr(&refused).contains("cannot give durability 'dax'"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_limit_to_the_length_of_files_is_an_error_and_does_not_kill() {
    let limited = |args: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 4000; exec \"$@\"", "sh"]);
        shell.arg(env!("CARGO_BIN_EXE_selvedge")).args(args);
        shell
    };
    for engine in ["bpfs", "soupfs", "pxfs", "ext2"] {
        let place = Fixture::new();
        let mkfs = ["mkfs", "--type", engine, "--size", "16M", place.image_str()];
        let refused = stderr(&finish(1, &mut limited(&mkfs)));
        assert!(refused.contains("File too large"), "{refused}");
        run(
            0,
            &[
                "mkfs",
                "--type",
                engine,
                "--force",
                "--size",
                "16M",
                place.image_str(),
            ],
        );
        let mount = ["mount", place.image_str(), place.dir_str()];
        finish(0, &mut limited(&mount));
        // It fits into the image, and not all of it below the limit.
        let written = File::create(place.dir().join("file"))
            .and_then(|mut file| file.write_all(&[1; 4 << 20]).and_then(|()| file.sync_all()));
        // The others map their images, so they do not write to the file.
        assert_eq!(written.is_ok(), engine != "ext2", "{written:?}");
        let code = i32::from(engine == "ext2");
        run(code, &["umount", place.dir_str()]);
        wait_for("the unmount", || !place.is_mounted());
    }
}

#[test]
fn a_full_standard_output_or_error_does_not_decide() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let place = Fixture::with_image();
    let mut mount = selvedge();
    mount.args(["mount", place.image_str(), place.dir_str()]);
    let said = mount.stdout(full()).status().unwrap();
    assert_eq!(said.code(), Some(0));
    assert!(place.is_mounted());
    place.umount();
    let mut fsck = selvedge();
    fsck.args(["fsck", "/no/such/image"]);
    assert_eq!(fsck.stderr(full()).status().unwrap().code(), Some(8));
}

#[test]
fn the_error_of_a_read_only_device_names_the_cause() {
    let place = Fixture::with_image();
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show", "--read-only"]);
    let device = stdout(&finish(0, losetup.arg(place.image())));
    let device = device.trim();
    let mut mount = selvedge();
    let refused = mount.args(["mount", device, place.dir_str()]).output();
    finish(0, Command::new("losetup").args(["--detach", device]));
    let refused = stderr(&refused.unwrap());
    assert!(
        refused.contains("is read-only; it can only be"),
        "{refused}"
    );
}
