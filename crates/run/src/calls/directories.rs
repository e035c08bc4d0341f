//! Listings, and the working directory.

use super::{Answer, At, Call, Stop};
use crate::kernel;
use crate::memory;
use crate::process::File;
use crate::walk::path_of;
use libc::{PATH_MAX, SYS_chdir, SYS_fchdir};
use std::ffi::CString;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Attr, Cookie, Errno, FileSystem, FileType, perm};

/// Bytes of an entry of `getdents64` before its name.
const HEADER: usize = 19;

/// `getdents64`.
pub(crate) fn list(call: &Call) -> Answer {
    let file = call.file(0)?;
    file.may_read()?;
    let fs = file.fs()?;
    let [_, address, len, ..] = call.args;
    let to = memory::bytes_mut(address, len as u32 as usize)?;
    let _held = file.description.offset_lock.lock();
    let mut at = Cookie(file.description.offset.load(Relaxed));
    let (mut used, mut is_full) = (0, false);
    fs.readdir(&call.process.permitted()?, file.ino(), at, &mut |entry| {
        let bytes = (HEADER + entry.name.len() + 1).next_multiple_of(8);
        let Some(to) = to.get_mut(used..used + bytes) else {
            is_full = true;
            return false;
        };
        to.fill(0);
        to[..8].copy_from_slice(&entry.ino.0.to_ne_bytes());
        to[8..16].copy_from_slice(&entry.cookie.0.to_ne_bytes());
        to[16..18].copy_from_slice(&(bytes as u16).to_ne_bytes());
        to[18] = entry.kind as u8;
        to[HEADER..HEADER + entry.name.len()].copy_from_slice(entry.name);
        used += bytes;
        at = entry.cookie;
        true
    })?;
    if used == 0 && is_full {
        return Err(Errno::INVAL.into());
    }
    file.description.offset.store(at.0, Relaxed);
    Ok(used as u64)
}

/// `chdir`, `fchdir`, `getcwd`.
pub(crate) fn working(call: &Call) -> Answer {
    match call.number {
        SYS_chdir if call.is_ours(At::path(0))? => {
            let done = call.at(At::path(0), true, |session, found| {
                enter(call, session.fs, &found.attr()?)
            });
            if let Err(Stop::Waits(wait)) = done {
                let _moving = call.process.moves();
                let left = call.waiting(wait.args)?;
                call.process.set_cwd(None);
                return Ok(left);
            }
            done
        }
        SYS_fchdir if call.process.file(call.args[0]).is_some() => {
            let file = call.file(0)?;
            let fs = file.fs()?;
            let attr = fs.getattr(&*call.process.cx()?, file.ino())?;
            enter(call, fs, &attr)
        }
        SYS_chdir | SYS_fchdir => {
            let _moving = call.process.moves();
            let done = call.pass()?;
            call.process.set_cwd(None);
            Ok(done)
        }
        _ => match call.process.cwd() {
            None => Err(Stop::Kernel),
            Some(cwd) => show(call, &cwd),
        },
    }
}

/// Makes a directory of the store, to which the caller has a reference, the working directory.
fn enter(call: &Call, fs: &dyn FileSystem, dir: &Attr) -> Answer {
    if dir.kind != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    let process = call.process;
    perm::may_search(&*process.cx()?, dir)?;
    let _moving = process.moves();
    process.work_in((dir.ino, dir.generation))?;
    // The kernel's directory is that of the mount, for programs that run without this library.
    let below = path_of(process, fs, dir.ino).unwrap_or_default();
    let at = |below: &[u8]| CString::new([&process.at[..], below].concat()).unwrap_or_default();
    if process.mounted().is_none() || kernel::change_directory(&at(&below)).is_err() {
        let _ = kernel::change_directory(&at(b""));
    }
    Ok(0)
}

fn show(call: &Call, cwd: &File) -> Answer {
    let mut path = call.process.at.clone();
    path.extend(path_of(call.process, cwd.fs()?, cwd.ino())?);
    path.push(0);
    if path.len() > PATH_MAX as usize {
        return Err(Errno::NAMETOOLONG.into()); // libc walks up then
    }
    let [address, len, ..] = call.args;
    if (len as usize) < path.len() {
        return Err(Errno::RANGE.into());
    }
    memory::bytes_mut(address, path.len())?.copy_from_slice(&path);
    Ok(path.len() as u64)
}
