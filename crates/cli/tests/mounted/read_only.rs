//! Images that cannot be written, with work that a crash left to be done.

use crate::fixture::{Fixture, run, stdout};
use bpfs::{Bpfs, MkfsOptions, MountOptions, mkfs, recover};
use medium::{CutAfter, MemoryPmem, Overlay, PersistModel, Pmem, PowerCut};
use std::fs;
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino, Name, RenameFlags};

/// A BPFS of which the power was cut at the `n`-th fence of a rename, if it has that many.
fn cut_at(n: u64, seed: u64) -> Option<Vec<u8>> {
    let pm = Arc::new(PowerCut::new(MemoryPmem::new(1 << 20)));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = Bpfs::open(Arc::clone(&pm), MountOptions::default()).unwrap();
    let (cx, root) = (Ctx::root(), Ino::ROOT);
    let dir = fs.mkdir(&cx, root, b"dir", 0o755).unwrap().ino;
    fs.create(&cx, root, b"old", 0o644).unwrap();
    pm.cut_after(CutAfter::Fences(n), seed, PersistModel::Words);
    let _ = fs.rename(
        &cx,
        Name::new(root, b"old"),
        Name::new(dir, b"new"),
        RenameFlags::empty(),
    );
    drop(fs);
    pm.outcome()?.unwrap();
    let mut bytes = vec![0; 1 << 20];
    pm.inner().read(0, &mut bytes).unwrap();
    Some(bytes)
}

fn needs_recovery(image: &[u8]) -> bool {
    let pm = MemoryPmem::new(image.len() as u64);
    pm.store_nt(0, image);
    recover(&Overlay::new(pm)).unwrap()
}

#[test]
fn a_read_only_mount_replays_the_redo_log_in_memory() {
    let cuts = (1..20).flat_map(|n| (0..20).map(move |seed| (n, seed)));
    let mut images = cuts.map_while(|(n, seed)| cut_at(n, seed));
    let image = images.find(|image| needs_recovery(image));
    let image = image.expect("some cut leaves a record in the log");
    let place = Fixture::new();
    fs::write(place.image(), &image).unwrap();
    let info = stdout(&run(0, &["info", "--json", place.image_str()]));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert!(info["trouble"].is_null(), "{info}");
    place.mount(&["-o", "ro"]);
    let names = [place.dir().join("old"), place.dir().join("dir/new")];
    assert_eq!(names.iter().filter(|name| name.exists()).count(), 1);
    place.umount();
    assert!(fs::read(place.image()).unwrap() == image, "it has changed");
}
