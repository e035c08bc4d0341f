//! ext2 passes the conformance suite of formats.

use super::fixture::{clock, mount_with};
use blockfs::conformance::{Subject, check};
use blockfs::mount::OpenOptions;
use ext2::{Ext2, Inodes, MkfsOptions, mkfs};
use medium::block::{Geometry, MemoryDevice};
use patch::Store;
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino};

struct Image {
    revision_0: bool,
}

impl Subject for Image {
    type Format = Ext2;

    fn image(&self) -> Arc<MemoryDevice> {
        let geometry = Geometry {
            block_bytes: 1024,
            blocks: 1024,
        };
        let device = Arc::new(MemoryDevice::new(geometry));
        let mut options = MkfsOptions {
            block_bytes: 1024,
            inodes: Inodes::Count(64),
            ..MkfsOptions::for_size(geometry.bytes())
        };
        if self.revision_0 {
            options = options.revision_0();
        }
        mkfs(&*device, &options).unwrap();
        let mounted = mount_with(device.clone(), 1024);
        let removed = mounted.fs.rmdir(&Ctx::root(), Ino::ROOT, b"lost+found");
        removed.unwrap();
        mounted.close();
        device
    }

    fn open(&self, store: Arc<dyn Store>) -> Result<Ext2, String> {
        let options = OpenOptions {
            clock: clock(),
            ..OpenOptions::default()
        };
        Ext2::open(store, options).map_err(|e| e.to_string())
    }
}

fn conforms(revision_0: bool, stack: &str) {
    let failures = check(&Image { revision_0 }, stack);
    assert!(failures.is_empty(), "{stack}: {failures:#?}");
}

#[test]
fn ext2_conforms_on_soft_updates() {
    conforms(false, "uhfs > ext2 > cache > disk");
}

#[test]
fn revision_0_conforms_on_soft_updates() {
    conforms(true, "uhfs > ext2 > cache > disk");
}

#[test]
fn ext2_conforms_without_an_order() {
    conforms(false, "uhfs > ext2 > async > cache > disk");
}

#[test]
fn ext2_conforms_on_journals() {
    for what in ["metadata", "ordered", "full"] {
        let stack = format!("uhfs > ext2 > journal({what}, log=1) > cache > [disk, disk(/log)]");
        conforms(false, &stack);
    }
}
