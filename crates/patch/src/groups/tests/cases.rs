//! Single properties of sets, on each kind of store.

use super::*;

/// Writes everything back in small steps, and calls `check` with the durable state after each.
fn write_back(setup: &Setup, mut check: impl FnMut(&Stamps)) {
    for _ in 0..20 {
        setup.cache.write_some().unwrap();
        check(&setup.durable());
        setup.commit();
        check(&setup.durable());
    }
    setup.top.sync_all().unwrap();
    check(&setup.durable());
}

#[test]
fn no_change_of_a_later_set_is_durable_before_all_of_the_earlier_set() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let (early, late) = (setup.groups.create(), setup.groups.create());
        // The later blocks come first on the device, so an order by address would be wrong.
        let earlier: Vec<_> = (20..32).map(|lba| (lba, 3)).collect();
        for &place in &earlier {
            setup.put(&[early], place, 1).unwrap();
        }
        setup.groups.depend(late, early);
        let later: Vec<_> = (1..9).map(|lba| (lba, 3)).collect();
        for &place in &later {
            setup.put(&[late], place, 2).unwrap();
        }
        write_back(&setup, |stamps| {
            let is_late = later.iter().any(|&place| stamps.at(place) != 0);
            let is_early = earlier.iter().all(|&place| stamps.at(place) != 0);
            assert!(!is_late || is_early, "{on:?}");
        });
        let stamps = setup.durable();
        assert!(later.iter().all(|&place| stamps.at(place) == 2), "{on:?}");
    }
}

#[test]
fn an_empty_set_passes_the_order_on() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let [first, empty, last] = [(); 3].map(|()| setup.groups.create());
        setup.put(&[first], (30, 1), 1).unwrap();
        setup.put(&[first], (31, 1), 1).unwrap();
        setup.groups.depend(empty, first);
        setup.groups.depend(last, empty);
        setup.put(&[last], (2, 1), 2).unwrap();
        setup.put(&[last], (3, 1), 2).unwrap();
        write_back(&setup, |stamps| {
            let is_late = stamps.at((2, 1)) != 0 || stamps.at((3, 1)) != 0;
            let is_early = stamps.at((30, 1)) != 0 && stamps.at((31, 1)) != 0;
            assert!(!is_late || is_early, "{on:?}");
        });
    }
}

#[test]
fn changes_after_a_barrier_follow_all_before_it() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let set = setup.groups.create();
        let mut epochs = Vec::new();
        // Each epoch changes the same blocks again, and blocks of its own.
        for epoch in 1..8 {
            let places = [(4, epoch), (5, epoch), (40 - 2 * epoch, 1), (41 - epoch, 2)];
            for place in places {
                setup.put(&[set], place, epoch).unwrap();
            }
            epochs.push(places);
            setup.groups.barrier(set).unwrap();
        }
        write_back(&setup, |stamps| {
            let is_some = |places: &[_; 4]| places.iter().any(|&place| stamps.at(place) != 0);
            let is_whole = |places: &[_; 4]| places.iter().all(|&place| stamps.at(place) != 0);
            let newest = epochs.iter().rposition(is_some).unwrap_or(0);
            assert!(epochs[..newest].iter().all(is_whole), "{on:?}");
        });
    }
}

#[test]
fn a_change_in_several_sets_waits_for_the_befores_of_each() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let [a, b, c, d] = [(); 4].map(|()| setup.groups.create());
        setup.put(&[a], (30, 1), 1).unwrap();
        setup.put(&[b], (31, 1), 1).unwrap();
        setup.groups.depend(c, a);
        setup.groups.depend(d, b);
        setup.put(&[c, d], (2, 1), 2).unwrap();
        setup.put(&[c, d], (3, 1), 2).unwrap();
        write_back(&setup, |stamps| {
            let is_late = stamps.at((2, 1)) != 0 || stamps.at((3, 1)) != 0;
            let is_early = stamps.at((30, 1)) != 0 && stamps.at((31, 1)) != 0;
            assert!(!is_late || is_early, "{on:?}");
        });
    }
}

