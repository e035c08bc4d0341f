//! The mapped back end against real files and lost pages.

use medium::{
    Durability, EffectiveDurability, MapOptions, MappedPmem, MediumError, OpenError, Pmem, Reserve,
    Rule, create_file,
};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const LEN: u64 = 1 << 20;

struct Image {
    dir: tempfile::TempDir,
}

impl Image {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = Self { dir };
        create_file(image.path(), LEN, Reserve::Sparse).unwrap();
        image
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn open(&self, options: MapOptions) -> Result<MappedPmem, OpenError> {
        MappedPmem::open(self.path(), &options)
    }

    fn truncate(&self, len: u64) {
        let file = OpenOptions::new().write(true).open(self.path()).unwrap();
        file.set_len(len).unwrap();
    }
}

fn with(durability: Durability) -> MapOptions {
    MapOptions {
        durability,
        ..MapOptions::default()
    }
}

fn read_only() -> MapOptions {
    MapOptions {
        read_only: true,
        ..MapOptions::default()
    }
}

#[test]
fn bytes_survive_the_mapping_in_every_mode() {
    for durability in [Durability::Auto, Durability::Process, Durability::Msync] {
        for force_flush in [false, true] {
            let image = Image::new();
            let options = MapOptions {
                durability,
                force_flush,
                read_only: false,
                ..MapOptions::default()
            };
            let pm = image.open(options).unwrap();
            pm.store(3, b"through the cache");
            pm.flush(3, 17);
            pm.store_nt(LEN - 300, &[7; 299]);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            drop(pm);
            let pm = image.open(read_only()).unwrap();
            let mut buf = [0; 17];
            pm.read(3, &mut buf).unwrap();
            assert_eq!(&buf, b"through the cache");
            let mut buf = [0; 300];
            pm.read(LEN - 300, &mut buf).unwrap();
            assert_eq!((&buf[..299], buf[299]), (&[7; 299][..], 0));
        }
    }
}

/// Number of a file's pages that are not on its disk yet, counted by cachestat(2). `None`: the
/// kernel does not have this call.
fn unwritten_pages(file: &File) -> Option<u64> {
    const CACHESTAT: libc::c_long = 451;
    let (range, mut counts) = ([0_u64, LEN], [0_u64; 5]);
    // SAFETY: a range of two words to read, and five counters to write to.
    let done = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0,
        )
    };
    let [_cached, dirty, written_back, ..] = counts;
    (done == 0).then_some(dirty + written_back)
}

#[test]
fn an_open_makes_stores_left_in_caches_durable() {
    let image = Image::new();
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    // The stores of a process that was killed before its fence.
    file.write_all_at(&[7; 3 * 4096], LEN / 2).unwrap();
    if unwritten_pages(&file).is_none_or(|pages| pages == 0) {
        return skip::test("the kernel or the file system counts no dirty pages");
    }
    drop(image.open(read_only()).unwrap());
    drop(image.open(with(Durability::Process)).unwrap());
    drop(image.open(with(Durability::Msync)).unwrap());
    assert_eq!(unwritten_pages(&file), Some(0));
}

#[test]
fn a_simulated_power_cut_keeps_fenced_stores_and_some_others() {
    const LINES: u64 = 200;
    let fill = |pm: &MappedPmem, start: u64, byte: u8| {
        for line in 0..LINES {
            pm.store((start + line) * 64, &[byte; 64]);
        }
    };
    let (mut lost, mut evicted) = (0, 0);
    for _ in 0..20 {
        let image = Image::new();
        let pm = image.open(cut()).unwrap();
        fill(&pm, 0, 1);
        pm.flush(0, LINES * 64);
        pm.store_nt(LINES * 64, &[2; 100]);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        fill(&pm, 1000, 3);
        pm.flush(1000 * 64, LINES / 2 * 64);
        drop(pm);
        let left = std::fs::read(image.path()).unwrap();
        let lines = |byte| left.chunks(64).filter(|&line| line == [byte; 64]).count() as u64;
        assert_eq!(lines(1), LINES);
        assert_eq!(left[LINES as usize * 64..][..100], [2; 100]);
        lost += LINES - lines(3);
        evicted += lines(3);
    }
    assert!(lost > 0 && evicted > 0, "{lost} lines, and {evicted}");
}

fn cut() -> MapOptions {
    MapOptions {
        simulate_power_cut: true,
        ..MapOptions::default()
    }
}

/// The number of the first 200 lines that contain `byte`, in the file and not in the mapping.
fn lines_in_file(image: &Image, byte: u8) -> usize {
    let left = std::fs::read(image.path()).unwrap();
    let lines = left.chunks(64).take(200);
    lines.filter(|&line| line == [byte; 64]).count()
}

