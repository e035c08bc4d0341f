//! Order between sets of writes, in every state that a power cut can leave.

use crate::{Bench, MODES};
use medium::block::{Image, ImageDevice, Left, Persistence, RecordingDevice, Replay};
use patch::stack::Mode;
use std::sync::Arc;
use vfs::{SetId, Sets};

const BLOCK: u32 = 512;
const BLOCKS: usize = 4;

const PERSISTENCE: Persistence = Persistence {
    atomic_bytes: BLOCK,
    volatile_cache: true,
    durable_writes: true,
};

fn zeros() -> Image {
    Image::new(BLOCK, Arc::new(vec![0; BLOCK as usize * BLOCKS]))
}

/// Calls `run` on a recorded device, then `check` on each state that a power cut can leave.
/// Returns the number of states.
fn all_crashes(mode: Mode, run: impl FnOnce(&Bench), check: impl Fn(&[u8])) -> usize {
    let device = ImageDevice::new(zeros(), PERSISTENCE);
    let device = Arc::new(RecordingDevice::new(device));
    let bench = Bench::new(device.clone(), mode);
    run(&bench);
    bench.mounted.close().unwrap();
    let mut replay = Replay::new(zeros(), PERSISTENCE);
    let mut states = 0;
    for event in device.take() {
        replay.apply(&event);
        let open = replay.open().len();
        assert!(open <= 12, "{open} open writes are too many to try all");
        for chosen in 0..1_u32 << open {
            let left = (0..open).filter(|place| chosen >> place & 1 == 1);
            let left: Vec<Left> = left
                .map(|place| Left {
                    place,
                    sectors: Left::WHOLE,
                })
                .collect();
            check(&replay.crash(&left).bytes());
            states += 1;
        }
    }
    states
}

/// Writes as a member of a set.
fn write_in(bench: &Bench, set: SetId, off: u64, bytes: &[u8]) {
    let cx = vfs::Ctx {
        sets: Sets::new([set]),
        ..bench.cx.clone()
    };
    let written = bench.fs.write(&cx, bench.disk, off, bytes);
    assert_eq!(written, Ok(bytes.len()));
}

/// A set after another one.
fn after(bench: &Bench, before: SetId) -> SetId {
    let order = bench.fs.change_order().expect("it keeps order");
    let set = order.create();
    order.depend(set, before);
    set
}

#[test]
fn a_set_is_durable_after_the_set_before_it() {
    for mode in MODES {
        let run = |bench: &Bench| {
            let first = bench.fs.change_order().unwrap().create();
            write_in(bench, first, 0, b"a");
            write_in(bench, first, 1024, b"a");
            let second = after(bench, first);
            write_in(bench, second, 512, b"b");
            write_in(bench, second, 1536, b"b");
        };
        let states = all_crashes(mode, run, |bytes| {
            let is_second = bytes[512] == b'b' || bytes[1536] == b'b';
            assert!(!is_second || (bytes[0], bytes[1024]) == (b'a', b'a'));
        });
        assert!(states > 4);
    }
}

#[test]
fn a_block_can_be_written_in_sets_before_and_after_another() {
    for mode in MODES {
        let run = |bench: &Bench| {
            let first = bench.fs.change_order().unwrap().create();
            write_in(bench, first, 0, b"1");
            let second = after(bench, first);
            write_in(bench, second, 512, b"2");
            let third = after(bench, second);
            write_in(bench, third, 0, b"3");
        };
        all_crashes(mode, run, |bytes| {
            let state = (bytes[0], bytes[512]);
            let allowed = [(0, 0), (b'1', 0), (b'1', b'2'), (b'3', b'2')];
            assert!(allowed.contains(&state), "{state:?}");
        });
    }
}

/// A chain of sets. Each writes its own bytes in all blocks but one, so that every block has
/// changes of most sets.
#[test]
fn a_chain_of_sets_is_durable_up_to_some_set() {
    const SETS: usize = 8;
    let place = |set: usize, block: usize| block * BLOCK as usize + set * 16;
    let blocks = |set: usize| (0..BLOCKS).filter(move |block| *block != set % BLOCKS);
    for mode in MODES {
        let run = |bench: &Bench| {
            let mut set = bench.fs.change_order().unwrap().create();
            for i in 0..SETS {
                for block in blocks(i) {
                    write_in(bench, set, place(i, block) as u64, &[1; 16]);
                }
                set = after(bench, set);
            }
        };
        all_crashes(mode, run, |bytes| {
            let is_there = |set, block| bytes[place(set, block)] == 1;
            let begun = (0..SETS).rfind(|&set| blocks(set).any(|block| is_there(set, block)));
            for set in 0..begun.unwrap_or(0) {
                assert!(blocks(set).all(|block| is_there(set, block)), "set {set}");
            }
        });
    }
}

#[test]
fn a_barrier_orders_writes_of_one_set() {
    for mode in MODES {
        let run = |bench: &Bench| {
            let order = bench.fs.change_order().unwrap();
            let set = order.create();
            write_in(bench, set, 600, b"a");
            order.barrier(set).unwrap();
            write_in(bench, set, 0, b"b");
        };
        all_crashes(mode, run, |bytes| {
            assert!(bytes[0] != b'b' || bytes[600] == b'a');
        });
    }
}

/// The control: the states above come from the order of the sets.
#[test]
fn writes_without_sets_are_in_no_order() {
    let disordered = std::cell::Cell::new(false);
    let run = |bench: &Bench| {
        bench.write(0, b"a").unwrap();
        bench.write(512, b"b").unwrap();
    };
    all_crashes(Mode::SoftUpdates, run, |bytes| {
        disordered.set(disordered.get() || (bytes[0] == 0 && bytes[512] == b'b'));
    });
    assert!(disordered.get());
}

#[test]
fn a_sync_of_a_set_makes_its_writes_durable_and_no_others() {
    let device = Arc::new(ImageDevice::new(zeros(), PERSISTENCE));
    let bench = Bench::new(device.clone(), Mode::SoftUpdates);
    let order = bench.fs.change_order().unwrap();
    let (first, other) = (order.create(), order.create());
    write_in(&bench, first, 0, b"a");
    let second = after(&bench, first);
    write_in(&bench, second, 512, b"b");
    write_in(&bench, other, 1024, b"c");
    order.sync(second).unwrap();
    let bytes = device.image().bytes();
    assert_eq!((bytes[0], bytes[512], bytes[1024]), (b'a', b'b', 0));
    assert_eq!((order.pending(second), order.pending(other)), (0, 1));
}
