//! Files in one range of addresses: their places, accesses out of range, and regions that are
//! mapped and unmapped while other threads use them.

use medium::{
    Arena, ArenaError, Durability, EffectiveDurability, MapOptions, MappedPmem, MediumError,
    OpenError, Pmem, Reserve, Rule, create_file,
};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const GRANULE: u64 = Arena::GRANULE_BYTES;
const TIB: u64 = 1 << 40;
const PAGE: u64 = 4096;

/// The base of an arena of at most 1 TiB, with free addresses before it. Each test has a
/// different one, because all run in one process. The kernel places nothing there.
fn base() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(16 * TIB);
    NEXT.fetch_add(2 * TIB, Relaxed)
}

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn create(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        create_file(&path, len, Reserve::Sparse).unwrap();
        path
    }

    /// A file in which every word is `word`.
    fn filled(&self, name: &str, len: u64, word: u64) -> PathBuf {
        let path = self.create(name, len);
        std::fs::write(&path, word.to_le_bytes().repeat((len / 8) as usize)).unwrap();
        path
    }
}

fn truncate(path: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

fn with(durability: Durability) -> MapOptions {
    MapOptions {
        durability,
        ..MapOptions::default()
    }
}

fn any() -> MapOptions {
    MapOptions::default()
}

fn read_only() -> MapOptions {
    MapOptions {
        read_only: true,
        ..MapOptions::default()
    }
}

fn out(off: u64, len: u64) -> MediumError {
    MediumError::OutOfRange { off, len }
}

#[test]
fn the_same_base_gives_the_same_addresses() {
    let files = Files::new();
    let (base, far) = (base(), TIB / 2);
    let (a, b) = (files.create("a", 3 * GRANULE), files.create("b", PAGE));
    let open = || {
        let arena = Arena::reserve(Some(base), TIB).unwrap();
        assert_eq!((arena.base(), arena.len()), (base, TIB));
        assert_eq!(arena.map(0, &a, &any()).unwrap(), 3 * GRANULE);
        assert_eq!(arena.map(far, &b, &any()).unwrap(), PAGE);
        arena
    };
    let arena = open();
    // Each file contains a pointer to the other.
    arena.store_word(3 * GRANULE - 8, base + far);
    arena.store_nt(far, &(base + 3 * GRANULE - 8).to_le_bytes());
    arena.flush(3 * GRANULE - 8, 8);
    arena.fence(Rule::DurableBeforeReturn).unwrap();
    drop(arena);
    let arena = open();
    let pointer = arena.load(far).unwrap();
    assert_eq!(pointer, base + 3 * GRANULE - 8);
    // SAFETY: the address of a word of `a`, which the arena has mapped and no thread changes.
    let word = unsafe { (pointer as usize as *const u64).read_volatile() };
    assert_eq!(word, base + far);
    assert_eq!(arena.load(pointer - base), Ok(word));
}

#[test]
fn the_kernel_picks_a_base_of_whole_granules() {
    let arenas: Vec<_> = (0..8)
        .map(|_| Arena::reserve(None, GRANULE).unwrap())
        .collect();
    for arena in &arenas {
        assert!(arena.base().is_multiple_of(GRANULE) && arena.base() > 0);
        assert_eq!(arena.len(), GRANULE);
    }
}

#[test]
fn a_base_in_use_is_an_error_that_names_the_mapping() {
    let files = Files::new();
    let base = base();
    let arena = Arena::reserve(Some(base), 8 * GRANULE).unwrap();
    arena
        .map(GRANULE, files.create("occupant", PAGE), &any())
        .unwrap();
    let refused = |base, len| {
        let error = Arena::reserve(Some(base), len).err().unwrap();
        assert!(matches!(error, ArenaError::Taken { .. }), "{error}");
        error.to_string()
    };
    let text = refused(base - 4 * GRANULE, 5 * GRANULE);
    let range = format!("{:#x} to {:#x}", base - 4 * GRANULE, base + GRANULE);
    assert!(text.contains(&range), "{text}");
    assert!(text.contains("memory without a name at "), "{text}");
    assert!(text.contains("choose another base address"), "{text}");
    let text = refused(base + GRANULE, GRANULE);
    assert!(text.contains("/occupant at "), "{text}");
    drop(arena);
    Arena::reserve(Some(base - 4 * GRANULE), 12 * GRANULE).unwrap();
}

#[test]
fn impossible_reservations_are_errors() {
    for (base, len) in [
        (Some(PAGE), GRANULE),
        (None, GRANULE + PAGE),
        (Some(base() + 1), GRANULE),
    ] {
        let error = Arena::reserve(base, len).err().unwrap();
        assert!(matches!(error, ArenaError::Misaligned { .. }), "{error}");
        assert!(error.to_string().contains("multiple of 0x200000"));
    }
    for (base, len) in [
        (Some(0), GRANULE),
        (None, 0),
        (Some(1 << 62), GRANULE),
        (None, 1 << 62),
        (None, u64::MAX - GRANULE + 1),
    ] {
        let error = Arena::reserve(base, len).err().unwrap();
        assert!(matches!(error, ArenaError::Reserve { .. }), "{error}");
    }
}

#[test]
fn files_may_touch_but_not_overlap() {
    let files = Files::new();
    let arena = Arena::reserve(None, 8 * GRANULE).unwrap();
    let middle = files.create("middle", 2 * GRANULE + PAGE);
    arena.map(2 * GRANULE, &middle, &any()).unwrap();
    let other = files.create("other", 2 * GRANULE);
    for start in [1, 2, 3, 4] {
        let error = arena.map(start * GRANULE, &other, &any()).unwrap_err();
        assert!(matches!(error, ArenaError::Overlap { .. }), "{error}");
        assert!(error.to_string().contains("/middle is mapped at 0x400000"));
    }
    for start in [7 * GRANULE, 8 * GRANULE, 1 << 50, u64::MAX - GRANULE + 1] {
        let error = arena.map(start, &other, &any()).unwrap_err();
        assert!(matches!(error, ArenaError::Outside { .. }), "{error}");
    }
    let error = arena.map(PAGE, &other, &any()).unwrap_err();
    assert!(matches!(error, ArenaError::Misaligned { .. }), "{error}");
    // No refused file stays locked.
    drop(MappedPmem::open(&other, &any()).unwrap());
    arena.map(0, &other, &any()).unwrap();
    let third = files.create("third", 3 * GRANULE);
    arena.map(5 * GRANULE, &third, &any()).unwrap();
}

#[test]
fn a_refused_file_leaves_its_place_free() {
    let files = Files::new();
    let base = base();
    let arena = Arena::reserve(Some(base), 4 * GRANULE).unwrap();
    let odd = files.create("odd", PAGE);
    truncate(&odd, PAGE + 1);
    let path = files.create("image", GRANULE);
    let mut refusals = vec![
        arena.map(0, files.path("missing"), &any()),
        arena.map(0, files.dir.path(), &any()),
        arena.map(0, &odd, &any()),
    ];
    if MappedPmem::open(&path, &any()).unwrap().durability() != EffectiveDurability::Dax {
        refusals.push(arena.map(0, &path, &with(Durability::Dax)));
    }
    for refused in refusals {
        let error = refused.unwrap_err();
        assert!(matches!(error, ArenaError::Open(_)), "{error}");
    }
    assert_eq!(arena.load(0), Err(out(0, 8)));
    assert_eq!(arena.durability(0), None);
    assert!(Arena::reserve(Some(base), GRANULE).is_err());
    arena.map(0, &path, &any()).unwrap();
    assert_eq!(arena.load(0), Ok(0));
}

#[test]
fn accesses_stay_inside_one_file() {
    let files = Files::new();
    let arena = Arena::reserve(None, 8 * GRANULE).unwrap();
    let whole = files.filled("whole", GRANULE, 1);
    let part = files.filled("part", GRANULE + PAGE, 2);
    arena.map(GRANULE, &whole, &any()).unwrap();
    arena.map(2 * GRANULE, &part, &any()).unwrap();
    let (start, border, end) = (GRANULE, 2 * GRANULE, 3 * GRANULE + PAGE);
    assert_eq!(arena.load(start), Ok(1));
    assert_eq!(arena.load(border - 8), Ok(1));
    assert_eq!(arena.load(border), Ok(2));
    assert_eq!(arena.load(end - 8), Ok(2));
    let mut across = [0; 2 * PAGE as usize];
    arena.read(border + GRANULE - PAGE, &mut across).unwrap();
    assert_eq!(across[..8], across[across.len() - 8..]);
    let outside = [0, start - 8, end, end + PAGE, 7 * GRANULE, 8 * GRANULE];
    for off in outside.into_iter().chain([u64::MAX, u64::MAX - 7]) {
        assert_eq!(arena.load(off), Err(out(off, 8)));
        assert_eq!(arena.read(off, &mut [0; 3]), Err(out(off, 3)));
        assert!(!arena.has(off, 1));
    }
    assert!(arena.has(start, GRANULE) && arena.has(border, end - border));
    assert!(!arena.has(start, GRANULE + 1) && !arena.has(start, u64::MAX));
    for off in [start - 8, border - 8, end - 8] {
        assert_eq!(arena.read(off, &mut [0; 9]), Err(out(off, 9)));
    }
    assert_eq!(arena.load(start + 4), Err(out(start + 4, 8)));
    // An access to zero bytes is in range everywhere, except after the arena.
    for off in [0, start, border, end, end + 1, 8 * GRANULE] {
        assert_eq!(arena.read(off, &mut []), Ok(()));
        arena.store(off, &[]);
        arena.store_nt(off, &[]);
        arena.flush(off, 0);
    }
    let behind = 8 * GRANULE + 1;
    assert_eq!(arena.read(behind, &mut []), Err(out(behind, 0)));
    assert_eq!(arena.fence(Rule::DurableBeforeReturn), Ok(()));
}

#[test]
fn changes_out_of_range_stick_to_the_fence() {
    type Change = fn(&Arena, u64);
    let changes: [Change; 3] = [
        |arena, off| arena.store(off, &[9; 16]),
        |arena, off| arena.store_nt(off, &[9; 16]),
        |arena, off| arena.flush(off, 16),
    ];
    for change in changes {
        for off in [0, 2 * GRANULE - 8, 3 * GRANULE, 4 * GRANULE, u64::MAX - 4] {
            let files = Files::new();
            let arena = Arena::reserve(None, 4 * GRANULE).unwrap();
            for (name, start) in [("a", GRANULE), ("b", 2 * GRANULE)] {
                let path = files.create(name, GRANULE);
                arena.map(start, path, &any()).unwrap();
            }
            // Calls that return their error do not make a fence fail.
            assert_eq!(arena.try_store_nt(off, &[9; 16]), Err(out(off, 16)));
            assert_eq!(arena.try_flush(off, 16), Err(out(off, 16)));
            assert_eq!(arena.fence(Rule::DurableBeforeReturn), Ok(()));
            change(&arena, off);
            assert_eq!(arena.fence(Rule::DurableBeforeReturn), Err(out(off, 16)));
            change(&arena, 3 * GRANULE - 8);
            assert_eq!(
                arena.fence(Rule::DurableBeforeReturn),
                Err(out(off, 16)),
                "the first error stays"
            );
            assert_eq!(arena.load(2 * GRANULE - 8), Ok(0), "nothing was stored");
            assert_eq!(arena.load(2 * GRANULE), Ok(0), "nothing was stored");
        }
    }
}

#[test]
fn a_truncated_file_gives_errors_at_its_offset_in_the_arena() {
    for durability in [Durability::Process, Durability::Msync] {
        let files = Files::new();
        let arena = Arena::reserve(None, 8 * GRANULE).unwrap();
        let cut = files.filled("cut", 2 * GRANULE, 1);
        let whole = files.filled("whole", GRANULE, 2);
        arena.map(3 * GRANULE, &cut, &with(durability)).unwrap();
        arena.map(5 * GRANULE, &whole, &with(durability)).unwrap();
        arena.fence(Rule::DurableBeforeReturn).unwrap();
        truncate(&cut, GRANULE);
        let lost = 4 * GRANULE;
        let error = MediumError::Unreadable { off: lost };
        assert_eq!(arena.load(lost + 64), Err(error));
        assert_eq!(arena.read(3 * GRANULE, &mut [0; 1]), Err(error));
        assert_eq!(arena.load(5 * GRANULE), Ok(2), "the other file is well");
        assert_eq!(arena.fence(Rule::DurableBeforeReturn), Err(error));
        // The error outlasts the region.
        arena.unmap(3 * GRANULE).unwrap();
        assert_eq!(arena.fence(Rule::DurableBeforeReturn), Err(error));
    }
}

#[test]
fn an_error_not_yet_returned_by_a_fence_outlasts_its_region() {
    let files = Files::new();
    let arena = Arena::reserve(None, 4 * GRANULE).unwrap();
    let cut = files.create("cut", GRANULE);
    arena.map(GRANULE, &cut, &any()).unwrap();
    truncate(&cut, PAGE);
    arena.store(GRANULE + 5 * PAGE, &[1; 8]);
    arena.unmap(GRANULE).unwrap();
    let error = MediumError::Unreadable {
        off: GRANULE + 5 * PAGE,
    };
    assert_eq!(arena.fence(Rule::DurableBeforeReturn), Err(error));
}

#[test]
fn a_file_is_mapped_once() {
    let files = Files::new();
    let path = files.create("image", GRANULE);
    let arena = Arena::reserve(None, 4 * GRANULE).unwrap();
    let other = Arena::reserve(None, 4 * GRANULE).unwrap();
    arena.map(0, &path, &any()).unwrap();
    let refused = |error: OpenError| {
        let OpenError::InUse { holder, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(holder.as_ref().unwrap().pid, std::process::id());
    };
    for (arena, start) in [(&arena, 0), (&arena, GRANULE), (&other, 0)] {
        for options in [any(), read_only()] {
            match arena.map(start, &path, &options).unwrap_err() {
                ArenaError::Open(error) => refused(error),
                error => panic!("{error}"),
            }
        }
    }
    refused(MappedPmem::open(&path, &any()).err().unwrap());
    drop(arena);
    other.map(0, &path, &any()).unwrap();
}

#[test]
fn an_unmapped_region_makes_room_for_another() {
    let files = Files::new();
    let base = base();
    let arena = Arena::reserve(Some(base), 4 * GRANULE).unwrap();
    let (a, b) = (files.create("a", 2 * GRANULE), files.create("b", PAGE));
    for durability in [Durability::Process, Durability::Msync] {
        arena.map(GRANULE, &a, &with(durability)).unwrap();
        arena.store_word(2 * GRANULE, 7);
        arena.flush(2 * GRANULE, 8);
        arena.unmap(GRANULE).unwrap();
        for off in [GRANULE, 2 * GRANULE] {
            assert_eq!(arena.load(off), Err(out(off, 8)));
        }
        assert_eq!(arena.durability(GRANULE), None);
        let error = arena.unmap(GRANULE).unwrap_err();
        assert!(matches!(error, ArenaError::NotMapped { start: GRANULE }));
        assert!(Arena::reserve(Some(base + GRANULE), GRANULE).is_err());
        assert_eq!(MappedPmem::open(&a, &any()).unwrap().load(GRANULE), Ok(7));
        arena.map(GRANULE, &b, &with(durability)).unwrap();
        assert_eq!(arena.load(GRANULE), Ok(0));
        assert_eq!(arena.load(GRANULE + PAGE), Err(out(GRANULE + PAGE, 8)));
        assert_eq!(arena.load(2 * GRANULE), Err(out(2 * GRANULE, 8)));
        assert_eq!(arena.fence(Rule::DurableBeforeReturn), Ok(()));
        arena.unmap(GRANULE).unwrap();
    }
    arena.store_word(GRANULE, 1);
    assert_eq!(arena.fence(Rule::DurableBeforeReturn), Err(out(GRANULE, 8)));
}

/// The next fence of these threads finds no region to write back.
#[test]
fn an_unmap_keeps_the_flushes_of_other_threads() {
    let files = Files::new();
    let a = files.create("a", GRANULE);
    let arena = Arena::reserve(None, GRANULE).unwrap();
    let cut = MapOptions {
        simulate_power_cut: true,
        ..any()
    };
    arena.map(0, &a, &cut).unwrap();
    let flush = || {
        arena.store(0, &[7; 4096]);
        arena.flush(0, 4096);
    };
    std::thread::scope(|scope| scope.spawn(flush).join().unwrap());
    arena.unmap(0).unwrap();
    let file = std::fs::read(&a).unwrap();
    assert!(file[..4096].iter().all(|byte| *byte == 7));
}

/// Maps two files by turns at one place, the second shorter. An access there finds the file's
/// bytes, and fails once `unmap` has returned.
#[test]
fn threads_access_regions_while_they_are_mapped_and_unmapped() {
    let files = Files::new();
    let arena = Arena::reserve(None, 16 * GRANULE).unwrap();
    let long = files.filled("long", 3 * GRANULE, 1);
    let short = files.filled("short", GRANULE, 2);
    let steady = files.create("steady", GRANULE);
    arena.map(0, steady, &with(Durability::Msync)).unwrap();
    let start = 4 * GRANULE;
    let tail = start + 2 * GRANULE;
    let done = AtomicBool::new(false);
    let met = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Relaxed) {
                match arena.load(start + 8 * PAGE) {
                    Ok(word) => met[word as usize].fetch_add(1, Relaxed),
                    Err(e) => {
                        assert_eq!(e, out(start + 8 * PAGE, 8));
                        met[0].fetch_add(1, Relaxed)
                    }
                };
                let last = arena.load(tail);
                assert!(last == Ok(1) || last == Err(out(tail, 8)), "{last:?}");
            }
        });
        s.spawn(|| {
            let mut buf = vec![0; 2 * PAGE as usize];
            while !done.load(Relaxed) {
                if arena.read(start, &mut buf).is_ok() {
                    assert!(buf.chunks_exact(8).all(|word| word == &buf[..8]));
                }
            }
        });
        s.spawn(|| {
            for i in 0.. {
                arena.store_word(i % 512 * 8, i);
                arena.flush(i % 512 * 8, 8);
                assert_eq!(arena.fence(Rule::DurableBeforeReturn), Ok(()));
                if done.load(Relaxed) {
                    break;
                }
            }
        });
        let mut rounds = 0;
        while rounds < 100 || met.iter().any(|met| met.load(Relaxed) == 0) {
            let (path, durability) = match rounds % 4 {
                0 => (&long, Durability::Process),
                1 => (&short, Durability::Msync),
                2 => (&long, Durability::Msync),
                _ => (&short, Durability::Process),
            };
            arena.map(start, path, &with(durability)).unwrap();
            std::thread::yield_now();
            arena.unmap(start).unwrap();
            rounds += 1;
        }
        done.store(true, Relaxed);
    });
}