/// As with `clwb`, a store between the flush of its line and the fence needs its own flush.
#[test]
fn a_simulated_power_cut_loses_stores_between_flush_and_fence() {
    for streamed in [false, true] {
        for _ in 0..20 {
            let image = Image::new();
            let pm = image.open(cut()).unwrap();
            match streamed {
                true => pm.store_nt(0, &[1; 200 * 64]),
                false => {
                    pm.store(0, &[1; 200 * 64]);
                    pm.flush(0, 200 * 64);
                }
            }
            pm.store(0, &[2; 200 * 64]);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            drop(pm);
            let [covered, later] = [1, 2].map(|byte| lines_in_file(&image, byte));
            assert_eq!(covered + later, 200);
            assert!(covered > 0, "{later}");
        }
    }
}

#[test]
fn a_simulated_power_cut_keeps_the_contents_of_the_last_flush() {
    let image = Image::new();
    let pm = image.open(cut()).unwrap();
    for byte in 1..10 {
        pm.store(0, &[byte; 200 * 64]);
        pm.flush(0, 200 * 64);
    }
    // The contents that were in the file all the time.
    pm.store(0, &[0; 64]);
    pm.flush(0, 64);
    pm.fence(Rule::DurableBeforeReturn).unwrap();
    assert_eq!([0, 9].map(|byte| lines_in_file(&image, byte)), [1, 199]);
}

/// A fence covers the flushes of its own thread. It does not restore contents that are older
/// than those of another thread's fence.
#[test]
fn a_simulated_power_cut_distinguishes_threads() {
    let mut lost = 0;
    for _ in 0..20 {
        let image = Image::new();
        let pm = image.open(cut()).unwrap();
        pm.store(0, &[1; 200 * 64]);
        pm.flush(0, 200 * 64);
        let of_another = |what: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(what).join().unwrap());
        };
        of_another(&|| pm.fence(Rule::DurableBeforeReturn).unwrap());
        lost += 200 - lines_in_file(&image, 1);
        of_another(&|| {
            pm.store(0, &[2; 100 * 64]);
            pm.flush(0, 100 * 64);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
        });
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        let found = [1, 2].map(|byte| lines_in_file(&image, byte));
        assert_eq!(found, [100, 100]);
    }
    assert!(lost > 0);
}

/// A cache may write back any line, even one that was never flushed.
#[test]
fn a_simulated_power_cut_evicts_lines_far_from_those_that_are_flushed() {
    let image = Image::new();
    let pm = image.open(cut()).unwrap();
    let far = LEN - 4096;
    pm.store(far, &[5; 4096]);
    let mut left = [0; 4096];
    // Half of them, in at least one of eight fences that evict lines there.
    for _ in 0..10_000 {
        pm.store(0, &[1; 64]);
        pm.flush(0, 64);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        let file = File::open(image.path()).unwrap();
        file.read_exact_at(&mut left, far).unwrap();
        if left != [0; 4096] {
            break;
        }
    }
    let evicted = left.chunks(64).filter(|line| **line == [5; 64]).count();
    let lost = left.chunks(64).filter(|line| **line == [0; 64]).count();
    assert!(evicted > 0 && lost > 0 && evicted + lost == 64);
}