#[test]
fn a_sync_makes_a_set_durable_with_all_that_it_waits_for() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let [first, empty, last, other] = [(); 4].map(|()| setup.groups.create());
        setup.put(&[first], (30, 1), 1).unwrap();
        setup.put(&[first], (31, 1), 1).unwrap();
        setup.put(&[other], (33, 1), 9).unwrap();
        setup.put(&[other], (34, 1), 9).unwrap();
        setup.groups.depend(empty, first);
        setup.groups.depend(last, empty);
        setup.put(&[last], (2, 1), 2).unwrap();
        setup.sync(last).unwrap();
        let stamps = setup.durable();
        let all = [(30, 1), (31, 1), (2, 1)];
        assert!(all.iter().all(|&place| stamps.at(place) != 0), "{on:?}");
        let is_one_transaction = matches!(on, On::Journal(_));
        if !is_one_transaction {
            let left = [(33, 1), (34, 1)].map(|place| stamps.at(place));
            assert_eq!(left, [0, 0], "{on:?}: no set waits for them");
            assert_eq!(setup.groups.pending(other), 2);
        }
        assert_eq!(setup.groups.pending(last), 0, "{on:?}");
    }
}

#[test]
fn a_sync_of_an_empty_set_makes_its_befores_durable() {
    for (on, lba) in On::ALL.into_iter().flat_map(|on| [(on, 30), (on, 31)]) {
        let setup = Setup::new(on);
        let (first, empty) = (setup.groups.create(), setup.groups.create());
        setup.put(&[first], (lba, 1), 1).unwrap();
        setup.groups.depend(empty, first);
        setup.sync(empty).unwrap();
        assert_eq!(setup.durable().at((lba, 1)), 1, "{on:?}, block {lba}");
    }
}

#[test]
fn a_sync_after_a_barrier_makes_the_earlier_changes_durable() {
    for (on, lba) in On::ALL.into_iter().flat_map(|on| [(on, 30), (on, 31)]) {
        let setup = Setup::new(on);
        let set = setup.groups.create();
        setup.put(&[set], (lba, 1), 1).unwrap();
        setup.groups.barrier(set).unwrap();
        setup.sync(set).unwrap();
        assert_eq!(setup.durable().at((lba, 1)), 1, "{on:?}, block {lba}");
    }
}

#[test]
fn the_order_of_a_removed_set_stays() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let [first, middle, last] = [(); 3].map(|()| setup.groups.create());
        setup.put(&[first], (30, 1), 1).unwrap();
        setup.put(&[first], (31, 1), 1).unwrap();
        setup.groups.depend(middle, first);
        setup.groups.remove(first);
        setup.groups.depend(last, middle);
        setup.groups.remove(middle);
        setup.put(&[last], (2, 1), 2).unwrap();
        setup.put(&[last], (3, 1), 2).unwrap();
        setup.groups.remove(last);
        write_back(&setup, |stamps| {
            let is_late = stamps.at((2, 1)) != 0 || stamps.at((3, 1)) != 0;
            let is_early = stamps.at((30, 1)) != 0 && stamps.at((31, 1)) != 0;
            assert!(!is_late || is_early, "{on:?}");
        });
    }
}

#[test]
fn calls_of_a_removed_set_do_nothing() {
    let setup = Setup::new(On::Cache);
    let (gone, set) = (setup.groups.create(), setup.groups.create());
    setup.put(&[gone], (30, 1), 1).unwrap();
    setup.groups.remove(gone);
    setup.groups.depend(set, gone);
    setup.groups.depend(gone, set);
    setup.groups.barrier(gone).unwrap();
    setup.sync(gone).unwrap();
    setup.groups.remove(gone);
    assert_eq!(setup.groups.pending(gone), 0);
    setup.put(&[gone, set], (2, 1), 2).unwrap();
    assert_eq!(setup.groups.pending(set), 1);
    assert_ne!(setup.groups.create(), gone, "numbers are not used again");
    assert_eq!(setup.durable().at((30, 1)), 0, "no sync has written it");
    setup.top.sync_all().unwrap();
}

