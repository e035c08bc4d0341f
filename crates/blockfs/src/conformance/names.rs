//! Directories: finding, listing, replacing and removing names.

use super::{Bench, Outcome, Subject, Suite, Wrong, ensure};
use crate::{Format, FormatError};
use std::collections::BTreeMap;
use vfs::{Cookie, FileType, Ino};

/// Names of all lengths, and of bytes that a format might treat specially.
fn names(longest: usize) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = (1..=longest)
        .map(|len| vec![b'a' + (len % 26) as u8; len])
        .collect();
    let odd: [&[u8]; 8] = [
        b"...",
        b" ",
        b"\xff\xfe",
        b"a\nb",
        b"-x",
        b"\x01",
        b"a.b.",
        b"A",
    ];
    names.extend(odd.map(<[u8]>::to_vec));
    names
}

/// The names of a directory, with what they lead to and their cookies, without `.` and `..`.
type Listed = BTreeMap<Vec<u8>, (Ino, FileType, Cookie)>;

fn listed<S: Subject>(bench: &Bench<S>, dir: Ino) -> Result<Listed, Wrong> {
    let mut found = Listed::new();
    let mut own = Vec::new();
    let mut twice = None;
    bench.format.list(dir, Cookie(0), &mut |entry| {
        if matches!(entry.name, b"." | b"..") {
            own.push((entry.name.to_vec(), entry.ino));
        } else if found
            .insert(entry.name.to_vec(), (entry.ino, entry.kind, entry.cookie))
            .is_some()
        {
            twice = Some(entry.name.to_vec());
        }
        true
    })?;
    ensure!(twice.is_none(), "{twice:?} is listed twice");
    let parent = bench.format.parent(dir)?;
    let expected = vec![(b".".to_vec(), dir), (b"..".to_vec(), parent)];
    ensure!(
        own == expected,
        "'.' and '..' are listed as {own:?}, not {expected:?}"
    );
    Ok(found)
}

/// Names are found and listed once until they are removed.
pub(super) fn are_found<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let root = format.root();
    ensure!(format.is_empty(root)?, "the root of a new image has names");
    ensure!(format.parent(root)? == root, "the root is not above itself");
    let ino = bench.make(FileType::Fifo)?;
    let all = names(format.statfs()?.name_max as usize);
    for name in &all {
        ensure!(
            format.find(root, name)?.is_none(),
            "{name:?} is there before it is made"
        );
        bench.steps(|op| format.add_name(op, root, name, ino, FileType::Fifo, &[]))?;
        ensure!(
            !format.is_empty(root)?,
            "a directory with {name:?} counts as empty"
        );
    }
    let (gone, left): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(at, _)| at % 3 == 0);
    for (_, name) in &gone {
        bench.remove_named(name)?;
    }
    for (_, name) in &left {
        ensure!(
            format.find(root, name)? == Some(ino),
            "{name:?} is not found"
        );
    }
    for (_, name) in &gone {
        ensure!(
            format.find(root, name)?.is_none(),
            "{name:?} is found after its removal"
        );
    }
    let listed = listed(&bench, root)?;
    ensure!(
        listed.len() == left.len(),
        "{} names are listed of {}",
        listed.len(),
        left.len()
    );
    let right = listed
        .values()
        .all(|(found, kind, _)| (*found, *kind) == (ino, FileType::Fifo));
    ensure!(right, "a name is listed with another inode or type");
    for (_, name) in &left {
        ensure!(listed.contains_key(*name), "{name:?} is not listed");
        bench.remove_named(name)?;
    }
    ensure!(
        format.is_empty(root)?,
        "a directory without names does not count as empty"
    );
    let long = vec![b'x'; format.statfs()?.name_max as usize + 1];
    let failed = bench.steps(|op| format.add_name(op, root, &long, ino, FileType::Fifo, &[]));
    ensure!(
        matches!(failed, Err(FormatError::Limit(_))),
        "a name that is too long: {failed:?}"
    );
    ensure!(format.is_empty(root)?, "a name that was refused is there");
    bench.audit()
}

