//! Collections beside a map in memory.

use super::{Memory, assert_clean, empty, listed};
use crate::{Error, Kind, ObjectId, Store, entries, is_inside, lookup, members, parent};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Map = BTreeMap<Vec<u8>, ObjectId>;

#[derive(Debug, Clone)]
enum Op {
    Add(Vec<u8>),
    Remove(usize),
    /// A transaction that is rolled back half-way.
    Undone(Vec<Vec<u8>>),
    Commit,
    Abort,
    Reopen,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Few short keys, so that they repeat, and some of the greatest length.
    let key = || prop_oneof![4 => vec(0u8..3, 1..4), 1 => vec(any::<u8>(), 200..=255)];
    vec(
        prop_oneof![
            8 => key().prop_map(Op::Add),
            4 => any::<usize>().prop_map(Op::Remove),
            1 => vec(key(), 1..5).prop_map(Op::Undone),
            2 => Just(Op::Commit),
            1 => Just(Op::Abort),
            1 => Just(Op::Reopen),
        ],
        1..80,
    )
}

/// Applies changes in one transaction. Returns the map after it.
fn apply(store: &Store<Memory>, before: &Map, ops: &[Op], is_committed: bool) -> Map {
    let mut map = before.clone();
    let mut tx = store.begin().unwrap();
    for op in ops {
        match op {
            Op::Add(key) => {
                let mark = tx.mark();
                let object = tx.create(Kind::MFile).unwrap();
                match tx.add(store.root(), key, object) {
                    Ok(()) => assert!(map.insert(key.clone(), object).is_none()),
                    Err(Error::KeyExists) => {
                        assert!(map.contains_key(key));
                        tx.roll_back(mark);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            Op::Remove(n) if !map.is_empty() => {
                let key = map.keys().nth(n % map.len()).cloned().unwrap();
                let object = map.remove(&key).unwrap();
                assert_eq!(tx.remove(store.root(), &key).unwrap(), Some((object, 0)));
                tx.delete(object).unwrap();
            }
            Op::Undone(keys) => {
                let mark = tx.mark();
                for key in keys {
                    let object = tx.create(Kind::Collection).unwrap();
                    if tx.add(store.root(), key, object).is_err() {
                        tx.remove(store.root(), key).unwrap().unwrap();
                    }
                }
                tx.roll_back(mark);
            }
            _ => {}
        }
    }
    match is_committed {
        true => tx.commit().map(|()| map).unwrap(),
        false => before.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_collection_is_like_a_map(ops in ops()) {
        let mut store = empty(1 << 20);
        let free = store.free_pages();
        let mut map = Map::new();
        let is_end = |op: &Op| matches!(op, Op::Commit | Op::Abort | Op::Reopen);
        for part in ops.split_inclusive(is_end) {
            let is_committed = !matches!(part.last(), Some(Op::Abort));
            map = apply(&store, &map, part, is_committed);
            if let Some(Op::Reopen) = part.last() {
                let memory = store.memory().clone();
                let free = store.free_pages();
                drop(store);
                store = Store::open(memory).unwrap();
                prop_assert_eq!(store.free_pages(), free, "pages are lost");
            }
            assert_clean(&store);
            prop_assert_eq!(&listed(&store).unwrap(), &map);
            prop_assert_eq!(entries(store.memory(), store.root()).unwrap(), map.len() as u64);
            for (key, object) in &map {
                let found = lookup(store.memory(), store.root(), store.seed(), key).unwrap();
                prop_assert_eq!(found, Some(*object));
                prop_assert_eq!(members(store.memory(), *object).unwrap(), 1);
            }
        }
        // Nothing is lost in the end: only the root keeps pages, and a page has the headers.
        let all: Vec<_> = (0..map.len()).map(|_| Op::Remove(0)).collect();
        map = apply(&store, &map, &all, true);
        prop_assert!(map.is_empty());
        prop_assert!(free - store.free_pages() <= 3, "{} pages", free - store.free_pages());
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key number {n}").into_bytes()
}

/// Adds keys of these numbers, which all lead to one object.
fn add(store: &Store<Memory>, object: ObjectId, numbers: impl Iterator<Item = u64>) {
    let mut tx = store.begin().unwrap();
    for n in numbers {
        tx.add(store.root(), &key(n), object).unwrap();
    }
    tx.commit().unwrap();
}

fn remove(store: &Store<Memory>, numbers: impl Iterator<Item = u64>) {
    let mut tx = store.begin().unwrap();
    for n in numbers {
        assert!(tx.remove(store.root(), &key(n)).unwrap().is_some());
    }
    tx.commit().unwrap();
}

/// A listing has all entries that stay, once each, whatever happens between its parts.
#[test]
fn a_listing_survives_growth_and_shrinking() {
    let store = empty(16 << 20);
    let mut tx = store.begin().unwrap();
    let object = tx.create(Kind::MFile).unwrap();
    tx.add(store.superblock().open, b"all", object).unwrap();
    tx.commit().unwrap();
    add(&store, object, 0..500);
    for is_growing in [true, false] {
        let (mut after, mut stayed, mut rounds) = (0, Vec::new(), 0);
        loop {
            let part = crate::list(store.memory(), store.root(), store.seed(), after).unwrap();
            let Some(last) = part.last() else { break };
            assert!(after < last.cookie);
            after = last.cookie;
            stayed.extend(part.into_iter().map(|entry| entry.key));
            let numbers = 500 + rounds * 200..500 + (rounds + 1) * 200;
            match is_growing {
                true if rounds < 40 => add(&store, object, numbers),
                false if rounds < 40 => remove(&store, numbers),
                _ => {}
            }
            rounds += 1;
        }
        assert!(rounds > 5, "the listing had {rounds} parts");
        assert_clean(&store);
        let old: Vec<_> = (0..500).map(key).collect();
        let mut found: Vec<_> = stayed.into_iter().filter(|key| old.contains(key)).collect();
        found.sort();
        let mut old = old;
        old.sort();
        assert_eq!(found, old);
    }
    remove(&store, 0..500);
    assert_clean(&store);
    assert!(
        crate::pages(store.memory(), store.root()).unwrap() < 10,
        "it did not shrink"
    );
}

#[test]
fn a_full_store_refuses_and_stays_as_it_was() {
    let store = empty(1 << 19);
    let mut count = 0;
    let refused = loop {
        let mut tx = store.begin().unwrap();
        let object = tx.create(Kind::Collection).unwrap();
        let added = tx.add(store.root(), &key(count), object);
        match added.and_then(|()| tx.add_page(object, 0)) {
            Ok(_) => tx.commit().unwrap(),
            Err(error) => break error,
        }
        count += 1;
    };
    assert!(matches!(refused, Error::Full), "{refused}");
    assert!(count > 20, "{count}");
    let lost = listed(&store).unwrap();
    assert_eq!(lost.len() as u64, count);
    assert_eq!(
        store.free_pages(),
        Store::open(store.memory().clone()).unwrap().free_pages()
    );
}

#[test]
fn wrong_requests_are_refused() {
    let store = empty(1 << 18);
    let mut tx = store.begin().unwrap();
    let file = tx.create(Kind::MFile).unwrap();
    assert!(matches!(tx.add(file, b"k", file), Err(Error::NoObject(_))));
    assert!(matches!(
        tx.add(store.root(), b"", file),
        Err(Error::KeyLength(0))
    ));
    assert!(matches!(
        tx.add(store.root(), &[1; 256], file),
        Err(Error::KeyLength(256))
    ));
    tx.add(store.root(), b"k", file).unwrap();
    assert!(matches!(
        tx.add(store.root(), b"k", file),
        Err(Error::KeyExists)
    ));
    assert!(matches!(tx.delete(store.root()), Err(Error::NotEmpty(_))));
    assert_eq!(tx.remove(store.root(), b"other").unwrap(), None);
    let (_, left) = tx.remove(store.root(), b"k").unwrap().unwrap();
    assert_eq!(left, 0);
    tx.delete(file).unwrap();
    assert!(matches!(
        tx.add(store.root(), b"k", file),
        Err(Error::NoObject(_))
    ));
    assert!(matches!(crate::size(&tx, file), Err(Error::NoObject(_))));
}

#[test]
fn collections_form_a_tree() {
    let store = empty(1 << 18);
    let mut tx = store.begin().unwrap();
    let [a, b, c] = [(); 3].map(|()| tx.create(Kind::Collection).unwrap());
    tx.add(store.root(), b"a", a).unwrap();
    tx.add(a, b"b", b).unwrap();
    tx.add(b, b"c", c).unwrap();
    tx.commit().unwrap();
    assert_clean(&store);
    assert_eq!(parent(store.memory(), c).unwrap(), Some(b));
    assert!(is_inside(store.memory(), c, a).unwrap() && !is_inside(store.memory(), a, c).unwrap());

    let mut tx = store.begin().unwrap();
    let mark = tx.mark();
    assert!(matches!(
        tx.add(store.root(), b"again", c),
        Err(Error::HasParent(_))
    ));
    tx.roll_back(mark);
    // Removed first, so that no collection has it; then into itself and below.
    assert_eq!(tx.remove(store.root(), b"a").unwrap(), Some((a, 0)));
    let mark = tx.mark();
    for below in [a, b, c] {
        assert!(matches!(tx.add(below, b"a", a), Err(Error::Cycle(_))));
        tx.roll_back(mark);
    }
    tx.add(store.root(), b"elsewhere", a).unwrap();
    tx.commit().unwrap();
    assert_clean(&store);
}

#[test]
fn a_reserve_is_used_or_given_back() {
    let store = empty(1 << 18);
    let free = store.free_pages();
    let mut reserve = store.reserve(5, 40);
    assert_eq!(reserve.pages().count(), 5);
    assert_eq!(reserve.objects(Kind::MFile).count(), 40);
    let file = reserve.objects(Kind::MFile).next().unwrap();
    let new = reserve.take_object(file).unwrap();
    assert_eq!(reserve.take_object(file), None);
    let mut tx = store.begin().unwrap();
    assert_eq!(tx.create_at(new).unwrap(), file);
    tx.add(store.root(), b"file", file).unwrap();
    tx.commit().unwrap();
    assert_clean(&store);
    store.release(reserve);
    // The table has a page. The page of headers that was made for the reserve is free again, unless it
    // has the file's.
    let used = free - store.free_pages();
    assert!((1..=2).contains(&used), "{used}");
    let rest = store.reserve(1000, 0);
    assert_eq!(rest.pages().count() as u64, free - used);
}

#[test]
fn a_transaction_that_the_log_cannot_take_is_refused() {
    let store = empty(1 << 19);
    for part in 0..20 {
        let mut tx = store.begin().unwrap();
        for n in 0..60 {
            let object = tx.create(Kind::MFile).unwrap();
            tx.add(store.root(), &key(part * 60 + n), object).unwrap();
        }
        tx.commit().unwrap();
    }
    let mut tx = store.begin().unwrap();
    let names = listed(&store).unwrap();
    for object in names.values() {
        for n in 0..crate::OWN_WORDS {
            tx.set_own(*object, n, 1 + n).unwrap();
        }
    }
    assert!(matches!(tx.commit(), Err(Error::TooLarge { .. })));
    assert_clean(&store);
    let first = *names.values().next().unwrap();
    assert_eq!(crate::own(store.memory(), first, 0).unwrap(), 0);
    // The store goes on.
    let mut tx = store.begin().unwrap();
    tx.set_own(first, 0, 5).unwrap();
    tx.commit().unwrap();
    assert_eq!(crate::own(store.memory(), first, 0).unwrap(), 5);
}
