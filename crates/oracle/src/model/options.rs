//! Options of a model file system.

use std::ops::RangeInclusive;
use std::sync::Arc;
use vfs::{Atime, Clock, SystemClock, Timestamp};

/// Options of a [`ModelFs`](crate::ModelFs).
#[derive(Clone)]
pub struct ModelOptions {
    /// Space for data and extended attributes, in bytes; rounded down to 4096.
    pub capacity_bytes: u64,
    /// The source of time stamps.
    pub clock: Arc<dyn Clock>,
    /// The policy for access times.
    pub atime: Atime,
    /// Permission bits of the root directory.
    pub root_perm: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// The times that inodes can have. Other times become the nearest of these.
    pub times: RangeInclusive<Timestamp>,
}

impl Default for ModelOptions {
    /// 16 GiB, the clock of the system, relative access times, and a root directory of the
    /// super-user with mode 0755.
    fn default() -> Self {
        Self {
            capacity_bytes: 16 << 30,
            clock: Arc::new(SystemClock),
            atime: Atime::default(),
            root_perm: 0o755,
            uid: 0,
            gid: 0,
            times: Timestamp::MIN..=Timestamp::MAX,
        }
    }
}
