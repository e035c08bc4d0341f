//! Random calls on a mounted image, and crashes with some of the changes durable.
//!
//! After each crash U1 to U4 of [`BlockFs`] hold:
//! - names lead to inodes of their type;
//! - files hold no bytes of others;
//! - no block has two owners, and no free block has one.

use super::blocks::poison;
use super::disks::Disks;
use super::{Bench, Outcome, Subject, Suite, Wrong, ensure};
use crate::{BlockFs, BlockFsOptions, Format};
use fastrand::Rng;
use medium::block::Lba;
use patch::stack::Mode;
use patch::{Forgetful, Store};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use vfs::{
    Atomicity, Attr, Cookie, Ctx, Durability, FileSystem, FileType, Guarantees, Ino, Name,
    Ordering, RenameFlags,
};

/// Scripts of random calls, and calls of each.
const SCRIPTS: u64 = 8;
const CALLS: usize = 60;

pub(super) fn leave_what_can_be_used<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let mut replayed = 0;
    for seed in 0..SCRIPTS {
        let bench = Bench::new(suite)?;
        replayed +=
            run(suite, bench, seed).map_err(|Wrong(what)| format!("seed {seed}: {what}"))?;
    }
    ensure!(
        replayed > 0 || suite.stack.journal().is_none(),
        "no crash left a transaction to replay"
    );
    Ok(())
}

/// The same, with each call stopped at each block that it needs, and repeated. A step that stops
/// before the first change has changed nothing.
pub(super) fn are_survived_by_attempts<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    for seed in SCRIPTS..SCRIPTS + 2 {
        let forgetful = |store| Arc::new(Forgetful::new(store)) as Arc<dyn Store>;
        let bench = Bench::mount_on(suite, Disks::new(suite)?, forgetful)?;
        run(suite, bench, seed).map_err(|Wrong(what)| format!("seed {seed}: {what}"))?;
    }
    Ok(())
}

fn options() -> BlockFsOptions {
    BlockFsOptions::new(Guarantees {
        name: "conformance".to_owned(),
        durable: Durability::AtFsync,
        metadata_atomic: Atomicity::None,
        data_atomic: Atomicity::None,
        metadata_ordered: Ordering::None,
        data_ordered: Ordering::None,
        times_atomic: false,
        notes: Vec::new(),
    })
}

/// Makes random calls, and checks the state that crashes between them would leave. Returns the
/// number of transactions that were replayed after the crashes.
fn run<S: Subject>(suite: &Suite<'_, S>, bench: Bench<S>, seed: u64) -> Result<u64, Wrong> {
    poison(&bench)?;
    let Bench {
        disks,
        cache,
        journal,
        format,
    } = bench;
    // A journal of metadata promises nothing about contents.
    let keeps_contents = suite.stack.mode() != Mode::JournalMetadata;
    let block_bytes = format.block_bytes();
    let fs = BlockFs::open(format, options())?;
    let mut rng = Rng::with_seed(seed);
    let mut replayed = 0;
    for _ in 0..CALLS {
        call(&fs, &mut rng, u64::from(block_bytes));
        cache.verify()?;
        if let Some(finding) = fs.audit().first() {
            return Err(finding.to_string().into());
        }
        for _ in 0..rng.u8(..3) {
            if let Some(journal) = &journal
                && rng.u8(..3) == 0
            {
                journal.commit()?;
            }
            let most = 1 + rng.usize(..4);
            cache.write_drawn(most, &mut |below| rng.usize(..below))?;
            let crashed = Bench::mount(suite, disks.crashed()?)?;
            replayed += crashed.disks.replayed;
            let owners = judge(&crashed, keeps_contents)?;
            if rng.u8(..6) == 0 {
                fill(&crashed, &owners)?;
            }
        }
    }
    fs.close()?;
    Ok(replayed)
}

/// The byte that fills a file, apart from zeros. It depends on the inode and the generation.
fn tag(attr: &Attr) -> u8 {
    let mixed = (attr.ino.0 * 31 + attr.generation).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 | 1
}

const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"a longer name", b"d"];

/// Makes a random call, which may fail.
fn call<F: Format>(fs: &BlockFs<F>, rng: &mut Rng, block: u64) {
    let cx = Ctx::root();
    let name = *rng.choice(&NAMES).unwrap_or(&NAMES[0]);
    let dir = match rng.bool() {
        true => fs
            .lookup(&cx, Ino::ROOT, b"d")
            .map_or(Ino::ROOT, |attr| attr.ino),
        false => Ino::ROOT,
    };
    let file = fs.lookup(&cx, dir, name).ok();
    let rename = |new: &[u8]| {
        let (from, to) = (Name::new(dir, name), Name::new(Ino::ROOT, new));
        fs.rename(&cx, from, to, RenameFlags::empty())
    };
    let regular = file.filter(|attr| attr.kind == FileType::Regular);
    let _ = match (rng.u8(..13), regular) {
        (0..=2, Some(attr)) => {
            let off = rng.u64(..12 * block);
            let data = vec![tag(&attr); rng.usize(1..4 * block as usize)];
            fs.write(&cx, attr.ino, off, &data).map(drop)
        }
        (3, Some(attr)) => fs
            .write(&cx, attr.ino, attr.size, &vec![tag(&attr); 700])
            .map(drop),
        (4 | 5, Some(attr)) => fs.truncate(&cx, attr.ino, rng.u64(..10 * block)),
        (6, Some(attr)) => fs.fsync(&cx, attr.ino, rng.bool()),
        (7, Some(_)) => fs.unlink(&cx, dir, name),
        (8, Some(attr)) => fs
            .link(&cx, attr.ino, Ino::ROOT, b"b")
            .map(|linked| fs.forget(linked.ino, 1)),
        (9, _) => rename(b"c"),
        (10, _) => fs
            .mkdir(&cx, Ino::ROOT, b"d", 0o755)
            .map(|made| fs.forget(made.ino, 1)),
        (11, _) => fs.rmdir(&cx, Ino::ROOT, b"d"),
        (12, _) => rename(b"d"),
        _ => fs
            .create(&cx, dir, name, 0o644)
            .map(|made| fs.forget(made.ino, 1)),
    };
    // The references that the lookups took.
    let taken = file
        .map(|attr| attr.ino)
        .into_iter()
        .chain((dir != Ino::ROOT).then_some(dir));
    taken.for_each(|ino| fs.forget(ino, 1));
}

