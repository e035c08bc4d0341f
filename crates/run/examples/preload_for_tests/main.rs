//! The library that the tests preload. The file system is PXFS in an image.
//!
//! The store `IMAGE` is mapped by the process, so one process at a time can use it. The store
//! `turns:IMAGE` is opened again for each call, so that processes take turns. There a file that has lost
//! its last name is gone, even if it is open.

mod turns;

use medium::{MapOptions, MappedPmem};
use pxfs::Pxfs;
use std::path::Path;
use std::sync::Arc;
use vfs::{Atime, FileSystem, SystemClock};

struct Images;

static IMAGES: Images = Images;

fn open(image: &Path) -> Result<Pxfs<Arc<MappedPmem>>, String> {
    let options = MapOptions {
        guarded: true,
        ..MapOptions::default()
    };
    let memory = MappedPmem::open(image, &options).map_err(|e| e.to_string())?;
    Pxfs::open(Arc::new(memory), Arc::new(SystemClock), Atime::Never).map_err(|e| e.to_string())
}

impl run::Backend for Images {
    fn connect(&self, store: &str) -> Result<Arc<dyn FileSystem>, String> {
        Ok(match store.strip_prefix("turns:") {
            Some(image) => Arc::new(turns::Turns::new(image)?),
            None => Arc::new(open(store.as_ref())?),
        })
    }
}

run::preload!(IMAGES);