/// A listing goes on after any cookie, even if names before it were removed.
pub(super) fn are_listed_from_any_cookie<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let root = format.root();
    let ino = bench.make(FileType::Regular)?;
    for at in 0..40 {
        let name = format!("a name that takes some room {at}");
        bench
            .steps(|op| format.add_name(op, root, name.as_bytes(), ino, FileType::Regular, &[]))?;
    }
    let after = |cookie: Cookie, most: usize| -> Result<Vec<(Vec<u8>, Cookie)>, Wrong> {
        let mut found = Vec::new();
        format.list(root, cookie, &mut |entry| {
            let accepted = found.len() < most;
            if accepted {
                found.push((entry.name.to_vec(), entry.cookie));
            }
            accepted
        })?;
        Ok(found)
    };
    let all = after(Cookie(0), usize::MAX)?;
    ensure!(all.len() == 42, "{} entries are listed of 42", all.len());
    for at in 0..all.len() {
        let cookie = if at == 0 { Cookie(0) } else { all[at - 1].1 };
        let next = after(cookie, 1)?;
        ensure!(
            next == all[at..=at],
            "after entry {at} comes {next:?}, not {:?}",
            all[at]
        );
    }
    // Names before and at the cookie are removed.
    for at in [5, 20, 30] {
        let removed = &all[at - 2..=at];
        for (name, _) in removed {
            bench.remove_named(name)?;
        }
        let next = after(all[at].1, usize::MAX)?;
        ensure!(next == all[at + 1..], "removals move the place of a cookie");
    }
    bench.audit()
}

/// A replaced name leads to the new inode, and `..` to the new parent.
pub(super) fn are_replaced<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let root = format.root();
    let (dir, _) = bench.make_named(FileType::Directory, b"dir")?;
    let (file, _) = bench.make_named(FileType::Regular, b"file")?;
    ensure!(format.is_empty(dir)?, "a new directory has names");
    ensure!(
        format.parent(dir)? == root,
        "a new directory has another parent"
    );
    let other = bench.make(FileType::Directory)?;
    bench.steps(|op| format.init_directory(op, other, root))?;
    bench.steps(|op| format.replace_name(op, root, b"file", other, FileType::Directory, &[]))?;
    ensure!(
        format.find(root, b"file")? == Some(other),
        "a name still leads to the old inode"
    );
    let names = listed(&bench, root)?;
    let kind = names.get(&b"file"[..]).map(|(_, kind, _)| *kind);
    ensure!(
        kind == Some(FileType::Directory),
        "a name still has the old type"
    );
    ensure!(
        names.len() == 2,
        "a name that was replaced is listed {} times",
        names.len() - 1
    );
    bench.steps(|op| format.set_parent(op, other, dir, &[]))?;
    ensure!(format.parent(other)? == dir, "'..' did not change");
    ensure!(
        listed(&bench, other)?.is_empty(),
        "a change of '..' made names"
    );
    ensure!(
        format.inode(file)?.is_some(),
        "an inode was freed with its name"
    );
    bench.audit()
}

/// Removed names leave room: a directory does not grow without end.
pub(super) fn leave_room<S: Subject>(suite: &Suite<'_, S>) -> Outcome {
    let bench = Bench::new(suite)?;
    let format = &bench.format;
    let root = format.root();
    let ino = bench.make(FileType::Regular)?;
    let mut first = None;
    for round in 0..20 {
        for at in 0..30 {
            let name = format!("round {round} name {at}");
            bench.steps(|op| {
                format.add_name(op, root, name.as_bytes(), ino, FileType::Regular, &[])
            })?;
        }
        for at in 0..30 {
            bench.remove_named(format!("round {round} name {at}").as_bytes())?;
        }
        let size = format.inode(root)?.map(|attr| attr.size);
        let first = *first.get_or_insert(size);
        ensure!(
            size <= first,
            "a directory of 30 names has grown from {first:?} to {size:?} bytes"
        );
    }
    bench.audit()
}
