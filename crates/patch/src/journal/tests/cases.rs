//! Single cases: the log's ring, torn blocks, leftovers, numbers that wrap.

use super::super::format::{Codec, MAGIC, Super, Tag};
use super::*;
use crate::{Change, Content, PatchId, Store, StoreError};
use medium::block::MemoryDevice;

const LOG: u64 = 24;

/// Writes these home blocks, whole, as one operation and one transaction.
fn transaction(bench: &Bench, blocks: impl IntoIterator<Item = (u64, u8)>) -> Vec<PatchId> {
    let blocks: Vec<_> = blocks.into_iter().collect();
    let op = bench
        .journal
        .begin(blocks.len() as u32, crate::Caller::SYSTEM)
        .unwrap();
    let mut patches = Vec::new();
    for (lba, byte) in blocks {
        let bytes = [byte; BLOCK];
        let change = Change::Bytes {
            at: 0,
            bytes: &bytes,
        };
        let patched = bench
            .journal
            .change(&op, Lba(lba), Content::Metadata, change, &[]);
        patches.push(patched.unwrap().id);
    }
    bench.journal.end(op);
    bench.journal.commit().unwrap();
    bench.cache.verify().unwrap();
    patches
}

fn home(bytes: &[u8], lba: u64) -> u8 {
    bytes[lba as usize * BLOCK]
}

/// The state after a crash now that keeps only durable writes.
fn after_crash(bench: &Bench) -> Vec<u8> {
    replayed(bench.device.bytes(), LOG).unwrap()
}

/// Offset of block `n` of the log, in bytes.
fn at(n: u32) -> usize {
    place(LOG).lba(n).0 as usize * BLOCK
}

fn superblock(bytes: &[u8]) -> Super {
    Super::parse(&bytes[at(0)..at(0) + BLOCK], LOG).unwrap()
}

fn set_superblock(bytes: &mut [u8], mut superblock: Super) {
    bytes[at(0)..at(0) + BLOCK].copy_from_slice(superblock.encode());
}

#[test]
fn a_sync_writes_to_the_log_and_not_home() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    let patches = transaction(&bench, [(1, 11), (2, 12)]);
    bench.journal.sync(&patches).unwrap();
    let bytes = bench.device.bytes();
    assert_eq!((home(&bytes, 1), home(&bytes, 2)), (0, 0));
    let bytes = after_crash(&bench);
    assert_eq!((home(&bytes, 1), home(&bytes, 2)), (11, 12));
    assert_eq!(superblock(&bytes).start(), 0);
    assert_eq!(superblock(&bytes).sequence(), 3, "1, and one is left out");
}

#[test]
fn an_empty_log_needs_no_recovery_and_a_full_one_refuses_to_open() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    transaction(&bench, [(1, 1)]);
    bench.journal.sync_all().unwrap();
    let device = Recorder::new(bench.device.bytes());
    assert!(super::super::needs_recovery(&device, &place(LOG)).unwrap());
    let cache = Cache::new(vec![Box::new(device)], CacheOptions::default());
    let volume = Arc::new(cache).store(0);
    let opened = Journal::open(
        Arc::new(volume.clone()),
        Arc::new(volume),
        place(LOG),
        JournalOptions::default(),
    );
    assert!(matches!(
        opened,
        Err(super::super::JournalError::NeedsRecovery)
    ));
    bench.journal.checkpoint().unwrap();
    let device = Recorder::new(bench.device.bytes());
    assert!(!super::super::needs_recovery(&device, &place(LOG)).unwrap());
    assert_eq!(home(&device.bytes(), 1), 1);
}

#[test]
fn an_operation_may_fill_the_log_and_none_may_be_larger() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    let most = u64::from(bench.journal.max_op_blocks());
    for round in 1..=9 {
        let patches = transaction(&bench, (0..most).map(|lba| (lba, round)));
        let stats = bench.journal.stats();
        assert_eq!(stats.used + 1, stats.capacity, "no revoke block is needed");
        bench.journal.sync(&patches).unwrap();
        let bytes = after_crash(&bench);
        assert!((0..most).all(|lba| home(&bytes, lba) == round));
    }
    assert!(matches!(
        bench.journal.begin(most as u32 + 1, crate::Caller::SYSTEM),
        Err(StoreError::TooLarge { .. })
    ));
}

