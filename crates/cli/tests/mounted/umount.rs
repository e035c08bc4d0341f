//! Unmounting what is mounted elsewhere, too, or has failed.

use crate::fixture::{Fixture, Server, finish, run, selvedge, stderr, stdout, wait_for};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A second place where a file system is mounted. Unmounted when dropped.
struct Bound(PathBuf);

impl Bound {
    fn new(place: &Fixture) -> Self {
        let bound = Self(place.path("bound"));
        fs::create_dir(&bound.0).unwrap();
        let mut mount = Command::new("mount");
        finish(0, mount.arg("--bind").arg(place.dir()).arg(&bound.0));
        bound
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = Command::new("umount")
            .args(["--internal-only", "--lazy"])
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
    }
}

fn umount(dir: &Path) -> String {
    stdout(&finish(0, selvedge().arg("umount").arg(dir)))
}

#[test]
fn a_bind_mount_and_its_origin_are_unmounted_one_by_one() {
    for origin_first in [true, false] {
        let place = Fixture::with_image();
        place.mount(&[]);
        let bound = Bound::new(&place);
        let (first, second) = match origin_first {
            true => (place.dir(), bound.0.clone()),
            false => (bound.0.clone(), place.dir()),
        };
        let said = umount(&first);
        let expected = format!("still mounted on {}", second.display());
        assert!(said.contains(&expected), "{said}");
        fs::write(second.join("file"), "text").unwrap();
        umount(&second);
        place.fsck();
    }
}

/// Leaves a new mount namespace with no mount of ours but that on `$0`, so that other tests
/// find theirs gone when they unmount it, and stays there.
const ONLY_THIS_MOUNT: &str = r#"
    awk '/ - fuse.selvedge /{ print $5 }' /proc/self/mountinfo | grep -vxF "$0" |
    while read -r dir; do umount --internal-only --lazy "$dir"; done
    echo
    exec sleep 600
"#;

#[test]
fn a_mount_in_another_namespace_is_not_waited_for() {
    let place = Fixture::with_image();
    place.mount(&[]);
    let other = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .args(["sh", "-c", ONLY_THIS_MOUNT])
        .arg(place.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut other = other.unwrap();
    // The shell prints a byte once it has a mount namespace of its own.
    std::io::Read::read(&mut other.stdout.take().unwrap(), &mut [0]).unwrap();
    let other = Server::from(other);
    let said = umount(&place.dir());
    let expected = format!("mount namespace of process {}", other.pid());
    assert!(said.contains(&expected), "{said}");
    run(8, &["fsck", place.image_str()]);
    drop(other);
    place.fsck();
}

#[test]
fn sigterm_ends_a_server_that_is_mounted_twice() {
    let place = Fixture::with_image();
    let mut server = place.serve(&[]);
    let bound = Bound::new(&place);
    fs::write(bound.0.join("file"), "text").unwrap();
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(bound.0.to_str().unwrap()), "{mounts}");
    place.fsck();
}

#[test]
fn sigterm_ends_a_server_that_is_mounted_elsewhere_only() {
    let place = Fixture::with_image();
    let mut server = place.serve(&[]);
    let bound = Bound::new(&place);
    umount(&place.dir());
    fs::write(bound.0.join("file"), "text").unwrap();
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(bound.0.to_str().unwrap()), "{mounts}");
    place.fsck();
}

#[test]
fn umount_does_not_wait_for_another_image_of_the_same_name() {
    let place = Fixture::with_image();
    place.mount(&[]);
    fs::write(place.dir().join("file"), "old").unwrap();
    let next = place.path("next");
    run(0, &["mkfs", "--size", "16M", next.to_str().unwrap()]);
    fs::rename(&next, place.image()).unwrap();
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    run(0, &["mount", place.image_str(), other.to_str().unwrap()]);
    umount(&place.dir());
    fs::write(other.join("file"), "new").unwrap();
    umount(&other);
    place.fsck();
}

#[test]
fn umount_names_a_mount_inside() {
    let place = Fixture::with_image();
    place.mount(&[]);
    let inside = place.dir().join("inside");
    fs::create_dir(&inside).unwrap();
    let mut mount = Command::new("mount");
    finish(0, mount.args(["-t", "tmpfs", "tmpfs"]).arg(&inside));
    let refused = stderr(&run(1, &["umount", place.dir_str()]));
    let mut umount = Command::new("umount");
    finish(0, umount.arg(&inside));
    let expected = format!("unmount {} first", inside.display());
    assert!(refused.contains(&expected), "{refused}");
    place.umount();
}

/// Any request to the mount, answered from memory or not.
#[test]
fn umount_fails_if_the_image_was_cut_short() {
    let ext2 = |mode| vec!["--type", "ext2", "-o", mode];
    for args in [
        vec!["--type", "bpfs"],
        vec!["--type", "bpfs", "--durability", "msync"],
        vec!["--type", "soupfs"],
        vec!["--type", "soupfs", "--durability", "msync"],
        ext2("mode=softupdates"),
        ext2("mode=async"),
        ext2("mode=journal"),
    ] {
        for write in [true, false] {
            let place = Fixture::new();
            run(
                0,
                &["mkfs", "-t", args[1], "--size", "32M", place.image_str()],
            );
            place.mount(&args);
            let file = place.dir().join("file");
            fs::write(&file, vec![1; 1 << 20]).unwrap();
            place.umount();
            place.mount(&args);
            let image = File::options().write(true).open(place.image()).unwrap();
            image.set_len(65_536).unwrap();
            if write {
                let _ = fs::write(place.dir().join("new"), vec![1; 1 << 20]);
            } else {
                assert!(fs::read(&file).is_err(), "{args:?}: the test shows nothing");
            }
            let mut umount = selvedge();
            let failed = umount.args(["umount", place.dir_str()]).output().unwrap();
            let said = stderr(&failed);
            assert_eq!(
                failed.status.code(),
                Some(1),
                "{args:?}, write {write}: {said}"
            );
            assert!(said.contains("failed while it was mounted"), "{said}");
            wait_for("the unmount", || !place.is_mounted());
        }
    }
}

#[test]
fn sync_reports_a_failed_mount() {
    let place = Fixture::with_image();
    place.mount(&[]);
    let image = File::options().write(true).open(place.image()).unwrap();
    image.set_len(0).unwrap();
    assert!(place.dir().metadata().is_err(), "the test shows nothing");
    let said = stderr(&run(1, &["sync", place.dir_str()]));
    assert!(said.contains("os error 5"), "{said}");
}

#[test]
fn umount_reports_a_dead_server() {
    let place = Fixture::with_image();
    let mut server = place.serve(&[]);
    fs::write(place.dir().join("file"), "text").unwrap();
    server.signal("KILL");
    assert_eq!(server.wait(), None);
    let said = stderr(&run(0, &["umount", place.dir_str()]));
    assert!(said.contains("its server had ended before"), "{said}");
    assert!(!place.is_mounted());
}
