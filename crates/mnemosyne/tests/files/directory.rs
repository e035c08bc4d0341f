//! Durable memory in the files of a directory.

use medium::{Durability, EffectiveDurability, MapOptions, OpenError, Pmem, is_in_memory};
use mnemosyne::memory::{
    Backing, BackingError, Directory, DirectoryOptions, DurableMemory, Layout, MemoryError,
    Options, RegionKind,
};
use mnemosyne::tx::Stop;
use std::path::Path;
use tempfile::TempDir;

fn options() -> DirectoryOptions {
    DirectoryOptions {
        layout: Layout {
            logs: 2,
            log_bytes: 64 << 10,
            ..Layout::default()
        },
        ..DirectoryOptions::default()
    }
}

fn open(path: &Path) -> Result<DurableMemory<Directory>, MemoryError> {
    open_as(path, &options())
}

fn open_as(
    path: &Path,
    options: &DirectoryOptions,
) -> Result<DurableMemory<Directory>, MemoryError> {
    let memory_options = Options {
        heap_growth: 1 << 20,
        ..Options::default()
    };
    DurableMemory::open_directory(path, options, memory_options)
}

fn with(durability: Durability, accept_loss: bool) -> DirectoryOptions {
    DirectoryOptions {
        map: MapOptions {
            durability,
            ..MapOptions::default()
        },
        accept_loss,
        ..options()
    }
}

/// A directory on a disk, if there is one, and whether it is in memory instead.
fn on_a_disk() -> (TempDir, bool) {
    let parent = env!("CARGO_TARGET_TMPDIR");
    (
        tempfile::tempdir_in(parent).unwrap(),
        is_in_memory(parent).unwrap(),
    )
}

fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().into_string().unwrap()
    };
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

fn count(memory: &DurableMemory<Directory>) -> u64 {
    let count = memory.session().run(|tx| {
        let at = match tx.root("counter")? {
            Some((_, at)) => at,
            None => {
                let at = tx.alloc(8)?;
                tx.store(at, 0)?;
                assert!(tx.set_root("counter", 1, at)?);
                at
            }
        };
        let count = tx.load(at)? + 1;
        tx.store(at, count)?;
        Ok::<_, Stop<()>>(count)
    });
    count.unwrap()
}

#[test]
fn regions_and_roots_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/on the way");
    for n in 1..4 {
        let memory = open(&path).unwrap();
        assert_eq!(count(&memory), n);
        let link = |tx: &mut mnemosyne::tx::Transaction<'_, _>, start: u64| tx.store(start, n);
        let region = memory.map(RegionKind::Program, 10_000, n, link).unwrap();
        assert_eq!(memory.backing().pmem().load(region.start).unwrap(), n);
        if n == 2 {
            memory.unmap(region.start, |_| Ok(())).unwrap();
        }
    }
    let expected = ["region-0000", "region-0001", "region-0002", "regions"];
    assert_eq!(names(&path), expected);
    let memory = open(&path).unwrap();
    let mut tags: Vec<_> = memory.regions().unwrap().iter().map(|r| r.tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 3]);
}

#[test]
fn a_directory_has_one_user_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let opened = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| open(dir.path()))).collect();
        let opened = threads.into_iter().map(|thread| thread.join().unwrap());
        opened.collect::<Vec<_>>()
    });
    let (users, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    assert_eq!(users.len(), 1);
    for error in refused {
        let MemoryError::Backing(BackingError::Arena(medium::ArenaError::Open(OpenError::InUse {
            holder,
            ..
        }))) = error.err().unwrap()
        else {
            panic!("it is in use");
        };
        assert_eq!(holder.unwrap().pid, std::process::id());
    }
    drop(users);
    open(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["regions"]);
}

#[test]
fn commits_on_a_disk_survive_power_failures_by_default() {
    let shm = Path::new("/dev/shm");
    let in_memory = shm.is_dir().then(|| tempfile::tempdir_in(shm).unwrap());
    let in_memory = in_memory.map(|dir| (dir, is_in_memory(shm).unwrap()));
    for (dir, is_in_memory) in std::iter::once(on_a_disk()).chain(in_memory) {
        let memory = open(dir.path()).unwrap();
        let is_process = memory.backing().durability() == EffectiveDurability::Process;
        assert_eq!(is_process, is_in_memory);
        assert_eq!(names(dir.path()), ["regions"]);
        drop(memory);
        let memory = open_as(dir.path(), &with(Durability::Process, false)).unwrap();
        assert_eq!(memory.backing().durability(), EffectiveDurability::Process);
        assert_eq!(dir.path().join("boot").exists(), !is_in_memory);
        drop(memory);
        assert_eq!(names(dir.path()), ["regions"]);
    }
}

