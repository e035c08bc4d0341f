//! Properties of SoupFS beyond agreement with the model. Rounds, repairs and threads leave a
//! consistent state. Damaged and old images, large directories and `fsync` have their tests. They
//! are one program, and use one type of memory: the file system is compiled for each.

mod blocks;
mod copies;
mod differential;
mod directories;
mod fsync;
mod full;
mod golden;
mod hostile;
mod repaired;
mod reused;
mod tails;
mod threads;
mod twins;

use medium::Pmem;
use soupfs::{Error, MountOptions, SoupFs};
use std::sync::Arc;

pub(crate) type Fs = SoupFs<Arc<dyn Pmem>>;

pub(crate) fn open(pm: Arc<impl Pmem + 'static>, options: MountOptions) -> Result<Fs, Error> {
    SoupFs::open(pm, options)
}
