//! Mounts that fail leave the image as it was.

use crate::fixture::{Fixture, finish, run, selvedge, stderr};
use std::fs;
use std::process::Command;

/// Mounts in vain, and compares.
fn leaves_no_trace(place: &Fixture, mut mount: Command, why: &str) {
    let before = fs::read(place.image()).unwrap();
    let said = stderr(&finish(32, &mut mount));
    assert!(said.contains(why), "{mount:?}: {said}");
    assert!(!place.is_mounted());
    let after = fs::read(place.image()).unwrap();
    assert!(before == after, "{mount:?} changed the image");
}

fn mount(place: &Fixture, dir: &str, args: &[&str]) -> Command {
    let mut mount = selvedge();
    mount.args(["mount", place.image_str(), dir]).args(args);
    mount
}

#[test]
fn a_mount_that_is_refused_changes_no_byte() {
    let ext2 = || {
        let place = Fixture::new();
        let image = place.image_str();
        run(0, &["mkfs", "--type", "ext2", "--size", "32M", image]);
        place
    };
    for (place, args) in [
        (Fixture::with_image(), &[][..]),
        (ext2(), &[]),
        (ext2(), &["-o", "mode=journal"]),
    ] {
        let missing = mount(&place, "/no/such/directory", args);
        leaves_no_trace(&place, missing, "cannot be a mount point");
        let file = mount(&place, place.image_str(), args);
        leaves_no_trace(&place, file, "cannot be a mount point");
        // The kernel refuses root without the right to mount.
        let plain = mount(&place, place.dir_str(), args);
        let mut powerless = Command::new("setpriv");
        powerless.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]);
        powerless.arg(plain.get_program()).args(plain.get_args());
        leaves_no_trace(&place, powerless, "mount refused");
        let mut no_log = args.to_vec();
        no_log.extend(["--log", "/no/such/log"]);
        leaves_no_trace(
            &place,
            mount(&place, place.dir_str(), &no_log),
            "/no/such/log",
        );
    }
}

#[test]
fn a_journal_that_cannot_be_made_changes_no_byte() {
    let image = |options: &[&str]| {
        let place = Fixture::new();
        let first = ["mkfs", "--type", "ext2", place.image_str()];
        run(0, &[&first, options].concat());
        place
    };
    let journal = |place: &Fixture, why: &str| {
        for mode in ["journal", "journal-ordered", "journal-metadata"] {
            let mount = mount(place, place.dir_str(), &["-o", &format!("mode={mode}")]);
            leaves_no_trace(place, mount, why);
        }
        // It can be used without.
        place.mount(&[]);
        place.umount();
        place.fsck();
    };
    journal(&image(&["--size", "512K"]), "does not fit");
    journal(&image(&["--size", "16M", "--revision-0"]), "revision 0");

    // The log is there, and damaged: its superblock begins with JBD2's magic number.
    let place = image(&["--size", "16M", "--journal"]);
    let mut bytes = fs::read(place.image()).unwrap();
    let magic = [0xc0, 0x3b, 0x39, 0x98];
    let mut blocks = bytes.chunks_mut(1024);
    let first = blocks.find(|block| block.starts_with(&magic)).unwrap();
    first[..4].fill(0);
    fs::write(place.image(), bytes).unwrap();
    journal(&place, "journal");

    // The log is the data of somebody else.
    let place = image(&["--size", "16M"]);
    let alien = place.path("alien");
    fs::copy(place.image(), &alien).unwrap();
    let stack = format!(
        "uhfs > ext2 > journal(full, external={}) > cache > disk",
        alien.display()
    );
    let mount = mount(&place, place.dir_str(), &["--stack", &stack]);
    leaves_no_trace(&place, mount, "alien");
    assert!(fs::read(place.image()).unwrap() == fs::read(&alien).unwrap());
}