#[test]
fn a_log_can_be_filled_to_its_last_block() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    for round in 1..=60u8 {
        // The tail is at another place each time.
        let size = u64::from(round % 5) + 1;
        let patches = transaction(&bench, (40..40 + size).map(|lba| (lba, round)));
        bench.journal.sync(&patches).unwrap();
        let op = bench.journal.begin(0, crate::Caller::SYSTEM).unwrap();
        bench.journal.freed(&op, Lba(40), &[], false).unwrap();
        bench.journal.end(op);
        let stats = bench.journal.stats();
        // A revoke block, a descriptor and the commit.
        let rest = u64::from(stats.capacity - stats.used) - 3;
        let patches = transaction(&bench, (0..rest).map(|lba| (lba, round)));
        let stats = bench.journal.stats();
        assert_eq!(stats.used, stats.capacity);
        bench.journal.sync(&patches).unwrap();
        let bytes = after_crash(&bench);
        assert!((0..rest).all(|lba| home(&bytes, lba) == round));
        assert!((41..40 + size).all(|lba| home(&bytes, lba) == round));
        assert!(home(&bytes, 40) < round, "revoked");
    }
}

#[test]
fn transactions_of_every_size_fit_any_place_in_the_ring() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    let most = u64::from(bench.journal.max_op_blocks());
    for round in 0..400u64 {
        let size = 1 + round * 7 % most;
        let byte = (round % 250) as u8 + 1;
        let patches = transaction(&bench, (0..size).map(|lba| (lba, byte)));
        if round % 3 == 0 {
            bench.journal.sync(&patches).unwrap();
            assert_eq!(home(&after_crash(&bench), size - 1), byte);
        }
    }
}

#[test]
fn an_operation_that_exceeds_its_reservation_is_refused() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    let op = bench.journal.begin(1, crate::Caller::SYSTEM).unwrap();
    let change = Change::Bytes { at: 0, bytes: &[1] };
    let put = |lba| {
        bench
            .journal
            .change(&op, Lba(lba), Content::Data, change, &[])
    };
    put(1).unwrap();
    assert!(matches!(put(2), Err(StoreError::TooLarge { .. })));
    bench.journal.end(op);
}

/// Damages one block of the second of two transactions, and expects the first alone.
fn torn(block_of_second: u32, damage: impl Fn(&mut [u8])) {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    transaction(&bench, [(1, 1), (2, 1)]);
    transaction(&bench, [(1, 2), (2, 2)]);
    bench.journal.sync_all().unwrap();
    let mut bytes = bench.device.bytes();
    // The superblock, 4 blocks of the first transaction, then the second.
    let block = at(1 + 4 + block_of_second);
    damage(&mut bytes[block..block + BLOCK]);
    let bytes = replayed(bytes, LOG).unwrap();
    assert_eq!((home(&bytes, 1), home(&bytes, 2)), (1, 1));
    assert_eq!(superblock(&bytes).sequence(), 3);
}

#[test]
fn a_torn_transaction_is_not_replayed() {
    let zero = |block: &mut [u8]| block[512..].fill(0xEE);
    torn(0, zero); // descriptor
    torn(1, zero); // data
    torn(2, zero);
    torn(3, zero); // commit
    torn(3, |block| block.fill(0)); // never written
    torn(3, |block| block[17] ^= 1);
    torn(0, |block| block[11] ^= 1); // a descriptor of another transaction
}

