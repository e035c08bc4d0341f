//! The contract of `BlockDevice`, on every back end and every wrapper.

use medium::Rule;
use medium::block::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;

const BLOCK: usize = 1024;
const BLOCKS: u64 = 256;
const GEOMETRY: Geometry = Geometry {
    block_bytes: BLOCK as u32,
    blocks: BLOCKS,
};

type Named = (String, Box<dyn BlockDevice>);

fn file(dir: &TempDir, name: &str, direct: Direct, io: Io) -> FileDevice {
    let path = dir.path().join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(GEOMETRY.bytes()).unwrap();
    let options = DeviceOptions {
        direct,
        io,
        ..DeviceOptions::default()
    };
    FileDevice::open(path, BLOCK as u32, &options).unwrap()
}

/// One device of each kind, zeroed. The directory contains the files.
fn back_ends() -> (TempDir, Vec<Named>) {
    let dir = TempDir::new().unwrap();
    let mut all: Vec<Named> = vec![("memory".into(), Box::new(MemoryDevice::new(GEOMETRY)))];
    for direct in [Direct::Auto, Direct::Off] {
        for io in [Io::Auto, Io::Pwrite] {
            let name = format!("file {direct:?} {io:?}");
            let device = file(&dir, &name, direct, io);
            all.push((name, Box::new(device)));
        }
    }
    let memory = || MemoryDevice::new(GEOMETRY);
    let image = Image::new(BLOCK as u32, Arc::new(vec![0; GEOMETRY.bytes() as usize]));
    let image = ImageDevice::new(image, memory().persistence());
    // Too fast for the test to wait, but with every part of the model.
    let DelayModel::Ssd(ssd) = DelayModel::SAMSUNG_970_EVO else {
        unreachable!("an SSD");
    };
    let fast = DelayModel::Ssd(SsdModel {
        flush: Duration::from_micros(10),
        read: Duration::from_micros(1),
        write: Duration::from_micros(1),
        ..ssd
    });
    let counting = file(&dir, "counted", Direct::Auto, Io::Auto);
    let recording = file(&dir, "recorded", Direct::Auto, Io::Auto);
    let delayed = file(&dir, "delayed", Direct::Auto, Io::Auto);
    let faulty = file(&dir, "faulty", Direct::Auto, Io::Auto);
    all.push(("image".into(), Box::new(image)));
    all.push(("counting".into(), Box::new(CountingDevice::new(counting))));
    all.push((
        "recording".into(),
        Box::new(RecordingDevice::new(recording)),
    ));
    all.push(("delay".into(), Box::new(DelayDevice::new(delayed, fast))));
    all.push(("faulty".into(), Box::new(FaultyDevice::new(faulty))));
    all.push(("reference".into(), Box::new(Arc::new(memory()))));
    (dir, all)
}

/// A block that contains the number of its writer throughout.
fn block(lba: u64, version: u8) -> Arc<Buffer> {
    let mut bytes = [version; BLOCK];
    bytes[..8].copy_from_slice(&lba.to_le_bytes());
    Arc::new(Buffer::from_slice(&bytes))
}

fn write(lba: u64, version: u8, durable: bool) -> Write {
    Write {
        tag: lba,
        lba: Lba(lba),
        data: block(lba, version),
        durable: durable.then_some(Rule::DurableBeforeReturn),
    }
}

/// Waits for all writes under way.
fn reap_all(device: &dyn BlockDevice, mut left: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while left > 0 {
        let some = device.reap(1);
        assert!(!some.is_empty() && some.len() <= left);
        left -= some.len();
        done.extend(some);
    }
    assert!(device.reap(1).is_empty(), "more ends than writes");
    done
}