#[test]
fn a_crash_of_the_machine_is_detected_where_durability_does_not_cover_it() {
    let (dir, is_in_memory) = on_a_disk();
    let note = dir.path().join("boot");
    let process = with(Durability::Process, false);
    let memory = open_as(dir.path(), &process).unwrap();
    assert_eq!(count(&memory), 1);
    let of_this_boot = std::fs::read(&note).ok();
    assert_eq!(of_this_boot.is_none(), is_in_memory);
    drop(memory);
    // A process was killed, but the machine did not crash.
    for durability in [Durability::Process, Durability::Msync] {
        if let Some(of_this_boot) = &of_this_boot {
            std::fs::write(&note, of_this_boot).unwrap();
        }
        let memory = open_as(dir.path(), &with(durability, false)).unwrap();
        assert_eq!(
            note.exists(),
            durability == Durability::Process && !is_in_memory
        );
        drop(memory);
        assert!(!note.exists());
    }
    let other = "selvedge boot 00000000-0000-0000-0000-000000000000\n";
    for durability in [Durability::Process, Durability::Msync] {
        std::fs::write(&note, other).unwrap();
        for _ in 0..2 {
            let refused = open_as(dir.path(), &with(durability, false)).err();
            let Some(MemoryError::Backing(BackingError::Crashed { directory })) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(directory, dir.path().canonicalize().unwrap());
        }
        let memory = open_as(dir.path(), &with(durability, true)).unwrap();
        let found = std::fs::read(&note).ok();
        assert_eq!(
            found,
            of_this_boot
                .clone()
                .filter(|_| durability == Durability::Process)
        );
        drop(memory);
        assert!(!note.exists());
    }
    assert_eq!(count(&open(dir.path()).unwrap()), 2);
}

#[test]
fn the_last_owner_removes_the_note() {
    let (dir, _) = on_a_disk();
    let memory = open_as(dir.path(), &with(Durability::Process, false)).unwrap();
    let (session, other) = (memory.session(), memory.session());
    drop(memory);
    drop(other);
    drop(session);
    assert_eq!(names(dir.path()), ["regions"]);
}

#[test]
fn a_file_at_the_path_of_the_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "none").unwrap();
    for path in [file.clone(), file.join("below")] {
        assert!(open(&path).is_err());
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"none");
}

#[test]
fn unfinished_files_of_dead_processes_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    // No process has this number.
    for name in ["region-0007.new-4194305-2", "regions.new-4194305-0"] {
        std::fs::write(dir.path().join(name), "half").unwrap();
    }
    std::fs::write(dir.path().join("somebody's own"), "").unwrap();
    let memory = open(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["regions", "somebody's own"]);
    drop(memory);
}

/// The file is larger than any current file system takes, so that the disk does not really fill up.
#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let large = DirectoryOptions {
        bytes: 1 << 46,
        ..options()
    };
    let memory = DurableMemory::open_directory(dir.path(), &large, Options::default()).unwrap();
    let refused = memory.map(RegionKind::Program, 1 << 45, 0, |_, _| Ok(()));
    assert!(
        matches!(
            refused,
            Err(MemoryError::Backing(BackingError::File(
                OpenError::System { .. }
            )))
        ),
        "{refused:?}"
    );
    assert_eq!(names(dir.path()), ["regions"]);
    memory
        .map(RegionKind::Program, 4096, 0, |_, _| Ok(()))
        .unwrap();
    assert_eq!(names(dir.path()), ["region-0000", "regions"]);
}

#[test]
fn a_region_without_its_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(dir.path()).unwrap();
    memory
        .map(RegionKind::Program, 8192, 0, |_, _| Ok(()))
        .unwrap();
    drop(memory);
    let file = dir.path().join("region-0000");
    std::fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(4096)
        .unwrap();
    for _ in 0..2 {
        let lost = open(dir.path()).err();
        let Some(MemoryError::Lost {
            slot: 0,
            len: 8192,
            what,
        }) = lost
        else {
            panic!("{lost:?}");
        };
        assert!(what.ends_with("region-0000"), "{what}");
        let _ = std::fs::remove_file(&file);
    }
}

#[test]
fn words_of_neighbours_are_written_together() {
    let dir = tempfile::tempdir().unwrap();
    let memory = open(dir.path()).unwrap();
    let map = |len| memory.map(RegionKind::Program, len, 0, |_, _| Ok(()));
    let (first, second) = (map(2 << 20).unwrap(), map(4096).unwrap());
    let last = second.start - 8;
    assert_eq!(first.start + first.len, second.start);
    let mut session = memory.session();
    for n in 1..4 {
        let stored = session.run(|tx| {
            tx.store(last, n)?;
            Ok::<_, Stop<()>>(tx.store(second.start, n)?)
        });
        stored.unwrap();
        memory.memory().truncate().unwrap();
    }
    drop((session, memory));
    let memory = open(dir.path()).unwrap();
    let pm = memory.backing().pmem();
    assert_eq!([last, second.start].map(|at| pm.load(at)), [Ok(3), Ok(3)]);
}
