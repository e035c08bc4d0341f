//! The effects of devices around a device: counts, faults, traces and crashes.

use medium::Rule;
use medium::block::*;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK: usize = 1024;
const GEOMETRY: Geometry = Geometry {
    block_bytes: BLOCK as u32,
    blocks: 8,
};
const CACHED: Persistence = Persistence {
    atomic_bytes: 512,
    volatile_cache: true,
    durable_writes: true,
};

fn memory() -> MemoryDevice {
    MemoryDevice::new(GEOMETRY)
}

fn image() -> Image {
    Image::new(BLOCK as u32, Arc::new(vec![0; GEOMETRY.bytes() as usize]))
}

fn write(tag: u64, lba: u64, byte: u8, durable: bool) -> Write {
    Write {
        tag,
        lba: Lba(lba),
        data: Arc::new(Buffer::from_slice(&[byte; BLOCK])),
        durable: durable.then_some(Rule::DurableBeforeReturn),
    }
}

fn block(device: &dyn BlockDevice, lba: u64) -> Vec<u8> {
    let mut buf = vec![0; BLOCK];
    device.read(Lba(lba), &mut buf).unwrap();
    buf
}

/// Writes one block and returns the result of its completion.
fn put(device: &dyn BlockDevice, lba: u64, byte: u8) -> Result<(), BlockError> {
    device.submit(vec![write(9, lba, byte, false)]);
    let mut done = device.reap(1);
    assert_eq!((done.len(), done[0].tag), (1, 9));
    done.remove(0).result
}

fn errno(result: Result<(), BlockError>) -> Option<Errno> {
    match result {
        Err(BlockError::Io { error, .. } | BlockError::Flush { error, .. }) => Some(error),
        _ => None,
    }
}

#[test]
fn devices_count_calls_blocks_and_runs() {
    let device = CountingDevice::new(memory());
    put(&device, 0, 1).unwrap();
    let before = device.snapshot();
    // Runs: 1-3, 5, 6 (durable), 6 again.
    let writes = [
        (3, false),
        (1, false),
        (6, true),
        (2, false),
        (5, false),
        (6, true),
    ];
    device.submit(
        writes
            .iter()
            .map(|(lba, fua)| write(0, *lba, 1, *fua))
            .collect(),
    );
    device.reap(6);
    device.read(Lba(0), &mut [0; 2 * BLOCK]).unwrap();
    device.flush(Rule::DurableBeforeReturn).unwrap();
    device.discard(Lba(2), 3).unwrap();
    let expected = BlockCounts {
        reads: 1,
        read_blocks: 2,
        written_blocks: 6,
        merged_writes: 4,
        durable_blocks: 2,
        flushes: 1,
        discarded_blocks: 3,
    };
    assert_eq!(device.snapshot() - before, expected);
}

#[test]
fn faults_strike_where_and_when_they_were_set() {
    let device = FaultyDevice::new(memory());
    device.fail_writes(Lba(2)..Lba(4), Errno::IO);
    device.fail_reads(Lba(5)..Lba(6), Errno::IO);
    assert_eq!(errno(put(&device, 2, 1)), Some(Errno::IO));
    assert_eq!(errno(put(&device, 3, 1)), Some(Errno::IO));
    assert!(put(&device, 4, 1).is_ok() && put(&device, 5, 1).is_ok());
    assert_eq!(block(&device, 3), [0; BLOCK]);
    let read = |lba, blocks: usize| device.read(Lba(lba), &mut vec![0; blocks * BLOCK]);
    assert_eq!(errno(read(4, 2)), Some(Errno::IO));
    assert!(read(4, 1).is_ok() && read(6, 1).is_ok());
    device.heal();
    assert!(read(5, 1).is_ok() && put(&device, 2, 1).is_ok());

    device.fail_nth_write(3, Errno::IO);
    device.fail_nth_read(2, Errno::IO);
    let failed: Vec<_> = (0..5)
        .filter(|lba| put(&device, *lba, 2).is_err())
        .collect();
    assert_eq!(failed, [2]);
    let failed: Vec<_> = (0..5).filter(|lba| read(*lba, 1).is_err()).collect();
    assert_eq!(failed, [1]);

    device.fill();
    assert_eq!(errno(put(&device, 0, 3)), Some(Errno::NOSPC));
    device.heal();
    device.fail_flushes(Errno::IO);
    assert_eq!(
        errno(device.flush(Rule::DurableBeforeReturn)),
        Some(Errno::IO)
    );
}

