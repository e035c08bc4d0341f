//! Hostile bytes in a table: findings and errors, never a panic, a hang or a wrong answer.

use super::simulated::{BYTES, GEOMETRY, Simulated, identities};
use crate::check::{MOST_FINDINGS, check};
use crate::files::Run;
use crate::format::{BODY_BYTES, INTENT_OFF, Key, SLOT_BYTES, SLOTS_OFF, Slot};
use crate::identity::{AccessList, Identity};
use crate::intent::{Intent, Phase};
use crate::store::Store;
use crate::table;
use crash::program::Memory;
use medium::{MemoryPmem, Pmem};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A table with partitions, access lists and a change that a crash interrupted.
fn image() -> Vec<u8> {
    let pm: Memory = Arc::new(MemoryPmem::new(BYTES));
    let files = Simulated::new(&pm);
    table::format(&files.table, &GEOMETRY).unwrap();
    let store = Store::open(files).unwrap();
    store.set_list(1, AccessList::of_mode(1, 2, 0o640)).unwrap();
    store.create_partition("p", 6, 7, 1).unwrap();
    store.create_partition("q", 6, 7, 1).unwrap();
    let intent = Intent {
        partition: 0,
        run: Run { first: 2, pages: 3 },
        from: Identity::FREE,
        to: identities()[0],
    };
    intent.begin(&store.files.table, Phase::Commit).unwrap();
    let mut bytes = vec![0; BYTES as usize];
    pm.read(0, &mut bytes).unwrap();
    bytes
}

fn memory(bytes: &[u8]) -> Memory {
    let pm = MemoryPmem::new(bytes.len() as u64);
    pm.store(0, bytes);
    Arc::new(pm)
}

/// The number of findings; a store with findings in its table must not open.
fn judge(bytes: &[u8]) -> usize {
    let pm = memory(bytes);
    let findings = check(&Simulated::new(&pm)).map_or(1, |findings| findings.len());
    assert!(findings <= MOST_FINDINGS);
    let opened = Store::open(Simulated::new(&pm));
    assert!(findings > 0 || opened.is_ok(), "{:?}", opened.err());
    findings
}

#[test]
fn each_flipped_bit_of_a_table_is_reported() {
    let mut bytes = image();
    assert_eq!(judge(&bytes), 0);
    let slots = 0..GEOMETRY.slots;
    let slots = slots.map(|n| (SLOTS_OFF + n * SLOT_BYTES) as usize);
    let used = slots.filter(|off| bytes[off + 7] != 0);
    let records: Vec<_> = used.map(|off| off..off + SLOT_BYTES as usize).collect();
    assert_eq!(records.len(), 3);
    // Superblock, intent, records.
    let ranges = std::iter::once(0..INTENT_OFF as usize + 64).chain(records);
    for at in ranges.flatten() {
        let bit = 1 << (at % 8);
        bytes[at] ^= bit;
        assert!(judge(&bytes) > 0, "byte {at}");
        bytes[at] ^= bit;
    }
}

#[test]
fn any_bytes_are_bounded() {
    let mut rng = fastrand::Rng::with_seed(1);
    let image = image();
    for _ in 0..2000 {
        let mut bytes = image.clone();
        for _ in 0..rng.usize(1..8) {
            let at = rng.usize(..bytes.len());
            let end = bytes.len().min(at + rng.usize(1..300));
            match rng.bool() {
                true => bytes[at..end].fill_with(|| rng.u8(..)),
                false => bytes[at..end].fill(0xff),
            }
        }
        judge(&bytes);
    }
}

/// Records and intents with right checksums and any contents.
#[test]
fn any_contents_with_right_checksums_are_bounded() {
    let mut rng = fastrand::Rng::with_seed(2);
    let image = image();
    let mut sound = 0;
    let number = |rng: &mut fastrand::Rng| match rng.u8(..4) {
        0 => rng.u64(..),
        1 => u64::MAX,
        _ => rng.u64(..20),
    };
    for _ in 0..5000 {
        let mut bytes = image.clone();
        let mut body = [0; BODY_BYTES];
        for word in body
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .take(rng.usize(1..16))
        {
            *word = number(&mut rng).to_le_bytes();
        }
        if rng.bool() {
            // A name of one letter.
            body[24..40].copy_from_slice(b"\x01\0\0\0\0\0\0\0x\0\0\0\0\0\0\0");
        }
        let key = match rng.bool() {
            true => Key::Partition(number(&mut rng) as u32),
            false => Key::List(number(&mut rng) as u32),
        };
        let slot = Slot::new(key, number(&mut rng), body);
        let off = (SLOTS_OFF + rng.u64(..GEOMETRY.slots) * SLOT_BYTES) as usize;
        bytes[off..off + SLOT_BYTES as usize].copy_from_slice(slot.as_bytes());
        sound += usize::from(judge(&bytes) == 0);

        let pm = memory(&image);
        let raw = |rng: &mut fastrand::Rng| Identity::from_raw(number(rng) as u32);
        let intent = Intent {
            partition: number(&mut rng) as u32,
            run: Run {
                first: number(&mut rng),
                pages: number(&mut rng),
            },
            from: identities()[rng.usize(..3)],
            to: match rng.bool() {
                true => identities()[rng.usize(..3)],
                false => Identity::FREE,
            },
        };
        let strange = Intent {
            from: raw(&mut rng),
            to: Identity::FREE,
            ..intent
        };
        for (intent, opens) in [(intent, true), (strange, false)] {
            intent
                .begin(&Simulated::new(&pm).table, Phase::Commit)
                .unwrap();
            let _ = check(&Simulated::new(&pm));
            if opens {
                let _ = Store::open(Simulated::new(&pm));
            }
        }
    }
    assert!(sound > 10, "only {sound} of the hostile records are sound");
}
