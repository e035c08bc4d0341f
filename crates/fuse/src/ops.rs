//! Each FUSE request as calls of a [`FileSystem`].
//!
//! One method per request, plain values in and out, no knowledge of how requests
//! arrive or how replies leave: every [`transport`](crate::transport) calls these.
//!
//! The kernel is the only way in, which everything here relies on:
//!
//! 1. It checks permissions (`default_permissions` is always set), so calls carry
//!    `checked: true`.
//! 2. It may cache names, absent names, attributes and data without limit, since it
//!    sees every change and drops what the change makes stale.
//! 3. The server has no state of open files: an inode exists from the first reply that names it
//!    until the kernel sends FORGET for it.

use crate::fact::Fact;
use std::sync::Arc;
use vfs::{
    Atomicity, Attr, Cookie, Ctx, DirEntry, Errno, Fallocate, FileSystem, FileType, Ino, Name,
    RenameFlags, Result, SeekKind, SetAttr, StatFs, XattrMode,
    perm::{self, CAPABILITY},
};

/// Reading this extended attribute, of any file, makes everything durable that reached the
/// server, or fails: the kernel does not pass `sync` and `syncfs` on. Its value is
/// [`SYNCED`]. Reading, since a mount that became read-only may have something to lose.
pub const SYNC_XATTR: &str = "selvedge.sync";

/// See [`SYNC_XATTR`].
pub const SYNCED: &[u8] = b"selvedge synced";

/// The root's extended attribute with the mount's counters, as JSON,
/// if it has any.
pub const STATS_XATTR: &str = "selvedge.stats";

/// A file system as the kernel addresses it.
pub(crate) struct Ops {
    fs: Arc<dyn FileSystem>,
    atomic_writes: bool,
    facts: Vec<(&'static str, Fact)>,
}

/// The effects of a change of data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changed<T> {
    /// The result of the call.
    pub result: T,
    /// Whether the set-id bits were dropped. The kernel must then be notified
    /// that the attributes it holds are stale.
    pub mode_changed: bool,
}

/// The caller of a request.
pub(crate) fn caller(uid: u32, gid: u32, pid: u32) -> Ctx {
    Ctx {
        pid,
        checked: true,
        ..Ctx::somewhere(uid, gid)
    }
}

