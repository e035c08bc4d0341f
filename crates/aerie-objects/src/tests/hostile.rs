//! Memory with arbitrary words: an error or a result, and no more.

use super::{Memory, empty};
use crate::reading::object::unchanged;
use crate::{Kind, ObjectId, Store, check, list_all, lookup, page};
use medium::{MemoryPmem, Pmem};
use std::sync::Arc;

/// A store with objects of both kinds, long chains, a tall tree, and tombstones.
fn filled() -> (Memory, Vec<ObjectId>) {
    let store = empty(1 << 19);
    let mut tx = store.begin().unwrap();
    let file = tx.create(Kind::MFile).unwrap();
    let dir = tx.create(Kind::Collection).unwrap();
    tx.add(store.root(), b"file", file).unwrap();
    tx.add(store.root(), b"dir", dir).unwrap();
    for n in 0..40u8 {
        tx.add(dir, &[n; 200], file).unwrap();
    }
    for index in [0, 1, 600, 1 << 30] {
        tx.add_page(file, index).unwrap();
    }
    tx.commit().unwrap();
    let mut tx = store.begin().unwrap();
    tx.remove(dir, &[7; 200]).unwrap();
    tx.commit().unwrap();
    (store.memory().clone(), vec![store.root(), dir, file])
}

/// Uses all readers, and a store if it opens.
fn use_all(memory: &Memory, objects: &[ObjectId]) {
    let _ = check(memory);
    for object in objects {
        let _ = unchanged(memory, *object, || list_all(memory, *object, 7).map(drop));
        let _ = lookup(memory, *object, 7, &[3; 200]);
        let _ = [0, 5, 600, u64::MAX].map(|index| page(memory, *object, index));
    }
    if let Ok(store) = Store::open(memory.clone()) {
        let mut tx = store.begin().unwrap();
        let made = tx.create(Kind::MFile).and_then(|new| {
            tx.add(store.root(), b"new", new)?;
            tx.add_page(new, 3)?;
            tx.remove(store.root(), b"file")
        });
        if made.is_ok() && tx.commit().is_ok() {
            let report = check(memory);
            let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
            assert!(
                report.is_clean(),
                "what was opened became damaged: {findings:?}"
            );
        }
    }
}

#[test]
fn damaged_words_do_not_make_readers_panic() {
    let (memory, objects) = filled();
    let used: Vec<u64> = (0..memory.len()).step_by(8).collect();
    let used: Vec<u64> = used
        .into_iter()
        .filter(|off| memory.load(*off).unwrap() != 0)
        .collect();
    assert!(used.len() > 500);
    let seed = fastrand::Rng::with_seed(1);
    let mut rng = seed;
    for round in 0..3000 {
        let damaged = Arc::new(MemoryPmem::copy_of(&*memory).unwrap());
        for _ in 0..=round % 3 {
            let off = used[rng.usize(..used.len())];
            let old = damaged.load(off).unwrap();
            let word = match rng.u32(..7) {
                0 => 0,
                1 => u64::MAX,
                2 => rng.u64(..),
                3 => old ^ 1 << rng.u32(..64),
                4 => old.wrapping_add(8),
                5 => objects[rng.usize(..objects.len())].to_bits(),
                _ => damaged.load(used[rng.usize(..used.len())]).unwrap(),
            };
            damaged.store_word(off, word);
        }
        use_all(&damaged, &objects);
    }
}

#[test]
fn memory_without_a_store_is_refused() {
    let small = Arc::new(MemoryPmem::new(4096));
    assert!(crate::format(&small, 1).is_err());
    let blank = Arc::new(MemoryPmem::new(1 << 20));
    let refused = Store::open(blank.clone()).err().unwrap().to_string();
    assert_eq!(refused, "no store of objects: its magic is missing");
    crate::format(&blank, 1).unwrap();
    blank.store_word(8, 9);
    let refused = Store::open(blank).err().unwrap().to_string();
    assert_eq!(
        refused,
        "no store of objects: version 9 of the format is unknown"
    );
}
