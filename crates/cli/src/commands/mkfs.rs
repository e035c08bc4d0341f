//! `selvedge mkfs`: makes a file system.

use crate::failure::{Failure, Outcome, code};
use crate::types::{EngineArgs, OfMkfs, Type};
use crate::{image, output, random};
use engine::values::listed;
use engine::{Engine, Identity, Image, magic, size};
use medium::{Reserve, check_unclaimed, create_file};
use rustix::process::{getgid, getuid};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vfs::{Clock, SystemClock};

/// Files are made in units of this many bytes.
const UNIT_BYTES: u64 = 4096;

/// Make a file system
///
/// PATH is a file, a block device or a DAX device. A file that is not there is made, as
/// large as --size says, and takes space only as it fills.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or device
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The type
    #[arg(
        long = "type",
        short = 't',
        value_name = "TYPE",
        default_value = engines::default().name(),
        value_parser = listed::<Type>(engines::with_images().map(|e| e.name()))
    )]
    fs_type: Type,
    /// Size of the file, such as 64M or 1G; needed if it is not there yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Take all of the file's space now, so that a disk that fills up later cannot fail
    /// the mount
    #[arg(long, requires = "size")]
    preallocate: bool,
    /// Overwrite what PATH holds, also if a loop device shows it that nobody uses
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    options: EngineArgs<OfMkfs>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let path = &self.path;
        let engine = match self.fs_type {
            Type::One(engine) => engine,
            Type::Any => engines::default(),
        };
        if engine.magic().is_none() {
            let name = engine.name();
            let why = format_args!("{name} has no mkfs; mount it with --type {name}");
            return Err(Failure::new(why));
        }
        let options = self.options.of(engine);
        let options = options.map_err(|e| Failure::new(e).with_code(code::USAGE))?;
        if let Some(bytes) = self.size {
            let identity = identity()?;
            let made = engine.mkfs_directory(path, bytes, &identity, &options);
            if let Some(made) = made {
                let made = made.map_err(Failure::new)?;
                output::print(format!("{}: {made}\n", path.display()))?;
                return Ok(ExitCode::SUCCESS);
            }
        }
        check_unclaimed(path, self.force).map_err(Failure::new)?;
        let there = path.try_exists().map_err(|e| Failure::about(path, e))?;
        if there && !self.force {
            refuse_known(path)?;
            self.refuse_to_resize()?;
        }
        let made = match self.size {
            Some(bytes) => self.make(bytes, engine),
            None if there => Ok(()),
            None => Err(Failure::about(path, "not there; --size makes it")),
        };
        let made = made.and_then(|()| self.format(engine, &options));
        if made.is_err() && !there {
            // The rest is of no use. It may never have been made.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Makes the file, or makes it empty and of the right size.
    fn make(&self, bytes: u64, engine: &dyn Engine) -> Result<(), Failure> {
        let min = engine.min_bytes();
        if bytes < min {
            let why = format_args!("a file system needs at least {}", size::display(min));
            return Err(Failure::about(&self.path, why));
        }
        if !bytes.is_multiple_of(UNIT_BYTES) {
            let why = format_args!("--size {bytes} is not a multiple of {UNIT_BYTES} bytes");
            return Err(Failure::about(&self.path, why));
        }
        let reserve = if self.preallocate {
            Reserve::Whole
        } else {
            Reserve::Sparse
        };
        create_file(&self.path, bytes, reserve).map_err(Failure::new)
    }

    fn format(&self, engine: &dyn Engine, options: &clap::ArgMatches) -> Outcome {
        let identity = identity()?;
        let image = Image {
            over_idle_loops: self.force,
            ..Image::whole(&self.path)
        };
        let made = image::patiently(&self.path, || engine.mkfs(&image, &identity, options));
        let made = made.map_err(Failure::new)?;
        output::print(format!("{}: {made}\n", self.path.display()))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses to throw away what a file of another size holds, known or not.
    fn refuse_to_resize(&self) -> Result<(), Failure> {
        let meta = self.path.metadata();
        let meta = meta.map_err(|e| Failure::about(&self.path, e))?;
        match self.size {
            Some(bytes) if meta.is_file() && meta.len() != 0 && meta.len() != bytes => {
                let why = format_args!(
                    "is a file of {} bytes already; --force overwrites it, leaving out --size \
                     keeps its size",
                    meta.len()
                );
                Err(Failure::about(&self.path, why))
            }
            _ => Ok(()),
        }
    }
}

/// Owner, UUID and time of a new file system.
fn identity() -> Result<Identity, Failure> {
    Ok(Identity {
        uuid: new_uuid()?,
        uid: getuid().as_raw(),
        gid: getgid().as_raw(),
        now: SystemClock.now(),
    })
}

/// A random identity: version 4, variant 1, as RFC 9562 marks them.
fn new_uuid() -> Result<[u8; 16], Failure> {
    let mut uuid = random::bytes::<16>()?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// Refuses to overwrite what is known.
fn refuse_known(path: &Path) -> Result<(), Failure> {
    let held = magic::find(engines::all(), path, 0).map_err(|e| Failure::about(path, e))?;
    match held {
        Some(held) => Err(Failure::about(
            path,
            format_args!("holds {}; --force overwrites it", held.name()),
        )),
        None => Ok(()),
    }
}
