//! Scripts on a full file system. Freed blocks are reused at once there, since ext2 prefers other
//! free blocks while there are any.

use ext2::Ext2System;
use medium::block::{BlockDevice, Geometry, MemoryDevice};
use oracle::script::{Script, State, run};
use std::sync::Arc;
use vfs::{BlockSystem, Ctx, Ino, ManualClock, System, Timestamp};

/// `setup`, a file `z` that takes all free space, a sync, and `rest`.
pub fn on_full(system: &Ext2System, setup: &str, rest: &str) -> String {
    let size = largest_file_after(system, setup);
    // Each step fits into a transaction of a small journal.
    let steps = (0..size).step_by(PART as usize);
    let part = |from: u64| format!("append z {} 9\n", PART.min(size - from));
    let fill: String = steps.map(part).collect();
    format!("{setup}create z 644\n{fill}sync\n{rest}")
}

const PART: u64 = 8192;

fn largest_file_after(system: &Ext2System, setup: &str) -> u64 {
    let block_bytes = BlockSystem::block_bytes(system);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(Geometry {
        block_bytes,
        blocks: system.image_bytes() / u64::from(block_bytes),
    }));
    system.format(&*device).expect("an image");
    let clock = Arc::new(ManualClock::new(Timestamp(0), 1000));
    let fs = system.open(device, clock).expect("a mount");
    let setup: Script = setup.parse().expect("a script");
    for result in run(&*fs, &mut State::default(), &setup) {
        result.expect("a setup that works");
    }
    let cx = Ctx::root();
    let file = fs.create(&cx, Ino::ROOT, b"z", 0o644).expect("a file").ino;
    let mut size = 0;
    while fs
        .write(&cx, file, size, &vec![1; block_bytes as usize])
        .is_ok()
    {
        size += u64::from(block_bytes);
    }
    assert_eq!(fs.statfs().expect("counts").blocks_free, 0);
    size
}
