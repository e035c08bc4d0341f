//! Sparse images of terabytes, mounted in little memory.

use bpfs::{Bpfs, MkfsOptions, MountOptions, mkfs};
use medium::{Durability, MapOptions, MappedPmem, Reserve, create_file};
use vfs::{Ctx, FileSystem, Ino};

const TIB: u64 = 1 << 40;

/// Resident anonymous memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn four_terabytes_mount_in_little_memory_and_keep_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    create_file(&path, 4 * TIB, Reserve::Sparse).unwrap();
    let options = MapOptions {
        durability: Durability::Process,
        force_flush: false,
        read_only: false,
        ..MapOptions::default()
    };
    let before = resident();
    for round in 0..2 {
        let pm = MappedPmem::open(&path, &options).unwrap();
        if round == 0 {
            mkfs(&pm, &MkfsOptions::default()).unwrap();
        }
        let fs = Bpfs::open(pm, MountOptions::default()).unwrap();
        let cx = Ctx::root();
        let name = format!("file {round}");
        let file = fs.create(&cx, Ino::ROOT, name.as_bytes(), 0o644).unwrap();
        fs.write(&cx, file.ino, 3 * TIB, b"far away").unwrap();
        for old in 0..=round {
            let name = format!("file {old}");
            let attr = fs.lookup(&cx, Ino::ROOT, name.as_bytes()).unwrap();
            let mut buf = [0; 8];
            fs.read(&cx, attr.ino, 3 * TIB, &mut buf).unwrap();
            assert_eq!(&buf, b"far away");
        }
        assert_eq!(fs.statfs().unwrap().blocks, 4 * TIB / 4096);
        // A bit for each block takes 128 MiB. All other memory must be small beside it.
        let grown = resident().saturating_sub(before);
        assert!(grown < 192 << 20, "{grown} bytes");
    }
}
