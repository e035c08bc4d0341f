//! File systems that stand on another one.

use crate::check::Finding;
use crate::{
    Attr, ChangeOrder, Cookie, Ctx, DirEntry, Fallocate, FileSystem, Guarantees, Ino, Name,
    NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr, StatFs, XattrMode,
};

/// Declares [`FileSystemLayer`] and makes each layer a [`FileSystem`].
macro_rules! layer {
    ($(fn $method:ident(&self $(, $arg:ident: $type:ty)* $(,)?) $(-> $result:ty)?;)*) => {
        /// A file system that stands on another one. Each method but two forwards to the file
        /// system below; a layer overrides those that it changes. The provided methods of
        /// [`FileSystem`] end in these. Every layer is a [`FileSystem`].
        #[allow(clippy::missing_errors_doc)] // as for `FileSystem`
        pub trait FileSystemLayer: Send + Sync {
            /// The file system below.
            fn below(&self) -> &dyn FileSystem;
            $(
                #[doc = concat!("As [`FileSystem::", stringify!($method), "`].")]
                fn $method(&self $(, $arg: $type)*) $(-> $result)? {
                    self.below().$method($($arg),*)
                }
            )*
            /// As [`FileSystem::attributes`]. Not forwarded, since a layer may change the calls for which it stands.
            fn attributes(&self, _cx: &Ctx, _at: Name<'_>) -> Result<Option<Attr>> {
                Ok(None)
            }
            /// As [`FileSystem::open_file`]. Not forwarded either.
            fn open_file(&self, _cx: &Ctx, _at: Name<'_>, _flags: OpenFlags) -> Result<Option<Attr>> {
                Ok(None)
            }
        }

        impl<L: FileSystemLayer> FileSystem for L {$(
            fn $method(&self $(, $arg: $type)*) $(-> $result)? {
                FileSystemLayer::$method(self $(, $arg)*)
            }
        )*
            fn attributes(&self, cx: &Ctx, at: Name<'_>) -> Result<Option<Attr>> {
                FileSystemLayer::attributes(self, cx, at)
            }
            fn open_file(&self, cx: &Ctx, at: Name<'_>, flags: OpenFlags) -> Result<Option<Attr>> {
                FileSystemLayer::open_file(self, cx, at, flags)
            }
        }
    };
}

layer! {
    fn guarantees(&self) -> Guarantees;
    fn change_order(&self) -> Option<&dyn ChangeOrder>;
    fn audit(&self) -> Vec<Finding>;
    fn paths_version(&self) -> Option<u64>;
    fn drops_capabilities(&self) -> bool;
    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr>;
    fn by_number(&self, ino: Ino) -> Result<Attr>;
    fn forget(&self, ino: Ino, count: u64);
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
    fn release(&self, ino: Ino);
    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize>;
    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize>;
    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)>;
    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()>;
    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64>;
    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
    fn fsyncdir(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
    fn sync(&self) -> Result<()>;
    fn statfs(&self) -> Result<StatFs>;
    fn nameless(&self) -> Vec<Ino>;
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
    fn control(&self, cx: &Ctx, ino: Ino, command: u32, input: &[u8]) -> Result<Vec<u8>>;
}
