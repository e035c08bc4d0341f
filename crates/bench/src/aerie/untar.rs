//! tar(1) and rm(1), unmodified, on a tree of files: under `selvedge run`, and on tmpfs.

use super::{Options, Row, Target};
use crate::detached;
use crate::error::{Context, Result};
use crate::interrupt::Interrupt;
use crate::mounted::tree::{Archive, archive};
use crate::service::Service;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

/// Most rounds: one takes a second.
const ROUNDS: u32 = 7;
/// Bytes of the image for each file.
const FILE_BYTES: u64 = 32 << 10;

/// The work, as rows name it. The first one makes what the second one removes.
pub(super) const OPS: [&str; 2] = ["untar", "rm -rf"];

/// A directory, and the way to run a program that uses it.
struct Place {
    target: Target,
    dir: PathBuf,
    /// The service under whose store the directory is, and this program.
    service: Option<(Service, PathBuf)>,
    _home: TempDir,
}

impl Place {
    fn new(target: Target, options: &Options) -> Result<Self> {
        let home = tempfile::Builder::new()
            .prefix("selvedge-bench-")
            .tempdir_in("/dev/shm")
            .what(|| "making a directory in /dev/shm".into())?;
        let bytes = u64::from(options.tree_files) * FILE_BYTES;
        let service = match target {
            Target::Run => Some((
                Service::start(bytes.max(256 << 20), None)?,
                options.program.clone(),
            )),
            _ => None,
        };
        let dir = home.path().to_owned();
        Ok(Self {
            target,
            dir,
            service,
            _home: home,
        })
    }

    /// A program that uses the directory.
    fn command(&self, program: &str) -> Command {
        let Some((service, selvedge)) = &self.service else {
            return Command::new(program);
        };
        let mut command = Command::new(selvedge);
        command.args(["run", "--no-mount", "--store"]);
        command.arg(service.socket()).arg("--at").arg(&self.dir);
        command.arg("--").arg(program);
        command
    }

    /// Nanoseconds of each kind of work.
    fn round(&self, archive: &Path) -> Result<[f64; 2]> {
        let tree = self.dir.join("tree");
        let mut make = self.command("mkdir");
        detached::run(make.arg(&tree))?;
        let mut untar = self.command("tar");
        untar.arg("-xf").arg(archive).arg("-C").arg(&tree);
        let mut remove = self.command("rm");
        remove.arg("-rf").arg(&tree);
        let time = |command: &mut Command| {
            let start = Instant::now();
            detached::run(command)?;
            Ok(start.elapsed().as_nanos() as f64)
        };
        Ok([time(&mut untar)?, time(&mut remove)?])
    }
}

/// The rows of some targets, which take turns. The time is that of the whole command.
///
/// # Errors
/// A program cannot run, or has failed.
pub(super) fn measure(
    targets: &[Target],
    options: &Options,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let what = || "making a directory in /dev/shm".to_owned();
    let scratch = tempfile::tempdir_in("/dev/shm").what(what)?;
    let Archive { path, files, .. } = archive(scratch.path(), options.tree_files)?;
    let places = targets.iter().map(|target| Place::new(*target, options));
    let places: Vec<Place> = places.collect::<Result<_>>()?;
    let mut times = vec![[const { Vec::new() }; 2]; places.len()];
    for round in 0..=options.rounds.min(ROUNDS) {
        for (place, times) in places.iter().zip(&mut times) {
            interrupt.check()?;
            let taken = place.round(&path)?;
            if round > 0 {
                times
                    .iter_mut()
                    .zip(taken)
                    .for_each(|(all, one)| all.push(one));
            }
        }
    }
    let rows = places.iter().zip(times).flat_map(|(place, times)| {
        OPS.into_iter().zip(times).map(|(op, times)| {
            let seconds = times.iter().sum::<f64>() / 1e9;
            let rate = times.len() as f64 * f64::from(files) / seconds;
            Row::of(place.target.name(), op, [1, 1], times, rate)
        })
    });
    Ok(rows.collect())
}
