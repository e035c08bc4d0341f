//! Inodes: their fields, numbers and sizes.

use super::{Bench, Outcome, Subject, Suite, ensure, is_no_space};
use crate::{Format, FormatError, InodeChange, NewInode};
use std::collections::HashSet;
use vfs::{Attr, Errno, FileType, Timestamp};

const KINDS: [FileType; 7] = [
    FileType::Fifo,
    FileType::CharDevice,
    FileType::Directory,
    FileType::BlockDevice,
    FileType::Regular,
    FileType::Symlink,
    FileType::Socket,
];

fn seconds(seconds: i64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

/// An inode has the fields that it was made with. A change of one field keeps the others.
pub(super) fn keep_their_fields<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    for kind in KINDS {
        let device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let new = NewInode {
            kind,
            perm: 0o6751,
            nlink: 2,
            uid: 70_001,
            gid: 80_002,
            rdev: if device { 0x1234 } else { 0 },
            now: seconds(1_500_000_000),
        };
        let root = bench.format.root();
        let (ino, _) = bench.steps(|op| bench.format.allocate_inode(op, root, &new))?;
        let found = bench.format.inode(ino)?;
        let Some(attr) = found else {
            return Err(format!("{kind:?}: the new inode {ino} is not in use").into());
        };
        let expected = Attr {
            ino,
            generation: attr.generation,
            kind,
            perm: new.perm,
            nlink: new.nlink,
            uid: new.uid,
            gid: new.gid,
            rdev: new.rdev,
            size: 0,
            blocks: 0,
            blksize: attr.blksize,
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
            flags: attr.flags,
        };
        ensure!(
            attr == expected,
            "a new inode is {attr:?}, not {expected:?}"
        );
        changes(&bench, expected)?;
        bench.unmake(ino)?;
        ensure!(
            bench.format.inode(ino)?.is_none(),
            "{kind:?}: inode {ino} is freed and in use"
        );
    }
    bench.audit()
}

/// Changes the fields one by one.
fn changes<S: Subject>(bench: &Bench<S>, mut expected: Attr) -> Outcome {
    let ino = expected.ino;
    let mut steps: Vec<InodeChange> = vec![InodeChange::default(); 7];
    steps[0].perm = Some(0o1326);
    steps[1].uid = Some(3);
    steps[2].gid = Some(100_000);
    steps[3].nlink = Some(5);
    steps[4].atime = Some(seconds(1));
    steps[5].mtime = Some(seconds(2_000_000_000));
    steps[6].ctime = Some(seconds(1_600_000_000));
    if expected.kind == FileType::Regular {
        let size = Some(3 * u64::from(bench.format.block_bytes()) + 1);
        steps.push(InodeChange {
            size,
            perm: Some(0o600),
            ..InodeChange::default()
        });
    }
    for change in steps {
        bench.steps(|op| bench.format.change_inode(op, ino, &change, &[]))?;
        expected.perm = change.perm.unwrap_or(expected.perm);
        expected.uid = change.uid.unwrap_or(expected.uid);
        expected.gid = change.gid.unwrap_or(expected.gid);
        expected.nlink = change.nlink.unwrap_or(expected.nlink);
        expected.size = change.size.unwrap_or(expected.size);
        expected.atime = change.atime.unwrap_or(expected.atime);
        expected.mtime = change.mtime.unwrap_or(expected.mtime);
        expected.ctime = change.ctime.unwrap_or(expected.ctime);
        let attr = bench.format.inode(ino)?;
        ensure!(
            attr == Some(expected),
            "after {change:?} an inode is {attr:?}, not {expected:?}"
        );
    }
    Ok(())
}

/// A number that is used again has another generation.
pub(super) fn are_used_again<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let free = bench.free()?;
    let mut seen = HashSet::new();
    for _ in 0..5 {
        let ino = bench.make(FileType::Regular)?;
        let attr = bench
            .format
            .inode(ino)?
            .ok_or("a new inode is not in use".to_owned())?;
        ensure!(
            seen.insert((ino, attr.generation)),
            "inode {ino} has its old generation"
        );
        ensure!(bench.free()?.1 == free.1 - 1, "a new inode is not counted");
        bench.unmake(ino)?;
        ensure!(
            bench.free()? == free,
            "a freed inode is not counted as free"
        );
    }
    bench.audit()
}

/// Without free inodes none is made, and the failure has no effect.
pub(super) fn run_out<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let free = bench.free()?;
    let mut made = HashSet::new();
    let failed = loop {
        match bench.make(FileType::Regular) {
            Ok(ino) => ensure!(made.insert(ino), "inode {ino} was in use and is given out"),
            failed => break failed,
        }
        ensure!(
            made.len() as u64 <= free.1,
            "there are more inodes than are free"
        );
    };
    ensure!(is_no_space(&failed), "without free inodes: {failed:?}");
    ensure!(
        bench.free()?.1 == 0,
        "no inode can be made, and some count as free"
    );
    ensure!(
        is_no_space(&bench.make(FileType::Regular)),
        "an inode was free after a failure"
    );
    for ino in made {
        bench.unmake(ino)?;
    }
    ensure!(
        bench.free()? == free,
        "freed inodes are not counted as free"
    );
    bench.audit()
}

/// The largest size can be set, and no larger one.
pub(super) fn have_a_largest_size<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let ino = bench.make(FileType::Regular)?;
    let most = bench.format.max_size();
    let resize = |size| {
        let change = InodeChange {
            size: Some(size),
            ..InodeChange::default()
        };
        bench.steps(|op| bench.format.change_inode(op, ino, &change, &[]))
    };
    resize(most)?;
    let attr = bench.format.inode(ino)?;
    ensure!(
        attr.is_some_and(|attr| attr.size == most),
        "the largest size was not set"
    );
    let failed = resize(most + 1);
    let refused = matches!(failed, Err(FormatError::Limit(Errno::FBIG)));
    ensure!(refused, "more than the largest size: {failed:?}");
    ensure!(
        bench.format.inode(ino)? == attr,
        "a size that was refused had an effect"
    );
    resize(0)?;
    bench.unmake(ino)?;
    bench.audit()
}

/// An orphan stays recorded until its record is removed.
pub(super) fn are_noted_as_orphans<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let inos = [(); 4].map(|()| bench.make(FileType::Regular));
    let inos = inos.into_iter().collect::<crate::Result<Vec<_>>>()?;
    ensure!(format.orphans()?.is_empty(), "a new image has orphans");
    for &ino in &inos {
        let unnamed = InodeChange {
            nlink: Some(0),
            ..InodeChange::default()
        };
        bench.steps(|op| format.change_inode(op, ino, &unnamed, &[]))?;
        bench.steps(|op| format.add_orphan(op, ino, &[]))?;
        bench.steps(|op| format.add_orphan(op, ino, &[]))?; // a repetition has no effect
    }
    // From the middle, the ends, then the last one.
    for at in [1, 0, 3, 2] {
        let ino = inos[at];
        ensure!(
            format.is_orphan(ino)?,
            "inode {ino} is not noted as an orphan"
        );
        bench.steps(|op| format.remove_orphan(op, ino, &[]))?;
        ensure!(
            !format.is_orphan(ino)?,
            "inode {ino} is still noted as an orphan"
        );
        ensure!(
            !format.orphans()?.contains(&ino),
            "the orphans still list inode {ino}"
        );
        bench.unmake(ino)?;
    }
    ensure!(format.orphans()?.is_empty(), "orphans are left");
    bench.audit()
}
