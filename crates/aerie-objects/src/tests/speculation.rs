//! Speculations: changes in an overlay, beside the store of another process.

use super::{Memory, assert_clean, empty};
use crate::{Error, Kind, Overlay, Store, list_all, lookup, parent};
use medium::{MemoryPmem, Pmem};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

type Speculation = Store<Overlay<Memory>>;

fn speculate(store: &Store<Memory>) -> Speculation {
    Store::speculate(Overlay::new(store.memory().clone())).unwrap()
}

fn names(store: &Store<impl Pmem>) -> Vec<(Vec<u8>, crate::ObjectId)> {
    let all = list_all(store.memory(), store.root(), store.seed()).unwrap();
    let mut all: Vec<_> = all.into_iter().map(|e| (e.key, e.object)).collect();
    all.sort();
    all
}

#[test]
fn a_speculation_changes_only_its_overlay() {
    let store = empty(1 << 20);
    let before = MemoryPmem::copy_of(store.memory()).unwrap();
    let reserve = store.reserve(2, 40);
    let reserved = MemoryPmem::copy_of(store.memory()).unwrap();
    let here = speculate(&store);
    assert!(matches!(
        here.begin().unwrap().create(Kind::MFile),
        Err(Error::Full)
    ));
    here.reset(&reserve);
    let mut tx = here.begin().unwrap();
    for n in 0..30u8 {
        let file = tx.create(Kind::MFile).unwrap();
        assert!(reserve.clone().take_object(file).is_some());
        tx.add(here.root(), &[n + 1; 100], file).unwrap();
        tx.add_page(file, 600).unwrap();
    }
    let file = lookup(&tx, here.root(), here.seed(), &[1; 100])
        .unwrap()
        .unwrap();
    let page = tx.add_reserved(file, 0).unwrap();
    assert!(reserve.clone().take_page(page));
    tx.commit().unwrap();
    assert_eq!(names(&here).len(), 30);
    assert_eq!(here.reserved(), (1, 10));
    assert!(names(&store).is_empty());
    for off in (0..before.len()).step_by(8) {
        assert_eq!(
            Pmem::load(store.memory(), off).unwrap(),
            reserved.load(off).unwrap()
        );
    }
    here.restart(&reserve);
    assert!(names(&here).is_empty());
    assert_eq!(here.memory().used_bytes(), 0);
    assert_eq!(here.reserved(), (2, 40));
    store.release(reserve);
    assert_clean(&store);
}

/// The service makes the same objects with the same generations.
#[test]
fn the_service_makes_the_objects_that_a_speculation_has_chosen() {
    let store = empty(1 << 20);
    let mut reserve = store.reserve(0, 3);
    let here = speculate(&store);
    here.reset(&reserve);
    let mut tx = here.begin().unwrap();
    let file = tx.create(Kind::MFile).unwrap();
    tx.add(here.root(), b"name", file).unwrap();
    tx.commit().unwrap();
    let expected = crate::generation(here.memory(), file).unwrap();
    let mut tx = store.begin().unwrap();
    let made = tx.create_at(reserve.take_object(file).unwrap()).unwrap();
    tx.add(store.root(), b"name", made).unwrap();
    tx.commit().unwrap();
    here.restart(&reserve);
    assert_eq!(here.reserved(), (0, 2));
    assert_eq!(names(&here), [(b"name".to_vec(), file)]);
    let found = crate::generation(store.memory(), file).unwrap();
    assert_eq!(found, expected);
    let new = store.begin().unwrap().create(Kind::MFile).unwrap();
    assert_ne!(new, file);
}

#[test]
fn a_transaction_lists_what_it_has_changed_since_a_mark() {
    use crate::Load;
    let store = empty(1 << 20);
    let root = store.root();
    let mut tx = store.begin().unwrap();
    let file = tx.create(Kind::MFile).unwrap();
    tx.add(root, b"a", file).unwrap();
    let mark = tx.mark();
    assert_eq!(tx.changed_since(mark).count(), 0);
    tx.set_own(file, 3, 7).unwrap();
    tx.set_own(file, 3, 8).unwrap();
    assert_eq!(tx.changed_since(mark).collect::<Vec<_>>(), [file]);
    assert_eq!(crate::own(&tx.before(mark), file, 3).unwrap(), 0);
    assert_eq!(crate::own(&tx, file, 3).unwrap(), 8);
    tx.roll_back(mark);
    let mark = tx.mark();
    tx.remove(root, b"a").unwrap();
    tx.delete(file).unwrap();
    let mut changed: Vec<_> = tx.changed_since(mark).collect();
    changed.sort();
    assert_eq!(changed, [root, file]);
    assert_eq!(parent(&tx.before(mark), file).unwrap(), Some(root));
    assert!(parent(&tx, file).is_err());
    // A page of headers that is new since the mark.
    let new: Vec<_> = (0..40).map(|_| tx.create(Kind::MFile).unwrap()).collect();
    assert!(
        new.iter()
            .all(|new| crate::generation(&tx.before(mark), *new).is_err())
    );
    let mut name = [0; 8];
    tx.before(mark).read(root.header(), &mut name).unwrap();
    assert_eq!(name, Load::load(&tx, root.header()).unwrap().to_le_bytes());
}

