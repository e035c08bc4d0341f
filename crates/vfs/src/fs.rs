//! The `FileSystem` trait.

use crate::check::Finding;
use crate::{
    Attr, ChangeOrder, Cookie, Ctx, DirEntry, Fallocate, FileType, Guarantees, Ino, Name, NewNode,
    OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr, StatFs, XattrMode,
};

/// A mounted file system.
///
/// The trait is object-safe, and any number of threads may call it. Names are bytes, without
/// `/`. Callers resolve `.` and `..` themselves (both appear in listings).
///
/// # References
/// An inode number is valid while the inode has a name or a *reference*. Each `Ok` of `lookup`,
/// `by_number`, `make`, `link` and `tmpfile` takes one reference. So does each entry except `.`
/// and `..` that a `readdirplus` sink accepts. The caller gives them back with
/// [`forget`](FileSystem::forget). Each `open` takes one that `release` gives back.
///
/// An inode without a name lives until its last reference is given back. A call on a dead inode
/// number returns `ESTALE`. After a crash there are no references.
///
/// # Errors
/// The errno of the Linux system call of the same name. Also `EIO` for a medium that fails,
/// `EUCLEAN` for damage of the format, `ESTALE` for a dead inode number and `EROFS` when
/// read-only.
#[allow(clippy::missing_errors_doc)] // the trait documents them once
pub trait FileSystem: Send + Sync {
    /// The promises of this file system, as mounted, about crashes.
    fn guarantees(&self) -> Guarantees;

    /// The order between sets of changes, if the file system can keep one.
    fn change_order(&self) -> Option<&dyn ChangeOrder> {
        None
    }

