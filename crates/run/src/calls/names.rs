//! Calls that make, move and remove names.

use super::{Answer, At, Call, Resolved, Session, Stop};
use crate::memory;
use crate::process::File;
use crate::shared::Reason;
use crate::walk::{Found, path_of};
use libc::*;
use vfs::{Errno, FileType, Name, NewNode, Removal, RenameFlags};

/// Calls with one path.
pub(crate) fn one(call: &Call) -> Answer {
    let bits = |n: usize| call.args[n] as u32 & 0o7777 & !call.process.umask();
    match call.number {
        SYS_mkdir => make(call, At::path(0), &NewNode::directory(bits(1))),
        SYS_mkdirat => make(call, At::dir(0), &NewNode::directory(bits(2))),
        SYS_mknod => make(
            call,
            At::path(0),
            &node(call.args[1], bits(1), call.args[2])?,
        ),
        SYS_mknodat => make(
            call,
            At::dir(0),
            &node(call.args[2], bits(2), call.args[3])?,
        ),
        SYS_rmdir => remove(call, At::path(0), Removal::Rmdir),
        SYS_unlink => remove(call, At::path(0), Removal::Unlink),
        SYS_unlinkat => match call.int(2) {
            0 => remove(call, At::dir(0), Removal::Unlink),
            AT_REMOVEDIR => remove(call, At::dir(0), Removal::Rmdir),
            _ => Err(Errno::INVAL.into()),
        },
        SYS_symlink => symlink(call, At::path(1)),
        SYS_symlinkat => symlink(call, At::dir(1)),
        SYS_readlink => readlink(call, At::path(0), 1),
        _ => readlink(call, At::dir(0), 2),
    }
}

fn node(mode: u64, bits: u32, device: u64) -> vfs::Result<NewNode<'static>> {
    match mode as u32 & S_IFMT {
        0 | S_IFREG => Ok(NewNode::file(bits)),
        _ => {
            let kind = FileType::from_mode(mode as u32).ok_or(Errno::INVAL)?;
            NewNode::special(kind, bits, device as u32)
        }
    }
}

fn make(call: &Call, at: At, new: &NewNode<'_>) -> Answer {
    if ends_in_link(call, at)? {
        return Err(Errno::EXIST.into());
    }
    call.at(at, false, |session, found| {
        let name = found.new_name()?;
        if found.has_slash && !new.is_directory() {
            return Err(Errno::NOENT.into());
        }
        let made = session
            .fs
            .make(&session.cx, Name::new(found.dir.ino(), name), new)?;
        session.fs.forget(made.ino, 1);
        Ok(0)
    })
}

fn symlink(call: &Call, at: At) -> Answer {
    if !call.is_ours(at)? {
        return Err(Stop::Kernel);
    }
    let target = memory::path(call.args[0])?;
    make(call, at, &NewNode::symlink(&target)?)
}

/// Whether the path of a call ends with a symbolic link and a slash. Calls that change names do not follow it.
fn ends_in_link(call: &Call, at: At) -> vfs::Result<bool> {
    let Some((start, mut path)) = call.start(at)? else {
        return Ok(false);
    };
    let end = path.iter().rposition(|byte| *byte != b'/');
    let end = end.map_or(0, |last| last + 1);
    if end == 0 || end == path.len() {
        return Ok(false);
    }
    path.truncate(end);
    let session = call.session()?;
    let found = session.resolve_from((start, path), false, &session.cx);
    // The call itself finds out about errors.
    Ok(match found {
        Ok(Resolved::Inside(found, _dir)) => found
            .attr()
            .is_ok_and(|attr| attr.kind == FileType::Symlink),
        _ => false,
    })
}

fn remove(call: &Call, at: At, which: Removal) -> Answer {
    if ends_in_link(call, at)? {
        return Err(Errno::NOTDIR.into());
    }
    call.at(at, false, |session, mut found| {
        if found.name.is_empty() {
            return Err(match (which, call_ends_in_dot(call, at)?) {
                (Removal::Rmdir, true) => Errno::INVAL.into(),
                (Removal::Rmdir, false) if found.ino()? == vfs::Ino::ROOT => Errno::BUSY.into(),
                (Removal::Rmdir, false) => Errno::NOTEMPTY.into(),
                (Removal::Unlink, _) => Errno::ISDIR.into(),
            });
        }
        // A client would hold an inode with a reference, and lock it at the service when it is forgotten.
        found.node.take().ok_or(Errno::NOENT)?;
        if found.has_slash && which == Removal::Unlink {
            // It was a directory, and may be a file by now.
            return Err(Errno::ISDIR.into());
        }
        session
            .fs
            .remove(&session.cx, Name::new(found.dir.ino(), &found.name), which)?;
        Ok(0)
    })
}

/// Whether the path of the call ends in `.`, which names a directory that cannot be removed so.
fn call_ends_in_dot(call: &Call, at: At) -> vfs::Result<bool> {
    let path = memory::path(call.args[at.path])?;
    let end = path
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last + 1);
    Ok(path[..end].rsplit(|byte| *byte == b'/').next() == Some(b"."))
}

