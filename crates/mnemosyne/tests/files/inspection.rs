//! Inspection of durable memory, which does not change it.

use mnemosyne::memory::{
    Directory, DirectoryOptions, DurableMemory, Inspection, Layout, MemoryError, Options,
    RegionKind, Session,
};
use mnemosyne::tx::Stop;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

const BASE: u64 = 0x1000_0000_0000;

fn open(path: &Path) -> Session<Directory> {
    let directory = DirectoryOptions {
        layout: Layout {
            logs: 1,
            log_bytes: 64 << 10,
            ..Layout::default()
        },
        ..DirectoryOptions::default()
    };
    let options = Options {
        heap_growth: 1 << 20,
        ..Options::default()
    };
    let memory = DurableMemory::open_directory(path, &directory, options).unwrap();
    memory.session()
}

fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap();
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

/// Makes a chain of three blocks from a root: by offset, then by address. Makes a fourth block that
/// nothing points to. Returns all four.
fn fill(session: &mut Session<Directory>) -> [u64; 4] {
    let made = session.run(|tx| {
        let mut blocks = [0; 4];
        for (n, bytes) in [64, 100, 20_000, 40].into_iter().enumerate() {
            blocks[n] = tx.alloc(bytes)?;
            for word in (blocks[n]..blocks[n] + bytes / 8 * 8).step_by(8) {
                if bytes < 20_000 || word == blocks[n] {
                    tx.store(word, 0)?;
                }
            }
        }
        assert!(tx.set_root("one", 7, blocks[0])?);
        tx.store(blocks[0] + 8, blocks[1])?;
        // Into the middle of the block.
        tx.store(blocks[1] + 16, BASE + blocks[2] + 8)?;
        Ok::<_, Stop<Infallible>>(blocks)
    });
    made.unwrap()
}

#[test]
fn inspection_finds_lost_blocks_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = open(dir.path());
    let [first, second, third, lost] = fill(&mut session);
    // Nothing was truncated: the words are in the log, and perhaps not durable at their addresses.
    drop(session);
    let before = contents(dir.path());

    let inspection = Inspection::open(dir.path()).unwrap();
    let roots = inspection.roots().unwrap();
    assert_eq!(roots.len(), 1);
    assert_eq!(
        (&*roots[0].name, roots[0].layout, roots[0].off),
        ("one", 7, first)
    );
    let blocks = inspection.blocks(BASE).unwrap();
    let reached = |off: u64| {
        let mut found = blocks.iter().filter(|block| block.off == off);
        found.next().unwrap().is_reached
    };
    assert_eq!(blocks.len(), 4);
    assert!(reached(first) && reached(second) && reached(third) && !reached(lost));
    let other_base = inspection.blocks(0).unwrap();
    assert_eq!(
        other_base.iter().filter(|block| !block.is_reached).count(),
        2
    );
    drop(inspection);
    assert!(before == contents(dir.path()), "something was changed");
}

#[test]
fn blocks_are_reached_from_regions_of_programs() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = open(dir.path());
    let [.., lost] = fill(&mut session);
    let memory = session.memory().clone();
    let region = memory.map(RegionKind::Program, 4096, 0, |_, _| Ok(()));
    let region = region.unwrap();
    let stored = session.run(|tx| Ok::<_, Stop<Infallible>>(tx.store(region.start + 8, lost)?));
    stored.unwrap();
    drop((session, memory));
    let inspection = Inspection::open(dir.path()).unwrap();
    assert_eq!(inspection.regions().unwrap().len(), 2);
    assert!(
        inspection
            .blocks(BASE)
            .unwrap()
            .iter()
            .all(|block| block.is_reached)
    );
}

#[test]
fn inspection_makes_no_files_and_respects_locks() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Inspection::open(dir.path().join("missing"));
    assert!(matches!(missing, Err(MemoryError::Backing(_))));
    assert!(!dir.path().join("missing").exists());
    let empty = Inspection::open(dir.path());
    assert!(matches!(empty, Err(MemoryError::Backing(_))));
    assert_eq!(contents(dir.path()).len(), 0);
    let session = open(dir.path());
    let in_use = Inspection::open(dir.path()).err().unwrap().to_string();
    assert!(in_use.contains("in use"), "{in_use}");
    drop(session);
}
