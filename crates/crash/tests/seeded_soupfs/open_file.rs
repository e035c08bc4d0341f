//! A power cut after changes of an open file whose name was removed. Scripts of the explorer name files by paths, and
//! cannot change such a file.

use crash::PersistModel;
use medium::{MemoryPmem, PowerCut};
use soupfs::SoupSystem;
use std::sync::Arc;
use vfs::{Ctx, Errno, FileSystem, Ino, ManualClock, System, Timestamp};

const SEEDS: u64 = 8;
const LEN: usize = 8192;

/// Cuts the power while the removal of the name may not be persistent. The file is there as it was, or not at all.
fn loss_by(seed: u64, model: PersistModel) -> Option<String> {
    let system = SoupSystem::default();
    let pm = Arc::new(PowerCut::new(MemoryPmem::new(system.image_bytes())));
    system.format(&*pm).expect("a new image");
    let clock = Arc::new(ManualClock::new(Timestamp(0), 1000));
    let fs = system.open(pm.clone(), clock.clone()).expect("a mount");
    let change = |fs: &dyn FileSystem| {
        let file = fs.create(&Ctx::root(), Ino::ROOT, b"file", 0o644)?.ino;
        fs.write(&Ctx::root(), file, 0, &[b'a'; LEN])?;
        fs.sync()?;
        fs.unlink(&Ctx::root(), Ino::ROOT, b"file")?;
        fs.write(&Ctx::root(), file, 0, &[b'b'; LEN])
    };
    change(&*fs).expect("the power is on");
    pm.cut(seed, model).expect("the image takes the state");
    let cut = MemoryPmem::copy_of(pm.inner()).expect("memory can be read");
    let fs = system
        .open(Arc::new(cut), clock)
        .expect("a mount after the cut");
    let file = match fs.lookup(&Ctx::root(), Ino::ROOT, b"file") {
        Err(Errno::NOENT) => return None,
        found => found.expect("it can be read").ino,
    };
    let mut found = vec![0; LEN];
    let read = fs.read(&Ctx::root(), file, 0, &mut found);
    match (read, found.iter().all(|byte| *byte == b'a')) {
        (Ok(LEN), true) => None,
        (read, _) => Some(format!("{read:?} bytes, and not those of the last sync")),
    }
}

/// Cuts the power several times. Returns the first loss.
pub fn loss(model: PersistModel) -> Option<String> {
    (0..SEEDS).find_map(|seed| loss_by(seed, model))
}
