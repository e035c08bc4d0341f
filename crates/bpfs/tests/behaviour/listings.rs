//! Listings of directories: cookies and references.

use crate::fixture::*;
use bpfs::{Mode, check};
use medium::Pmem;
use std::collections::BTreeMap;
use vfs::{Cookie, Errno, FileSystem, Ino};

/// Lists in small pieces, with names made and removed in between. Names that stay are listed
/// exactly once, and cookies ascend.
#[test]
fn a_listing_resumes_where_it_stopped_despite_changes() {
    for mode in Mode::ALL {
        let fs = fresh(mode, 4 * MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        for n in 0..300 {
            file_in(&fs, d, &format!("name {n:03}{}", "x".repeat(n % 60)));
        }
        let staying = |name: &str| name.contains("7");
        let all = names(&fs, d);
        let mut seen = BTreeMap::new();
        let (mut cookie, mut step) = (Cookie(0), 0);
        loop {
            let mut piece = Vec::new();
            fs.readdir(&root(), d, cookie, &mut |e| {
                piece.push((String::from_utf8(e.name.to_vec()).unwrap(), e.cookie));
                piece.len() < 7
            })
            .unwrap();
            // The entry that the sink refused is listed again.
            if piece.len() == 7 {
                piece.pop();
            }
            let Some((_, last)) = piece.last() else { break };
            assert!(
                piece[0].1 > cookie && piece.is_sorted_by_key(|p| p.1),
                "{mode}"
            );
            cookie = *last;
            for (name, _) in piece {
                *seen.entry(name).or_insert(0) += 1;
            }
            for (n, name) in all.iter().enumerate().filter(|(_, name)| !staying(name)) {
                if n % 40 == step {
                    let _ = fs.unlink(&root(), d, name.as_bytes());
                    file_in(&fs, d, &format!("new {step} {n}{}", "y".repeat(n % 30)));
                }
            }
            step += 1;
        }
        for name in all.iter().filter(|name| staying(name)) {
            assert_eq!(seen.get(name), Some(&1), "{mode}: {name}");
        }
        assert!(
            step > 20 && seen.values().all(|times| *times == 1),
            "{mode}"
        );
        must_be_healthy(&fs);
    }
}

#[test]
fn a_cookie_stays_valid_after_unlink_and_remount() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        for name in ["a", "b", "c", "d"] {
            file(&fs, name);
        }
        let listed = list(&fs, Ino::ROOT, Cookie(0));
        let after = |fs: &Fs, n: usize| -> Vec<String> {
            let rest = list(fs, Ino::ROOT, listed[n].2);
            rest.into_iter().map(|e| e.0).collect()
        };
        for n in 0..listed.len() {
            let want: Vec<_> = listed[n + 1..].iter().map(|e| e.0.clone()).collect();
            assert_eq!(after(&fs, n), want, "{mode}");
            assert_eq!(after(&remounted(&fs), n), want, "{mode}");
        }
        fs.unlink(&root(), Ino::ROOT, b"b").unwrap();
        assert_eq!(after(&fs, 3), ["c", "d"], "{mode}: after b");
        assert_eq!(after(&fs, 2), ["c", "d"], "{mode}: after a");
        assert_eq!(after(&fs, 5), [""; 0]);
        assert_eq!(list(&fs, Ino::ROOT, Cookie(u64::MAX)), []);
    }
}

#[test]
fn readdirplus_takes_a_reference_for_each_accepted_entry() {
    let fs = fresh(Mode::Log, MIB);
    let inos: Vec<_> = ["a", "b", "c"].iter().map(|name| file(&fs, name)).collect();
    let mut seen = 0;
    fs.readdirplus(&root(), Ino::ROOT, Cookie(0), &mut |e, attr| {
        assert_eq!(Some(e.ino), attr.map(|attr| attr.ino));
        seen += 1;
        seen <= 4 // `.`, `..`, `a`, `b`; `c` is refused
    })
    .unwrap();
    for name in [b"a", b"b", b"c"] {
        fs.unlink(&root(), Ino::ROOT, name).unwrap();
    }
    let alive = |n: usize| fs.getattr(&root(), inos[n]).map(|a| a.nlink);
    assert_eq!((alive(0), alive(1)), (Ok(0), Ok(0)));
    assert_eq!(
        alive(2),
        Err(Errno::STALE),
        "a refused entry took a reference"
    );
    fs.forget(inos[0], 1);
    fs.forget(inos[1], 1);
    assert_eq!((alive(0), alive(1)), (Err(Errno::STALE), Err(Errno::STALE)));
    must_be_healthy(&fs);
}

/// Names of equal length and hash, of which another one is between two that are the same.
#[test]
fn the_checker_finds_a_name_that_is_there_twice_beside_one_of_its_hash() {
    const THIRD: &str = "the third, so it";
    let mut by_hash = BTreeMap::new();
    // The hashes of names that differ in fewer bits differ, too.
    let mut names =
        (0_u64..1_000_000).map(|n| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let (first, second) = names
        .find_map(|name| {
            let before = by_hash.insert(crc32fast::hash(name.as_bytes()), name.clone());
            before.map(|before| (before, name))
        })
        .expect("two of a million names have the same hash of 32 bits");
    let fs = fresh(Mode::ALL[0], MIB);
    for name in [&*first, &*second, THIRD] {
        file_in(&fs, Ino::ROOT, name);
    }
    assert_eq!(check(&**fs.pmem()).findings, []);
    let mut bytes = vec![0; MIB as usize];
    fs.pmem().read(0, &mut bytes).unwrap();
    let places = bytes.windows(THIRD.len()).enumerate();
    let places: Vec<_> = places
        .filter(|(_, part)| *part == THIRD.as_bytes())
        .collect();
    assert_eq!(places.len(), 1);
    let copy = copy_of(&**fs.pmem());
    copy.store(places[0].0 as u64, first.as_bytes());
    let found = check(&*copy).findings;
    assert!(found.iter().any(|one| one.invariant == "B15"), "{found:?}");
}
