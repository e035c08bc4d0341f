//! One writer, or many readers, of a mapped file.
//!
//! The lock is `flock(2)` on the open file. It holds between processes and between two opens in
//! one process. The kernel releases it with the last descriptor, however the process ends.
//!
//! Every user who may read a file may lock it. For a writer, three rules follow:
//!
//! - An exclusive lock is never shared: any other lock fails, and the error names its holder.
//! - Shared locks of readers refuse a writer, unless the writer is the super-user's and no
//!   reader belongs to the super-user or the owner of the file. Such a writer takes a shared
//!   lock too.
//! - A writer with a shared lock refuses other writers by that lock. It refuses readers of the
//!   super-user because they look for such a writer in `/proc`.

use crate::open_error::OpenError;
use crate::users::Holder;
use rustix::fs::{FlockOperation, OFlags, flock, fstat, major, minor};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{DirEntry, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time to wait for the lock of an image. A child of a former holder still has the lock,
/// without use, from the fork until it runs another program.
const PATIENCE: Duration = Duration::from_millis(100);
/// Attempts to find the holder: the kernel's list may omit it once.
const LOOKS: usize = 10;
/// The time from one attempt to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// The use for which a file is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading: excludes writers.
    Read,
    /// Writing: excludes writers and readers.
    Write,
}

impl Access {
    /// The access of a file that is opened read-only or not.
    pub(crate) fn of(read_only: bool) -> Self {
        match read_only {
            true => Self::Read,
            false => Self::Write,
        }
    }
}

/// Locks `file`, which is at `path`.
pub(crate) fn lock(path: &Path, file: &File, access: Access) -> Result<(), OpenError> {
    match access {
        Access::Write => lock_for_writer(path, file, PATIENCE),
        Access::Read => match attempt(PATIENCE, || lock_shared(file)) {
            Ok(None) => Ok(()),
            Ok(writer) => Err(in_use(path, writer)),
            Err(Errno::WOULDBLOCK) => Err(in_use(path, holder(file))),
            Err(e) => Err(failed(path, e)),
        },
    }
}

/// Locks `file`, which is at `path`, for a writer. Waits up to `patience` for others.
///
/// # Errors
/// [`OpenError::InUse`] if another process keeps it locked.
pub fn lock_for_writer(path: &Path, file: &File, patience: Duration) -> Result<(), OpenError> {
    match attempt(patience, || {
        flock(file, FlockOperation::NonBlockingLockExclusive)
    }) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            share_with_readers(file).map_err(|other| in_use(path, other.or_else(|| holder(file))))
        }
        Err(e) => Err(failed(path, e)),
    }
}

fn in_use(path: &Path, holder: Option<Holder>) -> OpenError {
    let path = path.to_owned();
    OpenError::InUse { path, holder }
}

fn failed(path: &Path, why: Errno) -> OpenError {
    OpenError::System {
        doing: "lock",
        path: path.to_owned(),
        source: why.into(),
    }
}

/// Repeats `lock` while another holder is in its way, up to `patience`.
fn attempt<T>(patience: Duration, lock: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let begun = Instant::now();
    loop {
        match lock() {
            Err(Errno::WOULDBLOCK) if begun.elapsed() < patience => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// Takes a shared lock of `file` without waiting. Returns a writer in another process that
/// shares its lock with readers. Only the super-user's writers do, and only the super-user sees
/// them; other callers get `None`.
///
/// # Errors
/// `EWOULDBLOCK` if another open of the file has an exclusive lock; errors of `flock(2)`.
fn lock_shared(file: &File) -> Result<Option<Holder>, Errno> {
    let is_root = geteuid().is_root();
    // An exclusive lock shows that no other exists. That is the usual case, and avoids a search
    // through all processes. A writer could share the lock with this reader only if it searched
    // all processes between the two calls.
    let was_alone = is_root && flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    flock(file, FlockOperation::NonBlockingLockShared)?;
    Ok(match is_root && !was_alone {
        true => sharing_writer(file),
        false => None,
    })
}

/// Shares the lock with readers that must not stop the super-user, if all holders are such
/// readers. Otherwise returns another holder, if one can be seen.
fn share_with_readers(file: &File) -> Result<(), Option<Holder>> {
    if !geteuid().is_root() || flock(file, FlockOperation::NonBlockingLockShared).is_err() {
        return Err(None);
    }
    let owner = fstat(file).map_or(0, |stat| stat.st_uid);
    let is_reader = |other: &Locker| !other.writes && other.uid != 0 && other.uid != owner;
    let (readers, others): (Vec<_>, Vec<_>) = lockers(file, numbers("/proc"))
        .into_iter()
        .partition(is_reader);
    if !readers.is_empty() && others.is_empty() {
        for reader in readers {
            tracing::warn!("{} has the image locked for reading", reader.holder);
        }
        return Ok(());
    }
    // The readers may have ended. If not, a shared lock would keep others out for nothing.
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        let _ = flock(file, FlockOperation::Unlock);
        others.into_iter().next().map(|other| other.holder)
    })
}

/// A writer in another process that shares its lock of `file` with readers.
fn sharing_writer(file: &File) -> Option<Holder> {
    // `/proc/locks` is not usable: it is read in pieces, and lines are missing if another file
    // is unlocked between two of them.
    let pids = numbers("/proc").into_iter();
    // The locks of this process may be those of readers, and many.
    let others = pids.filter(|pid| *pid != std::process::id());
    let mut lockers = lockers(file, others).into_iter();
    Some(lockers.find(|other| other.writes)?.holder)
}

/// A process that has a file locked, and whether that lock can be shared.
struct Locker {
    holder: Holder,
    /// Its real user.
    uid: u32,
    /// Whether the process can write to the file.
    writes: bool,
}

/// The visible processes of `pids` that have a file locked, except by this open.
fn lockers(file: &File, pids: impl IntoIterator<Item = u32>) -> Vec<Locker> {
    let Some(id) = id(file) else {
        return Vec::new();
    };
    let own = (std::process::id(), file.as_raw_fd().to_string());
    let mut lockers = Vec::new();
    for pid in pids {
        for fd in numbers(&format!("/proc/{pid}/fdinfo")) {
            if (pid, fd.to_string()) == own {
                continue;
            }
            let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"));
            let writes = info.ok().and_then(|info| locks(&info, &id));
            lockers.extend(writes.and_then(|writes| Locker::new(pid, writes)));
        }
    }
    lockers
}

impl Locker {
    fn new(pid: u32, writes: bool) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        Some(Self {
            holder: named(pid)?,
            uid: uids.split_ascii_whitespace().next()?.parse().ok()?,
            writes,
        })
    }
}