#[test]
fn an_ordinary_file_gives_process_durability_and_refuses_dax() {
    let image = Image::new();
    let pm = image.open(MapOptions::default()).unwrap();
    if pm.durability() == EffectiveDurability::Dax {
        return skip::test("needs a file that is not on persistent memory");
    }
    assert_eq!(pm.durability(), EffectiveDurability::Process);
    assert!(
        pm.durability()
            .describe()
            .contains("not a crash of the machine")
    );
    assert_eq!(pm.flush_instruction(), None);
    drop(pm);
    let error = image.open(with(Durability::Dax)).err().unwrap();
    assert!(matches!(error, OpenError::NoDax { .. }));
    assert!(
        error.to_string().contains("not persistent memory"),
        "{error}"
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
fn forced_flushes_use_an_instruction() {
    let options = MapOptions {
        force_flush: true,
        ..MapOptions::default()
    };
    let pm = Image::new().open(options).unwrap();
    let name = pm.flush_instruction().unwrap();
    assert!(["clwb", "clflushopt", "clflush"].contains(&name));
}

#[test]
fn sizes_and_kinds_are_checked() {
    let image = Image::new();
    for len in [0, 1, 4095, 4097, LEN + 512] {
        image.truncate(len);
        let error = image.open(MapOptions::default()).err().unwrap();
        assert!(matches!(error, OpenError::WrongSize { len_bytes, .. } if len_bytes == len));
        assert!(error.to_string().contains("/image has "), "{error}");
        if len % 4096 != 0 {
            assert!(create_file(image.path(), len, Reserve::Sparse).is_err());
        }
    }
    for path in [image.dir.path(), Path::new("/dev/null")] {
        let error = MappedPmem::open(path, &MapOptions::default())
            .err()
            .unwrap();
        assert!(matches!(error, OpenError::WrongKind { .. }), "{error}");
    }
    let missing = image.dir.path().join("missing");
    let error = MappedPmem::open(missing, &MapOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains("cannot open"), "{error}");
}

#[test]
fn out_of_range_is_an_error_and_sticks() {
    let pm = Image::new().open(MapOptions::default()).unwrap();
    assert!(pm.load(LEN).is_err());
    assert!(pm.load(4).is_err());
    assert!(pm.load(u64::MAX - 7).is_err());
    assert!(pm.read(LEN - 1, &mut [0; 2]).is_err());
    pm.fence(Rule::DurableBeforeReturn).unwrap();
    pm.store(u64::MAX - 3, &[1; 8]);
    let error = MediumError::OutOfRange {
        off: u64::MAX - 3,
        len: 8,
    };
    assert_eq!(pm.fence(Rule::DurableBeforeReturn), Err(error));
    assert_eq!(pm.fence(Rule::DurableBeforeReturn), Err(error));
}

#[test]
fn a_read_only_mapping_refuses_stores() {
    let pm = Image::new().open(read_only()).unwrap();
    assert_eq!(pm.load(0), Ok(0));
    pm.store(0, &[1]);
    assert_eq!(
        pm.fence(Rule::DurableBeforeReturn),
        Err(MediumError::NotDurable { errno: 30 })
    );
    assert_eq!(pm.load(0), Ok(0));
}

#[test]
fn one_writer_or_many_readers() {
    let image = Image::new();
    let writer = image.open(MapOptions::default()).unwrap();
    for options in [MapOptions::default(), read_only()] {
        let error = image.open(options).err().unwrap();
        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    }
    let error = create_file(image.path(), 4096, Reserve::Sparse).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert_eq!(writer.len(), LEN);
    writer.store(LEN - 8, &[1; 8]);
    writer.fence(Rule::DurableBeforeReturn).unwrap();
    drop(writer);
    let _reader = image.open(read_only()).unwrap();
    let _another = image.open(read_only()).unwrap();
    assert!(image.open(MapOptions::default()).is_err());
}

#[test]
fn a_truncated_file_gives_errors_and_the_process_survives() {
    let lost = 5 * 4096;
    type Touch = fn(&MappedPmem);
    let touches: [(&str, Touch); 4] = [
        ("load", |pm| assert!(pm.load(5 * 4096).is_err())),
        ("read", |pm| {
            assert!(pm.read(5 * 4096 - 10, &mut [0; 8000]).is_err());
        }),
        ("store", |pm| pm.store(5 * 4096 - 4, &[1; 64])),
        ("store_nt", |pm| pm.store_nt(5 * 4096 - 64, &[1; 4096])),
    ];
    for (force_flush, guarded) in [(false, false), (true, false), (false, true), (true, true)] {
        for (name, touch) in touches {
            let image = Image::new();
            let options = MapOptions {
                force_flush,
                guarded,
                ..MapOptions::default()
            };
            let pm = image.open(options).unwrap();
            pm.store(0, &[9; 8]);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            image.truncate(lost);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            touch(&pm);
            let error = Err(MediumError::Unreadable { off: lost });
            assert_eq!(pm.fence(Rule::DurableBeforeReturn), error, "{name}");
            assert_eq!(pm.load(0), Err(MediumError::Unreadable { off: lost }));
            assert_eq!(pm.read(0, &mut [0; 1]), error, "{name}");
            // Other lost pages do not kill the process either, and the first error stays.
            pm.store(7 * 4096, &[1; 8]);
            assert_eq!(pm.fence(Rule::DurableBeforeReturn), error, "{name}");
        }
    }
}

#[test]
fn msync_notices_a_cut_inside_a_page() {
    let image = Image::new();
    let pm = image.open(with(Durability::Msync)).unwrap();
    pm.store_nt(4096, &[1; 64]);
    pm.fence(Rule::DurableBeforeReturn).unwrap();
    image.truncate(4096 + 10);
    pm.store_nt(4096, &[2; 64]);
    assert_eq!(
        pm.fence(Rule::DurableBeforeReturn),
        Err(MediumError::Unreadable { off: 4096 })
    );
}

#[test]
fn threads_survive_simultaneous_faults_on_lost_pages() {
    let image = Image::new();
    let pm = image.open(MapOptions::default()).unwrap();
    image.truncate(4096);
    std::thread::scope(|s| {
        for t in 0..4 {
            let pm = &pm;
            s.spawn(move || {
                for page in 1..LEN / 4096 {
                    assert!(pm.load(page * 4096 + t * 8).is_err());
                }
            });
        }
    });
}

#[test]
fn mappings_do_not_share_their_failures() {
    let (lost, whole) = (Image::new(), Image::new());
    let a = lost.open(MapOptions::default()).unwrap();
    let b = whole.open(MapOptions::default()).unwrap();
    lost.truncate(4096);
    assert!(a.load(8192).is_err());
    assert_eq!(b.load(8192), Ok(0));
    drop(a);
    lost.truncate(LEN);
    let a = lost.open(MapOptions::default()).unwrap();
    assert_eq!(a.load(8192), Ok(0));
}

/// Bytes of dirty pages in the mapping of `path`, from the kernel's account.
fn dirty_bytes(path: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_ours = smaps
        .lines()
        .skip_while(|l| !l.ends_with(path.to_str().unwrap()));
    let dirty = of_ours
        .skip(1)
        .take_while(|l| !l.starts_with("VmFlags:"))
        .filter(|l| l.starts_with("Private_Dirty:") || l.starts_with("Shared_Dirty:"));
    let kib = dirty.map(|l| l.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap());
    kib.sum::<u64>() * 1024
}

#[test]
fn msync_cleans_what_was_flushed_before_fence_returns() {
    let image = Image::new();
    if is_in_memory_fs(&image.path()) {
        return skip::test("pages of a file system in memory are never clean");
    }
    let pm = image.open(with(Durability::Msync)).unwrap();
    assert_eq!(pm.durability(), EffectiveDurability::Msync);
    for round in 1..4u8 {
        pm.store(5 * 4096 - 4, &[round; 8]);
        pm.flush(5 * 4096 - 4, 8);
        pm.store_nt(100 * 4096, &[round; 9000]);
        assert!(dirty_bytes(&image.path()) >= 5 * 4096);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        assert_eq!(dirty_bytes(&image.path()), 0);
    }
}

fn is_in_memory_fs(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let kind = rustix::fs::statfs(path).unwrap().f_type as i64;
    kind == TMPFS_MAGIC || kind == RAMFS_MAGIC
}

#[test]
fn msync_of_many_threads_leaves_nothing_dirty() {
    let image = Image::new();
    if is_in_memory_fs(&image.path()) {
        return skip::test("pages of a file system in memory are never clean");
    }
    let pm = image.open(with(Durability::Msync)).unwrap();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let pm = &pm;
            s.spawn(move || {
                for i in 0..20u64 {
                    let off = (t * 20 + i) * 4096;
                    pm.store_word(off, i + 1);
                    pm.flush(off, 8);
                    pm.fence(Rule::DurableBeforeReturn).unwrap();
                }
            });
        }
    });
    assert_eq!(dirty_bytes(&image.path()), 0);
}

