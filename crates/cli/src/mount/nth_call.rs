//! A file system that loses its power in, or right after, its N-th change.

use crate::mount::power_cut::Switch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vfs::{
    Attr, Ctx, Fallocate, FileSystem, FileSystemLayer, Ino, Name, NewNode, Removal, RenameFlags,
    Result, SetAttr, XattrMode,
};

/// Passes every call on. Calls that change something are counted when they succeed; the
/// power goes in the last one, or at its end if it is over before.
pub(crate) struct NthCall {
    fs: Arc<dyn FileSystem>,
    switch: Switch,
    left: AtomicU64,
}

impl NthCall {
    /// `nth` counts from 1.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, switch: Switch, nth: u64) -> Self {
        let left = AtomicU64::new(nth.max(1));
        Self { fs, switch, left }
    }

    /// Runs a call that changes something. With several under way at the end any of them
    /// may be cut.
    fn change<T>(&self, call: impl FnOnce(&dyn FileSystem) -> Result<T>) -> Result<T> {
        let last = self.left.load(SeqCst) <= 1;
        if last {
            self.switch.arm_call();
        }
        let result = call(&*self.fs);
        if result.is_err() {
            if last {
                self.switch.disarm();
            }
            return result;
        }
        let count = |left: u64| Some(left.saturating_sub(1));
        if self.left.fetch_update(SeqCst, SeqCst, count) <= Ok(1) {
            self.switch.cut();
        }
        result
    }
}

/// Methods that change something.
macro_rules! change {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> $result {
            self.change(|fs| fs.$name($($arg),*))
        }
    )*};
}

impl FileSystemLayer for NthCall {
    fn below(&self) -> &dyn FileSystem {
        &*self.fs
    }

    change! {
        setattr(cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr>;
        make(cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr>;
        link(cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
        remove(cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()>;
        rename(cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()>;
        tmpfile(cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr>;
        write(cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize>;
        fallocate(cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()>;
        setxattr(cx: &Ctx, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        removexattr(cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::power_cut::Spec;
    use medium::{MemoryPmem, Pmem};
    use oracle::{ModelFs, ModelOptions};
    use std::path::Path;
    use vfs::Errno;

    #[test]
    fn only_calls_that_change_something_count() {
        let region = Box::new(MemoryPmem::new(8192));
        let switch = Switch::of_memory(region, Path::new("none"), &Spec::default(), Some(1));
        let (switch, region) = switch.unwrap();
        let model = Arc::new(ModelFs::new(ModelOptions::default()));
        let fs: &dyn FileSystem = &NthCall::new(model, switch.clone(), 2);
        let mkdir = |name: &[u8]| fs.mkdir(&Ctx::root(), Ino::ROOT, name, 0o755).map(drop);
        assert_eq!(mkdir(b"a"), Ok(()));
        assert_eq!(mkdir(b"a"), Err(Errno::EXIST));
        assert!(fs.getattr(&Ctx::root(), Ino::ROOT).is_ok());
        // Stores in between belong to none of the calls.
        region.store(0, &[1; 8192]);
        assert!(!switch.is_cut());
        assert_eq!(mkdir(b"b"), Ok(()));
        assert!(switch.is_cut());
    }
}
