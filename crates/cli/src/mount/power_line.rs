//! A file system whose calls fail from a simulated power cut on.

use crate::mount::power_cut::Switch;
use fuse::Invalidator;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use vfs::check::Finding;
use vfs::{
    Attr, ChangeOrder, Cookie, Ctx, DirEntry, Errno, Fallocate, FileSystem, Guarantees, Ino, Name,
    NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr, StatFs, XattrMode,
};

/// Passes calls on while there is power, and fails them with `EIO` afterwards. The root
/// keeps its attributes, without which nobody could unmount it.
///
/// Not a [`FileSystemLayer`](vfs::FileSystemLayer): such a layer forwards the calls that it does not
/// state, so a new call would succeed after the cut. Here it does not compile, or returns its default.
pub(crate) struct PowerLine {
    fs: Arc<dyn FileSystem>,
    switch: Switch,
    root: Result<Attr>,
    shown: Mutex<Shown>,
}

/// Inodes and names that the kernel has received, and may cache.
#[derive(Default)]
struct Shown {
    inodes: HashSet<Ino>,
    names: HashSet<(Ino, Vec<u8>)>,
}

impl PowerLine {
    /// Wraps `fs`, whose calls fail once `switch` cuts the power.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, switch: Switch) -> Self {
        Self {
            root: fs.getattr(&Ctx::root(), Ino::ROOT),
            fs,
            switch,
            shown: Mutex::default(),
        }
    }

    /// Invalidates all inodes and names in the cache of the kernel.
    pub(crate) fn invalidate(&self, kernel: &Invalidator) {
        // Not under the lock: calls under way may be what the kernel waits for.
        let shown = std::mem::take(&mut *self.shown());
        for (dir, name) in &shown.names {
            kernel.entry(*dir, name);
        }
        for ino in shown.inodes {
            kernel.inode(ino);
        }
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, dir: Ino, name: &[u8], ino: Option<Ino>) {
        let mut shown = self.shown();
        shown.names.insert((dir, name.to_owned()));
        shown.inodes.extend(ino.filter(|ino| *ino != Ino::ROOT));
    }

    fn powered(&self) -> Result<&dyn FileSystem> {
        if self.switch.is_cut() {
            return Err(Errno::IO);
        }
        Ok(&*self.fs)
    }
}

/// Methods that are passed on as they are.
macro_rules! pass {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> $result {
            self.powered()?.$name($($arg),*)
        }
    )*};
}

impl FileSystem for PowerLine {
    pass! {
        readdir(cx: &Ctx, dir: Ino, after: Cookie, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;
        readlink(cx: &Ctx, ino: Ino) -> Result<Vec<u8>>;
        open(cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()>;
        read(cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize>;
        seek(cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64>;
        fsync(cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
        fsyncdir(cx: &Ctx, ino: Ino, data_only: bool) -> Result<()>;
        sync() -> Result<()>;
        statfs() -> Result<StatFs>;
        getxattr(cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        listxattr(cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>>;
        setattr(cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr>;
        link(cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
        remove(cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()>;
        rename(cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()>;
        tmpfile(cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr>;
        write(cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize>;
        fallocate(cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()>;
        setxattr(cx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        removexattr(cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()>;
        control(cx: &Ctx, ino: Ino, command: u32, input: &[u8]) -> Result<Vec<u8>>;
    }

    fn guarantees(&self) -> Guarantees {
        self.fs.guarantees()
    }

    fn audit(&self) -> Vec<Finding> {
        self.fs.audit()
    }

    fn change_order(&self) -> Option<&dyn ChangeOrder> {
        self.fs.change_order()
    }

    fn nameless(&self) -> Vec<Ino> {
        self.powered().map(FileSystem::nameless).unwrap_or_default()
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        let found = self.powered()?.lookup(cx, dir, name);
        self.show(dir, name, found.as_ref().ok().map(|attr| attr.ino));
        // The power may have gone since, and what the kernel was shown with it.
        self.powered()?;
        found
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let made = self.powered()?.make(cx, at, new);
        self.show(at.dir, at.name, made.as_ref().ok().map(|attr| attr.ino));
        made
    }

    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr> {
        match self.powered() {
            Err(_) if ino == Ino::ROOT => self.root,
            powered => powered?.getattr(cx, ino),
        }
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        self.powered()?
            .readdirplus(cx, dir, after, &mut |entry, attr| {
                self.show(dir, entry.name, attr.map(|attr| attr.ino));
                sink(entry, attr)
            })
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        let attr = self.powered()?.by_number(ino)?;
        self.shown().inodes.insert(attr.ino);
        self.powered()?; // as above
        Ok(attr)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if let Ok(fs) = self.powered() {
            fs.forget(ino, count);
        }
    }
}