#[test]
fn leftovers_of_an_older_lap_are_not_replayed() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    let mut stale = None;
    for round in 1..=40u8 {
        let patches = transaction(&bench, [(1, round), (2, round)]);
        bench.journal.sync(&patches).unwrap();
        let bytes = bench.device.bytes();
        let now = after_crash(&bench);
        assert_eq!((home(&now, 1), home(&now, 2)), (round, round));
        // With the newest commit lost, the log continues with blocks of the lap before.
        let Some(before) = stale.replace(bytes) else {
            continue;
        };
        let then = replayed(before, LOG).unwrap();
        assert_eq!(home(&then, 1), round - 1);
    }
    assert!(bench.journal.stats().tails > 3);
}

#[test]
fn transactions_from_before_a_replay_are_not_replayed_again() {
    let mut bytes = formatted(LOG);
    for lap in 1..=5u8 {
        let bench = open(bytes, LOG, Mode::Full);
        transaction(&bench, [(1, lap)]);
        transaction(&bench, [(2, lap)]);
        let patches = transaction(&bench, [(3, 100 + lap)]);
        bench.journal.sync(&patches).unwrap();
        let mut crashed = bench.device.bytes();
        // The commit block of the third is lost.
        crashed[at(9)..at(9) + BLOCK].fill(0);
        bytes = replayed(crashed, LOG).unwrap();
        assert_eq!([1, 2, 3].map(|lba| home(&bytes, lba)), [lap, lap, 0]);
    }
}

#[test]
fn sequence_numbers_wrap() {
    let mut bytes = formatted(LOG);
    let mut log = superblock(&bytes);
    log.set_tail(0, u32::MAX - 3);
    set_superblock(&mut bytes, log);
    let bench = open(bytes, LOG, Mode::Ordered);
    for round in 1..=9u8 {
        transaction(&bench, [(1, round)]);
        let patches = transaction(&bench, [(2, round)]);
        bench.journal.sync(&patches).unwrap();
        let bytes = after_crash(&bench);
        assert_eq!((home(&bytes, 1), home(&bytes, 2)), (round, round));
    }
}

#[test]
fn a_later_revoke_keeps_a_block_from_being_replayed() {
    let bench = open(formatted(LOG), LOG, Mode::Ordered);
    transaction(&bench, [(1, 1), (2, 1)]);
    bench.journal.sync_all().unwrap();
    let op = bench.journal.begin(1, crate::Caller::SYSTEM).unwrap();
    bench.journal.freed(&op, Lba(2), &[], false).unwrap();
    bench.journal.end(op);
    transaction(&bench, [(1, 2)]);
    bench.journal.sync_all().unwrap();
    // Allocated again for data, which are written home directly.
    let op = bench.journal.begin(1, crate::Caller::SYSTEM).unwrap();
    let change = Change::Bytes {
        at: 0,
        bytes: &[9; BLOCK],
    };
    let patched = bench
        .journal
        .change(&op, Lba(2), Content::Data, change, &[])
        .unwrap();
    bench.journal.end(op);
    bench.journal.sync(&[patched.id]).unwrap();
    assert_eq!(bench.journal.stats().revoked, 1);
    let bytes = after_crash(&bench);
    assert_eq!((home(&bytes, 1), home(&bytes, 2)), (2, 9));
}

/// Writes everything that can be written.
fn write_all(bench: &Bench) {
    while bench.cache.write_some().unwrap() > 0 {}
}

#[test]
fn a_copy_counts_until_the_tail_beyond_it_is_durable() {
    let bench = open(formatted(LOG), LOG, Mode::Ordered);
    let put = |byte| {
        let op = bench.journal.begin(2, crate::Caller::SYSTEM).unwrap();
        if byte == 1 {
            // Freed and allocated again at once, so the data are logged.
            bench.journal.freed(&op, Lba(5), &[], false).unwrap();
        }
        let bytes = [byte; BLOCK];
        let change = Change::Bytes {
            at: 0,
            bytes: &bytes,
        };
        let patched = bench
            .journal
            .change(&op, Lba(5), Content::Data, change, &[]);
        bench.journal.end(op);
        patched.unwrap().id
    };
    put(1);
    bench.journal.commit().unwrap();
    write_all(&bench);
    bench.reclaim();
    bench.reclaim();
    assert_eq!(bench.journal.stats().used, 0);
    let patch = put(2);
    bench.journal.sync(&[patch]).unwrap();
    assert_eq!(home(&after_crash(&bench), 5), 2);
    assert_eq!(bench.journal.stats().logged, 2);
    write_all(&bench);
    bench.reclaim();
    write_all(&bench);
    bench.reclaim();
    put(3);
    bench.journal.sync_all().unwrap();
    assert_eq!(bench.journal.stats().logged, 2, "directly, by now");
}

