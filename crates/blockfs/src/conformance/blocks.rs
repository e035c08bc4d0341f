//! Blocks of files: written, read, found and freed.

use super::{Bench, Outcome, Subject, Suite, Wrong, ensure};
use crate::{Format, InodeChange, Piece};
use fastrand::Rng;
use std::collections::HashMap;
use vfs::{FileType, Ino};

/// A piece that is written into a hole is surrounded by zeros. The other blocks stay holes or read
/// as zeros.
pub(super) fn fill_holes_with_zeros<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    poison(&bench)?;
    let ino = bench.make(FileType::Regular)?;
    let block = bench.format.block_bytes() as usize;
    let last = bench.format.max_size() / block as u64 - 1;
    let pieces: &[(u64, usize, usize)] = &[
        (0, 1, 1),
        (2, block - 3, 3),
        (5, 0, 10),
        (20.min(last), 0, block),
        (last, 7, 100),
    ];
    resize(&bench, ino, bench.format.max_size())?;
    for &(index, at, len) in pieces {
        let bytes = vec![0xaa; len];
        let piece = Piece {
            at: at as u32,
            bytes: &bytes,
        };
        bench.steps(|op| bench.format.write_block(op, ino, index, piece, &[]))?;
        let found = bench.format.block_of(ino, index)?;
        ensure!(
            found.is_some(),
            "block {index} is a hole after it was written"
        );
        let mut expected = vec![0; block];
        expected[at..at + len].fill(0xaa);
        ensure!(
            bench.read(ino, index)? == expected,
            "block {index} has other bytes than were written"
        );
    }
    for index in (0..24).chain(last - 3..last) {
        if pieces.iter().all(|(written, ..)| *written != index) {
            let zeros = bench.read(ino, index)?.iter().all(|byte| *byte == 0);
            ensure!(zeros, "block {index} was not written and has contents");
        }
    }
    bench.unmake(ino)?;
    bench.audit()
}

/// Fills all free blocks with a byte that no file has, and frees them.
pub(super) fn poison<S: Subject>(bench: &Bench<S>) -> Outcome {
    let mut made = Vec::new();
    'files: while let Ok(ino) = bench.make(FileType::Regular) {
        made.push(ino);
        for index in 0..bench.format.max_size() / u64::from(bench.format.block_bytes()) {
            if bench.write(ino, index, 0xdd).is_err() {
                break 'files;
            }
        }
    }
    for ino in made {
        bench.unmake(ino)?;
    }
    bench.sync()
}

pub(super) fn resize<S: Subject>(bench: &Bench<S>, ino: Ino, size: u64) -> Outcome {
    let change = InodeChange {
        size: Some(size),
        ..InodeChange::default()
    };
    bench.steps(|op| bench.format.change_inode(op, ino, &change, &[]))?;
    Ok(())
}

/// The expected state of a file.
struct File {
    ino: Ino,
    size: u64,
    /// Contents of blocks that are not zeros.
    blocks: HashMap<u64, Vec<u8>>,
}

/// Most blocks of a file in random steps.
const BLOCKS: u64 = 40;

/// Random writes, cuts and holes in several files leave the expected contents in each.
pub(super) fn hold_what_was_written<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    for seed in 0..4 {
        let bench = Bench::new(suite)?;
        poison(&bench)?;
        let before = bench.free()?;
        let mut rng = Rng::with_seed(seed);
        let mut files = Vec::new();
        for _ in 0..3 {
            let ino = bench.make(FileType::Regular)?;
            files.push(File {
                ino,
                size: 0,
                blocks: HashMap::new(),
            });
        }
        for step in 0..120 {
            let file = rng.usize(..files.len());
            let done = change(&bench, &mut files[file], &mut rng);
            done.map_err(|Wrong(what)| format!("seed {seed}, step {step}: {what}"))?;
            if rng.u8(..8) == 0 {
                bench.cache.write_some()?;
            }
            if step % 10 == 9 {
                compare(&bench, &files)
                    .map_err(|Wrong(what)| format!("seed {seed}, step {step}: {what}"))?;
            }
        }
        for file in &files {
            bench.unmake(file.ino)?;
        }
        ensure!(
            bench.free()? == before,
            "seed {seed}: blocks of removed files do not count as free"
        );
        bench.audit()?;
    }
    Ok(())
}

