//! The transport, with the kernel's side played by the tests.

mod caching;
mod failures;
mod hostile;
mod kernel;
mod listings;
mod operations;
mod stub;

use crate::options::MountOptions;
use kernel::{Kernel, everything};
use oracle::ModelFs;
use std::sync::Arc;

/// A server for an empty file system in memory.
fn model() -> Kernel {
    let fs = Arc::new(ModelFs::default());
    Kernel::start(fs, &MountOptions::default(), everything())
}