    /// Compares volatile state (allocators, link counts) with the stored state, and returns the
    /// differences. No other call may be under way.
    fn audit(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// A number that is another one after a change by which a path could lead elsewhere: a directory was moved or
    /// removed, or others may search it now. Callers may rely on directories to which paths have led while it stays
    /// the same ([`Paths`](crate::Paths)). `None`: they look up each name.
    fn paths_version(&self) -> Option<u64> {
        None
    }

    /// Whether each change of contents drops the [capabilities](crate::perm::CAPABILITY) of a program. Otherwise who
    /// calls drops them before.
    fn drops_capabilities(&self) -> bool {
        false
    }

    /// Finds `name` in `dir`. Takes a reference.
    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr>;
    /// Returns the attributes of the inode of a name, as [`lookup`](Self::lookup) and [`forget`](Self::forget) would,
    /// in one step. `None`: only these calls can do it now.
    fn attributes(&self, _cx: &Ctx, _at: Name<'_>) -> Result<Option<Attr>> {
        Ok(None)
    }

    /// Opens a regular file by its name, as [`lookup`](Self::lookup), [`open`](Self::open) and
    /// [`forget`](Self::forget) would, in one step. `None`: it is of another kind, or only these calls can do it now.
    fn open_file(&self, _cx: &Ctx, _at: Name<'_>, _flags: OpenFlags) -> Result<Option<Attr>> {
        Ok(None)
    }

    /// Finds an inode by its number, for a caller that kept the number (a file handle). Takes a
    /// reference.
    fn by_number(&self, ino: Ino) -> Result<Attr>;
    /// Gives back `count` references that calls other than `open` took.
    fn forget(&self, ino: Ino, count: u64);
    /// Returns the attributes (`stat`).
    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr>;
    /// Changes attributes in one atomic step (`chmod`, `chown`, `truncate`, `utimensat`).
    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Lists `dir` after `after`, in cookie order, `.` and `..` first. `sink` returns false to
    /// refuse an entry and stop. It must not call the file system.
    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// Lists as [`readdir`](FileSystem::readdir) does, with attributes: `None` for a damaged
    /// inode, which does not end the listing. Each accepted entry except `.` and `..` takes a
    /// reference.
    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()>;

    /// Makes a node with a name; `EEXIST` if the name exists. Takes a reference, as do the
    /// other calls that make a node or a name. The group and the set-gid bit come from a
    /// set-gid directory.
    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr>;
    /// [Makes](FileSystem::make) a regular file. `mode`: the permission bits, umask already
    /// applied.
    fn create(&self, cx: &Ctx, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.make(cx, Name::new(dir, name), &NewNode::file(mode))
    }
    /// [Makes](FileSystem::make) a node of any type but directory and symbolic link. `rdev`:
    /// the device number where `kind` is a device.
    fn mknod(&self, cx: &Ctx, at: Name<'_>, kind: FileType, mode: u32, rdev: u32) -> Result<Attr> {
        self.make(cx, at, &NewNode::special(kind, mode, rdev)?)
    }
    /// [Makes](FileSystem::make) a directory.
    fn mkdir(&self, cx: &Ctx, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.make(cx, Name::new(dir, name), &NewNode::directory(mode))
    }
    /// [Makes](FileSystem::make) a symbolic link to `target` (1 to
    /// [`SYMLINK_MAX`](crate::SYMLINK_MAX) bytes).
    fn symlink(&self, cx: &Ctx, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.make(cx, Name::new(dir, name), &NewNode::symlink(target)?)
    }
    /// Returns the target of a symbolic link; `EINVAL` for other types.
    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>>;
    /// Adds a name to `ino`; `EPERM` for a directory.
    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
    /// Removes a name.
    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()>;
    /// [Removes](FileSystem::remove) a name of a file that is not a directory.
    fn unlink(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove(cx, Name::new(dir, name), Removal::Unlink)
    }
    /// [Removes](FileSystem::remove) an empty directory.
    fn rmdir(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove(cx, Name::new(dir, name), Removal::Rmdir)
    }
    /// Moves a name, and replaces the target as `rename(2)` allows. The file system makes all
    /// checks: types, emptiness, and `EINVAL` for a directory moved below itself. Nothing is
    /// done when both names are links to one inode.
    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()>;
    /// Makes a regular file without a name (`O_TMPFILE`) in the file system of `dir`;
    /// [`link`](FileSystem::link) may name it later. Takes a reference.
    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr>;

    /// Takes a reference for an open file or directory.
    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()>;
    /// Gives back the reference of one `open`.
    fn release(&self, ino: Ino) {
        self.forget(ino, 1);
    }

    /// Reads up to `buf.len()` bytes at `off`; short only at the end of the file.
    /// `EISDIR` for a directory, `EINVAL` for other types without data.
    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes all of `data` at `off`, filling a gap before it with zeros; `EFBIG`
    /// beyond [`SIZE_MAX`](crate::SIZE_MAX).
    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize>;
    /// Writes all of `data` at the end of the file. Returns the offset, and the number of bytes.
    ///
    /// Other appends go after it, if all changes of the file system are made through this value. Where others change
    /// it, too, the implementation has to see to that.
    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        append_by_write(self, cx, ino, data)
    }
    /// Sets the length.
    fn truncate(&self, cx: &Ctx, ino: Ino, size: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.setattr(cx, ino, &set).map(drop)
    }
    /// Allocates or zeroes the range `off..off + len`; `EINVAL` if `len` is 0.
    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()>;
    /// Finds the next data or hole at or after `off`; `ENXIO` past the end.
    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64>;
    /// Makes the file durable; with `data_only`, only what a read of its data needs.
    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
    /// Makes the directory durable.
    fn fsyncdir(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// Space and inodes, in all and free.
    fn statfs(&self) -> Result<StatFs>;
    /// Inodes that have lost their last name and are still referenced, if the file system keeps
    /// a list. Their space counts as used.
    fn nameless(&self) -> Vec<Ino> {
        Vec::new()
    }

    /// An extended attribute's value; fails with [`absent_xattr`](crate::absent_xattr) without it.
    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// Sets an extended attribute; `ENOSPC` or `E2BIG` when it does not fit. For names see
    /// [`check_xattr_name`](crate::check_xattr_name).
    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    /// The names of the extended attributes that the caller
    /// [may see](crate::perm::may_list_xattr), in no stated order.
    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// Removes an extended attribute; fails with [`absent_xattr`](crate::absent_xattr) without it.
    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()>;

    /// A request that only some files know (`ioctl`), with its bytes in and out; `ENOTTY`
    /// otherwise.
    fn control(&self, _cx: &Ctx, _ino: Ino, _command: u32, _input: &[u8]) -> Result<Vec<u8>> {
        Err(crate::Errno::NOTTY)
    }
}

/// [`FileSystem::append`] by a `write` at the size of the file. The caller holds back other writers.
///
/// # Errors
/// Those of `getattr` and `write`.
pub fn append_by_write<F: FileSystem + ?Sized>(
    fs: &F,
    cx: &Ctx,
    ino: Ino,
    data: &[u8],
) -> Result<(u64, usize)> {
    let off = fs.getattr(cx, ino)?.size;
    Ok((off, fs.write(cx, ino, off, data)?))
}
