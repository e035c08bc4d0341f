//! Readers beside a writer.

use super::empty;
use crate::{Kind, list_all, lookup, stable};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

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