#[test]
fn created_files_are_zero_and_sparse_or_whole() {
    use std::os::unix::fs::MetadataExt;
    let image = Image::new();
    let pm = image.open(MapOptions::default()).unwrap();
    pm.store(0, &[1; 100]);
    drop(pm);
    create_file(image.path(), LEN, Reserve::Sparse).unwrap();
    let meta = std::fs::metadata(image.path()).unwrap();
    assert!(meta.blocks() * 512 < LEN);
    assert_eq!(image.open(read_only()).unwrap().load(0), Ok(0));
    create_file(image.path(), LEN, Reserve::Whole).unwrap();
    let meta = std::fs::metadata(image.path()).unwrap();
    assert!(meta.blocks() * 512 >= LEN);
}

#[test]
fn a_private_file_is_new_and_not_reached_by_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (new, link) = (dir.path().join("new"), dir.path().join("link"));
    medium::create_private_file(&new, LEN, Reserve::Sparse).unwrap();
    let made = std::fs::metadata(&new).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&made) & 0o7777, 0o600);
    std::fs::write(&new, "secret").unwrap();
    std::os::unix::fs::symlink(&new, &link).unwrap();
    for path in [&new, &link] {
        medium::create_private_file(path, LEN, Reserve::Sparse).unwrap_err();
    }
    assert_eq!(std::fs::read(&new).unwrap(), b"secret");
}