#[test]
fn pending_counts_what_is_not_durable() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let (first, last) = (setup.groups.create(), setup.groups.create());
        assert_eq!(setup.groups.pending(first), 0, "{on:?}");
        setup.put(&[first], (30, 1), 1).unwrap();
        assert_eq!(setup.groups.pending(first), 1, "{on:?}");
        assert_eq!(setup.groups.pending(last), 0, "{on:?}");
        setup.groups.depend(last, first);
        assert_eq!(
            setup.groups.pending(last),
            1,
            "{on:?}: it waits for a change"
        );
        setup.top.sync_all().unwrap();
        assert_eq!(setup.groups.pending(first), 0, "{on:?}");
        assert_eq!(setup.groups.pending(last), 0, "{on:?}");
    }
}

#[test]
fn an_open_set_keeps_nothing_from_the_medium() {
    for on in On::ALL {
        let setup = Setup::new(on);
        let sets: Vec<u64> = (0..10).map(|_| setup.groups.create()).collect();
        for (at, &set) in sets.iter().enumerate() {
            for lba in 0..8 {
                let stamp = 1 + at as u64;
                setup
                    .put(&[set, sets[0]], (lba, 1 + at as u64), stamp)
                    .unwrap();
            }
            if at > 0 {
                setup.groups.depend(set, sets[at - 1]);
            }
            setup.groups.barrier(set).unwrap();
        }
        // No call on a set: the cache alone writes everything.
        setup.commit();
        while setup.cache.write_some().unwrap() > 0 {}
        assert_eq!(setup.cache.stats().dirty, 0, "{on:?}");
        let stamps = setup.durable();
        let is_there = |lba| (0..10).all(|at| stamps.at((lba, 1 + at)) == 1 + at);
        assert!((0..8).all(is_there), "{on:?}");
        assert!(sets.iter().all(|&set| setup.groups.pending(set) == 0));
    }
}

#[test]
fn changes_without_sets_make_no_patches_for_them() {
    let [with, without] = [true, false].map(|has_sets| {
        let setup = Setup::new(On::Cache);
        let set = setup.groups.create();
        for at in 0..100 {
            let sets: &[u64] = if has_sets { &[set] } else { &[] };
            setup.put(sets, (at % 5, 1), at).unwrap();
            setup.groups.barrier(set).unwrap();
        }
        setup.cache.stats().graph
    });
    assert!(with.empties >= 99);
    assert_eq!((without.empties, without.patches), (0, 5));
}

/// Makes this many barriers, after changes of these blocks each, and checks their price.
fn barriers(on: On, count: u64, blocks: &[u64]) {
    let setup = Setup::new(on);
    let set = setup.groups.create();
    let place = |lba: u64, at: u64| (lba, 1 + at % 100);
    for at in 0..count {
        for &lba in blocks {
            setup.put(&[set], place(lba, at), at).unwrap();
        }
        setup.groups.barrier(set).unwrap();
    }
    let stats = setup.cache.stats().graph;
    assert!(stats.memory_peak < 1 << 20, "{on:?}: {stats:?}");
    setup.top.sync_all().unwrap();
    let stats = setup.cache.stats().graph;
    let visits = stats.visited / count;
    assert!(visits < 1000, "{on:?}: {visits} visits a barrier");
    let stamps = setup.durable();
    for &lba in blocks {
        assert_eq!(stamps.at(place(lba, count - 1)), count - 1, "{on:?}");
    }
}

/// A program in the scope of `selvedge order` asks for many barriers between two write-backs.
#[test]
fn the_price_of_a_barrier_does_not_grow_with_their_number() {
    for on in On::ALL {
        for blocks in [&[2][..], &[3], &[2, 3], &[3, 5], &[2, 4, 6, 8, 10, 12]] {
            barriers(on, 10_000, blocks);
        }
    }
}
