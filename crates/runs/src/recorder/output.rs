//! A file to which a program has its standard output, for [`Recorder`].
//!
//! A write to it returns after it was recorded: the output is in the run before all calls that the program makes after it.

use super::Recorder;
use parking_lot::Mutex;
use std::sync::Arc;
use vfs::{
    Attr, Ctx, Errno, Fallocate, FileFlags, FileSystem, FileSystemLayer, FileType, Ino, OpenFlags,
    Result, SeekKind, SetAttr, Timestamp, XattrMode,
};

/// The name of the file in the root. It is not listed.
pub const OUTPUT_NAME: &str = ".selvedge.output";

/// No engine has such a number, nor has a patchgroup, which has bit 62.
const INO: Ino = Ino(1 << 61);

/// Passes on what was recorded.
pub type PassOn = Box<dyn FnMut(&[u8]) + Send>;

/// A recorder with a file for the output of the program.
pub struct WithOutput {
    recorder: Arc<Recorder>,
    pass_on: Mutex<PassOn>,
    owner: (u32, u32),
}

impl WithOutput {
    /// Adds the file, which belongs to this user and group. `pass_on` gets what was recorded.
    pub fn new(recorder: Arc<Recorder>, owner: (u32, u32), pass_on: PassOn) -> Self {
        Self {
            recorder,
            pass_on: Mutex::new(pass_on),
            owner,
        }
    }

    fn attr(&self) -> Attr {
        Attr {
            ino: INO,
            generation: 0,
            kind: FileType::Regular,
            perm: 0o600,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Timestamp(0),
            mtime: Timestamp(0),
            ctime: Timestamp(0),
            flags: FileFlags::empty(),
        }
    }

    /// The file system for an inode that is not the file.
    fn other(&self, ino: Ino) -> Result<&Recorder> {
        match ino {
            INO => Err(Errno::OPNOTSUPP),
            _ => Ok(&self.recorder),
        }
    }
}

impl FileSystemLayer for WithOutput {
    fn below(&self) -> &dyn FileSystem {
        &*self.recorder
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        match dir == Ino::ROOT && name == OUTPUT_NAME.as_bytes() {
            true => Ok(self.attr()),
            false => self.below().lookup(cx, dir, name),
        }
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        match ino {
            INO => Ok(self.attr()),
            ino => self.below().by_number(ino),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        if ino != INO {
            self.below().forget(ino, count);
        }
    }

    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr> {
        match ino {
            INO => Ok(self.attr()),
            ino => self.below().getattr(cx, ino),
        }
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        match ino {
            INO => Ok(self.attr()),
            ino => self.below().setattr(cx, ino, set),
        }
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        match ino {
            INO => Ok(()),
            ino => self.below().open(cx, ino, flags),
        }
    }

    fn release(&self, ino: Ino) {
        if ino != INO {
            self.below().release(ino);
        }
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        match ino {
            INO => Ok(0),
            ino => self.below().read(cx, ino, off, buf),
        }
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        if ino != INO {
            return self.below().write(cx, ino, off, data);
        }
        // Programs that write at a time are recorded and passed on in the same order.
        let mut pass_on = self.pass_on.lock();
        self.recorder.output(cx, data)?;
        pass_on(data);
        Ok(data.len())
    }

    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        match ino {
            INO => Ok((0, FileSystemLayer::write(self, cx, ino, 0, data)?)),
            ino => self.below().append(cx, ino, data),
        }
    }

    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        match ino {
            INO => Ok(()),
            ino => self.below().fsync(cx, ino, data_only),
        }
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        FileSystem::fallocate(self.other(ino)?, cx, ino, kind, off, len)
    }

    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        FileSystem::seek(self.other(ino)?, cx, ino, off, kind)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        FileSystem::link(self.other(ino)?, cx, ino, dir, name)
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        FileSystem::getxattr(self.other(ino)?, cx, ino, name)
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        FileSystem::setxattr(self.other(ino)?, cx, ino, name, value, mode)
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        FileSystem::listxattr(self.other(ino)?, cx, ino)
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        FileSystem::removexattr(self.other(ino)?, cx, ino, name)
    }
}