#[test]
fn torn_misdirected_and_lost_writes_report_success() {
    let device = FaultyDevice::new(CountingDevice::new(memory()));
    put(&device, 1, 1).unwrap();
    device.tear(Lba(1), 512);
    put(&device, 1, 2).unwrap();
    assert_eq!(block(&device, 1)[..512], [2; 512]);
    assert_eq!(block(&device, 1)[512..], [1; 512]);
    put(&device, 1, 3).unwrap();
    assert_eq!(block(&device, 1), [3; BLOCK]);

    device.misdirect(Lba(4), Lba(6));
    put(&device, 4, 4).unwrap();
    assert_eq!(
        (block(&device, 4), block(&device, 6)),
        (vec![0; BLOCK], vec![4; BLOCK])
    );
    put(&device, 4, 5).unwrap();
    assert_eq!(block(&device, 4), [5; BLOCK]);

    device.lose_flushes();
    device.flush(Rule::DurableBeforeReturn).unwrap();
    device.submit(vec![write(0, 0, 1, true)]);
    assert!(device.reap(1)[0].result.is_ok());
    let counts = device.inner().snapshot();
    assert_eq!((counts.flushes, counts.durable_blocks), (0, 0));
    device.heal();
    device.flush(Rule::DurableBeforeReturn).unwrap();
    assert_eq!(device.inner().snapshot().flushes, 1);
}

/// All good and failed writes of one submit are reaped, in any order.
#[test]
fn failed_writes_are_reaped_with_the_others() {
    let device = FaultyDevice::new(memory());
    device.fail_writes(Lba(1)..Lba(3), Errno::IO);
    device.submit((0..4).map(|i| write(i, i, 1, false)).collect());
    let mut done = device.reap(4);
    done.sort_by_key(|c| c.tag);
    let ok: Vec<_> = done.iter().map(|c| (c.tag, c.result.is_ok())).collect();
    assert_eq!(ok, [(0, true), (1, false), (2, false), (3, true)]);
}

#[test]
fn the_trace_orders_events_by_certainty() {
    let device = RecordingDevice::new(FaultyDevice::new(memory()));
    device.inner().fail_writes(Lba(2)..Lba(3), Errno::IO);
    device.mark(5);
    // The same tag for all: their numbers distinguish them in the trace.
    device.submit(vec![write(7, 1, 1, true), write(7, 2, 2, false)]);
    device.flush(Rule::DurableBeforeReturn).unwrap();
    let done = device.reap(2);
    assert!(done.iter().all(|c| c.tag == 7));
    device.discard(Lba(3), 2).unwrap();
    let text: Vec<_> = device.take().iter().map(line).collect();
    let expected = [
        "mark 5",
        "issued 0: 1 fua(durable-before-return)",
        "issued 1: 2",
        "flush 0",
        "flushed 0 true",
        "completed 1 false",
        "completed 0 true",
        "discarded 3+2",
    ];
    assert_eq!(text, expected);
    device.submit(vec![write(0, 0, 0, false)]);
    assert!(
        device
            .with_trace(|trace| line(&trace[0]))
            .starts_with("issued 2")
    );
}

fn line(event: &BlockEvent) -> String {
    match event {
        BlockEvent::Issued {
            id, lba, durable, ..
        } => {
            let durable = durable.map(|rule| format!(" fua({rule})"));
            format!("issued {id}: {lba}{}", durable.unwrap_or_default())
        }
        BlockEvent::Completed { id, ok } => format!("completed {id} {ok}"),
        BlockEvent::FlushBegun { id } => format!("flush {id}"),
        BlockEvent::FlushEnded { id, ok, .. } => format!("flushed {id} {ok}"),
        BlockEvent::Discarded { lba, blocks } => format!("discarded {lba}+{blocks}"),
        BlockEvent::Mark(id) => format!("mark {id}"),
    }
}

fn issued(id: u64, lba: u64, byte: u8, durable: bool) -> BlockEvent {
    let Write {
        lba, data, durable, ..
    } = write(0, lba, byte, durable);
    BlockEvent::Issued {
        id,
        lba,
        data,
        durable,
    }
}

fn completed(id: u64) -> BlockEvent {
    BlockEvent::Completed { id, ok: true }
}

fn replay(persistence: Persistence, events: &[BlockEvent]) -> Replay {
    let mut replay = Replay::new(image(), persistence);
    events.iter().for_each(|event| replay.apply(event));
    replay
}

fn open(replay: &Replay) -> Vec<u64> {
    replay.open().iter().map(|write| write.id).collect()
}

#[test]
fn a_flush_covers_what_had_completed_when_it_began() {
    let mut events = vec![
        issued(0, 0, 1, false),
        issued(1, 1, 2, false),
        completed(0),
        BlockEvent::FlushBegun { id: 0 },
        completed(1),
        BlockEvent::FlushEnded {
            id: 0,
            ok: true,
            rule: Rule::DurableBeforeReturn,
        },
    ];
    let after = replay(CACHED, &events);
    assert_eq!(open(&after), [1]);
    assert_eq!(after.image().block(Lba(0)), Some(&[1; BLOCK][..]));
    assert_eq!(after.image().block(Lba(1)), Some(&[0; BLOCK][..]));
    // A failed flush covers nothing.
    events[5] = BlockEvent::FlushEnded {
        id: 0,
        ok: false,
        rule: Rule::DurableBeforeReturn,
    };
    assert_eq!(open(&replay(CACHED, &events)), [0, 1]);
    // Without a cache, completion is enough.
    let through = Persistence {
        volatile_cache: false,
        ..CACHED
    };
    assert_eq!(open(&replay(through, &events[..3])), [1]);
}

