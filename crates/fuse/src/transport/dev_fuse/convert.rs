//! Values of [`vfs`] as the crate `fuser` has them, and back.

use crate::ops;
use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use vfs::{Attr, Ctx, SetTime, Timestamp};

/// The count that [`io_errors`] returns.
static IO_ERRORS: AtomicU64 = AtomicU64::new(0);

/// The number of calls that failed with `EIO` or `EUCLEAN` since this process began to serve, and of
/// inodes that a listing could not read. They are signs of damage or of a failing medium.
pub fn io_errors() -> u64 {
    IO_ERRORS.load(Relaxed)
}

/// Counts a failure that [`io_errors`] reports.
pub(super) fn count_io_error() {
    IO_ERRORS.fetch_add(1, Relaxed);
}

pub(super) fn errno(e: vfs::Errno) -> Errno {
    if matches!(e, vfs::Errno::IO | vfs::Errno::UCLEAN) {
        count_io_error();
    }
    Errno::from_i32(e.raw_os_error())
}

/// The caller of a request.
pub(super) fn ctx(req: &Request) -> Ctx {
    ops::caller(req.uid(), req.gid(), req.pid())
}

/// The caller of a request that moves the access time, unless `noatime`.
pub(super) fn reader(req: &Request, noatime: bool) -> Ctx {
    Ctx {
        noatime,
        ..ctx(req)
    }
}

pub(super) fn file_type(kind: vfs::FileType) -> FileType {
    match kind {
        vfs::FileType::Fifo => FileType::NamedPipe,
        vfs::FileType::CharDevice => FileType::CharDevice,
        vfs::FileType::Directory => FileType::Directory,
        vfs::FileType::BlockDevice => FileType::BlockDevice,
        vfs::FileType::Regular => FileType::RegularFile,
        vfs::FileType::Symlink => FileType::Symlink,
        vfs::FileType::Socket => FileType::Socket,
    }
}

fn system_time(t: Timestamp) -> SystemTime {
    let (secs, nanos) = t.parts();
    let whole = Duration::from_secs(secs.unsigned_abs());
    let base = if secs < 0 {
        UNIX_EPOCH - whole
    } else {
        UNIX_EPOCH + whole
    };
    base + Duration::from_nanos(nanos.into())
}

/// From what `fuser` 0.18 makes of the kernel's seconds and nanoseconds: before 1970 it
/// subtracts the nanoseconds; in the kernel's time they are added.
pub(super) fn timestamp(t: SystemTime) -> Timestamp {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Timestamp::from_parts(i64::try_from(d.as_secs()).unwrap_or(i64::MAX), {
            d.subsec_nanos()
        }),
        Err(e) => {
            let d = e.duration();
            let secs = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
            Timestamp::from_parts(-secs, d.subsec_nanos())
        }
    }
}

pub(super) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(timestamp(t)),
    }
}

pub(super) fn file_attr(a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino.0),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(a.kind),
        perm: a.perm as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

/// The entry that makes the kernel remember that a name is absent.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The attributes in a listing of an inode that cannot be read. They must not be cached: the next
/// use requests the inode, and fails. The protocol has node number 0 for that, but `fuser` then
/// sets the entry's inode number to 0, and readers skip such entries.
pub(super) fn unread(e: &vfs::DirEntry<'_>) -> FileAttr {
    FileAttr {
        ino: INodeNo(e.ino.0),
        kind: file_type(e.kind),
        nlink: 1,
        ..absent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_the_round_trip() {
        // The time from fuser for the kernel's (-2 s, 250 ms), which is -1.75 s.
        let from_fuser = UNIX_EPOCH - Duration::new(2, 250_000_000);
        assert_eq!(timestamp(from_fuser), Timestamp(-1_750_000_000));
        assert_eq!(
            system_time(Timestamp(-1_750_000_000)),
            UNIX_EPOCH - Duration::from_millis(1750)
        );
    }

    #[test]
    fn extreme_times_do_not_panic() {
        for t in [i64::MIN, i64::MAX, 0, -1, 1] {
            system_time(Timestamp(t));
        }
        timestamp(UNIX_EPOCH - Duration::from_secs(i64::MAX as u64));
        timestamp(UNIX_EPOCH + Duration::from_secs(i64::MAX as u64));
    }
}
