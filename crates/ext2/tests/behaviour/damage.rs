//! Damage that is found while mounted. The image is marked, and the mount reacts as its options or
//! the superblock say.

use super::fixture::{self, clock, debugfs, device, mke2fs};
use blockfs::OnError;
use blockfs::mount::{self, Devices, MountOptions};
use ext2::Mounted;
use medium::block::MemoryDevice;
use patch::stack::{Mode, Stack};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{Ctx, Errno, FileSystem, Ino, XattrMode};

fn root() -> Ctx {
    Ctx::root()
}

/// A file `f` whose first block is one of the format's own, and a file `g`.
fn image(errors: u32) -> Vec<u8> {
    let mounted = fixture::mount(mke2fs(&["-b", "1024"], "4M"));
    let fs = &mounted.fs;
    for name in [&b"f"[..], b"g"] {
        let file = fs.create(&root(), Ino::ROOT, name, 0o644).unwrap().ino;
        fs.write(&root(), file, 0, &[1; 100]).unwrap();
    }
    let mut image = mounted.close();
    for command in ["sif f block[0] 2", &format!("ssv errors {errors}")] {
        (image, _) = debugfs(&image, command);
    }
    image
}

fn is_marked(device: &MemoryDevice) -> bool {
    ext2::probe(device).unwrap().errors
}

fn mounted(device: &Arc<MemoryDevice>, on_error: Option<OnError>, read_only: bool) -> Mounted {
    let devices = Devices {
        disk: device.clone(),
        log: None,
    };
    let options = MountOptions {
        read_only,
        on_error,
        clock: clock(),
        ..MountOptions::default()
    };
    mount::mount(&Stack::new("ext2", Mode::SoftUpdates), devices, &options).unwrap()
}

#[test]
fn damage_marks_the_image_and_has_the_chosen_reaction() {
    for (stored, chosen, works) in [
        (1, None, (true, true)),
        (2, None, (true, false)),
        (3, None, (false, false)),
        (3, Some(OnError::Continue), (true, true)),
        (1, Some(OnError::ReadOnly), (true, false)),
        (1, Some(OnError::Halt), (false, false)),
    ] {
        let device = device(image(stored));
        let mounted = mounted(&device, chosen, false);
        let fs = mounted.file_system();
        let damaged = fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino;
        let sound = fs.lookup(&root(), Ino::ROOT, b"g").unwrap().ino;
        fs.write(&root(), sound, 0, b"before").unwrap();
        assert!(!is_marked(&device));
        assert!(fs.read(&root(), damaged, 0, &mut [0; 10]).is_err());
        assert!(is_marked(&device), "{stored} {chosen:?}");
        let reads = fs.read(&root(), sound, 0, &mut [0; 10]);
        let writes = fs.write(&root(), sound, 0, b"after");
        assert_eq!(
            (reads.is_ok(), writes.is_ok()),
            works,
            "{stored} {chosen:?}"
        );
        if works == (true, false) {
            assert_eq!(writes, Err(Errno::ROFS));
        }
        // Earlier writes are stored nevertheless.
        mounted.close().unwrap();
        assert!(is_marked(&device));
        let bytes = device.bytes();
        assert!(
            bytes
                .windows(6)
                .any(|found| found == b"before" || found == b"aftere")
        );
    }
}

#[test]
fn a_mount_for_reading_marks_nothing() {
    let device = device(image(2));
    let before = device.bytes();
    let mounted = mounted(&device, None, true);
    let fs = mounted.file_system();
    let damaged = fs.lookup(&root(), Ino::ROOT, b"f").unwrap().ino;
    assert!(fs.read(&root(), damaged, 0, &mut [0; 10]).is_err());
    mounted.close().unwrap();
    assert!(device.bytes() == before);
}

/// A file `f` with an attribute, whose block is damaged.
fn with_damaged_attributes() -> Vec<u8> {
    let mounted = fixture::mount(mke2fs(&["-b", "1024", "-I", "128"], "4M"));
    let fs = &mounted.fs;
    let file = fs.create(&root(), Ino::ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&root(), file, 0, b"contents").unwrap();
    fs.setxattr(&root(), file, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    let mut image = mounted.close();
    let mut blocks = image.chunks_mut(1024);
    let is_attributes = |block: &&mut [u8]| block.starts_with(&0xEA02_0000_u32.to_le_bytes());
    blocks.find(is_attributes).unwrap()[0] ^= 1;
    image
}

#[test]
fn damaged_attributes_leave_permissions_to_the_owner_only() {
    for calls_fail in [false, true] {
        let device = device(with_damaged_attributes());
        let mounted = mounted(&device, None, false);
        let fs = mounted.file_system();
        let file = fs.lookup(&root(), Ino::ROOT, b"f").unwrap();
        assert_eq!(file.perm, 0o600, "there may have been a list");
        let mut contents = [0; 8];
        assert_eq!(fs.read(&root(), file.ino, 0, &mut contents), Ok(8));
        assert_eq!(&contents, b"contents");
        if calls_fail {
            let got = fs.getxattr(&root(), file.ino, b"user.a");
            assert_eq!(got, Err(Errno::UCLEAN));
            assert!(is_marked(&device), "at once");
        }
        assert!(fs.audit().is_empty());
        fs.unlink(&root(), Ino::ROOT, b"f").unwrap();
        fs.forget(file.ino, 1);
        assert!(fs.audit().is_empty());
        mounted.close().unwrap();
        assert!(is_marked(&device));
        let report = ext2::check(&*device);
        assert_eq!(report.worst(), Some(Severity::Leak), "{report:#?}");
    }
}

#[test]
fn a_name_that_leads_to_a_free_inode_is_damage() {
    let (image, _) = debugfs(&image(1), "clri g");
    let device = device(image);
    let mounted = mounted(&device, Some(OnError::ReadOnly), false);
    let fs = mounted.file_system();
    let found = fs.lookup(&root(), Ino::ROOT, b"g").map(drop);
    assert_eq!(found, Err(Errno::UCLEAN));
    assert!(is_marked(&device));
    let made = fs.create(&root(), Ino::ROOT, b"h", 0o644).map(drop);
    assert_eq!(made, Err(Errno::ROFS));
    // A handle may be older than the removal of the file.
    assert_eq!(fs.by_number(Ino(13)).map(drop), Err(Errno::STALE));
    mounted.close().unwrap();
}
