//! `selvedge mount`: mounts an image and serves it.

use crate::engine::{Engine, Type};
use crate::failure::{Failure, Outcome, code};
use crate::mount::daemon;
use crate::mount::options::Options;
use crate::mount::serve::{Opened, serve};
use rustix::mount::{MountFlags, mount_remount};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use vfs::{ModelFs, ModelOptions};

/// Mount a file system
///
/// Returns when the file system is in use, and leaves a server in the background. Says
/// which crashes the data survives. `umount` ends the server.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image: a file, a block device or a DAX device ("none" for type model)
    #[arg(value_name = "PATH")]
    image: PathBuf,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Mount options, separated by commas
    ///
    /// ro, rw, allow_other, nosuid, nodev, noexec, noatime, relatime, strictatime,
    /// mode=M, durability=D, fsname=NAME, threads=N, remount. Options that concern only
    /// mount(8) and fstab(5), such as nofail, _netdev and x-*, are ignored.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// The type: bpfs or model; by default what the image holds
    #[arg(long = "type", short = 't', value_name = "TYPE", default_value = "selvedge", hide_default_value = true)]
    fs_type: Type,
    /// Serve in the foreground; do not put a server in the background
    #[arg(long)]
    foreground: bool,
    /// Check the arguments, but do not mount (for mount(8))
    #[arg(short = 'f', hide = true)]
    fake: bool,
    /// Ignore unknown options (for mount(8))
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    /// Do not write /etc/mtab, which nobody does (for mount(8))
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let options = Options::parse(self.options.iter().map(String::as_str), self.sloppy)
            .map_err(|e| Failure::new(e).with_code(code::MOUNT_USAGE))?;
        if self.fake {
            return Ok(ExitCode::SUCCESS);
        }
        if options.remount {
            return remount(&self.dir, &options);
        }
        if !self.foreground && !daemon::is_second() {
            return daemon::start();
        }
        if daemon::is_second() {
            daemon::leave_session();
        }
        let opened = self
            .open(&options)
            .map_err(|e| e.with_code(code::MOUNT_FAILED))?;
        serve(opened, &self.dir, &options)
    }

    fn open(&self, options: &Options) -> Result<Opened, Failure> {
        Ok(model(options))
    }
}

fn model(options: &Options) -> Opened {
    let fs = ModelFs::new(ModelOptions {
        atime: options.atime,
        ..ModelOptions::default()
    });
    Opened {
        fs: Arc::new(fs),
        source: "none".into(),
        notes: vec!["durability: none: everything is in memory, and gone at the unmount".into()],
    }
}

/// Changes the flags of a mount that is there; its server goes on as it was opened.
fn remount(dir: &Path, options: &Options) -> Outcome {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::NOATIME, options.atime == vfs::Atime::Never);
    match mount_remount(dir, flags, "") {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) => Err(Failure::new(format_args!("{}: cannot remount: {e}", dir.display()))
            .with_code(code::MOUNT_FAILED)),
    }
}
