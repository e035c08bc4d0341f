use super::*;
use crate::{Cache, CacheOptions, Change, Content, DeviceStore};
use medium::block::{Geometry, MemoryDevice};
use std::sync::Arc;

const BLOCKS: u64 = 64;

fn store(blocks: usize) -> DeviceStore {
    let device = MemoryDevice::new(Geometry {
        block_bytes: 512,
        blocks: BLOCKS,
    });
    let options = CacheOptions {
        blocks,
        interval: None,
        ..CacheOptions::default()
    };
    Arc::new(Cache::new(vec![Box::new(device)], options)).store(0)
}

/// Runs the work to its end. Returns its result and the number of attempts.
fn finish<T>(
    store: &DeviceStore,
    mut work: impl FnMut() -> Result<T, StoreError>,
) -> (usize, Result<T, StoreError>) {
    let mut attempts = Attempts::new(store);
    for number in 1..1000 {
        if let Some(result) = attempts.run(&mut work) {
            return (number, result);
        }
        attempts.fetch();
    }
    panic!("the attempts do not end");
}

fn is_cached(store: &DeviceStore, lba: u64) -> bool {
    store.cached(Lba(lba)).is_some()
}

#[test]
fn an_attempt_stops_at_each_absent_block_and_then_succeeds() {
    let store = store(32);
    let read_three = || {
        [3, 9, 4]
            .iter()
            .try_for_each(|n| store.read(Lba(*n)).map(drop))
    };
    assert!(matches!(finish(&store, read_three), (4, Ok(()))));
    assert!(matches!(finish(&store, read_three), (1, Ok(()))));
}

#[test]
fn blocks_that_are_asked_for_together_are_read_together() {
    let store = store(32);
    let blocks = [20, 21, 22, 7].map(Lba);
    let (attempts, done) = finish(&store, || store.ready(&blocks));
    assert!(done.is_ok());
    assert_eq!((attempts, store.cache().stats().reads), (2, 4));
    assert!(store.ready(&[Lba(50)]).is_ok(), "no attempt is under way");
}

#[test]
fn the_first_change_commits_the_thread() {
    let store = store(32);
    let op = store.begin(2, crate::Caller::SYSTEM).unwrap();
    let mut runs = 0;
    let (attempts, done) = finish(&store, || {
        runs += 1;
        let change = Change::Flip { at: 0, mask: 1 };
        store.change(&op, Lba(1), Content::Metadata, change, &[])?;
        assert!(!is_attempt());
        store.read(Lba(2)).map(drop)
    });
    store.end(op);
    assert!(done.is_ok());
    assert_eq!((attempts, runs), (2, 2));
    assert_eq!(store.read(Lba(1)).unwrap()[0], 1, "changed once");
}

#[test]
fn an_error_made_of_an_absent_block_is_not_the_result() {
    let store = store(32);
    let hidden =
        |result: Result<_, StoreError>| result.map_err(|_| StoreError::Held { patches: 1 });
    let (attempts, done) = finish(&store, || hidden(store.read(Lba(5)).map(drop)));
    assert!(done.is_ok());
    assert_eq!(attempts, 2);
}

#[test]
fn errors_come_from_the_run_that_waits() {
    let store = store(32);
    let (attempts, done) = finish(&store, || store.read(Lba(BLOCKS)).map(drop));
    assert!(matches!(done, Err(StoreError::Device(_))), "{done:?}");
    assert_eq!(attempts, 1, "a block that does not exist is not waited for");
    let (attempts, done) = finish(&store, || {
        Err::<(), _>(match is_attempt() {
            true => absent([Lba(BLOCKS)]),
            false => StoreError::Held { patches: 1 },
        })
    });
    assert!(matches!(done, Err(StoreError::Held { .. })), "{done:?}");
    assert_eq!(attempts, 2);
}

#[test]
fn attempts_end_although_the_cache_keeps_nothing() {
    let store = store(2);
    let read_many = || (0..8).try_for_each(|n| store.read(Lba(n)).map(drop));
    let (attempts, done) = finish(&store, read_many);
    assert!(done.is_ok());
    assert!(attempts <= 8 + AGAIN + 2, "{attempts}");
}

#[test]
fn a_call_within_waiting_waits_during_an_attempt() {
    let store = store(32);
    let (attempts, done) = finish(&store, || {
        waiting(|| store.read(Lba(6)))?;
        assert!(is_attempt());
        waiting(commit);
        assert!(!is_attempt(), "the thread stays committed");
        store.read(Lba(7)).map(drop)
    });
    assert!(done.is_ok());
    assert_eq!(attempts, 1);
    assert!(is_cached(&store, 6) && is_cached(&store, 7));
}

#[test]
fn a_forgetful_store_stops_once_at_each_block_in_each_piece_of_work() {
    let inner = store(32);
    let store = crate::Forgetful::new(inner.clone());
    for _ in 0..2 {
        let mut attempts = Attempts::new(&store);
        let mut runs = 0;
        while attempts
            .run(|| {
                runs += 1;
                [3, 9, 3]
                    .iter()
                    .try_for_each(|n| store.read(Lba(*n)).map(drop))
            })
            .is_none()
        {
            attempts.fetch();
        }
        assert_eq!(runs, 3);
    }
}

#[test]
fn an_attempt_that_panics_is_over() {
    let store = store(32);
    let run = || Attempts::new(&store).run(|| -> Result<(), ()> { panic!("on purpose") });
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    assert!(caught.is_err() && !is_attempt());
}
