//! Readers beside a writer.

use super::{Memory, empty};
use crate::layout::header;
use crate::{Kind, ObjectId, Store, list_all, lookup, stable};
use medium::layer::PmemLayer;
use medium::{MemoryPmem, Pmem};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Memory with a reader that looks at an object after each store.
struct Seen {
    below: Memory,
    object: Mutex<Option<ObjectId>>,
    looks: AtomicU64,
}

impl Seen {
    /// The words of the object have one value wherever its version is even.
    fn look(&self) {
        let Some(object) = *self.object.lock().unwrap() else {
            return;
        };
        let memory = &self.below;
        let at = object.header() + header::VERSION * 8;
        let version = Pmem::load(memory, at).unwrap();
        if version.is_multiple_of(2) {
            let [a, b] = [0, 1].map(|n| crate::own(memory, object, n).unwrap());
            assert_eq!(a, b, "half a transaction at version {version}");
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl PmemLayer for Seen {
    type Below = MemoryPmem;

    fn below(&self) -> &MemoryPmem {
        &self.below
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.below.store(off, bytes);
        self.look();
    }
}

/// One object is changed, then two together.
#[test]
fn no_store_of_a_commit_shows_a_part_of_it() {
    let memory = Arc::new(MemoryPmem::new(1 << 20));
    crate::format(&memory, 7).unwrap();
    let memory = Arc::new(Seen {
        below: memory,
        object: Mutex::default(),
        looks: AtomicU64::new(0),
    });
    let store = Store::open(memory.clone()).unwrap();
    let mut tx = store.begin().unwrap();
    let files = [(); 2].map(|()| tx.create(Kind::MFile).unwrap());
    for (file, name) in files.into_iter().zip([b"1", b"2"]) {
        tx.add(store.root(), name, file).unwrap();
    }
    tx.commit().unwrap();
    for (file, value) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
        *memory.object.lock().unwrap() = Some(files[file]);
        let mut tx = store.begin().unwrap();
        for changed in &files[..value] {
            for n in 0..2 {
                tx.set_own(*changed, n, 5 + value as u64).unwrap();
            }
        }
        tx.commit().unwrap();
    }
    assert!(memory.looks.load(Ordering::Relaxed) > 4);
}

/// Two keys come and go together, among others that make the table grow and shrink. A reader sees both
/// or neither.
#[test]
fn readers_see_whole_transactions() {
    let store = empty(4 << 20);
    let is_over = AtomicBool::new(false);
    let (store, root, seed) = (&store, store.root(), store.seed());
    let pair: [&[u8]; 2] = [b"first of the pair", b"second of the pair"];
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = [0u64; 2];
            while !is_over.load(Ordering::Acquire) {
                let memory = store.memory();
                let found = stable(memory, root, || {
                    let [a, b] = pair.map(|key| lookup(memory, root, seed, key));
                    Ok((a?, b?, list_all(memory, root, seed)?.len()))
                });
                let (first, second, count) = found.unwrap();
                assert_eq!(first.is_some(), second.is_some(), "half a transaction");
                assert_eq!(count % 2, 0, "{count} entries");
                seen[usize::from(first.is_some())] += 1;
            }
            seen
        });
        for round in 0..300u64 {
            let mut tx = store.begin().unwrap();
            let object = tx.create(Kind::MFile).unwrap();
            for key in pair {
                tx.add(root, key, object).unwrap();
            }
            for n in 0..60 {
                tx.add(root, &(round * 100 + n).to_le_bytes(), object)
                    .unwrap();
            }
            tx.commit().unwrap();
            let mut tx = store.begin().unwrap();
            for n in 0..60 {
                tx.remove(root, &(round * 100 + n).to_le_bytes()).unwrap();
            }
            for key in pair {
                tx.remove(root, key).unwrap();
            }
            tx.delete(object).unwrap();
            tx.commit().unwrap();
        }
        is_over.store(true, Ordering::Release);
        let [without, with] = reader.join().unwrap();
        assert!(with + without > 0);
    });
}