#[derive(Debug, Clone)]
enum Step {
    Write(BTreeMap<u64, (u8, bool)>),
    Flush,
    Read(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Dense, so that there are neighbours to merge.
    let writes = (0..BLOCKS - 40).prop_flat_map(|start| {
        prop::collection::btree_map(start..start + 40, any::<(u8, bool)>(), 0..30)
    });
    prop_oneof![
        4 => writes.prop_map(Step::Write),
        1 => Just(Step::Flush),
        3 => (0..BLOCKS, 1u64..40).prop_map(|(lba, len)| Step::Read(lba, len.min(BLOCKS - lba))),
    ]
}

fn run(device: &dyn BlockDevice, steps: &[Step]) {
    assert_eq!(device.geometry(), GEOMETRY);
    let mut model = vec![0; GEOMETRY.bytes() as usize];
    for step in steps {
        match step {
            Step::Write(blocks) => {
                let may = device.persistence().durable_writes;
                let writes = blocks.iter().rev();
                let writes = writes.map(|(lba, (v, fua))| write(*lba, *v, *fua && may));
                device.submit(writes.collect());
                let mut done = reap_all(device, blocks.len());
                done.sort_by_key(|c| c.tag);
                assert!(done.iter().map(|c| &c.tag).eq(blocks.keys()));
                assert!(done.iter().all(|c| c.result.is_ok()));
                for (lba, (version, _)) in blocks {
                    let at = *lba as usize * BLOCK;
                    model[at..at + BLOCK].copy_from_slice(&block(*lba, *version));
                }
            }
            Step::Flush => device.flush(Rule::DurableBeforeReturn).unwrap(),
            Step::Read(lba, blocks) => {
                // Not aligned as direct I/O requires.
                let mut buf = vec![0xaa; 1 + *blocks as usize * BLOCK];
                device.read(Lba(*lba), &mut buf[1..]).unwrap();
                let at = *lba as usize * BLOCK;
                assert!(buf[1..] == model[at..at + buf.len() - 1]);
            }
        }
    }
    let mut all = Buffer::zeroed(model.len());
    device.read(Lba(0), &mut all).unwrap();
    assert!(all[..] == model[..]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(steps in prop::collection::vec(step(), 0..20)) {
        let (_dir, all) = back_ends();
        for (_, device) in &all {
            run(device, &steps);
        }
    }

    /// Every call returns with or without an error and does not panic, and each write ends
    /// once.
    #[test]
    fn nothing_panics(
        lba in prop_oneof![0..BLOCKS + 2, any::<u64>(), u64::MAX - 2..=u64::MAX],
        len in prop_oneof![1..3 * BLOCK, Just(BLOCK), Just(2 * BLOCK)],
        blocks in prop_oneof![0..BLOCKS + 2, any::<u64>()],
        is_durable in any::<bool>(),
    ) {
        let (_dir, all) = back_ends();
        let inside = lba.checked_add(blocks).is_some_and(|end| end <= BLOCKS);
        for (name, device) in &all {
            let fits = len % BLOCK == 0 && lba < BLOCKS && lba + (len / BLOCK) as u64 <= BLOCKS;
            let read = device.read(Lba(lba), &mut vec![0; len]);
            prop_assert_eq!(read.is_ok(), fits, "{}", name);
            prop_assert!(device.read(Lba(lba), &mut []).is_err());
            let data = Arc::new(Buffer::zeroed(len));
            let durable = is_durable.then_some(Rule::DurableBeforeReturn);
            let bad = Write { tag: 7, lba: Lba(lba), data, durable };
            device.submit(vec![bad, write(3, 1, false)]);
            let done = reap_all(device, 2);
            let ok = |tag| done.iter().any(|c| c.tag == tag && c.result.is_ok());
            prop_assert_eq!(ok(7), len == BLOCK && lba < BLOCKS, "{}", name);
            prop_assert!(ok(3));
            prop_assert_eq!(device.discard(Lba(lba), blocks).is_ok(), inside, "{}", name);
        }
    }
}

/// Threads take each other's completions, and some end before their writes do.
#[test]
fn many_threads_write_and_reap_at_once() {
    const THREADS: u64 = 8;
    const ROUNDS: u8 = 4;
    let (_dir, all) = back_ends();
    for (name, device) in &all {
        for round in 1..=ROUNDS {
            let done = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let done = &done;
                    scope.spawn(move || {
                        let mine = (0..BLOCKS).filter(|lba| lba % THREADS == thread);
                        device.submit(mine.map(|lba| write(lba, round, lba % 7 == 0)).collect());
                        while thread % 2 == 0 && done.load(SeqCst) < BLOCKS as usize {
                            let some = device.reap(1);
                            assert!(some.iter().all(|c| c.result.is_ok()), "{some:?}");
                            done.fetch_add(some.len(), SeqCst);
                        }
                        device.flush(Rule::DurableBeforeReturn).unwrap();
                    });
                }
            });
            assert_eq!(done.load(SeqCst), BLOCKS as usize, "{name}");
            let mut buf = vec![0; GEOMETRY.bytes() as usize];
            device.read(Lba(0), &mut buf).unwrap();
            for (lba, bytes) in buf.chunks(BLOCK).enumerate() {
                assert!(
                    *bytes == block(lba as u64, round)[..],
                    "{name}: block {lba}"
                );
            }
        }
    }
}

/// More writes than any queue has places.
#[test]
fn thousands_of_writes_may_be_under_way() {
    let (_dir, all) = back_ends();
    for (name, device) in &all {
        let rounds: u8 = 20;
        for round in 0..rounds {
            // Every second block: no neighbours to merge.
            let lbas = (0..BLOCKS).filter(|lba| lba % 2 == u64::from(round % 2));
            device.submit(lbas.map(|lba| write(lba, 9, false)).collect());
        }
        let count = usize::from(rounds) * BLOCKS as usize / 2;
        let done = device.reap(count);
        assert_eq!(done.len(), count, "{name}");
        assert!(done.iter().all(|c| c.result.is_ok()));
    }
}
