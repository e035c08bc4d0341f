//! Locks of files: `flock`, and record locks of processes and of descriptions.
//!
//! The kernel keeps them, on another file that stands for the one of the store. That is the same file on
//! the mount, if the store is mounted: then locks exclude programs that use the mount too. Otherwise it is
//! a file in a directory for temporary files, which only programs under `selvedge run` of the same user
//! lock.

use super::backed::{self, Offset};
use super::{Answer, Call};
use crate::kernel::{self, Result};
use crate::memory;
use crate::own::Descriptor;
use crate::process::{File, LockOf, Process};
use crate::shared::Reason;
use crate::walk::path_of;
use libc::*;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vfs::{Cookie, Errno, FileSystem, Ino};

/// The last number that programs give to a new descriptor by closing another one first.
const STANDARD: u32 = 2;

/// `flock`.
pub(crate) fn flock(call: &Call) -> Answer {
    let file = call.file(0)?;
    let stands = of_description(call.process, &file)?;
    call.waiting([stands.fd().into(), call.args[1], 0, 0, 0, 0])
}

/// The kernel's `struct flock`.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Record([u64; 4]);

impl Record {
    fn kind(self) -> i32 {
        i32::from(self.0[0] as i16)
    }

    fn whence(self) -> i32 {
        i32::from((self.0[0] >> 16) as i16)
    }

    /// The same bytes, counted from the start of the file.
    fn absolute(self, process: &Process, file: &File) -> Result<Self> {
        let _calls = process.gate.read();
        let base = match self.whence() {
            SEEK_SET => return Ok(self),
            SEEK_CUR => match backed::offset(process, file)? {
                Offset::Here(_held) => file.description.offset.load(Relaxed),
                Offset::Kernel(own) => kernel::seek(own.0, 0, SEEK_CUR)?,
            },
            SEEK_END => file.fs()?.getattr(&*process.cx()?, file.ino())?.size,
            _ => return Err(Errno::INVAL),
        };
        let [words, start, len, pid] = self.0;
        let start = (base as i64).checked_add(start as i64);
        let start = start.ok_or(Errno::OVERFLOW)? as u64;
        Ok(Self([words & !(0xffff << 16), start, len, pid]))
    }

    /// Whether the descriptor permits the lock.
    fn is_permitted(self, file: &File) -> Result<()> {
        match self.kind() {
            F_RDLCK => file.may_read(),
            F_WRLCK => file.may_write(),
            _ => Ok(()),
        }
    }
}

/// Record locks.
pub(crate) fn record(call: &Call, file: &File) -> Answer {
    let command = call.int(1);
    let given = Record(memory::load(call.args[2])?);
    let mut record = given.absolute(call.process, file)?;
    let only_asks = matches!(command, F_GETLK | F_OFD_GETLK);
    if !only_asks {
        record.is_permitted(file)?;
    }
    let stands = match command {
        F_GETLK | F_SETLK | F_SETLKW => Stands::For(standing_for(
            call.process,
            file,
            LockOf::Process(file.ino()),
        )?),
        _ => of_description(call.process, file)?,
    };
    let place = &raw mut record.0 as u64;
    let done = call.waiting([stands.fd().into(), command as u64, place, 0, 0, 0])?;
    match (only_asks, record.kind()) {
        (false, _) => {}
        // Without another lock only the kind changes.
        (true, F_UNLCK) => {
            let [words, rest @ ..] = given.0;
            let [a, b, c] = rest;
            memory::store(call.args[2], &[words & !0xffff | F_UNLCK as u64, a, b, c])?;
        }
        (true, _) => memory::store(call.args[2], &record.0)?,
    }
    Ok(done)
}

/// A descriptor that has the locks.
enum Stands {
    /// The kernel's file of the description.
    Itself(Arc<Descriptor>),
    /// Another one.
    For(u32),
}

impl Stands {
    fn fd(&self) -> u32 {
        match self {
            Self::Itself(descriptor) => descriptor.0,
            Self::For(fd) => *fd,
        }
    }
}

/// The descriptor for locks of the description.
fn of_description(process: &Process, file: &File) -> Result<Stands> {
    let on_mount = {
        let _calls = process.gate.read();
        let mounted = process.mounted();
        mounted.and_then(|_| backed::file_of(process, file, Reason::Lock).ok())
    };
    match on_mount {
        Some(own) => Ok(Stands::Itself(own)),
        None => standing_for(process, file, LockOf::Description(file.number)).map(Stands::For),
    }
}

