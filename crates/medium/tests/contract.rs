//! The contract of `Pmem`, on every back end and every wrapper.

use medium::{
    Arena, Counting, Durability, Faulty, Latency, LatencyModel, MapOptions, MappedPmem,
    MediumError, MemoryPmem, Pmem, PowerCut, Recording, Reserve, Rule, create_file, unit_count,
    units,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tempfile::TempDir;

const LEN: u64 = 8192;

fn mapped(dir: &TempDir, name: &str, durability: Durability, force_flush: bool) -> MappedPmem {
    let options = MapOptions {
        durability,
        force_flush,
        ..MapOptions::default()
    };
    mapped_with(dir, name, &options)
}

fn mapped_with(dir: &TempDir, name: &str, options: &MapOptions) -> MappedPmem {
    let path = dir.path().join(name);
    create_file(&path, LEN, Reserve::Sparse).unwrap();
    MappedPmem::open(path, options).unwrap()
}

/// A mapping with a guard, where the machine has one.
fn guarded(dir: &TempDir, name: &str, durability: Durability, force_flush: bool) -> MappedPmem {
    let options = MapOptions {
        durability,
        force_flush,
        guarded: true,
        ..MapOptions::default()
    };
    mapped_with(dir, name, &options)
}

/// An arena with a file of `LEN` bytes at its start.
fn arena(dir: &TempDir, name: &str, durability: Durability, force_flush: bool) -> Arena {
    let path = dir.path().join(name);
    create_file(&path, LEN, Reserve::Sparse).unwrap();
    let options = MapOptions {
        durability,
        force_flush,
        read_only: false,
        ..MapOptions::default()
    };
    let arena = Arena::reserve(None, Arena::GRANULE_BYTES).unwrap();
    arena.map(0, path, &options).unwrap();
    arena
}

type Named = (&'static str, Box<dyn Pmem>);

/// One region of each kind, zeroed, with `LEN` bytes in range. The directory contains the
/// files.
fn back_ends() -> (TempDir, Vec<Named>) {
    let dir = TempDir::new().unwrap();
    let memory = || MemoryPmem::new(LEN);
    let all: Vec<Named> = vec![
        ("memory", Box::new(memory())),
        (
            "process",
            Box::new(mapped(&dir, "a", Durability::Auto, false)),
        ),
        (
            "flushed",
            Box::new(mapped(&dir, "b", Durability::Process, true)),
        ),
        (
            "msync",
            Box::new(mapped(&dir, "c", Durability::Msync, false)),
        ),
        (
            "guarded",
            Box::new(guarded(&dir, "guarded-a", Durability::Auto, false)),
        ),
        (
            "guarded, flushed",
            Box::new(guarded(&dir, "guarded-b", Durability::Process, true)),
        ),
        (
            "guarded, msync",
            Box::new(guarded(&dir, "guarded-c", Durability::Msync, false)),
        ),
        (
            "arena",
            Box::new(arena(&dir, "d", Durability::Process, true)),
        ),
        (
            "arena with msync",
            Box::new(arena(&dir, "e", Durability::Msync, false)),
        ),
        ("counting", Box::new(Counting::new(memory()))),
        ("recording", Box::new(Recording::new(memory()))),
        ("faulty", Box::new(Faulty::new(memory()))),
        (
            "latency",
            Box::new(Latency::new(memory(), LatencyModel::default())),
        ),
        ("power cut", Box::new(PowerCut::new(memory()))),
        ("reference", Box::new(std::sync::Arc::new(memory()))),
    ];
    (dir, all)
}

#[derive(Debug, Clone)]
struct Write {
    off: u64,
    bytes: Vec<u8>,
    stream: bool,
}

fn write() -> impl Strategy<Value = Write> {
    let len = prop_oneof![0usize..20, 60usize..70, 100usize..600];
    let bytes = len.prop_flat_map(|len| prop::collection::vec(any::<u8>(), len));
    // Near the start, around the page boundary, and up to the end.
    let off = prop_oneof![0u64..200, 3900u64..4200, Just(LEN)];
    (off, bytes, any::<bool>()).prop_map(|(off, bytes, stream)| Write {
        off: off.min(LEN - bytes.len() as u64),
        bytes,
        stream,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn stores_do_to_bytes_what_a_copy_does(
        writes in prop::collection::vec(write(), 1..12),
        from in 0..LEN,
        len in 0..600u64,
    ) {
        let mut expected = vec![0; LEN as usize];
        for w in &writes {
            expected[w.off as usize..][..w.bytes.len()].copy_from_slice(&w.bytes);
        }
        let (_dir, all) = back_ends();
        for (name, pm) in all {
            for w in &writes {
                let len = w.bytes.len() as u64;
                if w.stream {
                    pm.store_nt(w.off, &w.bytes);
                } else {
                    pm.store(w.off, &w.bytes);
                    pm.flush(w.off, len);
                }
                prop_assert_eq!(pm.fence(Rule::DurableBeforeReturn), Ok(()), "{}", name);
            }
            let mut found = vec![1; LEN as usize];
            pm.read(0, &mut found).unwrap();
            prop_assert_eq!(&found, &expected, "{}", name);
            let end = (from + len).min(LEN);
            let mut part = vec![1; (end - from) as usize];
            pm.read(from, &mut part).unwrap();
            prop_assert_eq!(&part[..], &expected[from as usize..end as usize], "{}", name);
            for off in (0..LEN).step_by(8) {
                let word: [u8; 8] = expected[off as usize..][..8].try_into().unwrap();
                prop_assert_eq!(pm.load(off), Ok(u64::from_le_bytes(word)), "{}", name);
            }
            let first = from / 8 * 8;
            let mut words = vec![1; ((end - first) / 8) as usize];
            pm.load_words(first, &mut words).unwrap();
            for (n, word) in (0..).zip(words) {
                prop_assert_eq!(pm.load(first + n * 8), Ok(word), "{}", name);
            }
        }
    }
}

#[test]
fn every_offset_and_short_length() {
    let (_dir, all) = back_ends();
    for (name, pm) in all {
        for off in 0..80u64 {
            for len in 0..80usize {
                for stream in [false, true] {
                    pm.store(0, &[0xee; 200]);
                    let bytes: Vec<u8> = (1..=len as u8).collect();
                    if stream {
                        pm.store_nt(off, &bytes);
                    } else {
                        pm.store(off, &bytes);
                    }
                    let mut found = [0; 200];
                    pm.read(0, &mut found).unwrap();
                    let mut expected = [0xee; 200];
                    expected[off as usize..][..len].copy_from_slice(&bytes);
                    assert_eq!(found, expected, "{name}: {len} bytes at {off}");
                }
            }
        }
    }
}

#[test]
fn long_streaming_stores_at_every_skew() {
    let (_dir, all) = back_ends();
    let bytes: Vec<u8> = (0..4200u32).map(|i| (i % 251) as u8 + 1).collect();
    for (name, pm) in all {
        for skew in 0..66u64 {
            for len in [511, 512, 513, 575, 576, 640, 1000, 4096, 4133] {
                pm.store(0, &[0; 5000]);
                pm.store_nt(skew, &bytes[..len]);
                pm.fence(Rule::DurableBeforeReturn).unwrap();
                let mut found = [0xee; 5000];
                pm.read(0, &mut found).unwrap();
                let mut expected = [0; 5000];
                expected[skew as usize..][..len].copy_from_slice(&bytes[..len]);
                assert!(found == expected, "{name}: {len} bytes at {skew}");
            }
        }
    }
}

#[test]
fn bounds_are_errors_that_stick_on_every_back_end() {
    let (_dir, all) = back_ends();
    for (name, pm) in all {
        // The length of an arena is that of its reservation.
        assert!(pm.len() == LEN || name.starts_with("arena"), "{name}");
        let out = |off, len| Err(MediumError::OutOfRange { off, len });
        assert_eq!(pm.load(LEN).map(drop), out(LEN, 8), "{name}");
        assert_eq!(pm.load(LEN - 4).map(drop), out(LEN - 4, 8), "{name}");
        assert_eq!(pm.load(4).map(drop), out(4, 8), "{name}");
        assert_eq!(pm.load(u64::MAX).map(drop), out(u64::MAX, 8), "{name}");
        for off in [LEN - 8, LEN, 4, u64::MAX - 7] {
            assert!(pm.load_words(off, &mut [0; 2]).is_err(), "{name}: {off}");
        }
        assert_eq!(pm.load_words(LEN, &mut []), Ok(()), "{name}");
        assert_eq!(pm.read(LEN - 1, &mut [0; 2]), out(LEN - 1, 2), "{name}");
        assert_eq!(pm.read(LEN, &mut []), Ok(()), "{name}");
        pm.flush(LEN, 0);
        assert_eq!(pm.fence(Rule::DurableBeforeReturn), Ok(()), "{name}");
        pm.store_nt(LEN - 1, &[1; 2]);
        assert_eq!(
            pm.fence(Rule::DurableBeforeReturn),
            out(LEN - 1, 2),
            "{name}"
        );
        pm.store(LEN, &[1]);
        assert_eq!(
            pm.fence(Rule::DurableBeforeReturn),
            out(LEN - 1, 2),
            "{name}: the first error stays"
        );
        assert_eq!(pm.load(LEN - 8), Ok(0), "{name}: nothing was stored");
    }
}

/// One thread stores two patterns by turns, another loads. A store in several pieces would show
/// a mixture.
#[test]
fn aligned_units_never_tear() {
    let (_dir, all) = back_ends();
    for (name, pm) in all {
        for (off, len) in [(64u64, 8usize), (72, 4), (76, 4), (82, 2), (80, 2)] {
            let done = AtomicBool::new(false);
            let skip = (off % 8 * 8) as u32;
            std::thread::scope(|s| {
                s.spawn(|| {
                    for i in 0..4000 {
                        pm.store(off, &[if i % 2 == 0 { 0xff } else { 0 }; 8][..len]);
                    }
                    done.store(true, Relaxed);
                });
                let ones = u64::MAX >> (64 - len * 8);
                while !done.load(Relaxed) {
                    let seen = pm.load(off - off % 8).unwrap() >> skip & ones;
                    assert!(
                        seen == 0 || seen == ones,
                        "{name}: {seen:x} of {len} at {off}"
                    );
                }
            });
        }
    }
}

/// Neighbours in one word belong to different threads: no store is lost.
#[test]
fn narrow_stores_leave_their_neighbours_alone() {
    let (_dir, all) = back_ends();
    for (name, pm) in all {
        std::thread::scope(|s| {
            for byte in 0..4u64 {
                let pm = &pm;
                s.spawn(move || (0..=200u8).for_each(|i| pm.store(256 + byte, &[i])));
            }
        });
        assert_eq!(
            pm.load(256),
            Ok(u64::from_le_bytes([200, 200, 200, 200, 0, 0, 0, 0])),
            "{name}"
        );
    }
}

#[test]
fn units_are_as_few_as_possible() {
    // The smallest number of aligned power-of-two pieces, by trying all.
    fn fewest(off: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let fits = |size: &u64| off.is_multiple_of(*size) && *size <= len;
        let pieces = [1, 2, 4, 8].into_iter().filter(fits);
        pieces
            .map(|size| 1 + fewest(off + size, len - size))
            .min()
            .unwrap()
    }
    for off in 0..9 {
        for len in 0..18 {
            assert_eq!(unit_count(off, len), fewest(off, len), "{len} at {off}");
            assert_eq!(
                units(off, &vec![0; len as usize]).count() as u64,
                fewest(off, len)
            );
        }
    }
}
