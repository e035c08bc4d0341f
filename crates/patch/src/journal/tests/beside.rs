//! Calls concurrent with a sync: its patches join the running transaction meanwhile.

use super::*;
use crate::{Change, Content, PatchId, Store, StoreError};

const LOG: u64 = 24;
/// The blocks of data. The last one is not in the first wave of a sync.
const DATA: std::ops::Range<u64> = 1..5;
const LAST: u64 = 4;

/// Writes this block whole, as an operation of its own.
fn put(journal: &Journal, lba: u64, content: Content, byte: u8, is_freed: bool) -> PatchId {
    let op = journal.begin(1, crate::Caller::SYSTEM).unwrap();
    if is_freed {
        journal.freed(&op, Lba(lba), &[], false).unwrap();
    }
    let bytes = [byte; BLOCK];
    let change = Change::Bytes {
        at: 0,
        bytes: &bytes,
    };
    let patched = journal.change(&op, Lba(lba), content, change, &[]);
    journal.end(op);
    patched.unwrap().id
}

/// Syncs data whose last block becomes metadata while the first blocks are written.
fn sync_beside_reuse(mode: Mode, sync: impl Fn(&Journal, &[PatchId]) -> Result<(), StoreError>) {
    let bench = Arc::new(open(formatted(LOG), LOG, mode));
    let journal = &bench.journal;
    let data: Vec<PatchId> = DATA
        .map(|lba| put(journal, lba, Content::Data, lba as u8, false))
        .collect();
    let beside = bench.clone();
    *bench.device.on_submit.lock() = Some(Box::new(move || {
        put(&beside.journal, LAST, Content::Metadata, 77, true);
    }));
    sync(journal, &data).unwrap();
    bench.cache.verify().unwrap();
    assert!(bench.device.on_submit.lock().is_none(), "it was reused");
    assert!(data.iter().all(|id| !journal.is_pending(*id)), "{mode:?}");
    let bytes = replayed(bench.device.bytes(), LOG).unwrap();
    let found: Vec<u8> = DATA.map(|lba| bytes[lba as usize * BLOCK]).collect();
    let last = if mode == Mode::Metadata { 77 } else { 4 };
    assert_eq!(found, [1, 2, 3, last], "{mode:?}");
    journal.sync_all().unwrap();
    let bytes = replayed(bench.device.bytes(), LOG).unwrap();
    assert_eq!(bytes[LAST as usize * BLOCK], 77, "{mode:?}");
}

#[test]
fn a_sync_returns_although_its_data_join_a_transaction() {
    for mode in [Mode::Metadata, Mode::Ordered] {
        sync_beside_reuse(mode, |journal, data| journal.sync(data));
        sync_beside_reuse(mode, |journal, _| journal.sync_all());
    }
}