/// The descriptor of the file that stands for `file`.
fn standing_for(process: &Process, file: &File, of: LockOf) -> Result<u32> {
    let _calls = process.gate.read();
    let mut locks = process.locks_held();
    if let Some(fd) = locks.get(&of) {
        return Ok(*fd);
    }
    // A file without a name is known to these processes only.
    let is_named = file.fs()?.getattr(&*process.cx()?, file.ino())?.nlink > 0;
    let fd = match process.mounted() {
        Some(_) if is_named => {
            process.count(Reason::Lock);
            on_mount(process, file, &MOST)?
        }
        _ => temporary(process, file)?,
    };
    let own = keep_beside(&locks, file, fd)?;
    locks.insert(of, own);
    Ok(own)
}

/// Makes a descriptor of the file one of this library.
pub(crate) fn keep(process: &Process, file: &File, fd: u32) -> Result<u32> {
    let locks = process.locks_held();
    keep_beside(&locks, file, fd)
}

/// To move a descriptor is to close it, which would drop the record locks that the process has on the file.
fn keep_beside(locks: &HashMap<LockOf, u32>, file: &File, fd: u32) -> Result<u32> {
    let has_records = locks.contains_key(&LockOf::Process(file.ino()));
    match has_records && fd > STANDARD {
        true => crate::own::mark(fd).map(|()| fd),
        false => crate::own::keep(fd),
    }
}

fn temporary(process: &Process, file: &File) -> Result<u32> {
    let (uid, ..) = kernel::credentials(false)?;
    let store = process.store.replace('/', "-");
    let dir = format!("/tmp/selvedge-run-{uid}{store}");
    let path = format!("{dir}/{}", file.ino());
    let as_path = |text: String| CString::new(text).map_err(|_| Errno::INVAL);
    // All users can make names there. A name of this user in a sticky directory is not replaced by others.
    kernel::make_own_directory(&as_path(dir)?, uid).map_err(|_| Errno::NOLCK)?;
    kernel::open(&as_path(path)?, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW)
}

/// The name under which the file was opened, or the one that it has now in the same directory.
fn name_of(process: &Process, file: &File) -> Result<(Ino, Vec<u8>)> {
    let (dir, name) = file.description.opened_as().ok_or(Errno::NODEV)?;
    let (fs, cx) = (file.fs()?, process.permitted()?);
    if let Ok(found) = fs.lookup(&cx, dir, &name) {
        fs.forget(found.ino, 1);
        if found.ino == file.ino() {
            return Ok((dir, name));
        }
    }
    let mut now = None;
    fs.readdir(&cx, dir, Cookie(0), &mut |entry| {
        if entry.ino == file.ino() {
            now = Some(entry.name.to_vec());
        }
        now.is_none()
    })?;
    now.map(|name| (dir, name)).ok_or(Errno::NODEV)
}

/// The path of a name on the mount.
pub(crate) fn mounted_path(
    process: &Process,
    fs: &dyn FileSystem,
    dir: Ino,
    name: &[u8],
) -> Result<CString> {
    // Names come from memory that all processes of the run can store to.
    vfs::check_name(name)?;
    let below = path_of(process, fs, dir)?;
    CString::new([&process.at[..], &below, b"/", name].concat()).map_err(|_| Errno::INVAL)
}

/// Flags for the most that is permitted.
pub(crate) const MOST: [i32; 3] = [O_RDWR, O_RDONLY, O_WRONLY];

/// Opens the file on the mount by its name, with the first of these flags that are permitted.
pub(crate) fn on_mount(process: &Process, file: &File, all: &[i32]) -> Result<u32> {
    let (dir, name) = name_of(process, file)?;
    let path = mounted_path(process, file.fs()?, dir, &name)?;
    let mut opened = Err(Errno::ACCESS);
    for flags in all {
        opened = kernel::open(&path, *flags | O_CLOEXEC | O_NOFOLLOW);
        if opened.is_ok() {
            break;
        }
    }
    let fd = opened?;
    match kernel::device_and_inode(fd) {
        Ok((_, ino)) if ino == file.ino().0 => Ok(fd),
        _ => {
            kernel::close(fd)?;
            Err(Errno::STALE)
        }
    }
}
