//! `open` and its relatives.

use super::mapped::{self, OnMount};
use super::{Answer, At, Call, Session, Start, Stop};
use crate::kernel::Result;
use crate::memory::{self, Text};
use crate::process::{File, Reserved, open_flags};
use crate::shared::Reason;
use crate::walk::Found;
use libc::*;
use std::cell::Cell;
use vfs::{Attr, Errno, FileType, Ino, NewNode, OpenFlags, perm};

/// `O_LARGEFILE`, which the kernel shows in the flags of each file.
const LARGE: u32 = 0o100_000;
/// Flags that no later call sees.
const OF_OPEN_ONLY: i32 = O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC;
const TMPFILE: i32 = O_TMPFILE & !O_DIRECTORY;
/// Times that a name may appear and vanish during an open.
const ATTEMPTS: usize = 100;

/// The flags and the mode of an open.
#[derive(Clone, Copy)]
struct Wanted {
    flags: i32,
    mode: u32,
}

impl Wanted {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    /// Checks flags that exclude each other.
    fn check(&self) -> Result<()> {
        let makes_nameless = self.has(TMPFILE);
        let is_wrong = match self.flags & (O_CREAT | O_DIRECTORY) {
            O_DIRECTORY => makes_nameless && self.flags & O_ACCMODE == O_RDONLY,
            both if both == O_CREAT | O_DIRECTORY => true,
            _ => makes_nameless,
        };
        match is_wrong {
            true => Err(Errno::INVAL),
            false => Ok(()),
        }
    }

    /// The flags of the description.
    fn kept(&self) -> u32 {
        (self.flags & !(OF_OPEN_ONLY | O_CLOEXEC)) as u32 | LARGE
    }
}

/// Opens a file.
pub(crate) fn open(call: &Call) -> Answer {
    let (at, flags, mode) = match call.number {
        SYS_open => (At::path(0), call.int(1), call.args[2]),
        SYS_creat => (At::path(0), O_CREAT | O_WRONLY | O_TRUNC, call.args[1]),
        SYS_openat => (At::dir(0), call.int(2), call.args[3]),
        _ => {
            if !call.is_ours(At::dir(0))? {
                return Err(Stop::Kernel);
            }
            let [flags, mode, resolve] = memory::load::<[u64; 3]>(call.args[2])?;
            if call.args[3] != 24 || resolve != 0 {
                return Err(Errno::NOSYS.into()); // programs then use openat
            }
            (At::dir(0), flags as i32, mode)
        }
    };
    // The kernel ignores all others with `O_PATH`.
    let flags = match flags & O_PATH {
        0 => flags,
        _ => flags & (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
    };
    let mode = mode as u32 & 0o7777 & !call.process.umask();
    let wanted = Wanted { flags, mode };
    let opening = Opening {
        call,
        wanted,
        reserved: Cell::new(None),
    };
    let follow = !wanted.has(O_NOFOLLOW) && flags & (O_CREAT | O_EXCL) != O_CREAT | O_EXCL;
    opening.path(at, follow)
}

/// An open under way.
struct Opening<'c> {
    call: &'c Call,
    wanted: Wanted,
    /// The descriptor, taken in advance by an open that may make or cut a file.
    reserved: Cell<Option<Reserved>>,
}

