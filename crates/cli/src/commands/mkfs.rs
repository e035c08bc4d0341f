//! `selvedge mkfs`: makes a file system.

use crate::engine::{Engine, Type};
use crate::failure::{Failure, Outcome};
use crate::{image, output, random, signature, size};
use bpfs::format::{BLOCK, MIN_BLOCKS};
use bpfs::{MkfsOptions, Mode};
use medium::{Durability, Reserve, create_file};
use rustix::process::{getgid, getuid};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vfs::{Clock, SystemClock};

/// Make a file system
///
/// PATH is a file, a block device or a DAX device. A file that is not there is made, as
/// large as --size says, and takes space only as it fills.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file or device
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The type
    #[arg(
        long = "type",
        short = 't',
        value_name = "TYPE",
        default_value = "bpfs"
    )]
    fs_type: Type,
    /// Size of the file, such as 64M or 1G; needed if it is not there yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Take all of the file's space now, so that a disk that fills up later cannot fail
    /// the mount
    #[arg(long, requires = "size")]
    preallocate: bool,
    /// Commit mode until a mount chooses another: sp, sc, a, t, at, other, log
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Overwrite what PATH holds
    #[arg(long, short)]
    force: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let path = &self.path;
        if self.fs_type == Type::One(Engine::Model) {
            return Err(Failure::new(
                "the model lives in memory only; mount it with --type model",
            ));
        }
        let there = path.try_exists().map_err(|e| image::about(path, e))?;
        if there && !self.force {
            refuse_known(path)?;
            self.refuse_to_resize()?;
        }
        let made = match self.size {
            Some(bytes) => self.make(bytes),
            None if there => Ok(()),
            None => Err(image::about(path, "not there; --size makes it")),
        };
        let made = made.and_then(|()| self.format());
        if made.is_err() && !there {
            // What is left is of no use. It may never have been made.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Makes the file, or makes it empty and of the right size.
    fn make(&self, bytes: u64) -> Result<(), Failure> {
        if bytes < MIN_BLOCKS * BLOCK {
            let least = size::display(MIN_BLOCKS * BLOCK);
            let why = format_args!("a file system needs at least {least}");
            return Err(image::about(&self.path, why));
        }
        if !bytes.is_multiple_of(BLOCK) {
            let why = format_args!("--size {bytes} is not a multiple of {BLOCK} bytes");
            return Err(image::about(&self.path, why));
        }
        let reserve = if self.preallocate {
            Reserve::Whole
        } else {
            Reserve::Sparse
        };
        create_file(&self.path, bytes, reserve).map_err(Failure::new)
    }

    fn format(&self) -> Outcome {
        let path = &self.path;
        let pm = image::open(path, Durability::Auto)?;
        let options = self.options()?;
        bpfs::mkfs(&pm, &options).map_err(|e| image::about(path, e))?;
        let info = image::probe(path, &pm)?;
        output::print(format!(
            "{}: bpfs, {}, mode {}, UUID {}\n",
            path.display(),
            size::display(info.blocks * BLOCK),
            info.mode,
            image::uuid(&info.uuid)
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Refuses to throw away what a file of another size holds, known or not.
    fn refuse_to_resize(&self) -> Result<(), Failure> {
        let meta = self.path.metadata();
        let meta = meta.map_err(|e| image::about(&self.path, e))?;
        match self.size {
            Some(bytes) if meta.is_file() && meta.len() != 0 && meta.len() != bytes => {
                let why = format_args!(
                    "is a file of {} bytes already; --force overwrites it, leaving out --size \
                     keeps its size",
                    meta.len()
                );
                Err(image::about(&self.path, why))
            }
            _ => Ok(()),
        }
    }

    fn options(&self) -> Result<MkfsOptions, Failure> {
        let defaults = MkfsOptions::default();
        let mut uuid = random::bytes::<16>()?;
        // Version 4 (random), variant 1, as RFC 9562 marks them.
        uuid[6] = uuid[6] & 0x0f | 0x40;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        Ok(MkfsOptions {
            uuid,
            mode: self.mode.unwrap_or(defaults.mode),
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            now: SystemClock.now(),
            ..defaults
        })
    }
}

/// Refuses to overwrite what is known.
fn refuse_known(path: &Path) -> Result<(), Failure> {
    match signature::find(path).map_err(|e| image::about(path, e))? {
        Some(what) => Err(image::about(
            path,
            format_args!("holds {what}; --force overwrites it"),
        )),
        None => Ok(()),
    }
}
