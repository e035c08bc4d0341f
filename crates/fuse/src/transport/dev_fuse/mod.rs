//! Requests through `/dev/fuse`, by the crate `fuser`.

mod bypass;
mod convert;
mod reply;
#[cfg(test)]
mod tests;

pub use convert::io_errors;

use crate::options::MountOptions;
use crate::transport::dropped::Dropped;
use crate::transport::late::Late;
use crate::transport::short_lived::ShortLived;
use crate::transport::written::Written;
use bypass::{Bypass, leaves_atime, reads_only};
use convert::{absent, ctx, errno, file_attr, file_type, reader, set_time, timestamp, unread};
use fuser::{
    CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use reply::LIFETIME;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, SystemTime};
use vfs::{Attr, Ctx, SetAttr};

/// Most bytes in one read or write request.
const MAX_IO_BYTES: u32 = 1 << 20;

/// The requested capabilities, if the kernel offers them. These are not requested:
///
/// - `WRITEBACK_CACHE` loses the order of writes, and the identity of the writer.
/// - `POSIX_LOCKS` and `FLOCK_LOCKS`: the kernel keeps locks itself.
/// - `ATOMIC_O_TRUNC`: truncation is a `setattr`.
/// - `AUTO_INVAL_DATA` would drop cached data after our own writes.
const WANTED: [InitFlags; 9] = [
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    // File handles stay valid when the kernel has dropped an inode: it looks `.` up.
    InitFlags::FUSE_EXPORT_SUPPORT,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    // Without it the kernel requests `security.capability` before every write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

thread_local! {
    /// Data of the read under way on this thread; grows to the largest request.
    static READ_BUF: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Open files have no state here, and open directories none but [`NO_ATIME`].
const NO_HANDLE: FileHandle = FileHandle(0);

/// A directory that was opened with `O_NOATIME`: `fuser` passes the flags with each read of
/// a file, and not with listings.
const NO_ATIME: FileHandle = FileHandle(1);

/// [`Ops`](ops::Ops) as the trait of the crate `fuser`.
pub(crate) struct DevFuse {
    ops: Late,
    read_only: bool,
    /// The server sees every read.
    sees_reads: bool,
    /// Others change the file system, too.
    is_shared: bool,
    /// The time for which names and attributes stay valid in the kernel.
    lifetime: Duration,
    /// The kernel shares mappings of files that bypass its page cache: without, programs
    /// would fail.
    mappable: bool,
    /// Which files may have stale pages in the kernel's cache.
    written: Written,
    /// That this kernel splits writes which should be atomic. Not known at the handshake,
    /// which comes before the file system is open.
    warned: Once,
    notifier: Arc<OnceLock<Notifier>>,
    /// Finds the removed files that the kernel has dropped.
    dropped: Arc<Dropped>,
    short_lived: ShortLived,
}

impl DevFuse {
    /// `notifier` is to be filled in once the session exists, and `dropped` gets its device.
    pub(crate) fn new(
        o: &MountOptions,
        ops: Late,
        notifier: Arc<OnceLock<Notifier>>,
        dropped: Arc<Dropped>,
    ) -> Self {
        Self {
            ops,
            read_only: o.read_only,
            sees_reads: o.strict_atime || o.shared,
            is_shared: o.shared,
            lifetime: if o.shared { Duration::ZERO } else { LIFETIME },
            mappable: false,
            written: Written::default(),
            warned: Once::new(),
            notifier,
            dropped,
            short_lived: ShortLived::default(),
        }
    }

    /// Notes that the kernel gets a reference to this inode with the next reply.
    fn refer(&self, ino: vfs::Ino, kind: vfs::FileType) {
        if kind == vfs::FileType::Regular && self.bypass() == Bypass::Writers {
            self.written.refer(ino.0);
        }
    }

    fn with_space<T>(&self, call: impl Fn() -> vfs::Result<T>) -> vfs::Result<T> {
        self.dropped.with_space(&self.ops, call)
    }

    /// Replies with an inode and a reference to it.
    fn reply_entry(&self, result: vfs::Result<Attr>, reply: ReplyEntry) {
        match result {
            Ok(a) => {
                self.refer(a.ino, a.kind);
                // An inode without a name: the next lookup finds another one, or none.
                let lifetime = match a.nlink {
                    0 => Duration::ZERO,
                    _ => self.lifetime,
                };
                reply.entry(&lifetime, &file_attr(&a), Generation(a.generation));
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    /// Notifies the kernel that attributes which it holds are stale.
    fn invalidate_attr(&self, ino: INodeNo) {
        if let Some(notifier) = self.notifier.get()
            && let Err(e) = notifier.inval_inode(ino, -1, 0)
        {
            tracing::warn!("the kernel refused to drop the attributes of inode {ino}: {e}");
        }
    }
}

impl Filesystem for DevFuse {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!("the kernel does not offer {flag:?}");
            }
        }
        self.negotiate_bypass(config);
        // If the kernel refuses a value, its limit is used.
        let _ = config.set_max_write(MAX_IO_BYTES);
        if let Err(most) = config.set_max_readahead(MAX_IO_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.ops.lookup(&ctx(req), parent.0, name.as_bytes()) {
            Ok(Some(attr)) => {
                self.reply_entry(Ok(attr), reply);
                if attr.nlink == 0 && !matches!(name.as_bytes(), b"." | b"..") {
                    self.short_lived.add(parent, name.into(), &self.notifier);
                }
            }
            Ok(None) => reply.entry(&self.lifetime, &absent(), Generation(0)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let _forgetting = self.dropped.forgetting();
        self.written.forget(ino.0, nlookup);
        self.ops.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply::attr(self.ops.getattr(&ctx(req), ino.0), self.lifetime, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            perm: mode.map(|m| m & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(timestamp),
        };
        let done = self.with_space(|| self.ops.setattr(&ctx(req), ino.0, set));
        reply::attr(done, self.lifetime, reply);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.ops.readlink(&ctx(req), ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        let made = self.with_space(|| self.ops.mknod(&ctx(req), parent.0, name, mode, rdev));
        self.reply_entry(made, reply);
    }

    /// Where opens do not reach the server, `ENOSYS` makes the kernel use `mknod`: one
    /// request instead of a create and a release. It holds the directory's lock meanwhile,
    /// so that `O_EXCL` stays exact.
    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let bypass = self.bypass();
        if bypass == Bypass::Nothing {
            return reply.error(Errno::ENOSYS);
        }
        let name = name.as_bytes();
        match self.with_space(|| self.ops.mknod(&ctx(req), parent.0, name, mode, 0)) {
            Ok(a) => {
                self.refer(a.ino, a.kind);
                let how = bypass.of(a.ino.0, OpenFlags(flags), &self.written);
                let how = how.unwrap_or(FopenFlags::empty());
                let generation = Generation(a.generation);
                reply.created(&self.lifetime, &file_attr(&a), generation, NO_HANDLE, how);
            }
            // Another mount has made it since the lookup. The kernel looks it up again, and opens it.
            Err(vfs::Errno::EXIST) if flags & libc::O_EXCL == 0 => reply.error(Errno::ESTALE),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes();
        let made = self.with_space(|| self.ops.mkdir(&ctx(req), parent.0, name, mode));
        self.reply_entry(made, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply::empty(self.ops.unlink(&ctx(req), parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply::empty(self.ops.rmdir(&ctx(req), parent.0, name.as_bytes()), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let name = link_name.as_bytes();
        let made = self.with_space(|| self.ops.symlink(&ctx(req), parent.0, name, target));
        self.reply_entry(made, reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (old, new) = (
            (parent.0, name.as_bytes()),
            (newparent.0, newname.as_bytes()),
        );
        let renamed = self.with_space(|| self.ops.rename(&ctx(req), old, new, flags.bits()));
        reply::empty(renamed, reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = newname.as_bytes();
        let linked = self.with_space(|| self.ops.link(&ctx(req), ino.0, newparent.0, name));
        self.reply_entry(linked, reply);
    }

    /// `ENOSYS` makes the kernel stop asking: opens and closes then cost no request.
    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.bypass().of(ino.0, flags, &self.written) {
            Some(how) => reply.opened(NO_HANDLE, how),
            None => reply.error(Errno::ENOSYS),
        }
    }

    /// Follows the last close of an open that reached the server.
    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if !reads_only(flags) {
            self.written.close(ino.0);
        }
        reply.ok();
    }

    /// Either every listing reaches the server, or as in [`open`](Self::open) no opening.
    /// The kernel checks whether the caller may use `O_NOATIME`.
    fn opendir(&self, _req: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let handle = match leaves_atime(flags) {
            true => NO_ATIME,
            false => NO_HANDLE,
        };
        match self.bypass() {
            Bypass::Everything => reply.opened(handle, FopenFlags::empty()),
            Bypass::Nothing | Bypass::Writers => reply.error(Errno::ENOSYS),
        }
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let cx = reader(req, leaves_atime(flags));
        READ_BUF.with_borrow_mut(|buf| {
            // The kernel requests at most this. A fake kernel must not make the buffer grow.
            let size = size.min(MAX_IO_BYTES) as usize;
            if buf.len() < size {
                buf.resize(size, 0);
            }
            match self.ops.read(&cx, ino.0, offset, &mut buf[..size]) {
                Ok(len) => reply.data(&buf[..len]),
                Err(e) => reply.error(errno(e)),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let drop_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let is_write_back = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let cx = Ctx {
            is_write_back,
            ..ctx(req)
        };
        // The kernel has an old size if others have written to the end.
        let is_append = self.is_shared && !is_write_back && flags.0 & libc::O_APPEND != 0;
        let write = || match is_append {
            true => self.ops.append(&cx, ino.0, data, drop_set_id),
            false => self.ops.write(&cx, ino.0, offset, data, drop_set_id),
        };
        let written = match is_write_back {
            true => write(),
            false => self.with_space(write),
        };
        let done = written.inspect(|done| {
            if done.mode_changed {
                self.invalidate_attr(ino);
            }
        });
        match done.and_then(|done| self.sync_after(&cx, ino, flags).map(|()| done)) {
            Ok(done) => reply.written(done.result as u32),
            Err(e) => reply.error(errno(e)),
        }
    }

    /// Nothing waits for a close: stop asking.
    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply::empty(self.ops.fsync(&ctx(req), ino.0, datasync), reply);
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply::empty(self.ops.fsyncdir(&ctx(req), ino.0, datasync), reply);
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let cx = reader(req, fh == NO_ATIME);
        let listed = self.ops.readdir(&cx, ino.0, offset, &mut |e| {
            let full = reply.add(
                INodeNo(e.ino.0),
                e.cookie.0,
                file_type(e.kind),
                OsStr::from_bytes(e.name),
            );
            !full
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let cx = reader(req, fh == NO_ATIME);
        let mut has_some = false;
        let listed = self.ops.readdirplus(&cx, ino.0, offset, &mut |e, a| {
            let (attr, lifetime) = match a {
                Some(a) => (file_attr(a), self.lifetime),
                None => (unread(e), Duration::ZERO),
            };
            if a.is_none() {
                convert::count_io_error();
            }
            let full = reply.add(
                INodeNo(e.ino.0),
                e.cookie.0,
                OsStr::from_bytes(e.name),
                &lifetime,
                &attr,
                Generation(a.map_or(0, |a| a.generation)),
            );
            if !full {
                self.refer(e.ino, e.kind);
            }
            has_some |= !full;
            !full
        });
        match listed {
            // The kernel must learn of the references that it has. It asks again after the last entry.
            Err(e) if !has_some => reply.error(errno(e)),
            _ => reply.ok(),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.dropped.wait(&self.ops);
        match self.ops.statfs() {
            Ok(s) => reply.statfs(
                s.blocks,
                s.blocks_free,
                s.blocks_avail,
                s.inodes,
                s.inodes_free,
                s.block_bytes,
                s.name_max,
                s.block_bytes,
            ),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let name = name.as_bytes();
        let set = self.with_space(|| self.ops.setxattr(&ctx(req), ino.0, name, value, flags));
        reply::empty(set, reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply::xattr(
            self.ops.getxattr(&ctx(req), ino.0, name.as_bytes()),
            size,
            reply,
        );
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        reply::xattr(self.ops.listxattr(&ctx(req), ino.0), size, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes();
        let removed = self.with_space(|| self.ops.removexattr(&ctx(req), ino.0, name));
        reply::empty(removed, reply);
    }

    /// Never called with `default_permissions`; the answer makes the kernel stop asking.
    fn access(&self, _req: &Request, _ino: INodeNo, _mask: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.ops.control(&ctx(req), ino.0, cmd, in_data) {
            Ok(data) if data.len() <= out_size as usize => reply.ioctl(0, &data),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(e) => reply.error(errno(e)),
        }
    }

    /// Files are always ready: stop asking.
    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (cx, mode) = (ctx(req), mode as u32);
        let done = self.with_space(|| self.ops.fallocate(&cx, ino.0, mode, offset, length));
        if done.as_ref().is_ok_and(|done| done.mode_changed) {
            self.invalidate_attr(ino);
        }
        reply::empty(done.map(|done| done.result), reply);
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if !self.knows_holes() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ops.lseek(&ctx(req), ino.0, offset, whence) {
            Ok(off) => reply.offset(off),
            Err(e) => reply.error(errno(e)),
        }
    }

    /// `ENOSYS` makes the kernel copy by reading and writing.
    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
