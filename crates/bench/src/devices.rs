//! The faster way to make a wave of scattered blocks durable: each write with force unit access
//! (FUA), or all of them followed by one flush.
//!
//! Each target is a device of 4 KiB blocks, all of which were written before. A wave is
//! submitted at once, and timed until every block of it is durable. The two ways take
//! turns, so that what else the machine does strikes both.

use crate::detached::run as run_program;
use crate::error::{Context, Error, Result};
use crate::machine::Machine;
use crate::stats::quantile;
use crate::table::{Grid, figure};
use medium::Rule;
use medium::block::{
    BlockDevice, BlockError, Buffer, DelayDevice, DelayModel, DeviceOptions, FileDevice, Geometry,
    Lba, MemoryDevice, Write,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const BLOCK_BYTES: u32 = 4096;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directories, on whose file systems a file is the device.
    pub dirs: Vec<PathBuf>,
    /// Also a loop device over a file on tmpfs; needs root.
    pub with_loop: bool,
    /// Also the models of a disk and of an SSD, over memory.
    pub with_models: bool,
    /// Bytes of each device.
    pub device_bytes: u64,
    /// Blocks in a wave.
    pub waves: Vec<usize>,
    /// Waves of each size and kind.
    pub rounds: u32,
}

impl Default for Options {
    /// A file in the directory for temporary ones, and the models.
    fn default() -> Self {
        Self {
            dirs: vec![std::env::temp_dir()],
            with_loop: false,
            with_models: true,
            device_bytes: 256 << 20,
            waves: (0..=8).map(|power| 1 << power).collect(),
            rounds: 51,
        }
    }
}

/// One size of wave on one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The kind of device.
    pub target: String,
    /// Blocks in the wave.
    pub blocks: usize,
    /// Microseconds until it was durable with FUA: the median.
    pub fua_us: f64,
    /// Microseconds until it was durable with one flush: the median.
    pub flush_us: f64,
    /// Microseconds with FUA: the 90th percentile.
    pub fua_us_p90: f64,
    /// Microseconds with one flush: the 90th percentile.
    pub flush_us_p90: f64,
}

/// The measurements and the machine. As JSON, the rows.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// One row for each target and size.
    pub rows: Vec<Row>,
    /// The conditions.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// A device, and what to call it.
struct Target {
    name: String,
    device: Box<dyn BlockDevice>,
    /// Waves of each size and kind.
    rounds: u32,
    /// Holds the files.
    _dir: Option<tempfile::TempDir>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a device cannot be made or fails, or the options ask for waves that it has no room
/// for.
pub fn run(options: &Options) -> Result<Report> {
    let blocks = options.device_bytes / u64::from(BLOCK_BYTES);
    if options
        .waves
        .iter()
        .any(|wave| *wave == 0 || *wave as u64 > blocks / 4)
    {
        let why = "a wave needs a block, and a device four times as large";
        return Err(Error::Usage(why.into()));
    }
    let targets = targets(options)?;
    let mut notes = vec![
        format!("{}.", Machine::here()),
        format!(
            "{} MiB each, {} waves of each kind.",
            options.device_bytes >> 20,
            options.rounds
        ),
    ];
    let mut rows = Vec::new();
    for target in &targets {
        notes.push(format!("{}: {}", target.name, target.device.name()));
        rows.extend(measure(target, options)?);
    }
    Ok(Report { rows, notes })
}

fn targets(options: &Options) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for dir in &options.dirs {
        targets.push(Target::file(dir, options)?);
    }
    if options.with_loop {
        targets.push(Target::on_loop(options)?);
    }
    if options.with_models {
        let models = [
            ("model of a disk", DelayModel::TRAVELSTAR_7K320),
            ("model of an SSD", DelayModel::SAMSUNG_970_EVO),
        ];
        targets.extend(models.map(|(name, model)| Target::model(name, model, options)));
    }
    Ok(targets)
}

