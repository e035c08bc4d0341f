//! Time to mount, and memory of, a file system full of small files, by the usual engine on
//! persistent memory.
//!
//! The image is a sparse file in `/dev/shm`: files of zeros, whose blocks are taken from
//! the image but never touched (see `holes`), so that 20 GiB need only the memory of their
//! metadata. The measured mount is an ordinary one: the scan reads every inode, every
//! directory and every indirect block.

mod holes;

use crate::error::{Context, Error, Result};
use crate::machine::Machine;
use crate::table::{self, Grid};
use crate::{Engine, detached};
use engine::{Scratch, ScratchOptions};
use holes::Holes;
use medium::{MapOptions, MappedPmem, Reserve};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use vfs::{Ctx, FileSystem, Ino, OpenFlags};

/// Files in one directory.
const PER_DIRECTORY: u64 = 1000;

/// Most resident memory beyond the mapping that a mounted, idle file system may keep.
pub const RESIDENT_GOAL_BYTES: u64 = 64 << 20;

/// The longest mount of 20 GiB of 64 KiB files.
pub const MOUNT_GOAL_MS: f64 = 1000.0;

/// The options of the image and the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Size of the image in bytes.
    pub image_bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of each file.
    pub file_bytes: usize,
    /// Measures the image at this path, made by an earlier run, and builds none.
    pub image: Option<PathBuf>,
    /// The `selvedge` program. With it, the measurement is made by a process of its own
    /// (`PROGRAM bench scan --image PATH --json`), whose memory the building has not
    /// touched.
    pub program: Option<PathBuf>,
}

impl Default for Options {
    /// 300,000 files of 64 KiB in 20 GiB, measured in this process.
    fn default() -> Self {
        Self {
            image_bytes: 20 << 30,
            files: 300_000,
            file_bytes: 64 << 10,
            image: None,
            program: None,
        }
    }
}

/// The measurement. As JSON, one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Size of the image in bytes.
    pub image_bytes: u64,
    /// Files found.
    pub files: u64,
    /// Milliseconds of the first mount: every page of the mapping is a page fault.
    pub mount_ms: f64,
    /// Milliseconds of the second mount by the same process: the pages are mapped.
    pub remount_ms: f64,
    /// Milliseconds of a first mount that also executes the flush instructions, as on a
    /// DAX device: what the scan has read is written back.
    pub flushed_mount_ms: f64,
    /// Bytes resident beyond the mapping, program included, mounted and idle.
    pub resident_bytes: u64,
    /// Resident bytes that the mount added.
    pub mount_added_bytes: u64,
    /// Bytes more for each inode that the kernel or a program refers to.
    pub per_inode_bytes: f64,
    /// Bytes more for each open file.
    pub per_open_bytes: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// If the image cannot be made (it needs about 8 KiB of memory for each file), mounted,
/// or measured by the program given.
pub fn run(options: &Options) -> Result<Report> {
    if let Some(image) = &options.image {
        return measure(image);
    }
    let dir = tempfile::Builder::new()
        .prefix("selvedge-scan-")
        .tempdir_in("/dev/shm")
        .what(|| "making a directory in /dev/shm".into())?;
    let image = dir.path().join("image");
    build(&image, options)?;
    match &options.program {
        Some(program) => measure_by(program, &image),
        None => measure(&image),
    }
}

/// Fills a fresh file system with files of zeros.
fn build(image: &Path, options: &Options) -> Result<()> {
    let what = || "filling the file system".to_owned();
    medium::create_file(image, options.image_bytes, Reserve::Sparse).what(what)?;
    let pm = MappedPmem::open(image, &MapOptions::default()).what(what)?;
    let pm = Scratch::Any(Arc::new(Holes::new(pm)));
    let fs = Engine::usual().fresh_on(pm, &ScratchOptions::default())?;
    let cx = Ctx::root();
    let data = vec![0; options.file_bytes];
    let mut dir = Ino::ROOT;
    for i in 0..options.files {
        if i % PER_DIRECTORY == 0 {
            dir = fs
                .mkdir(&cx, Ino::ROOT, &directory_name(i), 0o755)
                .what(what)?
                .ino;
        }
        let file = fs.create(&cx, dir, &file_name(i), 0o644).what(what)?.ino;
        fs.write(&cx, file, 0, &data).what(what)?;
        fs.forget(file, 1);
    }
    Ok(())
}

fn directory_name(file: u64) -> Vec<u8> {
    format!("dir{:04}", file / PER_DIRECTORY).into_bytes()
}

fn file_name(file: u64) -> Vec<u8> {
    format!("file{:06}", file).into_bytes()
}

/// Lets a fresh process measure.
fn measure_by(program: &Path, image: &Path) -> Result<Report> {
    let mut command = Command::new(program);
    command
        .args(["bench", "scan", "--json", "--image"])
        .arg(image);
    let failed = |why: String| Error::Program {
        program: program.display().to_string(),
        why,
    };
    let output = command.output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(detached::why(&output)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| failed(e.to_string()))
}

