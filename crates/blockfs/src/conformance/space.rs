//! Free blocks: steps without room, and the reserved blocks.

use super::{Bench, Outcome, Subject, Suite, Wrong, ensure, is_no_space};
use crate::{Format, InodeChange};
use vfs::{FileType, Ino, Timestamp};

/// Writes blocks of new files until there is no room, or the inodes run out.
fn fill<S: Subject>(bench: &Bench<S>) -> Result<Vec<Ino>, Wrong> {
    let most = bench.format.max_size() / u64::from(bench.format.block_bytes());
    let mut files = Vec::new();
    loop {
        let ino = bench.make(FileType::Regular)?;
        files.push(ino);
        for index in 0..most {
            let before = state(bench, &files)?;
            let written = bench.write(ino, index, index as u8);
            if let Err(error) = written {
                ensure!(
                    is_no_space::<()>(&Err(error.clone())),
                    "a write without room: {error}"
                );
                let after = state(bench, &files)?;
                ensure!(
                    after == before,
                    "a write without room had an effect: {before:?}, then {after:?}"
                );
                return Ok(files);
            }
        }
    }
}

/// The counts that a step without room must not change.
fn state<S: Subject>(bench: &Bench<S>, files: &[Ino]) -> Result<(u64, u64, u64), Wrong> {
    let (blocks, inodes) = bench.free()?;
    let sectors = files
        .iter()
        .map(|ino| Ok(bench.format.inode(*ino)?.map_or(0, |attr| attr.blocks)));
    Ok((blocks, inodes, sectors.sum::<crate::Result<u64>>()?))
}

/// A step without room has no effect. Existing inodes, names and blocks can still be changed and
/// removed.
pub(super) fn runs_out_without_effect<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let root = format.root();
    // The file that `bench` shares its directory with.
    let (file, _) = bench.make_named(FileType::Regular, b"file")?;
    bench.write(file, 0, 1)?;
    let empty = bench.free()?;
    let mut files = fill(&bench)?;
    // Other files may still have room, and fill it.
    for index in 1..8 {
        if bench.write(file, index, 2).is_err() {
            break;
        }
    }
    bench.audit()?;
    let named = names_until_full(&bench, file)?;
    let times = InodeChange {
        mtime: Some(Timestamp(5_000_000_000)),
        ..InodeChange::default()
    };
    bench.steps(|op| format.change_inode(op, file, &times, &[]))?;
    for at in 0..named {
        bench.remove_named(name_of(at).as_bytes())?;
    }
    ensure!(
        format.find(root, b"file")? == Some(file),
        "a name is gone after a step without room"
    );
    for (at, ino) in files.drain(..).enumerate() {
        if at == 0 {
            contents(&bench, ino)?;
        }
        bench.unmake(ino)?;
    }
    bench.steps(|op| format.free_blocks(op, file, 1..u64::MAX, 100, &[]))?;
    // A directory may keep its blocks.
    let (blocks, inodes) = bench.free()?;
    let sectors = format.inode(root)?.map_or(0, |attr| attr.blocks);
    let kept = sectors * 512 / u64::from(format.block_bytes());
    ensure!(
        blocks + kept >= empty.0,
        "{blocks} blocks are free again, of {}",
        empty.0
    );
    ensure!(
        inodes == empty.1,
        "{inodes} inodes are free again, of {}",
        empty.1
    );
    bench.audit()
}

/// The blocks of a file hold what [`fill`] wrote.
fn contents<S: Subject>(bench: &Bench<S>, ino: Ino) -> Outcome {
    let mut index = 0;
    while bench.format.block_of(ino, index)?.is_some() {
        let right = bench
            .read(ino, index)?
            .iter()
            .all(|byte| *byte == index as u8);
        ensure!(right, "block {index} changed in a step without room");
        index += 1;
    }
    Ok(())
}

fn name_of(at: usize) -> String {
    format!("a name that takes room, so that directories grow {at}")
}

/// Adds names until the directory cannot grow. The failed one is not there.
fn names_until_full<S: Subject>(bench: &Bench<S>, ino: Ino) -> Result<usize, Wrong> {
    let format = &bench.format;
    let root = format.root();
    for at in 0..10_000 {
        let name = name_of(at);
        let before = bench.free()?;
        let added = bench
            .steps(|op| format.add_name(op, root, name.as_bytes(), ino, FileType::Regular, &[]));
        if let Err(error) = added {
            ensure!(
                is_no_space::<()>(&Err(error.clone())),
                "a name without room: {error}"
            );
            ensure!(
                format.find(root, name.as_bytes())?.is_none(),
                "a name without room is there"
            );
            ensure!(bench.free()? == before, "a name without room took blocks");
            return Ok(at);
        }
    }
    Err("a directory grows though no block is free"
        .to_owned()
        .into())
}

/// Reserved blocks are allocated only while the reserve may be used.
pub(super) fn is_kept<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let space = format.statfs()?;
    let reserve = format.reserve_blocks();
    let avail = space.blocks_free.saturating_sub(reserve);
    ensure!(
        space.blocks_avail == avail,
        "{} blocks are available, not {avail}",
        space.blocks_avail
    );
    if reserve == 0 {
        return Ok(());
    }
    format.keep_reserve(true);
    let files = fill(&bench)?;
    let left = bench.free()?.0;
    ensure!(
        left >= reserve,
        "{left} blocks are left of {reserve} that are kept"
    );
    format.keep_reserve(false);
    let other = bench.make(FileType::Regular)?;
    let written = bench.write(other, 0, 1);
    ensure!(
        written.is_ok(),
        "the blocks that are kept cannot be had: {written:?}"
    );
    for ino in files.into_iter().chain([other]) {
        bench.unmake(ino)?;
    }
    bench.audit()
}
