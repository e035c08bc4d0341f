//! A device as one file: programs that write devices, the end, refusals, patchgroups.

use crate::fixture::{Fixture, alone, finish, run, stderr, stdout};
use ext2::fsck::{Verdict, verdict};
use pg::Group;
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES: u64 = 8 << 20;
const TYPE: [&str; 2] = ["--type", "wholedisk"];

fn device() -> Fixture {
    let place = Fixture::new();
    File::create(place.image()).unwrap().set_len(BYTES).unwrap();
    place
}

fn disk(place: &Fixture) -> PathBuf {
    place.dir().join("disk")
}

fn dd(from: &Path, to: &Path, more: &[&str]) -> Command {
    let mut dd = Command::new("dd");
    dd.args(["status=none", "bs=1M"]);
    dd.arg(format!("if={}", from.display()));
    dd.arg(format!("of={}", to.display()));
    dd.args(more);
    dd
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn an_ext2_that_dd_writes_into_the_disk_is_whole() {
    let place = device();
    let made = place.path("made");
    let made_str = made.to_str().unwrap();
    for (mode, conversion) in [("softupdates", "fsync"), ("async", "fsync,notrunc")] {
        let mkfs = ["mkfs", "--type", "ext2", "--size", "8M", "--force"];
        run(0, &[&mkfs[..], &[made_str]].concat());
        place.mount(&[&TYPE[..], &["-o", &format!("mode={mode}")]].concat());
        let conversion = format!("conv={conversion}");
        finish(0, &mut dd(&made, &disk(&place), &[&conversion]));
        // The copy is durable before the unmount.
        assert!(fs::read(place.image()).unwrap() == fs::read(&made).unwrap());
        place.umount();
        assert_eq!(verdict(&place.image()).unwrap(), Verdict::Clean);
    }
}

#[test]
fn mke2fs_makes_a_file_system_on_the_disk() {
    let place = device();
    place.mount(&TYPE);
    let mut mke2fs = Command::new("mke2fs");
    finish(0, mke2fs.args(["-q", "-F"]).arg(disk(&place)));
    run(0, &["sync", place.dir_str()]);
    place.umount();
    assert_eq!(verdict(&place.image()).unwrap(), Verdict::Clean);
}

#[test]
fn dd_fills_the_disk_up_to_its_end() {
    let place = device();
    // The last write of dd is cut short at the end.
    let bytes = BYTES - 512 * 3;
    File::create(place.image()).unwrap().set_len(bytes).unwrap();
    place.mount(&TYPE);
    let source = place.path("source");
    fs::write(&source, vec![7; BYTES as usize + 100]).unwrap();
    let full = finish(1, &mut dd(&source, &disk(&place), &[]));
    assert!(stderr(&full).contains("No space left on device"));
    assert_eq!(fs::metadata(disk(&place)).unwrap().len(), bytes);
    place.umount();
    assert!(fs::read(place.image()).unwrap() == vec![7; bytes as usize]);
}

#[test]
fn the_size_and_the_names_are_fixed() {
    let place = device();
    fs::write(place.image(), vec![5; BYTES as usize]).unwrap();
    place.mount(&TYPE);
    let disk = disk(&place);
    let refused = Some(Errno::PERM.raw_os_error());
    drop(File::create(&disk).expect("`O_TRUNC` has no effect"));
    let file = OpenOptions::new().write(true).open(&disk).unwrap();
    assert_eq!(errno(file.set_len(BYTES / 2)), refused);
    assert_eq!(errno(file.set_len(BYTES * 2)), refused);
    assert_eq!(errno(File::create(place.dir().join("new"))), refused);
    assert_eq!(errno(fs::create_dir(place.dir().join("new"))), refused);
    assert_eq!(errno(fs::remove_file(&disk)), refused);
    assert_eq!(errno(fs::rename(&disk, place.dir().join("new"))), refused);
    drop(file);
    assert!(fs::read(&disk).unwrap() == vec![5; BYTES as usize]);
    place.umount();
    assert!(fs::read(place.image()).unwrap() == vec![5; BYTES as usize]);
}

#[test]
fn journals_and_other_commands_are_refused() {
    let place = device();
    let mount = ["mount", place.image_str(), place.dir_str()];
    let journal = [&mount[..], &TYPE, &["-o", "mode=journal"]].concat();
    let why = stderr(&run(32, &journal));
    assert!(why.contains("use mode=softupdates or mode=async"), "{why}");
    assert!(!place.is_mounted());
    let mkfs = run(1, &["mkfs", "--type", "wholedisk", place.image_str()]);
    let why = stderr(&mkfs);
    assert!(why.contains("mount it with --type wholedisk"), "{why}");
    place.mount(&TYPE);
    let info = stdout(&run(0, &["info", "--json", place.image_str()]));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["type"], "wholedisk");
    assert_eq!(info["size_bytes"], BYTES);
    assert_eq!(info["guarantees"]["name"], "wholedisk (mode=softupdates)");
    place.umount();
}

#[test]
fn patchgroups_order_writes_of_the_disk() {
    alone("wholedisk::patchgroups_order_writes_of_the_disk", || {
        let place = device();
        place.mount(&[&TYPE[..], &["-o", "commit=3600"]].concat());
        let file = OpenOptions::new().write(true).open(disk(&place)).unwrap();
        let (first, second) = (
            Group::new(place.dir()).unwrap(),
            Group::new(place.dir()).unwrap(),
        );
        let engaged = first.engage().unwrap();
        file.write_all_at(b"first", 4096 * 9).unwrap();
        drop(engaged);
        second.depend(&first).unwrap();
        let engaged = second.engage().unwrap();
        file.write_all_at(b"second", 0).unwrap();
        drop(engaged);
        file.write_all_at(b"other", 4096 * 5).unwrap();
        second.sync().unwrap();
        let bytes = fs::read(place.image()).unwrap();
        assert_eq!(&bytes[..6], b"second");
        assert_eq!(&bytes[4096 * 9..][..5], b"first");
        assert_eq!(&bytes[4096 * 5..][..5], [0; 5]);
        drop((first, second, file));
        place.umount();
    });
}