impl Target {
    fn file(dir: &Path, options: &Options) -> Result<Self> {
        let (dir, image) = image(dir, options.device_bytes)?;
        let device = open(&image)?;
        Ok(Self::of(device, Some(dir), options))
    }

    /// The loop device is removed when it is closed, however this process ends.
    fn on_loop(options: &Options) -> Result<Self> {
        let (dir, image) = image(Path::new("/dev/shm"), options.device_bytes)?;
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&image)
            .output();
        let output = output.what(|| "losetup".into())?;
        if !output.status.success() {
            return Err(Error::Program {
                program: "losetup".into(),
                why: crate::detached::why(&output),
            });
        }
        let node = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let device = open(&node);
        run_program(Command::new("losetup").arg("--detach").arg(&node))?;
        Ok(Self::of(device?, Some(dir), options))
    }

    fn of(device: FileDevice, dir: Option<tempfile::TempDir>, options: &Options) -> Self {
        let facts = device.facts();
        let path = if facts.direct { "direct" } else { "page cache" };
        let how = if facts.uring { "io_uring" } else { "pwrite" };
        let what = match device.name().starts_with("/dev/loop") {
            true => "loop over tmpfs",
            false => "file",
        };
        Self {
            name: format!("{what}, {how}, {path}"),
            device: Box::new(device),
            rounds: options.rounds,
            _dir: dir,
        }
    }

    /// Models take as long as the real ones, and are as steady as their clock.
    fn model(name: &str, model: DelayModel, options: &Options) -> Self {
        let memory = MemoryDevice::new(Geometry {
            block_bytes: BLOCK_BYTES,
            blocks: options.device_bytes / u64::from(BLOCK_BYTES),
        });
        Self {
            name: name.into(),
            device: Box::new(DelayDevice::new(memory, model)),
            rounds: options.rounds.min(5),
            _dir: None,
        }
    }
}

fn open(path: &Path) -> Result<FileDevice> {
    FileDevice::open(path, BLOCK_BYTES, &DeviceOptions::default())
        .what(|| "opening the device".into())
}

/// A file that is all there, so that no write changes more than the data.
fn image(dir: &Path, bytes: u64) -> Result<(tempfile::TempDir, PathBuf)> {
    let what = || format!("making a file in {}", dir.display());
    let dir = tempfile::Builder::new()
        .prefix("selvedge-devices-")
        .tempdir_in(dir)
        .what(what)?;
    let path = dir.path().join("image");
    let file = File::create(&path).what(what)?;
    let chunk = vec![0x5e; 1 << 20];
    for start in (0..bytes).step_by(chunk.len()) {
        let len = (bytes - start).min(chunk.len() as u64) as usize;
        file.write_all_at(&chunk[..len], start).what(what)?;
    }
    file.sync_all().what(what)?;
    Ok((dir, path))
}

fn measure(target: &Target, options: &Options) -> Result<Vec<Row>> {
    let mut random = fastrand::Rng::with_seed(1);
    // The first waves pay for the blocks of a new file that the system still writes.
    for fua in [true, false] {
        wave(&*target.device, &mut random, 1, fua)
            .map_err(std::io::Error::other)
            .what(|| "measuring".into())?;
    }
    let row = |blocks: &usize| {
        let (mut fua, mut flush) = (Vec::new(), Vec::new());
        for _ in 0..target.rounds {
            fua.push(wave(&*target.device, &mut random, *blocks, true)?);
            flush.push(wave(&*target.device, &mut random, *blocks, false)?);
        }
        let mut at = |q| [&mut fua, &mut flush].map(|us| quantile(us, q).unwrap_or(f64::NAN));
        let ([fua_us, flush_us], [fua_us_p90, flush_us_p90]) = (at(0.5), at(0.9));
        Ok(Row {
            target: target.name.clone(),
            blocks: *blocks,
            fua_us,
            flush_us,
            fua_us_p90,
            flush_us_p90,
        })
    };
    let rows: std::result::Result<_, BlockError> = options.waves.iter().map(row).collect();
    rows.map_err(std::io::Error::other)
        .what(|| "measuring".into())
}