#[test]
fn a_change_that_an_older_transaction_needs_is_not_cancelled() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    transaction(&bench, [(5, 1)]);
    bench.journal.sync_all().unwrap();
    let op = bench.journal.begin(1, crate::Caller::SYSTEM).unwrap();
    bench.journal.freed(&op, Lba(5), &[], false).unwrap();
    // A second use of the block, without a write or a pointer to it.
    bench.journal.freed(&op, Lba(5), &[], true).unwrap();
    bench.journal.end(op);
    bench.reclaim();
    write_all(&bench);
    assert_eq!(home(&after_crash(&bench), 5), 1);
}

#[test]
fn the_magic_number_in_data_survives() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    let mut bytes = [5; BLOCK];
    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    // Data with the bytes of the running transaction's commit block.
    bytes[4..8].copy_from_slice(&2u32.to_be_bytes());
    bytes[8..12].copy_from_slice(&1u32.to_be_bytes());
    let op = bench.journal.begin(1, crate::Caller::SYSTEM).unwrap();
    let change = Change::Bytes {
        at: 0,
        bytes: &bytes,
    };
    bench
        .journal
        .change(&op, Lba(3), Content::Data, change, &[])
        .unwrap();
    bench.journal.end(op);
    bench.journal.sync_all().unwrap();
    assert_eq!(&after_crash(&bench)[3 * BLOCK..4 * BLOCK], &bytes);
}

#[test]
fn data_that_look_like_a_transaction_are_not_replayed() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    // The features are those of the log once it has been written to.
    let mut log = superblock(&bench.device.bytes());
    log.use_our_features(false);
    let codec = log.codec();
    let forged = [0x66; BLOCK];
    let tag = Tag {
        home: 40,
        escaped: false,
        crc: codec.data_crc(8, &forged),
    };
    // In the log at 2, 3 and 4; the seventh transaction ends at 1, in the second lap.
    let blocks = [
        codec.descriptor(8, &[tag]),
        forged.to_vec(),
        codec.commit(8, 0),
    ];
    let op = bench.journal.begin(3, crate::Caller::SYSTEM).unwrap();
    for (lba, bytes) in (1..).zip(&blocks) {
        let change = Change::Bytes { at: 0, bytes };
        let done = bench
            .journal
            .change(&op, Lba(lba), Content::Data, change, &[]);
        done.unwrap();
    }
    bench.journal.end(op);
    bench.journal.commit().unwrap();
    for round in 2..=6 {
        transaction(&bench, [(10, round)]);
    }
    let patches = transaction(&bench, [(10, 7), (11, 7)]);
    bench.journal.sync(&patches).unwrap();
    assert_eq!(bench.device.bytes()[at(1) + 7], 2, "a commit block");
    let bytes = after_crash(&bench);
    assert_eq!((home(&bytes, 10), home(&bytes, 40)), (7, 0));
}

#[test]
fn ordered_data_are_home_before_the_commit() {
    let bench = open(formatted(LOG), LOG, Mode::Ordered);
    let op = bench.journal.begin(2, crate::Caller::SYSTEM).unwrap();
    let put = |lba, kind, byte: u8| {
        let bytes = [byte; BLOCK];
        let change = Change::Bytes {
            at: 0,
            bytes: &bytes,
        };
        bench.journal.change(&op, Lba(lba), kind, change, &[])
    };
    put(5, Content::Data, 1).unwrap();
    let meta = put(6, Content::Metadata, 1).unwrap();
    bench.journal.end(op);
    bench.journal.sync(&[meta.id]).unwrap();
    let bytes = bench.device.bytes();
    assert_eq!((home(&bytes, 5), home(&bytes, 6)), (1, 0));
    assert_eq!(bench.journal.stats().logged, 1);
}

