//! A file system whose users cannot change it.

use crate::{
    Attr, Ctx, Errno, Fallocate, FileSystem, FileSystemLayer, Ino, Name, NewNode, OpenFlags,
    Removal, RenameFlags, Result, SetAttr, XattrMode,
};

/// Refuses all changes of the file system below, with `EROFS`. Access times are up to that one.
pub struct ReadOnly<F>(pub F);

impl<F: FileSystem> FileSystemLayer for ReadOnly<F> {
    fn below(&self) -> &dyn FileSystem {
        &self.0
    }

    fn setattr(&self, _cx: &Ctx, _ino: Ino, _set: &SetAttr) -> Result<Attr> {
        Err(Errno::ROFS)
    }

    fn make(&self, _cx: &Ctx, _at: Name<'_>, _new: &NewNode<'_>) -> Result<Attr> {
        Err(Errno::ROFS)
    }

    fn link(&self, _cx: &Ctx, _ino: Ino, _dir: Ino, _name: &[u8]) -> Result<Attr> {
        Err(Errno::ROFS)
    }

    fn remove(&self, _cx: &Ctx, _at: Name<'_>, _which: Removal) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn rename(&self, _cx: &Ctx, _: Name<'_>, _: Name<'_>, _flags: RenameFlags) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn tmpfile(&self, _cx: &Ctx, _dir: Ino, _mode: u32) -> Result<Attr> {
        Err(Errno::ROFS)
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        match flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            true => Err(Errno::ROFS),
            false => self.0.open(cx, ino, flags),
        }
    }

    fn write(&self, _cx: &Ctx, _ino: Ino, _off: u64, _data: &[u8]) -> Result<usize> {
        Err(Errno::ROFS)
    }

    fn append(&self, _cx: &Ctx, _ino: Ino, _data: &[u8]) -> Result<(u64, usize)> {
        Err(Errno::ROFS)
    }

    fn fallocate(&self, _: &Ctx, _: Ino, _: Fallocate, _off: u64, _len: u64) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn setxattr(
        &self,
        _cx: &Ctx,
        _ino: Ino,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrMode,
    ) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn removexattr(&self, _cx: &Ctx, _ino: Ino, _name: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }
}