/// One random change of a file, as `BlockFs` would make it.
fn change<S: Subject>(bench: &Bench<S>, file: &mut File, rng: &mut Rng) -> Outcome {
    let block = u64::from(bench.format.block_bytes());
    let index = rng.u64(..BLOCKS);
    match rng.u8(..8) {
        // A write, mostly near the end, with the size after it.
        0..=4 => {
            let index = match rng.bool() {
                true => (file.size / block).min(BLOCKS - 1),
                false => index,
            };
            let at = rng.usize(..block as usize);
            let len = rng.usize(1..=block as usize - at);
            let bytes = vec![rng.u8(1..); len];
            let room = bench.format.room_for(file.ino, index, index + 1)?;
            let free = bench.free()?.0;
            let piece = Piece {
                at: at as u32,
                bytes: &bytes,
            };
            bench.steps(|op| bench.format.write_block(op, file.ino, index, piece, &[]))?;
            let took = free.saturating_sub(bench.free()?.0);
            ensure!(
                took <= room,
                "a block took {took} free ones, and the room for it was {room}"
            );
            let expected = file
                .blocks
                .entry(index)
                .or_insert_with(|| vec![0; block as usize]);
            expected[at..at + len].copy_from_slice(&bytes);
            let end = index * block + (at + len) as u64;
            if end > file.size {
                file.size = end;
                resize(bench, file.ino, end)?;
            }
        }
        // A hole.
        5 | 6 => {
            let to = rng.u64(index..=BLOCKS);
            free(bench, file.ino, index..to, rng.u32(1..8))?;
            file.blocks.retain(|at, _| !(index..to).contains(at));
        }
        // Another size.
        _ => {
            let size = rng.u64(..=BLOCKS * block);
            resize(bench, file.ino, size)?;
            if size < file.size {
                free(bench, file.ino, size.div_ceil(block)..u64::MAX, 4)?;
                file.blocks.retain(|at, _| at * block < size);
            }
            file.size = size;
        }
    }
    Ok(())
}

/// Frees a range, in as many steps as that takes.
fn free<S: Subject>(
    bench: &Bench<S>,
    ino: Ino,
    range: std::ops::Range<u64>,
    budget: u32,
) -> Outcome {
    for _ in 0..1000 {
        let freed = bench.steps(|op| {
            bench
                .format
                .free_blocks(op, ino, range.clone(), budget, &[])
        })?;
        if !freed.more {
            return Ok(());
        }
    }
    Err("freeing a range does not end".to_owned().into())
}

/// Compares all contents, and checks that no block is in two places.
fn compare<S: Subject>(bench: &Bench<S>, files: &[File]) -> Outcome {
    let format = &bench.format;
    let mut owners = HashMap::new();
    for File { ino, blocks, size } in files {
        let mut there = Vec::new();
        for index in 0..BLOCKS {
            if let Some(lba) = format.block_of(*ino, index)? {
                there.push(index);
                let other = owners.insert(lba, (*ino, index));
                ensure!(
                    other.is_none(),
                    "block {lba} is block {index} of inode {ino}, and of {other:?}"
                );
            }
            let found = bench.read(*ino, index)?;
            let right = match blocks.get(&index) {
                Some(expected) => found == *expected,
                None => found.iter().all(|byte| *byte == 0),
            };
            ensure!(
                right,
                "block {index} of inode {ino} has other contents than were written"
            );
        }
        let attr = format.inode(*ino)?.ok_or("a file is gone".to_owned())?;
        ensure!(
            attr.size == *size,
            "inode {ino} has {} bytes, not {size}",
            attr.size
        );
        let least = there.len() as u64 * u64::from(format.block_bytes()) / 512;
        ensure!(
            attr.blocks >= least,
            "inode {ino} counts {} sectors of {least}",
            attr.blocks
        );
        for index in 0..BLOCKS {
            let next = there.iter().copied().find(|at| *at >= index);
            let found = format.next_block(*ino, index, BLOCKS)?;
            ensure!(
                found == next,
                "from block {index} on the next is {next:?}, not {found:?}"
            );
            let hole = (index..BLOCKS).find(|at| !there.contains(at));
            let found = format.next_hole(*ino, index, BLOCKS)?;
            ensure!(
                found == hole,
                "from block {index} on the next hole is {hole:?}, not {found:?}"
            );
        }
    }
    bench.audit()
}

/// A range is freed from its end backwards, in steps of the budget.
pub(super) fn are_freed_in_parts<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let (empty, ino) = (bench.free()?, bench.make(FileType::Regular)?);
    for index in 0..30 {
        bench.write(ino, index, 7)?;
    }
    let mut last = format.next_hole(ino, 0, u64::MAX)?;
    let mut steps = 0;
    loop {
        let freed = bench.steps(|op| format.free_blocks(op, ino, 10..u64::MAX, 3, &[]))?;
        steps += 1;
        ensure!(!freed.removed.is_empty(), "blocks were freed by no patch");
        let hole = format.next_hole(ino, 0, u64::MAX)?;
        ensure!(hole < last, "a step has freed nothing at the end");
        last = hole;
        if !freed.more {
            break;
        }
    }
    ensure!(
        steps > 1,
        "20 blocks were freed at once, and the budget is 3"
    );
    ensure!(
        last == Some(10),
        "blocks from 10 on are freed, and the first hole is {last:?}"
    );
    for index in 0..10 {
        ensure!(
            bench.read(ino, index)?.iter().all(|byte| *byte == 7),
            "block {index} was freed as well"
        );
    }
    bench.unmake(ino)?;
    ensure!(bench.free()? == empty, "freed blocks do not count as free");
    bench.audit()
}