#[test]
fn a_log_can_be_on_another_device() {
    let home_device = Arc::new(Recorder::new(vec![0; HOME as usize * BLOCK]));
    let log_device = Arc::new(Recorder::new(vec![0; 40 * BLOCK]));
    let place = LogBlocks::new([(Lba(2), 30)]);
    format(&log_device, &place, [1; 16]).unwrap();
    let devices: Vec<Box<dyn BlockDevice>> =
        vec![Box::new(home_device.clone()), Box::new(log_device.clone())];
    let cache = Arc::new(Cache::new(devices, CacheOptions::default()));
    let options = JournalOptions {
        interval: Some(std::time::Duration::from_millis(1)),
        mode: Mode::Full,
        ..JournalOptions::default()
    };
    let journal = Journal::open(
        Arc::new(cache.store(0)),
        Arc::new(cache.store(1)),
        place.clone(),
        options,
    );
    let bench = Bench {
        device: home_device.clone(),
        cache,
        journal: journal.unwrap(),
    };
    for round in 1..=100 {
        transaction(&bench, [(round % 40, round as u8), (41, round as u8)]);
    }
    bench.journal.sync_all().unwrap();
    super::super::replay(&home_device, &log_device, &place).unwrap();
    assert_eq!(home(&home_device.bytes(), 41), 100);
    bench.journal.checkpoint().unwrap();
}

#[test]
fn a_log_with_blocks_of_another_size_is_refused() {
    let home = MemoryDevice::from_bytes(2 * BLOCK as u32, vec![0; 20 * BLOCK]);
    let log = Recorder::new(vec![0; 40 * BLOCK]);
    let place = LogBlocks::new([(Lba(0), 40)]);
    format(&log, &place, [1; 16]).unwrap();
    let cache = Cache::new(vec![Box::new(home), Box::new(log)], CacheOptions::default());
    let cache = Arc::new(cache);
    let (home, log) = (cache.store(0), cache.store(1));
    let options = JournalOptions::default();
    let opened = Journal::open(Arc::new(home), Arc::new(log), place, options);
    let error = opened.err().expect("sizes differ").to_string();
    assert!(error.contains("1024") && error.contains("2048"), "{error}");
}

#[test]
fn synced_operations_of_concurrent_threads_survive_a_crash() {
    let bench = open(formatted(LOG), LOG, Mode::Full);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let bench = &bench;
            scope.spawn(move || {
                for round in 1..=100u8 {
                    let op = bench.journal.begin(2, crate::Caller::SYSTEM).unwrap();
                    let mut last = Vec::new();
                    for lba in [thread, 8 + (thread + u64::from(round)) % 16] {
                        let change = Change::Bytes {
                            at: 0,
                            bytes: &[round],
                        };
                        let patched =
                            bench
                                .journal
                                .change(&op, Lba(lba), Content::Data, change, &[]);
                        last.push(patched.unwrap().id);
                    }
                    bench.journal.end(op);
                    if round % 25 == 0 {
                        bench.journal.sync(&last).unwrap();
                    }
                }
            });
        }
    });
    bench.cache.verify().unwrap();
    let bytes = after_crash(&bench);
    assert!((0..4).all(|lba| home(&bytes, lba) == 100));
    bench.journal.checkpoint().unwrap();
    assert!((0..4).all(|lba| home(&bench.device.bytes(), lba) == 100));
}

