//! `selvedge mkfs`: makes a file system.

use crate::engine::{Engine, Type};
use crate::failure::{Failure, Outcome};
use crate::values::listed;
use crate::{ext2fs, image, output, random, signature, size};
use bpfs::format::{BLOCK, MIN_BLOCKS};
use bpfs::{MkfsOptions, Mode};
use medium::block::{BlockDevice, DeviceOptions, FileDevice};
use medium::{Reserve, check_unclaimed, create_file};
use rustix::process::{getgid, getuid};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
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
        default_value = "bpfs",
        value_parser = listed::<Type>(["bpfs", "ext2"])
    )]
    fs_type: Type,
    /// Size of the file, such as 64M or 1G; needed if it is not there yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Take all of the file's space now, so that a disk that fills up later cannot fail
    /// the mount
    #[arg(long, requires = "size")]
    preallocate: bool,
    /// bpfs: commit mode until a mount chooses another
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
    /// ext2: bytes in a block, 1024, 2048 or 4096; by default as mke2fs
    #[arg(long, short = 'b', value_name = "BYTES")]
    block_size: Option<u32>,
    /// ext2: bytes of an inode, 128 or, for times in nanoseconds, 256
    #[arg(long, short = 'I', value_name = "BYTES")]
    inode_size: Option<u16>,
    /// ext2: one inode for so many bytes of the file system
    #[arg(long, short = 'i', value_name = "BYTES")]
    bytes_per_inode: Option<u32>,
    /// ext2: a name, of at most 16 bytes
    #[arg(long, short = 'L', value_name = "NAME")]
    label: Option<String>,
    /// ext2: revision 0, without any features
    #[arg(long)]
    revision_0: bool,
    /// ext2: make an internal journal; without it the first mount that wants one does
    #[arg(long, short = 'j')]
    journal: bool,
    /// Overwrite what PATH holds, also if a loop device shows it that nobody uses
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
        let ext2 = self.fs_type == Type::One(Engine::Ext2);
        self.check_options(ext2)?;
        check_unclaimed(path, self.force).map_err(Failure::new)?;
        let there = path.try_exists().map_err(|e| image::about(path, e))?;
        if there && !self.force {
            refuse_known(path)?;
            self.refuse_to_resize()?;
        }
        let made = match self.size {
            Some(bytes) => self.make(bytes, ext2),
            None if there => Ok(()),
            None => Err(image::about(path, "not there; --size makes it")),
        };
        let made = made.and_then(|()| if ext2 { self.run_ext2() } else { self.format() });
        if made.is_err() && !there {
            // What is left is of no use. It may never have been made.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Makes the file, or makes it empty and of the right size.
    fn make(&self, bytes: u64, ext2: bool) -> Result<(), Failure> {
        // The least of ext2 depends on its other options.
        if !ext2 && bytes < MIN_BLOCKS * BLOCK {
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
        let pm = image::open_to_format(path, self.force)?;
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

    /// Options of the other type are mistakes.
    fn check_options(&self, ext2: bool) -> Result<(), Failure> {
        let of_ext2 = self.block_size.is_some()
            || self.inode_size.is_some()
            || self.bytes_per_inode.is_some()
            || self.label.is_some()
            || self.revision_0
            || self.journal;
        if let Some(bytes) = self.block_size.filter(|b| !matches!(b, 1024 | 2048 | 4096)) {
            return Err(Failure::new(format_args!(
                "blocks of {bytes} bytes: ext2 has blocks of 1024, 2048 or 4096 (--block-size)"
            )));
        }
        match ext2 {
            true if self.mode.is_some() => Err(Failure::new(
                "--mode is for bpfs; of ext2, each mount chooses (-o mode=)",
            )),
            false if of_ext2 => Err(Failure::new(
                "blocks, inodes, label, revision and journal are for --type ext2",
            )),
            _ => Ok(()),
        }
    }

    fn run_ext2(&self) -> Outcome {
        let path = &self.path;
        let failed = |e: ext2::Error| image::about(path, e);
        let device_options = DeviceOptions {
            over_idle_loops: self.force,
            ..DeviceOptions::default()
        };
        let device = |block_bytes| {
            FileDevice::open(path, block_bytes, &device_options).map_err(Failure::new)
        };
        let mut options = ext2::MkfsOptions::for_size(device(1024)?.geometry().bytes());
        if self.revision_0 {
            options = options.revision_0();
        }
        options.block_bytes = self.block_size.unwrap_or(options.block_bytes);
        options.inode_bytes = self.inode_size.unwrap_or(options.inode_bytes);
        if let Some(bytes) = self.bytes_per_inode {
            options.inodes = ext2::Inodes::BytesPer(bytes);
        }
        let label = self.label.as_deref().unwrap_or("").as_bytes();
        let room = options.label.get_mut(..label.len());
        room.ok_or_else(|| Failure::new("the label has more than 16 bytes"))?
            .copy_from_slice(label);
        (options.uid, options.gid) = (getuid().as_raw(), getgid().as_raw());
        (options.uuid, options.now) = (new_uuid()?, SystemClock.now());
        let disk: Arc<dyn BlockDevice> = Arc::new(device(options.block_bytes)?);
        ext2::mkfs(&*disk, &options).map_err(failed)?;
        if self.journal {
            let added = ext2::mount::add_journal(&disk, None, Arc::new(SystemClock));
            added.map_err(|e| ext2fs::named(path, &e))?;
        }
        let info = ext2::probe(&*disk).map_err(failed)?;
        output::print(format!(
            "{}: ext2, {}, blocks of {}, {} inodes of {}, UUID {}\n",
            path.display(),
            size::display(u64::from(info.blocks) * u64::from(info.block_bytes)),
            info.block_bytes,
            info.inodes,
            info.inode_bytes,
            image::uuid(&info.uuid)
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self) -> Result<MkfsOptions, Failure> {
        let defaults = MkfsOptions::default();
        Ok(MkfsOptions {
            uuid: new_uuid()?,
            mode: self.mode.unwrap_or(defaults.mode),
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            now: SystemClock.now(),
            ..defaults
        })
    }
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
    match signature::find(path, 0).map_err(|e| image::about(path, e))? {
        Some(what) => Err(image::about(
            path,
            format_args!("holds {what}; --force overwrites it"),
        )),
        None => Ok(()),
    }
}
