//! PXFS for harnesses: the explorer and the tests.

use crate::{MkfsOptions, Pxfs, check, mkfs};
use aerie_objects::PAGE;
use medium::Pmem;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Atime, Clock, FileSystem, System};

/// PXFS on a small store.
#[derive(Debug, Clone, Copy, Default)]
pub struct PxfsSystem;

impl System<dyn Pmem> for PxfsSystem {
    fn id(&self) -> String {
        "pxfs".into()
    }

    fn image_bytes(&self) -> u64 {
        40 * PAGE
    }

    fn format(&self, memory: &dyn Pmem) -> Result<(), String> {
        mkfs(&memory, &MkfsOptions::default()).map_err(|error| error.to_string())
    }

    fn open(
        &self,
        memory: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        let fs = Pxfs::open(memory, clock, Atime::Never).map_err(|error| error.to_string())?;
        Ok(Arc::new(fs))
    }

    fn check(&self, memory: &dyn Pmem) -> Report {
        check(&memory)
    }
}