#[test]
fn damaged_logs_are_refused() {
    let good = formatted(LOG);
    let parse = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        replayed(bytes, LOG)
    };
    assert!(parse(&|_| {}).is_ok());
    assert!(parse(&|b| b[at(0)] = 0).is_err(), "no magic number");
    assert!(parse(&|b| b[at(0) + 0x2B] |= 0x20).is_err(), "fast commits");
    assert!(parse(&|b| b[at(0) + 0x1F] = 3).is_err(), "no checksum");
    let tail = |start, blocks: u32| {
        move |b: &mut Vec<u8>| {
            let mut log = Super::new(BLOCK as u32, blocks, [7; 16]);
            log.use_our_features(true);
            log.set_tail(start, 1);
            set_superblock(b, log);
        }
    };
    assert!(parse(&tail(LOG as u32, LOG as u32)).is_err());
    assert!(parse(&tail(0, LOG as u32 + 1)).is_err());
    assert!(parse(&tail(1, LOG as u32)).is_ok(), "nothing in it");
    // A whole transaction for a block that the device does not have.
    let beyond = parse(&|b| {
        tail(1, LOG as u32)(b);
        let codec: Codec = superblock(b).codec();
        let data = [0; BLOCK];
        let crc = codec.data_crc(1, &data);
        let tag = Tag {
            home: 1 << 40,
            escaped: false,
            crc,
        };
        b[at(1)..at(1) + BLOCK].copy_from_slice(&codec.descriptor(1, &[tag]));
        b[at(2)..at(2) + BLOCK].copy_from_slice(&data);
        b[at(3)..at(3) + BLOCK].copy_from_slice(&codec.commit(1, 0));
    });
    assert!(beyond.is_err());
}

#[test]
fn an_operation_waits_while_reservations_alone_fill_the_log() {
    // Threads without a scope, which would wait for a thread that hangs.
    let bench = Arc::new(open(formatted(LOG), LOG, Mode::Full));
    let shared = bench.journal.shared.clone();
    let free = shared.state.lock().log.free();
    let fits = |blocks: usize| shared.has_room_for(blocks, 0, free);
    let blocks = (1..).find(|n| fits(3 * n) && !fits(4 * n)).unwrap();
    let begin = move |bench: &Bench| {
        bench
            .journal
            .begin(blocks as u32, crate::Caller::SYSTEM)
            .unwrap()
    };
    let ops = [0, 1, 2].map(|_| begin(&bench));
    let (tell, told) = std::sync::mpsc::channel();
    let (other, finished) = (bench.clone(), tell.clone());
    std::thread::spawn(move || {
        other.journal.end(begin(&other));
        finished.send("fourth").unwrap();
    });
    let waiting = shared.clone();
    std::thread::spawn(move || {
        // Spurious for the one that waits.
        while !waiting.changed.notify_one() {
            std::thread::yield_now();
        }
        tell.send("waits").unwrap();
    });
    // Bounds a failure only.
    let next = || told.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(next(), Ok("waits"));
    for (lba, op) in (1..).zip(ops) {
        let bytes = &[1; BLOCK];
        let change = Change::Bytes { at: 0, bytes };
        let changed = bench
            .journal
            .change(&op, Lba(lba), Content::Metadata, change, &[]);
        changed.unwrap();
        bench.journal.end(op);
    }
    assert_eq!(next(), Ok("fourth"));
}

/// Their changes stay in the cache until the commit.
#[test]
fn blocks_that_are_changed_and_freed_leave_room_in_the_cache() {
    let log_blocks = 20;
    let below = (super::Below::DeviceStore, 30);
    let bench = super::open_on(formatted(log_blocks), log_blocks, Mode::Full, below);
    let (finished, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for lba in (0..super::HOME).map(Lba) {
            let op = bench.journal.begin(1, crate::Caller::SYSTEM).unwrap();
            let change = Change::Bytes { at: 0, bytes: &[1] };
            bench
                .journal
                .change(&op, lba, Content::Data, change, &[])
                .unwrap();
            bench.journal.freed(&op, lba, &[], false).unwrap();
            bench.journal.end(op);
        }
        finished.send(()).unwrap();
    });
    // Bounds a failure only.
    let waited = told.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(
        waited,
        Ok(()),
        "an operation waits for room that nobody gives back"
    );
}
