//! The state after an unmount, and after a crash that follows a sync.

use super::{Bench, Outcome, Subject, Suite, ensure};
use crate::{Format, Heads, InodeChange};
use vfs::{FileType, Ino, Timestamp};

/// An unmount keeps all changes and counts, and marks the image as clean.
pub(super) fn survives_unmounts<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    ensure!(bench.format.was_clean(), "a new image was not unmounted");
    let (dir, _) = bench.make_named(FileType::Directory, b"dir")?;
    let (file, _) = bench.make_named(FileType::Regular, b"file")?;
    let inner = bench.make(FileType::Fifo)?;
    bench.steps(|op| {
        bench
            .format
            .add_name(op, dir, b"inner", inner, FileType::Fifo, &[])
    })?;
    for index in 0..20 {
        bench.write(file, index, 9)?;
    }
    bench.sync()?;
    let same = |again: &Bench<S>| -> Outcome {
        let (old, new) = (&bench.format, &again.format);
        let root = new.root();
        ensure!(new.find(root, b"dir")? == Some(dir), "a directory is gone");
        ensure!(
            new.find(dir, b"inner")? == Some(inner),
            "a name in a directory is gone"
        );
        ensure!(new.parent(dir)? == root, "'..' leads elsewhere");
        for ino in [root, dir, file, inner] {
            let (then, now) = (old.inode(ino)?, new.inode(ino)?);
            ensure!(now == then, "inode {ino} is {now:?}, and was {then:?}");
        }
        for index in 0..20 {
            ensure!(
                again.read(file, index)? == bench.read(file, index)?,
                "block {index} is another one"
            );
        }
        let (then, now) = (bench.free()?, again.free()?);
        ensure!(
            now == then,
            "{now:?} blocks and inodes are free, and were {then:?}"
        );
        again.audit()
    };
    let crashed = bench.crashed(suite)?;
    let shows = !crashed.format.was_clean() || crashed.format.store().is_atomic();
    ensure!(shows, "an image that was not unmounted says that it was");
    same(&crashed)?;
    bench.format.close()?;
    let again = bench.crashed(suite)?;
    ensure!(
        again.format.was_clean(),
        "an image that was unmounted says that it was not"
    );
    same(&again)?;
    again.format.mark_damaged()?;
    Ok(())
}

/// A step is there after a crash once the patches that it returned are durable.
pub(super) fn keeps_synced_steps<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let mut bench = Bench::new(suite)?;
    let root = bench.format.root();
    let (file, _) = bench.make_named(FileType::Regular, b"file")?;
    let (dir, _) = bench.make_named(FileType::Directory, b"dir")?;
    bench.write(file, 0, 1)?;
    bench.sync()?;
    for step in STEPS {
        let patches = step.run(&bench, file, dir)?;
        bench.format.store().sync(&patches)?;
        let after = bench.crashed(suite)?;
        let found = step.is_done(&after.format, &after, file, dir)?;
        ensure!(
            found,
            "{step:?}: the patches are durable, and a crash loses the step"
        );
        ensure!(
            after.format.find(root, b"dir")?.is_some(),
            "{step:?}: another name is gone"
        );
        // Each step begins in a mount of its own, so that nothing else is pending.
        bench.sync()?;
        bench.format.close()?;
        bench = bench.crashed(suite)?;
    }
    Ok(())
}

/// Steps in this order.
const STEPS: [Step; 10] = [
    Step::Overwrite,
    Step::FillHole,
    Step::Grow,
    Step::AddName,
    Step::ReplaceName,
    Step::RemoveName,
    Step::ChangeTimes,
    Step::SetParent,
    Step::FreeBlocks,
    Step::AddMany,
];

#[derive(Debug, Clone, Copy)]
enum Step {
    Overwrite,
    FillHole,
    Grow,
    AddName,
    ReplaceName,
    RemoveName,
    ChangeTimes,
    SetParent,
    FreeBlocks,
    AddMany,
}

impl Step {
    /// Takes the step. Returns the patches that an fsync would wait for.
    fn run<S: Subject>(self, bench: &Bench<S>, file: Ino, dir: Ino) -> crate::Result<Heads> {
        let format = &bench.format;
        let root = format.root();
        let kind = FileType::Regular;
        let one = |patch| Heads::from_slice(&[patch]);
        match self {
            Self::Overwrite => bench.write(file, 0, 2),
            Self::FillHole => bench.write(file, 13, 3),
            Self::Grow | Self::ChangeTimes => {
                let bytes = 20 * u64::from(format.block_bytes());
                let change = InodeChange {
                    size: matches!(self, Self::Grow).then_some(bytes),
                    mtime: Some(Timestamp(7_000_000_000)),
                    ..InodeChange::default()
                };
                let changed = bench.steps(|op| format.change_inode(op, file, &change, &[]))?;
                Ok(one(changed))
            }
            Self::AddName => {
                let added = bench.steps(|op| format.add_name(op, root, b"new", file, kind, &[]))?;
                Ok(one(added))
            }
            Self::ReplaceName => {
                let kind = FileType::Directory;
                let replaced =
                    bench.steps(|op| format.replace_name(op, root, b"new", dir, kind, &[]))?;
                Ok(one(replaced.patch))
            }
            Self::RemoveName => {
                let removed = bench.steps(|op| format.remove_name(op, root, b"new", &[]))?;
                Ok(one(removed.patch))
            }
            Self::SetParent => {
                let set = bench.steps(|op| format.set_parent(op, dir, dir, &[]))?;
                Ok(one(set))
            }
            Self::FreeBlocks => {
                let freed = bench.steps(|op| format.free_blocks(op, file, 13..u64::MAX, 9, &[]))?;
                Ok(freed.removed)
            }
            // Enough names for the directory to grow.
            Self::AddMany => {
                let mut added = Heads::new();
                for at in 0..MANY {
                    let name = name_of(at);
                    added
                        .push(bench.steps(|op| format.add_name(op, root, &name, file, kind, &[]))?);
                }
                Ok(added)
            }
        }
    }

    fn is_done<S: Subject>(
        self,
        format: &S::Format,
        bench: &Bench<S>,
        file: Ino,
        dir: Ino,
    ) -> crate::Result<bool> {
        let root = format.root();
        let attr = format.inode(file)?;
        let has = |index, byte: u8| -> crate::Result<bool> {
            Ok(bench.read(file, index)?.iter().all(|found| *found == byte))
        };
        Ok(match self {
            Self::Overwrite => has(0, 2)?,
            Self::FillHole => has(13, 3)?,
            Self::Grow => {
                attr.is_some_and(|attr| attr.size == 20 * u64::from(format.block_bytes()))
            }
            Self::AddName => format.find(root, b"new")? == Some(file),
            Self::ReplaceName => format.find(root, b"new")? == Some(dir),
            Self::RemoveName => format.find(root, b"new")?.is_none(),
            Self::ChangeTimes => attr.is_some_and(|attr| attr.mtime == Timestamp(7_000_000_000)),
            Self::SetParent => format.parent(dir)? == dir,
            Self::FreeBlocks => has(13, 0)?,
            Self::AddMany => {
                let mut all = true;
                for at in 0..MANY {
                    all &= format.find(root, &name_of(at))? == Some(file);
                }
                all
            }
        })
    }
}

const MANY: usize = 40;

fn name_of(at: usize) -> Vec<u8> {
    format!("one of many names, each of them rather long {at}").into_bytes()
}
