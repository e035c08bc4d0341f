//! File systems whose calls all fail.

use std::sync::Mutex;
use std::sync::mpsc::Receiver;
use vfs::{
    Atomicity, Attr, Cookie, Ctx, DirEntry, Errno, Fallocate, FileSystem, FileType, Guarantees,
    Ino, Name, NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr, StatFs,
    XattrMode,
};

/// Fails each call with one errno.
pub(super) struct Failing {
    pub(super) errno: Errno,
    /// The unit of data that it promises to write atomically.
    pub(super) data_atomic: Atomicity,
    /// The result of a lookup, which does not fail then.
    pub(super) found: Option<Attr>,
    /// Inodes that have no name and that the kernel has not given back.
    pub(super) nameless: Vec<Ino>,
    /// Lists one file, whose inode cannot be read, instead of failing.
    pub(super) lists_unreadable: bool,
    /// `fsync` waits until something arrives here.
    pub(super) gate: Option<Mutex<Receiver<()>>>,
}

impl Failing {
    pub(super) fn with(errno: Errno) -> Self {
        Self {
            errno,
            data_atomic: Guarantees::none("failing").data_atomic,
            found: None,
            nameless: Vec::new(),
            lists_unreadable: false,
            gate: None,
        }
    }

    fn fail<T>(&self) -> Result<T> {
        Err(self.errno)
    }
}

impl FileSystem for Failing {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            data_atomic: self.data_atomic,
            ..Guarantees::none("failing")
        }
    }

    fn readdirplus(
        &self,
        _: &Ctx,
        _: Ino,
        _: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        if !self.lists_unreadable {
            return self.fail();
        }
        let entry = DirEntry {
            ino: Ino(9),
            cookie: Cookie(1),
            kind: FileType::Regular,
            name: b"unreadable",
        };
        sink(&entry, None);
        Ok(())
    }

    fn fsync(&self, _: &Ctx, _: Ino, _: bool) -> Result<()> {
        if let Some(gate) = &self.gate {
            gate.lock().unwrap().recv().unwrap();
        }
        self.fail()
    }

    fn forget(&self, _: Ino, _: u64) {}

    fn lookup(&self, _: &Ctx, _: Ino, _: &[u8]) -> Result<Attr> {
        self.found.ok_or(self.errno)
    }
    fn nameless(&self) -> Vec<Ino> {
        self.nameless.clone()
    }
    fn by_number(&self, _: Ino) -> Result<Attr> {
        self.fail()
    }
    fn getattr(&self, _: &Ctx, _: Ino) -> Result<Attr> {
        self.fail()
    }
    fn setattr(&self, _: &Ctx, _: Ino, _: &SetAttr) -> Result<Attr> {
        self.fail()
    }
    fn readdir(
        &self,
        _: &Ctx,
        _: Ino,
        _: Cookie,
        _: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.fail()
    }
    fn make(&self, _: &Ctx, _: Name<'_>, _: &NewNode<'_>) -> Result<Attr> {
        self.fail()
    }
    fn readlink(&self, _: &Ctx, _: Ino) -> Result<Vec<u8>> {
        self.fail()
    }
    fn link(&self, _: &Ctx, _: Ino, _: Ino, _: &[u8]) -> Result<Attr> {
        self.fail()
    }
    fn remove(&self, _: &Ctx, _: Name<'_>, _: Removal) -> Result<()> {
        self.fail()
    }
    fn rename(&self, _: &Ctx, _: Name<'_>, _: Name<'_>, _: RenameFlags) -> Result<()> {
        self.fail()
    }
    fn tmpfile(&self, _: &Ctx, _: Ino, _: u32) -> Result<Attr> {
        self.fail()
    }
    fn open(&self, _: &Ctx, _: Ino, _: OpenFlags) -> Result<()> {
        self.fail()
    }
    fn read(&self, _: &Ctx, _: Ino, _: u64, _: &mut [u8]) -> Result<usize> {
        self.fail()
    }
    fn write(&self, _: &Ctx, _: Ino, _: u64, _: &[u8]) -> Result<usize> {
        self.fail()
    }
    fn fallocate(&self, _: &Ctx, _: Ino, _: Fallocate, _: u64, _: u64) -> Result<()> {
        self.fail()
    }
    fn seek(&self, _: &Ctx, _: Ino, _: u64, _: SeekKind) -> Result<u64> {
        self.fail()
    }
    fn fsyncdir(&self, _: &Ctx, _: Ino, _: bool) -> Result<()> {
        self.fail()
    }
    fn sync(&self) -> Result<()> {
        self.fail()
    }
    fn statfs(&self) -> Result<StatFs> {
        self.fail()
    }
    fn getxattr(&self, _: &Ctx, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
        self.fail()
    }
    fn setxattr(&self, _: &Ctx, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        self.fail()
    }
    fn listxattr(&self, _: &Ctx, _: Ino) -> Result<Vec<Vec<u8>>> {
        self.fail()
    }
    fn removexattr(&self, _: &Ctx, _: Ino, _: &[u8]) -> Result<()> {
        self.fail()
    }
}
