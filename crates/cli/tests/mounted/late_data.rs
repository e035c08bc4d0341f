//! Data that the kernel sends to the server later than a program expects, or not at all.

use crate::fixture::{Fixture, Server, on_each_engine, run, stderr, stdout, wait_for};
use rustix::fs::OFlags;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

fn image(engine: &str) -> Fixture {
    let place = Fixture::with_image();
    run(0, &["mkfs", "--force", "--type", engine, place.image_str()]);
    place
}

/// The options that keep changes in memory for an hour.
fn lazy(engine: &str) -> [&'static str; 2] {
    match engine {
        "ext2" => ["-o", "commit=3600,strictatime"],
        _ => ["-o", "bound=3600,strictatime"],
    }
}

/// Writes that bypass the kernel's cache are synced by the server alone.
#[test]
fn writes_with_o_dsync_are_durable() {
    for engine in ["soupfs", "ext2"] {
        let place = image(engine);
        let mut server = place.serve(&lazy(engine));
        let flags = [OFlags::empty(), OFlags::DSYNC, OFlags::SYNC];
        for (name, flags) in ["none", "data", "all"].into_iter().zip(flags) {
            let mut options = OpenOptions::new();
            options
                .write(true)
                .create(true)
                .custom_flags(flags.bits() as i32);
            let mut file = options.open(place.dir().join(name)).unwrap();
            file.write_all(b"written").unwrap();
        }
        server.signal("KILL");
        server.wait();
        run(0, &["umount", "--lazy", place.dir_str()]);
        place.mount(&["-o", "ro"]);
        for name in ["data", "all"] {
            let kept = fs::read_to_string(place.dir().join(name));
            assert_eq!(kept.unwrap(), "written", "{engine}: {name}");
        }
        place.umount();
    }
}

#[test]
fn pages_of_a_mapping_are_data() {
    let script = "
import mmap, os, sys
file = open(sys.argv[1], 'w+b')
file.truncate(1 << 20)
mapped = mmap.mmap(file.fileno(), 1 << 20)
mapped[:4] = b'DATA'
print(os.lseek(os.open(sys.argv[1], os.O_RDONLY), 0, os.SEEK_DATA))
";
    on_each_engine(|dir| {
        let mut python = Command::new("python3");
        let output = python.args(["-c", script]).arg(dir.join("file")).output();
        let output = output.unwrap();
        assert_eq!(stdout(&output), "0\n", "{}", stderr(&output));
    });
}

/// A program that has stored in a mapping of this file, and keeps it.
fn holder(place: &Fixture) -> Child {
    let script = "
import mmap, sys, time
file = open(sys.argv[1], 'w+b')
file.truncate(1 << 20)
mapped = mmap.mmap(file.fileno(), 1 << 20)
mapped[:4] = b'DATA'
open(sys.argv[2], 'w').close()
time.sleep(60)
";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(place.dir().join("file"));
    let child = python.arg(place.path("ready")).stderr(Stdio::null());
    let child = child.spawn().unwrap();
    wait_for("the program", || place.path("ready").exists());
    child
}

/// Data that were stored in a mapping are in the file after the end of the server.
fn keeps_mappings(end: impl Fn(&Fixture, &mut Server)) {
    for engine in ["bpfs", "soupfs", "ext2"] {
        let place = image(engine);
        let mut server = place.serve(&[]);
        let mut holder = holder(&place);
        end(&place, &mut server);
        holder.kill().unwrap();
        holder.wait().unwrap();
        if place.is_mounted() {
            run(0, &["umount", "--lazy", place.dir_str()]);
        }
        place.mount(&["-o", "ro"]);
        let kept = fs::read(place.dir().join("file")).unwrap();
        assert_eq!(&kept[..4], b"DATA", "{engine}");
        place.umount();
    }
}

#[test]
fn a_server_that_ends_has_what_mappings_stored() {
    keeps_mappings(|_, server| {
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
    });
}

#[test]
fn a_sync_stores_what_mappings_have() {
    keeps_mappings(|place, server| {
        run(0, &["sync", place.dir_str()]);
        server.signal("KILL");
        server.wait();
    });
}

#[test]
fn a_mount_cannot_have_its_own_recording() {
    let place = Fixture::with_image();
    let inside = place.dir().join("run");
    let inside = inside.to_str().unwrap();
    let mount = [
        "mount",
        place.image_str(),
        place.dir_str(),
        "--record",
        inside,
    ];
    let refused = run(32, &mount);
    assert!(
        stderr(&refused).contains("would be in the mount itself"),
        "{}",
        stderr(&refused)
    );
    assert!(!place.is_mounted());
}
