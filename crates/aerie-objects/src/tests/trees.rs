//! Pages of files beside a map in memory.

use super::{assert_clean, empty};
use crate::{Kind, PAGE, Store, next_page, page, pages, size};
use medium::Pmem;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Op {
    Add(u64),
    /// A page that was reserved.
    AddAt(u64),
    Remove(u64),
    Cut(u64),
    Commit,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // All heights of a tree, and neighbours.
    let index = || (0u32..5, 0u64..4).prop_map(|(level, n)| (n << (9 * level)) + n);
    let op = prop_oneof![
        6 => index().prop_map(Op::Add),
        2 => index().prop_map(Op::AddAt),
        2 => index().prop_map(Op::Remove),
        1 => index().prop_map(Op::Cut),
        2 => Just(Op::Commit),
    ];
    vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn pages_are_where_they_were_put(ops in ops()) {
        let store = empty(2 << 20);
        let free = store.free_pages();
        let mut tx = store.begin().unwrap();
        let file = tx.create(Kind::MFile).unwrap();
        tx.add(store.root(), b"file", file).unwrap();
        tx.set_size(file, 1 << 47).unwrap();
        tx.commit().unwrap();
        let mut reserve = store.reserve(60, 0);
        let mut map = BTreeMap::new();
        for part in ops.split_inclusive(|op| matches!(op, Op::Commit)) {
            let mut tx = store.begin().unwrap();
            for op in part {
                match *op {
                    // An index beyond what a tree can have is refused.
                    Op::Add(index) if index >= 1 << 36 => {
                        let mark = tx.mark();
                        prop_assert!(tx.add_page(file, index).is_err());
                        tx.roll_back(mark);
                    }
                    Op::Add(index) if !map.contains_key(&index) => {
                        let page = tx.add_page(file, index).unwrap();
                        // Contents are the writer's own business.
                        store.memory().store_word(page, index);
                        map.insert(index, page);
                    }
                    Op::AddAt(index) if index < 1 << 36 && !map.contains_key(&index) => {
                        let page = reserve.pages().next().unwrap();
                        prop_assert!(reserve.take_page(page));
                        store.memory().store_word(page, index);
                        tx.add_page_at(file, index, page).unwrap();
                        map.insert(index, page);
                    }
                    Op::Remove(index) => {
                        prop_assert_eq!(tx.remove_page(file, index).unwrap(), map.remove(&index));
                    }
                    Op::Cut(from) => {
                        tx.cut_pages(file, from).unwrap();
                        map.split_off(&from);
                    }
                    _ => {}
                }
                for (index, at) in &map {
                    prop_assert_eq!(page(&tx, file, *index).unwrap(), Some(*at));
                }
            }
            tx.commit().unwrap();
            assert_clean(&store);
            for from in map.keys().flat_map(|index| [*index, index + 1]).chain([0]) {
                let next = map.range(from..).next().map(|(index, _)| *index);
                prop_assert_eq!(next_page(store.memory(), file, from).unwrap(), next);
            }
            for index in map.keys().flat_map(|index| [*index, index + 1, index ^ 1]) {
                let found = page(store.memory(), file, index).unwrap();
                prop_assert_eq!(found, map.get(&index).copied());
                if let Some(at) = found {
                    prop_assert_eq!(store.memory().load(at).unwrap(), index);
                }
            }
        }
        store.release(reserve);
        prop_assert_eq!(size(store.memory(), file).unwrap(), 1 << 47);
        let mut tx = store.begin().unwrap();
        tx.cut_pages(file, 0).unwrap();
        tx.commit().unwrap();
        prop_assert_eq!(pages(store.memory(), file).unwrap(), 0);
        prop_assert_eq!(page(store.memory(), file, 0).unwrap(), None);
        prop_assert!(free - store.free_pages() <= 2);
    }
}

#[test]
fn freed_pages_are_used_again() {
    let store = empty(1 << 20);
    let mut tx = store.begin().unwrap();
    let file = tx.create(Kind::MFile).unwrap();
    tx.add(store.root(), b"file", file).unwrap();
    tx.commit().unwrap();
    // Many times the pages that the store has.
    for _ in 0..200 {
        let mut tx = store.begin().unwrap();
        for index in 0..20 {
            tx.add_page(file, index).unwrap();
        }
        tx.commit().unwrap();
        let mut tx = store.begin().unwrap();
        tx.cut_pages(file, 0).unwrap();
        tx.commit().unwrap();
    }
    assert_eq!(
        Store::open(store.memory().clone()).unwrap().free_pages(),
        store.free_pages()
    );
    assert!(store.free_pages() * PAGE > 1 << 19);
}
