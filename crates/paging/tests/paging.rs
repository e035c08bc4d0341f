//! Regions whose pages are in a small pool: contents, durability and errors.

use fastrand::Rng;
use medium::{Arena, ArenaError, Durability, MapOptions, MediumError, Pmem, Reserve, Rule};
use paging::{Pool, PoolError};
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const PAGE: u64 = 64 << 10;
/// 17 pages: a header and 16 frames.
const POOL_BYTES: u64 = 17 * PAGE;
const REGION_BYTES: u64 = 128 * PAGE + 4096;
const SLOT: u16 = 3;

struct Fixture {
    dir: TempDir,
    map: MapOptions,
}

impl Fixture {
    fn new(durability: Durability) -> Self {
        let map = MapOptions {
            durability,
            ..MapOptions::default()
        };
        let fixture = Self {
            dir: new_dir(),
            map,
        };
        Pool::create(fixture.pool(), POOL_BYTES, None, &fixture.map).unwrap();
        medium::create_file(fixture.region(), REGION_BYTES, Reserve::Sparse).unwrap();
        fixture
    }

    fn pool(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    fn region(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    fn open(&self) -> (Arena, Arc<Pool>) {
        let pool = Arc::new(Pool::open(self.pool(), &self.map).unwrap());
        let arena = new_arena();
        let len = arena.map_paged(0, self.region(), (&pool, SLOT), &self.map);
        assert_eq!(len.unwrap(), REGION_BYTES);
        (arena, pool)
    }
}

/// In memory, if there is room: no test here is about power failures.
fn new_dir() -> TempDir {
    let shm = Path::new("/dev/shm");
    let dir = match shm.is_dir() {
        true => tempfile::tempdir_in(shm),
        false => tempfile::tempdir(),
    };
    dir.unwrap()
}

fn new_arena() -> Arena {
    Arena::reserve(None, 1 << 30).unwrap()
}

/// Stores to words all over the region, each thread to its own, and checks their contents.
fn churn(arena: &Arena, model: &mut [u64], thread: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    for _ in 0..1000 {
        let n = rng.usize(..model.len());
        let at = (n * THREADS + thread) as u64 * 8;
        assert_eq!(arena.load(at).unwrap(), model[n], "{at:#x}");
        model[n] = rng.u64(..);
        match rng.u8(..4) {
            0 => arena.store_nt(at, &model[n].to_le_bytes()),
            _ => arena.store_word(at, model[n]),
        }
        if rng.u8(..8) == 0 {
            arena.flush(at, 8);
            arena.fence(Rule::DurableBeforeReturn).unwrap();
        }
    }
}

const THREADS: usize = 4;

fn churn_all(arena: &Arena, models: &mut [Vec<u64>], seed: u64) {
    std::thread::scope(|scope| {
        for (thread, model) in models.iter_mut().enumerate() {
            scope.spawn(move || churn(arena, model, thread, seed + thread as u64));
        }
    });
}

#[test]
fn a_region_eight_times_the_pool_keeps_its_contents() {
    for durability in [Durability::Auto, Durability::Msync] {
        let fixture = Fixture::new(durability);
        let words = REGION_BYTES as usize / 8 / THREADS;
        let mut models = vec![vec![0; words]; THREADS];
        for round in 0..3 {
            let (arena, pool) = fixture.open();
            churn_all(&arena, &mut models, round * 100);
            let counts = pool.counts();
            assert!(counts.loaded > 500 && counts.written > 500, "{counts:?}");
        }
        // A read-only arena shows the same.
        let map = MapOptions {
            read_only: true,
            ..fixture.map
        };
        let pool = Arc::new(Pool::open(fixture.pool(), &map).unwrap());
        let arena = new_arena();
        arena
            .map_paged(0, fixture.region(), (&pool, SLOT), &map)
            .unwrap();
        let mut all = vec![0; REGION_BYTES as usize];
        arena.read(0, &mut all).unwrap();
        for (n, word) in all.as_chunks::<8>().0.iter().enumerate() {
            assert_eq!(
                u64::from_le_bytes(*word),
                models[n % THREADS][n / THREADS],
                "word {n}"
            );
        }
        assert_eq!(pool.counts().loaded, 0);
    }
}

#[test]
fn regions_are_mapped_and_unmapped_while_others_are_used() {
    let fixture = Fixture::new(Durability::Auto);
    let (arena, pool) = fixture.open();
    let words = REGION_BYTES as usize / 8 / THREADS;
    let mut models = vec![vec![0; words]; 2];
    std::thread::scope(|scope| {
        for (thread, model) in models.iter_mut().enumerate() {
            let arena = &arena;
            scope.spawn(move || churn(arena, model, thread, thread as u64));
        }
        for slot in 10..40 {
            let path = fixture.dir.path().join(format!("region {slot}"));
            medium::create_file(&path, 20 * PAGE, Reserve::Sparse).unwrap();
            let start = 64 << 20;
            arena
                .map_paged(start, &path, (&pool, slot), &fixture.map)
                .unwrap();
            for page in 0..20 {
                arena.store_word(start + page * PAGE, page);
            }
            pool.doom(slot);
            arena.unmap(start).unwrap();
            pool.forget(slot).unwrap();
        }
    });
    arena.fence(Rule::DurableBeforeReturn).unwrap();
    pool.check_pages(|slot| slot == SLOT).unwrap();
}

#[test]
fn pages_used_before_their_eviction_are_not_read_again() {
    let fixture = Fixture::new(Durability::Auto);
    let (arena, pool) = fixture.open();
    for round in 0..1000 {
        // One page throughout, among others that are used once.
        arena.store_word(0, round);
        arena.load((1 + round % 100) * PAGE).unwrap();
    }
    let counts = pool.counts();
    assert!(counts.mapped_again > 20, "{counts:?}");
    assert!(counts.written < 20, "{counts:?}");
    assert_eq!(arena.load(0).unwrap(), 999);
}

#[test]
fn a_page_that_cannot_be_read_fails_its_region_and_nothing_waits() {
    let fixture = Fixture::new(Durability::Auto);
    let other = fixture.dir.path().join("other");
    medium::create_file(&other, 40 * PAGE, Reserve::Sparse).unwrap();
    let (arena, pool) = fixture.open();
    arena
        .map_paged(64 << 20, &other, (&pool, 9), &fixture.map)
        .unwrap();
    let file = std::fs::File::options().write(true).open(fixture.region());
    file.unwrap().set_len(10 * PAGE).unwrap();
    arena.load(9 * PAGE).unwrap();
    let off = 10 * PAGE;
    let unreadable = MediumError::Unreadable { off };
    assert_eq!(arena.load(off + 8), Err(unreadable));
    assert_eq!(arena.fence(Rule::DurableBeforeReturn), Err(unreadable));
    // The other region works.
    for page in 0..40 {
        arena.store_word((64 << 20) + page * PAGE, page);
    }
    for page in 0..40 {
        assert_eq!(arena.load((64 << 20) + page * PAGE), Ok(page));
    }
}

/// The entry may be durable or not, so the page keeps a frame of its own.
#[test]
fn a_page_in_a_failed_pool_keeps_its_frame() {
    let fixture = Fixture::new(Durability::Auto);
    let (arena, pool) = fixture.open();
    let file = std::fs::File::options().write(true).open(fixture.pool());
    // The pool without its frames.
    file.unwrap().set_len(PAGE).unwrap();
    for page in 0..3 {
        let off = 0;
        let unreadable = MediumError::Unreadable { off };
        assert_eq!(arena.load(page * PAGE), Err(unreadable));
    }
    assert!(arena.fence(Rule::DurableBeforeReturn).is_err());
    assert_eq!(pool.frames_in_use(), 3);
}

/// Uses a sealed file, which accepts no more writes.
#[test]
fn a_page_that_cannot_be_written_stays_and_fences_fail() {
    let fixture = Fixture::new(Durability::Auto);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = std::fs::File::from(memfd_create("region", flags).unwrap());
    file.set_len(REGION_BYTES).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let pool = Arc::new(Pool::open(fixture.pool(), &fixture.map).unwrap());
    {
        let arena = new_arena();
        arena
            .map_paged(0, &path, (&pool, SLOT), &fixture.map)
            .unwrap();
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        for page in 0..8 {
            arena.store_word(page * PAGE, page + 1);
            arena.flush(page * PAGE, 8);
        }
        arena.fence(Rule::DurableBeforeReturn).unwrap();
        for page in 8..40 {
            arena.store_word(page * PAGE, page + 1);
        }
        assert!(arena.fence(Rule::DurableBeforeReturn).is_err());
    }
    // The durable contents stay.
    let sealed = SealFlags::WRITE;
    assert!(rustix::fs::fcntl_get_seals(&file).unwrap().contains(sealed));
    let map = MapOptions {
        read_only: true,
        ..fixture.map
    };
    drop(pool);
    let pool = Arc::new(Pool::open(fixture.pool(), &map).unwrap());
    let arena = new_arena();
    arena.map_paged(0, &path, (&pool, SLOT), &map).unwrap();
    for page in 0..8 {
        assert_eq!(arena.load(page * PAGE), Ok(page + 1));
    }
}

fn message(result: Result<Pool, PoolError>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn errors_of_a_pool_name_the_damage() {
    let fixture = Fixture::new(Durability::Auto);
    let (arena, pool) = fixture.open();
    for page in 0..16 {
        arena.store_word(page * PAGE, page);
    }
    let in_use = message(Pool::open(fixture.pool(), &fixture.map));
    assert!(in_use.contains("in use by process"), "{in_use}");
    drop(arena);
    assert!(pool.check_pages(|_| false).is_err());
    pool.check_pages(|slot| slot == SLOT).unwrap();
    drop(pool);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(fixture.pool())
        .unwrap();
    let mut entries = [0; 16 * 8];
    file.read_exact_at(&mut entries, 4096).unwrap();
    let used = entries.as_chunks::<8>().0.iter().position(|e| e[7] != 0);
    let at = 4096 + used.unwrap() as u64 * 8;
    let good = entries[used.unwrap() * 8..][..8].to_owned();
    for (n, bit) in [(0, 1), (5, 2), (7, 0x80), (6, 0x10)] {
        let mut bad = good.clone();
        bad[n] ^= bit;
        file.write_all_at(&bad, at).unwrap();
        let damaged = message(Pool::open(fixture.pool(), &fixture.map));
        let named = format!(
            "pool: the entry of frame {}, at byte {at:#x}",
            used.unwrap()
        );
        assert!(damaged.contains(&named), "{damaged}");
    }
    file.write_all_at(&good, at).unwrap();
    // A page after the end of the region.
    medium::create_file(fixture.region(), PAGE, Reserve::Sparse).unwrap();
    let pool = Arc::new(Pool::open(fixture.pool(), &fixture.map).unwrap());
    let arena = new_arena();
    let refused = arena.map_paged(0, fixture.region(), (&pool, SLOT), &fixture.map);
    let Err(ArenaError::Pager(refused)) = refused else {
        panic!("{refused:?}");
    };
    let refused = refused.to_string();
    assert!(
        refused.contains("region 3 has 1 pages, and no page"),
        "{refused}"
    );
    pool.forget(SLOT).unwrap();
    pool.check_pages(|_| false).unwrap();
    arena
        .map_paged(0, fixture.region(), (&pool, SLOT), &fixture.map)
        .unwrap();
    assert_eq!(arena.load(0), Ok(0));
    drop((arena, pool));
    file.write_all_at(b"nothing", 0).unwrap();
    let none = message(Pool::open(fixture.pool(), &fixture.map));
    assert!(
        none.contains("pool: this is not a pool of frames"),
        "{none}"
    );
    let small = Pool::create(fixture.pool(), 5 * PAGE, None, &fixture.map);
    let small = small.err().unwrap().to_string();
    assert!(small.contains("room for 16 of them"), "{small}");
}