#[test]
fn a_durable_write_covers_itself_and_older_writes_of_its_block() {
    let events = [
        issued(0, 0, 1, false),
        completed(0),
        issued(1, 1, 2, false),
        completed(1),
        issued(2, 0, 3, true),
        completed(2),
    ];
    let after = replay(CACHED, &events);
    assert_eq!(open(&after), [1]);
    assert_eq!(after.image().block(Lba(0)), Some(&[3; BLOCK][..]));
    assert_eq!(open(&replay(CACHED, &events[..5])), [0, 1, 2]);
    let failed = BlockEvent::Completed { id: 2, ok: false };
    assert_eq!(
        open(&replay(CACHED, &[&events[..5], &[failed]].concat())),
        [0, 1, 2]
    );
}

#[test]
fn a_crash_leaves_sectors_in_the_order_of_issue() {
    let events = [
        issued(0, 0, 1, false),
        completed(0),
        issued(1, 0, 2, false),
        issued(2, 1, 3, false),
    ];
    let replay = replay(CACHED, &events);
    let whole = |place| Left {
        place,
        sectors: Left::WHOLE,
    };
    let second_half = Left {
        place: 1,
        sectors: 0b10,
    };
    let image = replay.crash(&[second_half, whole(0)]);
    let block = image.block(Lba(0)).unwrap();
    assert_eq!((block[0], block[511], block[512]), (1, 1, 2));
    assert_eq!(image.block(Lba(1)), Some(&[0; BLOCK][..]));
    assert_eq!(
        replay.crash(&[whole(0), whole(1), whole(2)]).bytes()[..2 * BLOCK],
        [[2; BLOCK], [3; BLOCK]].concat()
    );
    assert_eq!(replay.crash(&[]).bytes(), zeros());
    assert_eq!(replay.crash(&[whole(17)]).bytes(), zeros());
}

fn zeros() -> Vec<u8> {
    vec![0; GEOMETRY.bytes() as usize]
}

#[test]
fn images_share_and_do_not_affect_each_other() {
    let device = ImageDevice::new(image(), CACHED);
    put(&device, 1, 1).unwrap();
    let first = device.image();
    put(&device, 1, 2).unwrap();
    assert_eq!(first.block(Lba(1)), Some(&[1; BLOCK][..]));
    assert_eq!(device.image().block(Lba(1)), Some(&[2; BLOCK][..]));
    assert_eq!(first.block(Lba(8)), None);
    assert_eq!(first.block(Lba(u64::MAX)), None);
    assert_eq!(first.bytes()[BLOCK..2 * BLOCK], [1; BLOCK]);
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, bool),
    Reap,
    Flush,
}

proptest! {
    /// Compares the crash states of a recorded trace with a model that keeps the possible
    /// contents of each block.
    #[test]
    fn crash_states_are_those_of_the_model(
        steps in prop::collection::vec(prop_oneof![
            5 => (0u64..4, any::<bool>()).prop_map(|(lba, fua)| Step::Write(lba, fua)),
            2 => Just(Step::Reap),
            1 => Just(Step::Flush),
        ], 0..24),
    ) {
        let device = RecordingDevice::new(ImageDevice::new(image(), CACHED));
        // The possible contents of each block after a crash, the newest last. A flush drops all
        // but the newest.
        let mut may: BTreeMap<u64, Vec<u8>> = (0..4).map(|lba| (lba, vec![0])).collect();
        let mut under_way: BTreeMap<u64, (u8, bool)> = BTreeMap::new();
        let mut next = 0;
        for step in &steps {
            match step {
                // At most one write of a block is under way.
                Step::Write(lba, fua) if !under_way.contains_key(lba) => {
                    next += 1;
                    device.submit(vec![write(0, *lba, next, *fua)]);
                    under_way.insert(*lba, (next, *fua));
                    may.get_mut(lba).unwrap().push(next);
                }
                Step::Write(..) => {}
                Step::Reap => {
                    device.reap(under_way.len());
                    for (lba, (value, fua)) in std::mem::take(&mut under_way) {
                        if fua {
                            *may.get_mut(&lba).unwrap() = vec![value];
                        }
                    }
                }
                Step::Flush => {
                    device.flush(Rule::DurableBeforeReturn).unwrap();
                    for (lba, values) in &mut may {
                        let keep = 1 + usize::from(under_way.contains_key(lba));
                        values.drain(..values.len() - keep.min(values.len()));
                    }
                }
            }
        }
        let replay = replay(CACHED, &device.take());
        let places = 0..replay.open().len();
        for lba in 0..4 {
            let mut found = BTreeSet::new();
            // Of the writes left in one block, only the last is visible.
            let lefts = places.clone().map(Some).chain([None]);
            for place in lefts {
                let left = place.map(|place| Left { place, sectors: Left::WHOLE });
                let image = replay.crash(left.as_slice());
                found.insert(image.block(Lba(lba)).unwrap()[0]);
            }
            let expected: BTreeSet<u8> = may[&lba].iter().copied().collect();
            prop_assert_eq!(found, expected, "block {}", lba);
        }
    }
}