#[test]
fn a_file_names_the_collection_with_its_only_entry() {
    let store = empty(1 << 20);
    let mut tx = store.begin().unwrap();
    let (root, dir) = (store.root(), tx.create(Kind::Collection).unwrap());
    tx.add(root, b"dir", dir).unwrap();
    let file = tx.create(Kind::MFile).unwrap();
    assert_eq!(parent(&tx, file).unwrap(), None);
    tx.add(dir, b"a", file).unwrap();
    assert_eq!(parent(&tx, file).unwrap(), Some(dir));
    tx.add(root, b"b", file).unwrap();
    assert_eq!(parent(&tx, file).unwrap(), None);
    // Which entry is left is not known.
    tx.remove(dir, b"a").unwrap();
    assert_eq!(parent(&tx, file).unwrap(), None);
    tx.remove(root, b"b").unwrap();
    tx.add(dir, b"c", file).unwrap();
    assert_eq!(parent(&tx, file).unwrap(), Some(dir));
    tx.commit().unwrap();
    assert_clean(&store);
    let at = file.header() + crate::layout::header::PARENT * 8;
    store.memory().store_word(at, root.to_bits());
    let report = crate::check(store.memory());
    assert_eq!(report.findings[0].invariant, "A12");
}

/// Two keys come and go together, and the overlay is dropped at times. A reader sees both or neither.
#[test]
fn readers_see_whole_transactions_of_a_speculation() {
    let store = empty(4 << 20);
    let reserve = store.reserve(0, 3000);
    let here = &speculate(&store);
    here.reset(&reserve);
    let is_over = AtomicBool::new(false);
    let (root, seed) = (here.root(), here.seed());
    let pair: [&[u8]; 2] = [b"first of the pair", b"second of the pair"];
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = [0u64; 2];
            while !is_over.load(Ordering::Acquire) {
                let memory = here.memory();
                let found = memory.stable(root, || {
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
            let mut tx = here.begin().unwrap();
            let object = tx.create(Kind::MFile).unwrap();
            let keys: Vec<_> = (0..60u64)
                .map(|n| (round * 100 + n).to_le_bytes())
                .collect();
            for key in pair.into_iter().chain(keys.iter().map(<[u8; 8]>::as_slice)) {
                tx.add(root, key, object).unwrap();
            }
            if round % 3 == 0 {
                continue; // undone
            }
            tx.commit().unwrap();
            if round % 3 == 1 {
                here.restart(&reserve);
                continue;
            }
            let mut tx = here.begin().unwrap();
            for key in pair.into_iter().chain(keys.iter().map(<[u8; 8]>::as_slice)) {
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

proptest! {
    /// An overlay beside a map of bytes: stores of any length at any place, reads, and drops.
    #[test]
    fn an_overlay_is_like_bytes(
        steps in vec((0u64..3 * 4096, vec(any::<u8>(), 0..200), 0u32..20), 1..40),
        is_behind in any::<bool>(),
    ) {
        let base = Arc::new(MemoryPmem::new(4 * 4096));
        base.store(0, &[7; 4 * 4096]);
        let overlay = Overlay::new(base.clone());
        // Half of the range is in private pages.
        let start = if is_behind { 2 * 4096 + 64 } else { 0 };
        let mut model = BTreeMap::new();
        for (off, bytes, kind) in steps {
            let off = start + off;
            match kind {
                0 => { overlay.clear(); model.clear(); }
                _ => {
                    overlay.store(off, &bytes);
                    model.extend((off..).zip(bytes));
                }
            }
            let word = off.next_multiple_of(8);
            let expected = |at: u64| {
                let old = if at < base.len() { 7 } else { 0 };
                model.get(&at).copied().unwrap_or(old)
            };
            let loaded = overlay.load(word).unwrap().to_le_bytes();
            prop_assert!((word..).zip(loaded).all(|(at, byte)| byte == expected(at)));
            let mut buf = [0; 5000];
            overlay.read(off.saturating_sub(50), &mut buf).unwrap();
            prop_assert!((off.saturating_sub(50)..).zip(buf).all(|(at, byte)| byte == expected(at)));
            let mut below = [0; 4 * 4096];
            base.read(0, &mut below).unwrap();
            prop_assert!(below.iter().all(|byte| *byte == 7));
        }
        prop_assert!(overlay.load(3).is_err() && overlay.load(overlay.len()).is_err());
    }
}
