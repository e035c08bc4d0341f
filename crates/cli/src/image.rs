//! Image files and devices.

use crate::failure::Failure;
use crate::mount::table;
use bpfs::SuperInfo;
use medium::{Durability, MapOptions, MappedPmem, OpenError};
use std::fmt::Display;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for an image that is in use although nothing shows it as mounted: its
/// server is about to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Locks and maps an image for writing.
///
/// # Errors
/// The medium's, which name the file and the way out.
pub fn open(path: &Path, durability: Durability) -> Result<MappedPmem, Failure> {
    let options = MapOptions {
        durability,
        ..MapOptions::default()
    };
    map(path, &options).map_err(Failure::new)
}

/// Locks and maps an image that is to be overwritten; with `force`, also one that loop
/// devices show which nobody uses.
///
/// # Errors
/// As [`open`].
pub fn open_to_format(path: &Path, force: bool) -> Result<MappedPmem, Failure> {
    let options = MapOptions {
        over_idle_loops: force,
        ..MapOptions::default()
    };
    map(path, &options).map_err(Failure::new)
}

/// Locks and maps an image for reading.
///
/// # Errors
/// As [`open`].
pub fn open_read_only(path: &Path) -> Result<MappedPmem, Failure> {
    try_open_read_only(path).map_err(Failure::new)
}

/// As [`open_read_only`], for those who can do something about the error.
///
/// # Errors
/// As [`open`].
pub fn try_open_read_only(path: &Path) -> Result<MappedPmem, OpenError> {
    let options = MapOptions {
        read_only: true,
        ..MapOptions::default()
    };
    map(path, &options)
}

fn map(path: &Path, options: &MapOptions) -> Result<MappedPmem, OpenError> {
    let start = Instant::now();
    loop {
        match MappedPmem::open(path, options) {
            Err(OpenError::InUse { .. }) if start.elapsed() < PATIENCE && !is_mounted(path) => {
                thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// Whether the image is mounted, as far as the table of mounts tells.
fn is_mounted(path: &Path) -> bool {
    let found = path.canonicalize().and_then(|p| table::find_image(&p));
    found.is_ok_and(|mount| mount.is_some())
}

/// Reads an image's super block.
///
/// # Errors
/// If it holds no file system of ours.
pub fn probe(path: &Path, pm: &MappedPmem) -> Result<SuperInfo, Failure> {
    bpfs::probe(pm).map_err(|e| about(path, e))
}

/// An error about an image, with its name.
pub fn about(path: &Path, e: impl Display) -> Failure {
    Failure::new(format_args!("{}: {e}", path.display()))
}

/// A UUID as people write it.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn uuids() {
        let text = super::uuid(&std::array::from_fn(|i| i as u8 * 17));
        assert_eq!(text, "00112233-4455-6677-8899-aabbccddeeff");
    }
}