fn readlink(call: &Call, at: At, n: usize) -> Answer {
    let [address, len] = [call.args[n], call.args[n + 1]];
    let show = |target: Vec<u8>| -> Answer {
        let len = target.len().min(len as u32 as usize);
        memory::bytes_mut(address, len)?.copy_from_slice(&target[..len]);
        Ok(len as u64)
    };
    if len as i32 <= 0 {
        return if call.is_ours(at)? {
            Err(Errno::INVAL.into())
        } else {
            Err(Stop::Kernel)
        };
    }
    if at.dir.is_some() && memory::text(call.args[at.path], 1)?.is_some() {
        let file = call.file(0)?;
        let target = file.fs()?.readlink(&*call.process.cx()?, file.ino());
        return show(target.map_err(|_| Errno::NOENT)?);
    }
    if let Some((file, b"")) = call
        .process
        .named_by_number(&memory::path(call.args[at.path])?)
    {
        return show(path_of_file(call, &file)?);
    }
    call.at(at, false, |session, found| {
        show(session.fs.readlink(&session.cx, found.ino()?)?)
    })
}

/// The path by which `/proc/self/fd` shows an open file: that under which it was opened.
fn path_of_file(call: &Call, file: &File) -> vfs::Result<Vec<u8>> {
    let (fs, cx) = (file.fs()?, call.process.permitted()?);
    let attr = fs.getattr(&cx, file.ino())?;
    let (dir, name) = match attr.kind {
        FileType::Directory => (file.ino(), Vec::new()),
        _ => file.description.opened_as().ok_or(Errno::NOENT)?,
    };
    let below = path_of(call.process, fs, dir)?;
    let slash = if name.is_empty() { &b""[..] } else { b"/" };
    let end = if attr.nlink == 0 {
        &b" (deleted)"[..]
    } else {
        b""
    };
    Ok([&call.process.at[..], &below, slash, &name, end].concat())
}

/// Calls with two paths.
pub(crate) fn two(call: &Call) -> Answer {
    let (from, to, flags) = match call.number {
        SYS_rename | SYS_link => (At::path(0), At::path(1), 0),
        SYS_renameat => (At::dir(0), At::dir(2), 0),
        _ => (At::dir(0), At::dir(2), call.int(4)),
    };
    let is_link = matches!(call.number, SYS_link | SYS_linkat);
    if is_link && flags & AT_EMPTY_PATH != 0 && memory::text(call.args[from.path], 1)?.is_some() {
        return link_descriptor(call, to);
    }
    if !call.is_ours(from)? && !call.is_ours(to)? {
        return Err(Stop::Kernel);
    }
    if ends_in_link(call, to)? || !is_link && ends_in_link(call, from)? {
        let errno = if is_link { Errno::EXIST } else { Errno::NOTDIR };
        return Err(errno.into());
    }
    let session = call.session()?;
    let follow = is_link && flags & AT_SYMLINK_FOLLOW != 0;
    match (
        session.resolve(call, from, follow)?,
        session.resolve(call, to, false)?,
    ) {
        (Resolved::Inside(from, _from), Resolved::Inside(to, _to)) => {
            call.process.count(Reason::Answered);
            match is_link {
                true => link(&session, &from, &to),
                false => rename(&session, &from, to, flags),
            }
        }
        (Resolved::Inside(..), _) | (_, Resolved::Inside(..)) => Err(Errno::XDEV.into()),
        (one, other) => {
            let mut args = call.args;
            for (at, place) in [(from, &one), (to, &other)] {
                if let Resolved::Outside(path) = place {
                    args[at.path] = path.as_ptr() as u64;
                    if let Some(dir) = at.dir {
                        args[dir] = AT_FDCWD as u64;
                    }
                }
            }
            Ok(call.with(args)?)
        }
    }
}

fn link(session: &Session, from: &Found<'_>, to: &Found<'_>) -> Answer {
    let (ino, name) = (from.ino()?, to.new_name()?);
    if to.has_slash {
        return Err(Errno::NOENT.into());
    }
    session.fs.link(&session.cx, ino, to.dir.ino(), name)?;
    session.fs.forget(ino, 1);
    Ok(0)
}

/// Gives a name to an open file.
fn link_descriptor(call: &Call, to: At) -> Answer {
    let file = call.file(0)?;
    file.fs()?;
    if ends_in_link(call, to)? {
        return Err(Errno::EXIST.into());
    }
    let session = call.session()?;
    match session.resolve(call, to, false)? {
        Resolved::Inside(to, _to) => {
            let name = to.new_name()?;
            if to.has_slash {
                return Err(Errno::NOENT.into());
            }
            session
                .fs
                .link(&session.cx, file.ino(), to.dir.ino(), name)?;
            session.fs.forget(file.ino(), 1);
            Ok(0)
        }
        Resolved::Outside(_) | Resolved::Foreign => Err(Errno::XDEV.into()),
    }
}

fn rename(session: &Session, from: &Found<'_>, mut to: Found<'_>, flags: i32) -> Answer {
    let source = from.attr()?;
    if from.name.is_empty() || to.name.is_empty() {
        return Err(Errno::BUSY.into());
    }
    if to.has_slash && source.kind != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    let flags = RenameFlags::from_bits(flags as u32).ok_or(Errno::INVAL)?;
    let (old, new) = (
        Name::new(from.dir.ino(), &from.name),
        Name::new(to.dir.ino(), &to.name),
    );
    to.node = None; // as for a removal
    session.fs.rename(&session.cx, old, new, flags)?;
    Ok(0)
}