/// The file of each block.
type Owners = HashMap<Lba, Ino>;

/// Checks the state after a crash. Returns the owners of blocks.
fn judge<S: Subject>(bench: &Bench<S>, keeps_contents: bool) -> Result<Owners, Wrong> {
    let format = &bench.format;
    let mut names: HashMap<Ino, u32> = HashMap::new();
    let mut left = vec![format.root()];
    let mut seen: HashSet<Ino> = left.iter().copied().collect();
    let mut owners = Owners::new();
    while let Some(dir) = left.pop() {
        own_blocks(bench, dir, &mut owners)?;
        for (name, ino, kind) in entries(bench, dir)? {
            let attr = format.inode(ino)?;
            let Some(attr) = attr.filter(|attr| attr.kind == kind) else {
                return Err(format!(
                    "{name:?} leads to inode {ino} as a {kind:?}, which is {attr:?}"
                )
                .into());
            };
            *names.entry(ino).or_default() += 1;
            if !seen.insert(ino) {
                continue;
            }
            if kind == FileType::Directory {
                left.push(ino);
            } else {
                own_blocks(bench, ino, &mut owners)?;
                if keeps_contents {
                    own_bytes(bench, &attr)?;
                }
            }
        }
    }
    for (ino, names) in names {
        let links = format.inode(ino)?.map_or(0, |attr| attr.nlink);
        ensure!(
            links >= names,
            "inode {ino} has {names} names and {links} links"
        );
    }
    Ok(owners)
}

/// Checks that no block of a file is allocated again.
fn fill<S: Subject>(bench: &Bench<S>, owners: &Owners) -> Outcome {
    let format = &bench.format;
    let Ok(filler) = bench.make(FileType::Regular) else {
        return Ok(()); // no inode is free
    };
    for index in 0..format.max_size() / u64::from(format.block_bytes()) {
        if bench.write(filler, index, 0xcc).is_err() {
            break;
        }
        let lba = format.block_of(filler, index)?;
        let owner = lba.and_then(|lba| owners.get(&lba));
        ensure!(
            owner.is_none(),
            "{lba:?} counts as free and belongs to {owner:?}"
        );
    }
    Ok(())
}

type Entry = (Vec<u8>, Ino, FileType);

fn entries<S: Subject>(bench: &Bench<S>, dir: Ino) -> Result<Vec<Entry>, Wrong> {
    let mut found: Vec<Entry> = Vec::new();
    bench.format.list(dir, Cookie(0), &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            found.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    })?;
    let distinct: HashSet<_> = found.iter().map(|(name, ..)| name).collect();
    ensure!(
        distinct.len() == found.len(),
        "directory {dir} has a name twice: {found:?}"
    );
    Ok(found)
}

fn own_blocks<S: Subject>(bench: &Bench<S>, ino: Ino, owners: &mut Owners) -> Outcome {
    let mut index = 0;
    while let Some(at) = bench.format.next_block(ino, index, u64::MAX)? {
        if let Some(lba) = bench.format.block_of(ino, at)? {
            let other = owners.insert(lba, ino);
            ensure!(
                other.is_none(),
                "block {lba} belongs to inode {ino} and to {other:?}"
            );
        }
        index = at + 1;
    }
    Ok(())
}

/// Checks that a file holds bytes of its own, and zeros.
fn own_bytes<S: Subject>(bench: &Bench<S>, attr: &Attr) -> Outcome {
    if attr.kind != FileType::Regular {
        return Ok(());
    }
    let block = u64::from(bench.format.block_bytes());
    let tag = tag(attr);
    let mut index = 0;
    while let Some(at) = bench
        .format
        .next_block(attr.ino, index, attr.size.div_ceil(block))?
    {
        let len = (attr.size - at * block).min(block) as usize;
        let contents = bench.read(attr.ino, at)?;
        let own = contents[..len]
            .iter()
            .all(|byte| *byte == 0 || *byte == tag);
        ensure!(
            own,
            "block {at} of inode {} has bytes of another file",
            attr.ino
        );
        index = at + 1;
    }
    Ok(())
}