impl Ops {
    /// `facts`: extended attributes that the root has besides its own.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, facts: Vec<(&'static str, Fact)>) -> Self {
        Self {
            atomic_writes: fs.guarantees().data_atomic >= Atomicity::Call,
            fs,
            facts,
        }
    }

    /// Whether each write is promised to be atomic, whatever its length.
    pub(crate) fn has_atomic_writes(&self) -> bool {
        self.atomic_writes
    }

    /// The entry, or `None` for a name that the kernel may remember as absent. `.` and `..`
    /// come with a file handle whose inode the kernel has dropped (`open_by_handle_at`, NFS).
    pub(crate) fn lookup(&self, cx: &Ctx, dir: u64, name: &[u8]) -> Result<Option<Attr>> {
        match name {
            b"." => return self.fs.by_number(Ino(dir)).map(Some),
            b".." => return self.parent(cx, Ino(dir)).map(Some),
            _ => {}
        }
        match self.fs.lookup(cx, Ino(dir), name) {
            Ok(attr) => Ok(Some(attr)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The directory that holds the directory `dir`. No user reads `dir`, so that its access
    /// time stays.
    fn parent(&self, cx: &Ctx, dir: Ino) -> Result<Attr> {
        let cx = Ctx {
            noatime: true,
            ..cx.clone()
        };
        let mut parent = Err(Errno::STALE);
        self.fs.readdir(&cx, dir, Cookie(0), &mut |entry| {
            if entry.name == b".." {
                parent = Ok(entry.ino);
            }
            parent.is_err()
        })?;
        self.fs.by_number(parent?)
    }

    pub(crate) fn forget(&self, ino: u64, count: u64) {
        if Ino(ino) != Ino::ROOT {
            self.fs.forget(Ino(ino), count);
        }
    }

    pub(crate) fn getattr(&self, cx: &Ctx, ino: u64) -> Result<Attr> {
        self.fs.getattr(cx, Ino(ino))
    }

    /// Dropping the set-id bits is ours (`FUSE_HANDLE_KILLPRIV_V2`): on every change of
    /// owner or group, and on truncation by others than the super-user.
    pub(crate) fn setattr(&self, cx: &Ctx, ino: u64, set: SetAttr) -> Result<Attr> {
        let chown = set.uid.is_some() || set.gid.is_some();
        let truncate = set.size.is_some() && cx.uid != 0;
        let cx = Ctx {
            drops_set_id: chown || truncate,
            ..cx.clone()
        };
        self.fs.setattr(&cx, Ino(ino), &set)
    }

    pub(crate) fn readlink(&self, cx: &Ctx, ino: u64) -> Result<Vec<u8>> {
        self.fs.readlink(cx, Ino(ino))
    }

    /// `mode` with its type bits; regular files arrive here too.
    pub(crate) fn mknod(
        &self,
        cx: &Ctx,
        dir: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let perm = mode & 0o7777;
        match FileType::from_mode(mode).ok_or(Errno::INVAL)? {
            FileType::Regular => self.fs.create(cx, Ino(dir), name, perm),
            FileType::Directory | FileType::Symlink => Err(Errno::INVAL),
            kind => self
                .fs
                .mknod(cx, Name::new(Ino(dir), name), kind, perm, rdev),
        }
    }

    pub(crate) fn mkdir(&self, cx: &Ctx, dir: u64, name: &[u8], mode: u32) -> Result<Attr> {
        self.fs.mkdir(cx, Ino(dir), name, mode & 0o7777)
    }

    pub(crate) fn symlink(&self, cx: &Ctx, dir: u64, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.fs.symlink(cx, Ino(dir), name, target)
    }

    pub(crate) fn link(&self, cx: &Ctx, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        self.fs.link(cx, Ino(ino), Ino(dir), name)
    }

    pub(crate) fn unlink(&self, cx: &Ctx, dir: u64, name: &[u8]) -> Result<()> {
        self.fs.unlink(cx, Ino(dir), name)
    }

    pub(crate) fn rmdir(&self, cx: &Ctx, dir: u64, name: &[u8]) -> Result<()> {
        self.fs.rmdir(cx, Ino(dir), name)
    }

    /// `flags` as `renameat2` has them; `RENAME_WHITEOUT` is refused.
    pub(crate) fn rename(
        &self,
        cx: &Ctx,
        (dir, name): (u64, &[u8]),
        (new_dir, new_name): (u64, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        self.fs.rename(
            cx,
            Name::new(Ino(dir), name),
            Name::new(Ino(new_dir), new_name),
            flags,
        )
    }

    pub(crate) fn read(&self, cx: &Ctx, ino: u64, off: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(cx, Ino(ino), off, buf)
    }

    /// `drop_set_id`: the kernel's request to drop the set-id bits with the write. The
    /// file system does both in one step.
    pub(crate) fn write(
        &self,
        cx: &Ctx,
        ino: u64,
        off: u64,
        data: &[u8],
        drop_set_id: bool,
    ) -> Result<Changed<usize>> {
        self.change_data(cx, Ino(ino), drop_set_id, |cx| {
            self.fs.write(cx, Ino(ino), off, data)
        })
    }

    /// Writes at the end, wherever the kernel expects that. `drop_set_id`: as for `write`.
    pub(crate) fn append(
        &self,
        cx: &Ctx,
        ino: u64,
        data: &[u8],
        drop_set_id: bool,
    ) -> Result<Changed<usize>> {
        self.change_data(cx, Ino(ino), drop_set_id, |cx| {
            let (_, written) = self.fs.append(cx, Ino(ino), data)?;
            Ok(written)
        })
    }

    /// Drops the capabilities of a program whose contents change. Before each write that does not come from its cache the
    /// kernel leaves that to the server, also for the super-user (`FUSE_HANDLE_KILLPRIV_V2`).
    fn drop_capabilities(&self, cx: &Ctx, ino: Ino) -> Result<()> {
        if cx.is_write_back || self.fs.drops_capabilities() {
            return Ok(());
        }
        let cx = Ctx {
            uid: 0,
            checked: true,
            ..cx.clone()
        };
        if self.fs.getxattr(&cx, ino, CAPABILITY).is_err() {
            return Ok(());
        }
        match self.fs.removexattr(&cx, ino, CAPABILITY) {
            Err(Errno::NODATA) => Ok(()), // another thread was first
            removed => removed,
        }
    }

    /// Runs `change` for a caller whose changes of data drop the set-id bits, or do not.
    fn change_data<T>(
        &self,
        cx: &Ctx,
        ino: Ino,
        drop_set_id: bool,
        change: impl FnOnce(&Ctx) -> Result<T>,
    ) -> Result<Changed<T>> {
        self.drop_capabilities(cx, ino)?;
        if !drop_set_id {
            return Ok(Changed {
                result: change(cx)?,
                mode_changed: false,
            });
        }
        let attr = self.fs.getattr(cx, ino)?;
        let cx = Ctx {
            drops_set_id: true,
            ..cx.clone()
        };
        Ok(Changed {
            result: change(&cx)?,
            mode_changed: perm::perm_after_write(&cx, &attr) != attr.perm,
        })
    }

    /// Allocates or frees a range. `mode`: the flags of `fallocate(2)`; unsupported ones fail with
    /// `EOPNOTSUPP`. Drops the set-id bits as a truncation does, since the kernel does not.
    pub(crate) fn fallocate(
        &self,
        cx: &Ctx,
        ino: u64,
        mode: u32,
        off: u64,
        len: u64,
    ) -> Result<Changed<()>> {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
        const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        let keep_size = mode & KEEP_SIZE != 0;
        let kind = match mode & !KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.change_data(cx, Ino(ino), cx.uid != 0, |cx| {
            self.fs.fallocate(cx, Ino(ino), kind, off, len)
        })
    }

    /// Only `SEEK_DATA` and `SEEK_HOLE` arrive; the kernel does the others itself.
    pub(crate) fn lseek(&self, cx: &Ctx, ino: u64, off: i64, whence: i32) -> Result<i64> {
        let kind = match whence {
            libc::SEEK_DATA => SeekKind::Data,
            libc::SEEK_HOLE => SeekKind::Hole,
            _ => return Err(Errno::INVAL),
        };
        let off = u64::try_from(off).map_err(|_| Errno::NXIO)?;
        let found = self.fs.seek(cx, Ino(ino), off, kind)?;
        i64::try_from(found).map_err(|_| Errno::OVERFLOW)
    }

    pub(crate) fn readdir(
        &self,
        cx: &Ctx,
        dir: u64,
        after: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.fs.readdir(cx, Ino(dir), Cookie(after), sink)
    }

    /// The kernel holds one reference for each entry that `sink` accepts, except `.`
    /// and `..`.
    pub(crate) fn readdirplus(
        &self,
        cx: &Ctx,
        dir: u64,
        after: u64,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        self.fs.readdirplus(cx, Ino(dir), Cookie(after), sink)
    }

    pub(crate) fn fsync(&self, cx: &Ctx, ino: u64, data_only: bool) -> Result<()> {
        self.fs.fsync(cx, Ino(ino), data_only)
    }

    pub(crate) fn fsyncdir(&self, cx: &Ctx, ino: u64, data_only: bool) -> Result<()> {
        self.fs.fsyncdir(cx, Ino(ino), data_only)
    }

    pub(crate) fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }

    /// Inodes without a name that the kernel has not given back.
    pub(crate) fn nameless(&self) -> Vec<Ino> {
        self.fs.nameless()
    }

    pub(crate) fn getxattr(&self, cx: &Ctx, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        let mut facts = self.facts.iter().filter(|_| Ino(ino) == Ino::ROOT);
        if let Some((_, fact)) = facts.find(|(n, _)| n.as_bytes() == name) {
            return Ok(fact.tell().into_bytes());
        }
        if name == SYNC_XATTR.as_bytes() {
            return self.fs.sync().map(|()| SYNCED.to_vec());
        }
        self.fs.getxattr(cx, Ino(ino), name)
    }

    /// `flags`: 0, `XATTR_CREATE` or `XATTR_REPLACE`.
    pub(crate) fn setxattr(
        &self,
        cx: &Ctx,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        self.fs.setxattr(cx, Ino(ino), name, value, mode)
    }

    /// A request of `ioctl(2)`.
    pub(crate) fn control(
        &self,
        cx: &Ctx,
        ino: u64,
        command: u32,
        input: &[u8],
    ) -> Result<Vec<u8>> {
        self.fs.control(cx, Ino(ino), command, input)
    }

    /// The names, each followed by a NUL.
    pub(crate) fn listxattr(&self, cx: &Ctx, ino: u64) -> Result<Vec<u8>> {
        let mut list = Vec::new();
        for name in self.fs.listxattr(cx, Ino(ino))? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    pub(crate) fn removexattr(&self, cx: &Ctx, ino: u64, name: &[u8]) -> Result<()> {
        self.fs.removexattr(cx, Ino(ino), name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oracle::{ModelFs, ModelOptions};
    use vfs::{Atime, ManualClock, Timestamp};

    #[test]
    fn a_lookup_of_the_parent_leaves_the_access_time() {
        let clock = Arc::new(ManualClock::new(Timestamp(1000), 1));
        let fs = ModelFs::new(ModelOptions {
            clock,
            atime: Atime::Strict,
            ..ModelOptions::default()
        });
        let ops = Ops::new(Arc::new(fs), Vec::new());
        let cx = caller(0, 0, 1);
        let dir = ops.mkdir(&cx, 1, b"dir", 0o755).unwrap().ino.0;
        let atime = || ops.getattr(&cx, dir).unwrap().atime;
        let before = atime();
        let parent = ops.lookup(&cx, dir, b"..").unwrap().unwrap();
        assert_eq!(parent.ino, Ino::ROOT);
        assert_eq!(atime(), before);
        // A listing by a user is an access.
        ops.readdir(&cx, dir, 0, &mut |_| true).unwrap();
        assert!(atime() > before);
    }
}