/// Microseconds until a wave of scattered blocks is durable.
fn wave(
    device: &dyn BlockDevice,
    random: &mut fastrand::Rng,
    blocks: usize,
    is_fua: bool,
) -> std::result::Result<f64, BlockError> {
    let data = Arc::new(Buffer::from_slice(&[random.u8(..); BLOCK_BYTES as usize]));
    let mut places = BTreeSet::new();
    while places.len() < blocks {
        // Even ones only: no two are neighbours.
        places.insert(random.u64(..device.geometry().blocks / 2) * 2);
    }
    let writes = places.into_iter().map(|lba| Write {
        tag: lba,
        lba: Lba(lba),
        data: data.clone(),
        durable: is_fua.then_some(Rule::PatchOrder),
    });
    let writes: Vec<_> = writes.collect();
    let start = Instant::now();
    device.submit(writes);
    let mut left = blocks;
    while left > 0 {
        for completion in device.reap(left) {
            completion.result?;
            left -= 1;
        }
    }
    if !is_fua {
        device.flush(Rule::PatchOrder)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

impl Report {
    /// The largest wave up to which FUA is the sooner on a target, at every smaller size
    /// too; 0 if at none.
    pub fn fua_up_to(&self, target: &str) -> usize {
        let rows = self.rows.iter().filter(|row| row.target == target);
        let sooner = rows.take_while(|row| row.fua_us < row.flush_us);
        sooner.last().map_or(0, |row| row.blocks)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "target",
            "blocks",
            "FUA us",
            "p90",
            "flush us",
            "p90",
            "FUA/flush",
        ];
        let cells = |row: &Row| {
            vec![
                row.target.clone(),
                row.blocks.to_string(),
                figure(Some(row.fua_us)),
                figure(Some(row.fua_us_p90)),
                figure(Some(row.flush_us)),
                figure(Some(row.flush_us_p90)),
                format!("{:.2}", row.fua_us / row.flush_us),
            ]
        };
        let grid = Grid {
            heads: heads.map(str::to_owned).to_vec(),
            rows: self.rows.iter().map(cells).collect(),
        };
        writeln!(f, "{}", grid.text())?;
        let names: BTreeSet<_> = self.rows.iter().map(|row| &row.target).collect();
        for name in names {
            writeln!(
                f,
                "{name}: FUA is sooner up to {} blocks",
                self.fua_up_to(name)
            )?;
        }
        write!(f, "{}", self.notes.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_row_for_every_size() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            dirs: vec![dir.path().to_owned()],
            with_models: false,
            device_bytes: 1 << 20,
            waves: vec![1, 4],
            rounds: 2,
            ..Options::default()
        };
        let report = run(&options).unwrap();
        let sizes: Vec<_> = report.rows.iter().map(|row| row.blocks).collect();
        assert_eq!(sizes, [1, 4]);
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.fua_us > 0.0 && row.flush_us > 0.0)
        );
        assert!(report.to_string().contains("FUA is sooner up to"));
        let waves = vec![100];
        assert!(run(&Options { waves, ..options }).is_err());
    }

    #[test]
    fn the_threshold_is_where_fua_stops_being_sooner() {
        let row = |blocks, fua_us, flush_us| Row {
            target: "t".into(),
            blocks,
            fua_us,
            flush_us,
            fua_us_p90: 0.0,
            flush_us_p90: 0.0,
        };
        let rows = vec![
            row(1, 1.0, 2.0),
            row(2, 2.0, 3.0),
            row(4, 4.0, 3.0),
            row(8, 1.0, 3.0),
        ];
        let report = Report {
            rows,
            notes: vec![],
        };
        assert_eq!((report.fua_up_to("t"), report.fua_up_to("other")), (2, 0));
    }
}
