//! A loop device that counts, on a file that has no name any more.

use crate::detached::{run, why};
use crate::error::{Context, Error, Result};
use crate::stats;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Bytes of the blocks that writes are counted in.
const BLOCK: u64 = 4096;

/// Waves of the measurement of a flush.
const FLUSHES: usize = 21;

/// The writes to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Requests, of one block or many.
    pub requests: u64,
    /// Flushes of its cache.
    pub flushes: u64,
}

/// A loop device. It is removed with this process, however that ends, once nothing is
/// mounted from it.
pub(super) struct Loop {
    pub node: PathBuf,
    /// The medium of its file.
    pub about: String,
    /// Keeps it.
    held: File,
}

impl Loop {
    /// Makes a device over a new file in `dir`. All blocks of the file are allocated, so that
    /// writes change data only. It bypasses the page cache where that is possible and `is_direct`.
    ///
    /// # Errors
    /// If the file or the device cannot be made.
    pub(super) fn new(dir: &Path, bytes: u64, is_direct: bool) -> Result<Self> {
        let file = file(dir, bytes)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd(&file));
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]);
        if is_direct {
            command.arg("--direct-io=on");
        }
        let output = command.arg(path).output().what(|| "losetup".into())?;
        if !output.status.success() {
            return Err(Error::Program {
                program: "losetup".into(),
                why: why(&output),
            });
        }
        let node = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let held = File::open(&node);
        // From now on it exists only while it is open.
        run(Command::new("losetup").arg("--detach").arg(&node))?;
        let held = held.what(|| format!("opening {}", node.display()))?;
        let about = format!("{} ({}", dir.display(), kind(dir));
        let past = match setting(&node, "loop/dio").as_deref() {
            Some("1") => "past the page cache",
            _ => "through the page cache",
        };
        Ok(Self {
            about: format!("{about}, {past})"),
            node,
            held,
        })
    }

    /// The writes so far.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub(super) fn written(&self) -> Result<Written> {
        let text = setting(&self.node, "stat").unwrap_or_default();
        counts(&text).ok_or_else(|| Error::Usage("the kernel does not count flushes".into()))
    }

    /// Writes what the kernel caches of the device itself, and flushes the device.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn flush(&self) -> Result<()> {
        let synced = self.held.sync_all();
        synced.what(|| format!("flushing {}", self.node.display()))
    }

    /// Forgets what the kernel caches of it.
    ///
    /// # Errors
    /// If blockdev(8) fails.
    pub(super) fn forget(&self) -> Result<()> {
        run(Command::new("blockdev").arg("--flushbufs").arg(&self.node))
    }

    /// Seconds that it takes to write one block and to flush: the median. Overwrites the
    /// first block.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn flush_seconds(&self) -> Result<f64> {
        let what = || format!("writing to {}", self.node.display());
        let device = OpenOptions::new().write(true).open(&self.node).what(what)?;
        let once = || {
            let start = Instant::now();
            device.write_all_at(&[0; BLOCK as usize], 0)?;
            device.sync_data()?;
            Ok(start.elapsed().as_secs_f64())
        };
        let all: std::io::Result<Vec<f64>> = (0..FLUSHES).map(|_| once()).collect();
        Ok(stats::median(&mut all.what(what)?).unwrap_or_default())
    }
}

impl std::ops::Sub for Written {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            blocks: self.blocks - before.blocks,
            requests: self.requests - before.requests,
            flushes: self.flushes - before.flushes,
        }
    }
}

fn fd(file: &File) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(file)
}

/// A nameless file full of zeros.
fn file(dir: &Path, bytes: u64) -> Result<File> {
    let what = || format!("making a file of {} MiB in {}", bytes >> 20, dir.display());
    let file = tempfile::tempfile_in(dir).what(what)?;
    let zeros = vec![0; 1 << 20];
    for start in (0..bytes).step_by(zeros.len()) {
        let len = (bytes - start).min(zeros.len() as u64) as usize;
        file.write_all_at(&zeros[..len], start).what(what)?;
    }
    file.sync_all().what(what)?;
    Ok(file)
}

/// The type of the file system that a directory is on.
fn kind(dir: &Path) -> String {
    let told = Command::new("stat")
        .args(["--file-system", "--format=%T"])
        .arg(dir)
        .output();
    let told = told.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    told.unwrap_or_else(|_| "unknown".into())
}

/// A setting of a block device in `/sys`.
fn setting(node: &Path, name: &str) -> Option<String> {
    let device = node.file_name()?;
    let path = Path::new("/sys/block").join(device).join(name);
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Parses `/sys/block/DEVICE/stat`: writes, sectors written and flushes are the fields 5, 7 and
/// 16 of the kernel's Documentation/block/stat.rst.
fn counts(stat: &str) -> Option<Written> {
    let numbers: Option<Vec<u64>> = stat.split_whitespace().map(|n| n.parse().ok()).collect();
    let numbers = numbers?;
    Some(Written {
        requests: *numbers.get(4)?,
        blocks: numbers.get(6)? * 512 / BLOCK,
        flushes: *numbers.get(15)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_their_place() {
        let stat = "1 2 3 4 500 6 808 8 9 10 11 12 13 14 15 160 17";
        let written = Written {
            blocks: 101,
            requests: 500,
            flushes: 160,
        };
        assert_eq!(counts(stat), Some(written));
        // Kernels before 5.5.
        assert_eq!(counts("1 2 3 4 5 6 7 8 9 10 11"), None);
        assert_eq!(counts(""), None);
    }
}
