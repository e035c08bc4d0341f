//! BPFS as harnesses meet it.

use crate::format::{BLOCK, MIN_BLOCKS};
use crate::{Atime, Bpfs, MkfsOptions, Mode, MountOptions, check, mkfs};
use medium::Pmem;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Clock, FileSystem, System};

/// BPFS in one mode, on the smallest image.
#[derive(Debug, Clone, Copy)]
pub struct BpfsSystem(pub Mode);

impl System<dyn Pmem> for BpfsSystem {
    fn id(&self) -> String {
        format!("bpfs-{}", self.0)
    }

    fn image_bytes(&self) -> u64 {
        MIN_BLOCKS * BLOCK
    }

    fn format(&self, pm: &dyn Pmem) -> Result<(), String> {
        let options = MkfsOptions {
            mode: self.0,
            ..MkfsOptions::default()
        };
        mkfs(pm, &options).map_err(|e| e.to_string())
    }

    fn open(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        let options = MountOptions {
            read_only: false,
            mode: None,
            atime: Atime::Never,
            clock,
        };
        let fs = Bpfs::open(pm, options).map_err(|e| e.to_string())?;
        Ok(Arc::new(fs))
    }

    fn check(&self, pm: &dyn Pmem) -> Report {
        check(pm)
    }
}