/// Entries of a directory of `/proc` that are numbers.
fn numbers(dir: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |entry: DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

/// Whether a descriptor with this `fdinfo` can write, if it locks the file `id`.
fn locks(info: &str, id: &str) -> Option<bool> {
    let mut locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
    locks.find(|line| line.contains(" FLOCK ") && line.contains(&format!(" {id} ")))?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
    Some(flags & OFlags::ACCMODE.bits() != OFlags::RDONLY.bits())
}

/// A file as the kernel's list of locks names it.
fn id(file: &File) -> Option<String> {
    let stat = fstat(file).ok()?;
    let (dev, ino) = (stat.st_dev, stat.st_ino);
    Some(format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev)))
}

fn named(pid: u32) -> Option<Holder> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Holder {
        pid,
        name: name.trim_end().to_owned(),
    })
}

/// A process that has a file locked, if this process can see one.
///
/// The kernel's list of locks names the process that took the lock. The lock outlives that
/// process if a child has the file open; then the child is the holder.
pub fn holder(file: &File) -> Option<Holder> {
    let id = id(file)?;
    // The list is read in pieces; lines can be missing if others unlock meanwhile.
    let pid = (0..LOOKS).find_map(|_| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| holder_pid(line, &id))
    })?;
    named(pid).or_else(|| Some(lockers(file, numbers("/proc")).pop()?.holder))
}

/// The process id in a line of `/proc/locks`, if it is a `flock` of the file `id`. (A line
/// whose second word is `->` is a waiting process.)
fn holder_pid(line: &str, id: &str) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let is_flock = words.next() == Some("FLOCK");
    let pid = words.nth(2)?.parse().ok()?;
    (is_flock && words.next() == Some(id) && pid > 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_lock_list_are_parsed() {
        let pid = |line| holder_pid(line, "fe:00:77");
        assert_eq!(
            pid("1: FLOCK  ADVISORY  WRITE 1856 fe:00:77 0 EOF"),
            Some(1856)
        );
        assert_eq!(pid("1: -> FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF"), None);
        assert_eq!(pid("1: FLOCK  ADVISORY  WRITE 1856 fe:00:7 0 EOF"), None);
        assert_eq!(pid("1: OFDLCK ADVISORY  WRITE -1 fe:00:77 0 EOF"), None);
        assert_eq!(pid(""), None);
    }

    #[test]
    fn descriptors_with_a_lock_are_recognised() {
        let info = |flags| {
            format!(
                "pos:\t0\nflags:\t{flags}\nmnt_id:\t25\nino:\t77\n\
                 lock:\t1: FLOCK  ADVISORY  READ 1856 fe:00:77 0 EOF\n"
            )
        };
        assert_eq!(locks(&info("0100000"), "fe:00:77"), Some(false));
        assert_eq!(locks(&info("02100002"), "fe:00:77"), Some(true));
        assert_eq!(locks(&info("0100000"), "fe:00:7"), None);
        assert_eq!(locks("flags:\t02\n", "fe:00:77"), None);
    }
}
