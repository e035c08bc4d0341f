//! Files of other programs in a directory of durable memory, with names that it would use.

use medium::{Durability, MapOptions, OpenError, is_in_memory};
use mnemosyne::memory::{
    BackingError, Directory, DirectoryOptions, DurableMemory, Layout, MemoryError, Options, Region,
    RegionKind,
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn options(durability: Durability) -> DirectoryOptions {
    DirectoryOptions {
        layout: Layout {
            logs: 2,
            log_bytes: 64 << 10,
            ..Layout::default()
        },
        map: MapOptions {
            durability,
            ..MapOptions::default()
        },
        ..DirectoryOptions::default()
    }
}

fn open(path: &Path, durability: Durability) -> Result<DurableMemory<Directory>, MemoryError> {
    DurableMemory::open_directory(path, &options(durability), Options::default())
}

fn region(memory: &DurableMemory<Directory>) -> Region {
    let region = memory.map(RegionKind::Program, 4096, 0, |_, _| Ok(()));
    region.unwrap()
}

/// Makes a directory on a disk, if possible. Durability `process` makes a note of the boot there.
fn on_a_disk() -> (TempDir, bool) {
    let parent = env!("CARGO_TARGET_TMPDIR");
    let is_disk = !is_in_memory(parent).unwrap();
    (tempfile::tempdir_in(parent).unwrap(), is_disk)
}

fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

const TEXT: &str = "somebody's own\n";

#[test]
fn files_of_other_programs_do_not_change() {
    let (dir, _) = on_a_disk();
    let at = |name: &str| dir.path().join(name);
    let files = [
        "report.new-draft.txt",
        "regions.new-draft",
        "regions.new-",
        "region-7.new-4194305-0",
        "frames.new-4194305-0x",
        "region-0000",
        "region-x",
        "boot",
    ];
    for name in files {
        fs::write(at(name), TEXT).unwrap();
    }
    for name in ["my.new-dir", "regions.new-4194305-7", "pool"] {
        fs::create_dir(at(name)).unwrap();
    }
    for accept_loss in [false, true] {
        let options = DirectoryOptions {
            accept_loss,
            ..options(Durability::Msync)
        };
        let memory =
            DurableMemory::open_directory(dir.path(), &options, Options::default()).unwrap();
        let made = region(&memory);
        assert!(made.slot > 0, "{made:?}");
        memory.unmap(made.start, |_| Ok(())).unwrap();
        drop(memory);
        for name in files {
            assert_eq!(fs::read_to_string(at(name)).unwrap(), TEXT, "{name}");
        }
        for name in ["my.new-dir", "regions.new-4194305-7", "pool"] {
            assert!(at(name).is_dir(), "{name}");
        }
    }
}

/// A file that a living process is making is not removed.
#[test]
fn unfinished_files_of_a_living_process_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    let file = dir.path().join(format!("regions.new-{}-0", other.id()));
    fs::write(&file, "half").unwrap();
    drop(open(dir.path(), Durability::Auto).unwrap());
    assert!(file.exists());
    other.kill().unwrap();
    other.wait().unwrap();
    drop(open(dir.path(), Durability::Auto).unwrap());
    assert!(!file.exists());
}

#[test]
fn a_note_that_cannot_be_made_is_an_error_that_names_the_file() {
    let (dir, is_disk) = on_a_disk();
    let note = dir.path().join("boot");
    fs::write(&note, TEXT).unwrap();
    drop(open(dir.path(), Durability::Msync).unwrap());
    let opened = open(dir.path(), Durability::Process);
    if is_disk {
        let Err(MemoryError::Backing(BackingError::InTheWay { file })) = &opened else {
            panic!("{:?}", opened.err());
        };
        assert_eq!(file.file_name(), Some(OsStr::new("boot")));
    }
    assert_eq!(fs::read_to_string(&note).unwrap(), TEXT);
    drop(opened);
    fs::remove_file(&note).unwrap();
    drop(open(dir.path(), Durability::Process).unwrap());
}

#[test]
fn pipes_and_links_are_not_followed() {
    let (dir, _) = on_a_disk();
    let at = |name: &str| dir.path().join(name);
    drop(open(dir.path(), Durability::Process).unwrap());
    for name in ["region-0000", "region-0003", "region-x", "pool", "frames"] {
        fifo(&at(name));
    }
    let memory = open(dir.path(), Durability::Process).unwrap();
    let made = region(&memory);
    assert_eq!(made.slot, 1);
    // The note is removed once everything is durable.
    drop(memory);
    assert!(!at("boot").exists());
    for name in ["region-0000", "region-x", "pool", "frames"] {
        assert!(fs::metadata(at(name)).unwrap().file_type().is_fifo());
    }
    fifo(&at("boot"));
    drop(open(dir.path(), Durability::Msync).unwrap());
    fs::remove_file(at("boot")).unwrap();
    // Files of durable memory under other names.
    for name in ["region-0001", "regions"] {
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(at(name), &elsewhere).unwrap();
        for plant in [&|| fifo(&at(name)), &|| {
            symlink(&elsewhere, at(name)).unwrap();
        }] as [&dyn Fn(); 2]
        {
            plant();
            let refused = open(dir.path(), Durability::Msync).err().unwrap();
            assert!(refused.to_string().contains(name), "{refused}");
            fs::remove_file(at(name)).unwrap();
        }
        fs::rename(&elsewhere, at(name)).unwrap();
    }
    drop(open(dir.path(), Durability::Msync).unwrap());
}

/// Every user who may read a directory can lock it.
#[test]
fn the_wait_for_a_lock_of_the_directory_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let locked = File::open(dir.path()).unwrap();
    locked.lock().unwrap();
    let refused = open(dir.path(), Durability::Auto).err().unwrap();
    let MemoryError::Backing(BackingError::File(OpenError::InUse { holder, .. })) = refused else {
        panic!("{refused}");
    };
    assert_eq!(holder.unwrap().pid, std::process::id());
    drop(locked);
    drop(open(dir.path(), Durability::Auto).unwrap());
}
