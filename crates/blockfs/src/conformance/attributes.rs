//! Extended attributes, and targets of symbolic links.

use super::{Bench, Outcome, Subject, Suite, ensure};
use crate::{Format, FormatError, Piece};
use vfs::{Errno, FileType};

/// Attributes are replaced as a whole, and their room is freed when they are removed.
pub(super) fn are_replaced<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let ino = bench.make(FileType::Regular)?;
    let empty = bench.free()?;
    ensure!(
        format.attributes(ino)?.is_empty(),
        "a new inode has attributes"
    );
    let set = |all: &[(Vec<u8>, Vec<u8>)]| bench.steps(|op| format.set_attributes(op, ino, all));
    let one = |name: &str, len: usize| (format!("user.{name}").into_bytes(), vec![len as u8; len]);
    let lists = [
        vec![one("a", 3)],
        vec![one("b", 0), one("a", 40)],
        vec![one("c", 100)],
    ];
    for list in &lists {
        match set(list) {
            Err(FormatError::Limit(Errno::OPNOTSUPP)) => return Ok(()),
            done => drop(done?),
        }
        let (mut found, mut expected) = (format.attributes(ino)?, list.clone());
        found.sort();
        expected.sort();
        ensure!(
            found == expected,
            "the attributes are {found:?}, not {expected:?}"
        );
    }
    let before = (bench.free()?, format.inode(ino)?);
    let failed = set(&[one("huge", 1 << 20)]);
    ensure!(
        matches!(failed, Err(FormatError::Limit(_))),
        "attributes of 1 MiB: {failed:?}"
    );
    let found = format.attributes(ino)?;
    ensure!(
        found == lists[2],
        "attributes that were refused had an effect: {found:?}"
    );
    ensure!(
        (bench.free()?, format.inode(ino)?) == before,
        "attributes that were refused took room"
    );
    set(&[])?;
    ensure!(format.attributes(ino)?.is_empty(), "attributes are left");
    ensure!(
        bench.free()? == empty,
        "attributes that were removed keep their room"
    );
    set(&lists[0])?;
    bench.unmake(ino)?;
    ensure!(bench.free()?.0 == empty.0, "attributes outlive their inode");
    bench.audit()
}

/// Targets up to the longest are kept, in the inode or in a block.
pub(super) fn have_a_longest_target<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let empty = bench.free()?;
    let most = format.max_inline_target();
    for len in [1, most / 2, most].into_iter().filter(|len| *len > 0) {
        let ino = bench.make(FileType::Symlink)?;
        let target = vec![b'/' + (len % 50) as u8; len];
        bench.steps(|op| format.set_inline_target(op, ino, &target))?;
        ensure!(
            format.inline_target(ino)? == Some(target),
            "a target of {len} bytes is another one"
        );
        let size = format.inode(ino)?.map(|attr| attr.size);
        ensure!(
            size == Some(len as u64),
            "a target of {len} bytes has the size {size:?}"
        );
        ensure!(
            format.block_of(ino, 0)?.is_none(),
            "a target in the inode is taken for pointers"
        );
        bench.unmake(ino)?;
    }
    let ino = bench.make(FileType::Symlink)?;
    let before = format.inode(ino)?;
    let failed = bench.steps(|op| format.set_inline_target(op, ino, &vec![b'x'; most + 1]));
    ensure!(
        matches!(failed, Err(FormatError::Limit(_))),
        "a target that is too long: {failed:?}"
    );
    ensure!(
        format.inode(ino)? == before,
        "a target that was refused had an effect"
    );
    let target = vec![b't'; format.max_target()];
    let piece = Piece::from_start(&target);
    bench.steps(|op| format.write_block(op, ino, 0, piece, &[]))?;
    super::blocks::resize(&bench, ino, target.len() as u64)?;
    ensure!(
        format.inline_target(ino)?.is_none(),
        "a target in a block is taken for one in the inode"
    );
    ensure!(
        bench.read(ino, 0)?.starts_with(&target),
        "a target in a block is another one"
    );
    bench.unmake(ino)?;
    ensure!(bench.free()? == empty, "targets outlive their inodes");
    bench.audit()
}