impl Opening<'_> {
    fn reserve(&self) -> Result<Reserved> {
        self.call.process.reserve(self.wanted.has(O_CLOEXEC))
    }

    /// Takes the descriptor if the open may make or cut a file.
    fn reserve_in_advance(&self) -> Result<()> {
        if self.wanted.has(O_CREAT | O_TRUNC | TMPFILE) {
            let reserved = self.reserved.take().map_or_else(|| self.reserve(), Ok)?;
            self.reserved.set(Some(reserved));
        }
        Ok(())
    }

    /// Opens the file to which the path of the call leads.
    fn path(&self, at: At, follow: bool) -> Answer {
        let call = self.call;
        for _ in 0..ATTEMPTS {
            let Some(start) = call.start(at)? else {
                return Err(Stop::Kernel);
            };
            self.wanted.check()?;
            self.reserve_in_advance()?;
            if let Start::Named(file) = &start.0 {
                return self.again(file);
            }
            let session = call.session()?;
            if let Some(opened) = self.known(&session, &start)? {
                return Ok(opened);
            }
            match call.from(&session, start, at, follow, |found| {
                self.found(&session, &found)
            }) {
                Err(Stop::Errno(Errno::EXIST)) if !self.wanted.has(O_EXCL) => {} // made meanwhile
                Err(Stop::Errno(Errno::AGAIN)) => return to_mount(call, at),
                done => return done,
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Opens a regular file in a directory to which the path is known to lead.
    fn known(&self, session: &Session, start: &(Start, Text)) -> Result<Option<u64>> {
        let wanted = self.wanted;
        let is_other = wanted.has(O_EXCL | O_TRUNC | O_PATH | O_DIRECTORY | TMPFILE);
        let Some((name, version)) = session.known(start).filter(|_| !is_other) else {
            return Ok(None);
        };
        let access = open_flags(wanted.flags as u32);
        let opened = session.fs.open_file(&session.cx, name, access);
        if session.fs.paths_version() != version {
            if let Ok(Some(attr)) = opened {
                session.fs.release(attr.ino);
            }
            return Ok(None);
        }
        match opened {
            Ok(Some(attr)) => {
                self.call.process.count(Reason::Answered);
                self.finish(session, &attr, Some((name.dir, name.name)))
                    .map(Some)
            }
            Ok(None) => Ok(None),
            Err(Errno::NOENT) if wanted.has(O_CREAT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens an open file again, with an offset of its own.
    fn again(&self, file: &File) -> Answer {
        let session = self.call.session()?;
        let attr = file.fs()?.getattr(&session.cx, file.ino())?;
        if self.wanted.has(O_NOFOLLOW) && !self.wanted.has(O_PATH) {
            return Err(Errno::LOOP.into());
        }
        let name = file.description.opened_as();
        let name = name.as_ref().map(|(dir, name)| (*dir, &name[..]));
        self.inode(&session, &attr, name, || {
            let on_mount = OnMount::of_mapped(self.call.process, file);
            on_mount.map_or(Ok(()), |on_mount| on_mount.set_size(0))
        })
    }

    fn found(&self, session: &Session, found: &Found<'_>) -> Answer {
        let Some((_, attr)) = &found.node else {
            return self.create(session, found);
        };
        let name = (!found.name.is_empty()).then(|| (found.dir.ino(), &found.name[..]));
        self.inode(session, attr, name, || {
            mapped::cut(session, attr.ino, found.dir.ino(), &found.name)
        })
    }

    /// Opens an inode that is there. `cut`: cuts it to nothing on the mount, if it has a shared mapping.
    fn inode(
        &self,
        session: &Session,
        attr: &Attr,
        name: Option<(Ino, &[u8])>,
        cut: impl FnOnce() -> Result<()>,
    ) -> Answer {
        let (fs, wanted) = (&session.fs, self.wanted);
        if wanted.has(O_CREAT) && wanted.has(O_EXCL) {
            return Err(Errno::EXIST.into());
        }
        let is_path = wanted.has(O_PATH);
        match attr.kind {
            FileType::Directory if wanted.has(O_CREAT) => return Err(Errno::ISDIR.into()),
            FileType::Directory => {}
            // `O_TMPFILE` has this bit, too.
            _ if wanted.has(O_DIRECTORY) => return Err(Errno::NOTDIR.into()),
            FileType::Symlink if !is_path => return Err(Errno::LOOP.into()),
            FileType::Symlink | FileType::Regular => {}
            _ => return Err(Errno::AGAIN.into()),
        }
        if wanted.has(TMPFILE) {
            let made = fs.tmpfile(&session.cx, attr.ino, wanted.mode)?;
            return self.made(session, &made, None);
        }
        let mut access = open_flags(wanted.flags as u32);
        access.set(OpenFlags::TRUNCATE, wanted.has(O_TRUNC));
        if access.contains(OpenFlags::TRUNCATE) {
            perm::may_open(&session.cx, attr, access)?;
            cut()?;
        }
        match is_path {
            true => fs.open(&session.process.permitted()?, attr.ino, access)?,
            false => fs.open(&session.cx, attr.ino, access)?,
        }
        Ok(self.finish(session, attr, name)?)
    }

    fn create(&self, session: &Session, found: &Found<'_>) -> Answer {
        if !self.wanted.has(O_CREAT) {
            return Err(Errno::NOENT.into());
        }
        if found.has_slash {
            return Err(Errno::ISDIR.into());
        }
        let name = vfs::Name::new(found.dir.ino(), &found.name);
        let made = session
            .fs
            .make(&session.cx, name, &NewNode::file(self.wanted.mode))?;
        self.made(session, &made, Some((name.dir, name.name)))
    }

    /// Opens a file that this call has made, whatever its mode permits.
    fn made(&self, session: &Session, made: &Attr, name: Option<(Ino, &[u8])>) -> Answer {
        let access = open_flags(self.wanted.flags as u32);
        let opened = session
            .fs
            .open(&session.process.permitted()?, made.ino, access);
        session.fs.forget(made.ino, 1);
        opened?;
        Ok(self.finish(session, made, name)?)
    }

    /// The descriptor of a file that the file system has opened.
    fn finish(&self, session: &Session, attr: &Attr, name: Option<(Ino, &[u8])>) -> Result<u64> {
        let reserved = match self.reserved.take() {
            Some(reserved) => reserved,
            None => self
                .reserve()
                .inspect_err(|_| session.fs.release(attr.ino))?,
        };
        Ok(reserved.open((attr.ino, attr.generation), self.wanted.kept(), name))
    }
}

/// Opens a node that is neither file nor directory: the kernel's, if the store is mounted.
fn to_mount(call: &Call, at: At) -> Answer {
    let path = call.kernel_path(at)?.ok_or(Errno::NXIO)?;
    if call.process.mounted().is_none() {
        return Err(Errno::NXIO.into());
    }
    call.process.count(Reason::Other);
    call.elsewhere(at, path)
}