fn measure(image: &Path) -> Result<Report> {
    let what = || format!("mounting {}", image.display());
    let engine = Engine::of_image(image)?;
    let pm = Arc::new(MappedPmem::open(image, &MapOptions::default()).what(what)?);
    let image_bytes = medium::Pmem::len(&pm);
    let before = resident_bytes()?;
    let (fs, mount_ms) = timed_mount(engine, &pm)?;
    let mounted = resident_bytes()?;
    let (files, per_inode_bytes, per_open_bytes) = growth(&*fs)?;
    drop(fs);
    let (_, remount_ms) = timed_mount(engine, &pm)?;
    drop(pm);
    let flushing = MapOptions {
        force_flush: true,
        ..MapOptions::default()
    };
    let pm = Arc::new(MappedPmem::open(image, &flushing).what(what)?);
    let (_, flushed_mount_ms) = timed_mount(engine, &pm)?;
    Ok(Report {
        image_bytes,
        files,
        mount_ms,
        remount_ms,
        flushed_mount_ms,
        resident_bytes: mounted,
        mount_added_bytes: mounted.saturating_sub(before),
        per_inode_bytes,
        per_open_bytes,
    })
}

fn timed_mount(engine: Engine, pm: &Arc<MappedPmem>) -> Result<(Arc<dyn FileSystem>, f64)> {
    let start = Instant::now();
    let fs = engine.reopen(Scratch::Shared(pm.clone()), &ScratchOptions::default())?;
    Ok((fs, start.elapsed().as_secs_f64() * 1000.0))
}

/// Looks up every file, then opens every file, and keeps the references: how many files
/// there are, and the memory for each.
fn growth(fs: &dyn FileSystem) -> Result<(u64, f64, f64)> {
    let what = || "reading the image back".to_owned();
    let cx = Ctx::root();
    let idle = resident_bytes()?;
    let mut inodes = Vec::new();
    for file in 0.. {
        let Ok(dir) = fs.lookup(&cx, Ino::ROOT, &directory_name(file)) else {
            break;
        };
        let found = fs.lookup(&cx, dir.ino, &file_name(file));
        fs.forget(dir.ino, 1);
        let Ok(attr) = found else { break };
        inodes.push(attr.ino);
    }
    let cached = resident_bytes()?;
    for ino in &inodes {
        fs.open(&cx, *ino, OpenFlags::READ).what(what)?;
    }
    let opened = resident_bytes()?;
    let own = (inodes.capacity() * size_of::<Ino>()) as u64;
    let per_file = |bytes: u64| bytes as f64 / inodes.len().max(1) as f64;
    let figures = (
        inodes.len() as u64,
        per_file(cached.saturating_sub(idle + own)),
        per_file(opened.saturating_sub(cached)),
    );
    for ino in inodes {
        fs.release(ino);
        fs.forget(ino, 1);
    }
    Ok(figures)
}

/// Memory of this process that is not shared memory, which is where the mapping is.
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").what(|| "own status".into())?;
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next());
        number.and_then(|n| n.parse().ok()).unwrap_or_default()
    };
    Ok((kib("RssAnon:") + kib("RssFile:")) * 1024)
}

impl Report {
    pub(crate) fn grid(&self) -> Grid {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let goal = |met| if met { "met" } else { "missed" };
        let row = |what: &str, value: String, goal: &str| vec![what.into(), value, goal.into()];
        Grid {
            heads: vec![
                "file system full of small files".into(),
                "measured".into(),
                "goal".into(),
            ],
            rows: vec![
                row("image", mib(self.image_bytes), ""),
                row("files", table::count(Some(self.files)), ""),
                row(
                    "mount",
                    format!("{:.0} ms", self.mount_ms),
                    &format!("under 1 s: {}", goal(self.mount_ms < MOUNT_GOAL_MS)),
                ),
                row(
                    "mount again, pages mapped",
                    format!("{:.0} ms", self.remount_ms),
                    "",
                ),
                row(
                    "mount with flushes, as on DAX",
                    format!("{:.0} ms", self.flushed_mount_ms),
                    "",
                ),
                row(
                    "resident beyond the mapping",
                    mib(self.resident_bytes),
                    &format!(
                        "under 64 MiB: {}",
                        goal(self.resident_bytes < RESIDENT_GOAL_BYTES)
                    ),
                ),
                row(
                    "of which added by the mount",
                    mib(self.mount_added_bytes),
                    "",
                ),
                row(
                    "more for each cached inode",
                    format!("{:.0} B", self.per_inode_bytes),
                    "",
                ),
                row(
                    "more for each open file",
                    format!("{:.0} B", self.per_open_bytes),
                    "",
                ),
            ],
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", Machine::here())?;
        writeln!(
            f,
            "A sparse image in /dev/shm; file data is never touched.\n"
        )?;
        writeln!(f, "{}", self.grid().text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_image_is_built_and_found_whole() {
        let options = Options {
            image_bytes: 256 << 20,
            files: 2500,
            ..Options::default()
        };
        let report = run(&options).unwrap();
        assert_eq!((report.files, report.image_bytes), (2500, 256 << 20));
        assert!(report.resident_bytes > 0 && report.mount_ms > 0.0);
        let json = serde_json::to_string(&report).unwrap();
        let back: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(back.files, report.files);
    }

    /// 2,500 files of 64 KiB are 156 MiB; their metadata is a tenth of that.
    #[test]
    fn data_takes_no_memory() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let image = dir.path().join("image");
        let options = Options {
            image_bytes: 256 << 20,
            files: 2500,
            ..Options::default()
        };
        build(&image, &options).unwrap();
        measure(&image).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap());
        assert!(blocks * 512 < 40 << 20, "{} KiB", blocks / 2);
    }

    #[test]
    fn a_program_that_fails_is_named() {
        let error = measure_by(Path::new("/bin/false"), Path::new("x")).unwrap_err();
        assert!(error.to_string().starts_with("/bin/false"), "{error}");
    }
}