/// Stores race with the end of their region. The file belongs to the next holder as soon as it
/// can be opened: its contents must not change from then on.
#[test]
fn no_store_follows_the_release_of_the_file() {
    let files = Files::new();
    let arena = Arena::reserve(None, 4 * GRANULE).unwrap();
    let path = files.create("image", GRANULE);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for thread in 0..2u64 {
            let (arena, done) = (&arena, &done);
            s.spawn(move || {
                for i in 0u64.. {
                    arena.store_word(GRANULE + thread * 64, i);
                    arena.store_nt(GRANULE + thread * PAGE + 128, &[i as u8; 1024]);
                    if done.load(Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..50 {
            arena.map(GRANULE, &path, &any()).unwrap();
            std::thread::yield_now();
            arena.unmap(GRANULE).unwrap();
            let snapshot = std::fs::read(&path).unwrap();
            std::thread::yield_now();
            assert!(std::fs::read(&path).unwrap() == snapshot);
        }
        done.store(true, Relaxed);
    });
    assert!(matches!(
        arena.fence(Rule::DurableBeforeReturn),
        Err(MediumError::OutOfRange { .. })
    ));
}

#[test]
fn threads_on_a_truncated_file_survive_its_unmapping() {
    let files = Files::new();
    let arena = Arena::reserve(None, 4 * GRANULE).unwrap();
    let path = files.create("image", GRANULE);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for page in 0.. {
                    let off = GRANULE + page % 512 * PAGE;
                    match arena.load(off) {
                        Ok(word) => assert_eq!(word, 0),
                        Err(MediumError::Unreadable { off }) => assert!(off > GRANULE),
                        Err(e) => assert_eq!(e, out(off, 8)),
                    }
                    if done.load(Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..100 {
            truncate(&path, GRANULE);
            arena.map(GRANULE, &path, &any()).unwrap();
            truncate(&path, PAGE);
            std::thread::yield_now();
            arena.unmap(GRANULE).unwrap();
        }
        done.store(true, Relaxed);
    });
}

#[test]
fn each_region_has_its_own_durability() {
    let files = Files::new();
    let arena = Arena::reserve(None, 8 * GRANULE).unwrap();
    let asked = [Durability::Auto, Durability::Process, Durability::Msync];
    for (i, durability) in asked.into_iter().enumerate() {
        for force_flush in [false, true] {
            let start = (2 * i as u64 + u64::from(force_flush)) * GRANULE;
            let path = files.create(&start.to_string(), GRANULE);
            let options = MapOptions {
                durability,
                force_flush,
                read_only: false,
                ..MapOptions::default()
            };
            arena.map(start, &path, &options).unwrap();
            let found = arena.durability(start).unwrap();
            match durability {
                // `Auto` selects `Dax` on persistent memory, else `Process`.
                Durability::Auto => assert_ne!(found, EffectiveDurability::Msync),
                _ => assert_eq!(Durability::from(found), durability),
            }
            arena.store_word(start + 8, start + 1);
            arena.flush(start + 8, 8);
            arena.store_nt(start + PAGE, &[7; 1000]);
        }
    }
    arena.fence(Rule::DurableBeforeReturn).unwrap();
    assert_eq!(arena.durability(PAGE), None);
    assert_eq!(arena.durability(7 * GRANULE), None);
    drop(arena);
    for start in (0..6).map(|i| i * GRANULE) {
        let pm = MappedPmem::open(files.path(&start.to_string()), &any()).unwrap();
        assert_eq!(pm.load(8), Ok(start + 1));
        assert_eq!(pm.load(PAGE + 992), Ok(u64::from_le_bytes([7; 8])));
    }
}

/// Bytes of dirty pages in mappings of files in `dir`, from the kernel's account.
fn dirty_bytes(dir: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut ours, mut kib) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next().unwrap() {
            "Private_Dirty:" | "Shared_Dirty:" if ours => {
                kib += words.next().unwrap().parse::<u64>().unwrap();
            }
            first if !first.ends_with(':') => ours = line.contains(dir.to_str().unwrap()),
            _ => {}
        }
    }
    kib * 1024
}

fn is_in_memory_fs(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let kind = rustix::fs::statfs(path).unwrap().f_type as i64;
    kind == TMPFS_MAGIC || kind == RAMFS_MAGIC
}

#[test]
fn one_fence_cleans_what_was_flushed_in_all_regions() {
    let files = Files::new();
    if is_in_memory_fs(files.dir.path()) {
        return skip::test("pages of a file system in memory are never clean");
    }
    let arena = Arena::reserve(None, 8 * GRANULE).unwrap();
    let starts = [0, GRANULE, 5 * GRANULE];
    for start in starts {
        let path = files.create(&start.to_string(), GRANULE);
        arena.map(start, path, &with(Durability::Msync)).unwrap();
    }
    for round in 1..4u8 {
        for start in starts {
            arena.store(start + 5 * PAGE - 4, &[round; 8]);
            arena.flush(start + 5 * PAGE - 4, 8);
            arena.store_nt(start + 100 * PAGE, &[round; 9000]);
        }
        assert!(dirty_bytes(files.dir.path()) >= 15 * PAGE);
        arena.fence(Rule::DurableBeforeReturn).unwrap();
        assert_eq!(dirty_bytes(files.dir.path()), 0);
    }
}

#[test]
fn a_read_only_region_refuses_stores() {
    let files = Files::new();
    let path = files.create("image", GRANULE);
    let arenas = [(); 2].map(|()| Arena::reserve(None, GRANULE).unwrap());
    for arena in &arenas {
        arena.map(0, &path, &read_only()).unwrap();
        arena.fence(Rule::DurableBeforeReturn).unwrap();
        arena.store_word(8, 1);
        assert_eq!(
            arena.fence(Rule::DurableBeforeReturn),
            Err(MediumError::NotDurable { errno: 30 })
        );
        assert_eq!(arena.load(8), Ok(0));
    }
}

#[test]
fn many_regions_in_turn_leave_nothing_behind() {
    let files = Files::new();
    let arena = Arena::reserve(None, 4 * GRANULE).unwrap();
    let path = files.create("image", PAGE);
    let maps = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ours = arena.base()..arena.base() + arena.len();
        let starts = maps.lines().map(|line| line.split_once('-').unwrap().0);
        let starts = starts.map(|start| u64::from_str_radix(start, 16).unwrap());
        starts.filter(|start| ours.contains(start)).count()
    };
    // More than the process can have mappings at a time.
    for i in 0..3000 {
        let start = i % 4 * GRANULE;
        arena.map(start, &path, &any()).unwrap();
        arena.unmap(start).unwrap();
    }
    assert!(maps() <= 1);
}
