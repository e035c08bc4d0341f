//! BPFS as the explorer sees it.

use bpfs::{Atime, Bpfs, MkfsOptions, Mode, MountOptions};
use crash::System;
use medium::Pmem;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Clock, FileSystem};

/// BPFS in one mode, on the smallest image.
pub struct BpfsSystem(pub Mode);

impl System for BpfsSystem {
    fn id(&self) -> String {
        format!("bpfs-{}", self.0)
    }

    fn image_bytes(&self) -> u64 {
        1 << 20
    }

    fn format(&self, pm: &dyn Pmem) -> Result<(), String> {
        let options = MkfsOptions {
            mode: self.0,
            ..MkfsOptions::default()
        };
        bpfs::mkfs(pm, &options).map_err(|e| e.to_string())
    }

    fn open(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> Result<Box<dyn FileSystem>, String> {
        let options = MountOptions {
            read_only: false,
            mode: None,
            atime: Atime::Never,
            clock,
        };
        let fs = Bpfs::open(pm, options).map_err(|e| e.to_string())?;
        Ok(Box::new(fs))
    }

    fn check(&self, pm: &dyn Pmem) -> Report {
        bpfs::check(pm)
    }
}
