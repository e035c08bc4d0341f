//! Waiting for image files and devices that are in use.

use crate::mount::table;
use medium::OpenError;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for an image that is in use but not mounted: its server is about to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs `work` on an image. Repeats it if the image is in use and its server may be ending.
///
/// # Errors
/// The error of `work`.
pub(crate) fn patiently<T>(
    path: &Path,
    mut work: impl FnMut() -> engine::Result<T>,
) -> engine::Result<T> {
    let start = Instant::now();
    loop {
        match work() {
            Err(engine::Error::Open(OpenError::InUse { .. }))
                if start.elapsed() < PATIENCE && !is_mounted(path) =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// Whether the image is in the table of mounts.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let found = path.canonicalize().and_then(|p| table::find_image(&p));
    found.is_ok_and(|mount| mount.is_some())
}
