//! A file system that several processes use by turns.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;
use vfs::{
    Attr, Cookie, Ctx, DirEntry, Fallocate, FileSystem, Guarantees, Ino, Name, NewNode, OpenFlags,
    Removal, RenameFlags, Result, SeekKind, SetAttr, StatFs, XattrMode,
};

/// Opens the image for each call. References end with the call.
pub struct Turns {
    image: PathBuf,
    /// A file beside the image, whose lock a call holds.
    turn: Mutex<File>,
}

impl Turns {
    pub fn new(image: &str) -> std::result::Result<Self, String> {
        let turn = File::create(format!("{image}.turn")).map_err(|e| e.to_string())?;
        Ok(Self {
            image: image.into(),
            turn: Mutex::new(turn),
        })
    }

    fn with<T>(&self, call: impl FnOnce(&dyn FileSystem) -> T) -> T {
        let turn = self.turn.lock().expect("no call panics");
        flock(&*turn, FlockOperation::LockExclusive).expect("the lock of the image");
        let result = {
            let fs = crate::open(&self.image).expect("the image of the test");
            call(&fs)
        };
        flock(&*turn, FlockOperation::Unlock).expect("the lock of the image");
        result
    }
}

macro_rules! by_turns {
    ($(fn $method:ident(&self $(, $arg:ident: $type:ty)* $(,)?) $(-> $result:ty)?;)*) => {
        impl FileSystem for Turns {
            fn forget(&self, _: Ino, _: u64) {}
            fn release(&self, _: Ino) {}
            $(
                fn $method(&self $(, $arg: $type)*) $(-> $result)? {
                    self.with(|fs| fs.$method($($arg),*))
                }
            )*
        }
    };
}

by_turns! {
    fn guarantees(&self) -> Guarantees;
    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr>;
    fn by_number(&self, ino: Ino) -> Result<Attr>;
    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr>;
    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr>;
    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;
    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()>;
    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr>;
    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>>;
    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()>;
    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()>;
    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr>;
    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()>;
    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize>;
    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize>;
    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()>;
    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64>;
    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
    fn fsyncdir(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
    fn sync(&self) -> Result<()>;
    fn statfs(&self) -> Result<StatFs>;
    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>>;
    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()>;
}
