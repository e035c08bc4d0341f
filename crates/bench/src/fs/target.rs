//! The measured file systems, and how each is made and mounted.

use super::device::Loop;
use crate::Engine;
use crate::detached::run;
use crate::error::{Context, Error, Result};
use crate::server::Server;
use patch::stack::Mode;
use rustix::fs::{Mode as Bits, OFlags, getxattr, syncfs};
use serde_json::Value;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The model in memory on our server: the time of FUSE itself.
    Floor,
    /// The engine whose format the kernel has too.
    Ours(Mode),
    /// A file system of the kernel, with `data=` if it has a journal.
    Kernel(&'static str, Option<&'static str>),
}

impl Target {
    pub(super) const SOFT_UPDATES: Self = Self::Ours(Mode::SoftUpdates);
    pub(super) const EXT4: Self = Self::Kernel("ext4", Some("ordered"));

    /// All targets on a device: ours, then the kernel's.
    pub(super) fn on_devices() -> Vec<Self> {
        let kernel = [
            Self::Kernel("ext2", None),
            Self::Kernel("ext3", Some("writeback")),
            Self::Kernel("ext3", Some("ordered")),
            Self::Kernel("ext3", Some("journal")),
            Self::EXT4,
        ];
        Mode::ALL
            .map(Self::Ours)
            .into_iter()
            .chain(kernel)
            .collect()
    }

    /// Makes an empty file system. Ours gets the same image as the kernel's of its format.
    ///
    /// # Errors
    /// If mke2fs(8) fails.
    pub(super) fn format(self, device: &Loop) -> Result<()> {
        let kind = match self {
            Self::Kernel(kind, _) => kind,
            Self::Floor | Self::Ours(_) => ours()?.1,
        };
        // No lazy initialisation: it would write in the background of the measurement.
        let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let mut mke2fs = Command::new(format!("mkfs.{kind}"));
        mke2fs.args(["-q", "-F", "-b", "4096", "-E", options]);
        run(mke2fs.arg(&device.node))
    }

    /// Mounts the file system, with nothing cached.
    ///
    /// # Errors
    /// If the mount fails.
    pub(super) fn mount(self, program: &Path, device: &Loop, scratch: &Path) -> Result<Mounted> {
        let dir = scratch.join("mount");
        std::fs::create_dir_all(&dir).what(|| "making a mount point".into())?;
        let (root, server) = match self {
            Self::Kernel(kind, data) => {
                device.forget()?;
                (kernel_mount(kind, data, &device.node, &dir)?, None)
            }
            Self::Ours(mode) => {
                device.forget()?;
                let mode = format!("mode={mode}");
                let mut command = server(program);
                command
                    .args(["--type", ours()?.0.name(), "-o", &mode])
                    .arg(&device.node);
                let server = Server::of(command.arg(&dir), &self.to_string(), &dir)?;
                (open(&dir)?, Some(server))
            }
            Self::Floor => {
                let mut command = server(program);
                command.args(["--type", Engine::baseline().name(), "none"]);
                let server = Server::of(command.arg(&dir), &self.to_string(), &dir)?;
                (open(&dir)?, Some(server))
            }
        };
        Ok(Mounted { root, server })
    }

    /// Makes all changes of a mount durable.
    ///
    /// # Errors
    /// If the file system or the device fails.
    pub(super) fn sync(self, mounted: &Mounted, device: &Loop) -> Result<()> {
        let what = || format!("syncing {self}");
        syncfs(&mounted.root)
            .map_err(std::io::Error::from)
            .what(what)?;
        match self {
            Self::Floor | Self::Ours(_) => mounted.server.as_ref().map_or(Ok(()), Server::sync),
            // The kernel's ext2 does not flush the caches of devices.
            Self::Kernel("ext2", _) => device.flush(),
            Self::Kernel(..) => Ok(()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floor => f.write_str("FUSE floor"),
            Self::Ours(mode) => write!(f, "selvedge {mode}"),
            Self::Kernel(kind, None) => write!(f, "kernel {kind}"),
            Self::Kernel(kind, Some(data)) => write!(f, "kernel {kind} {data}"),
        }
    }
}

/// A mount outside of the directory tree, or one of a server. Dropping it unmounts.
pub(super) struct Mounted {
    root: OwnedFd,
    pub server: Option<Server>,
}

impl Mounted {
    /// Its root, as a path for this process and, while they start, those that it starts.
    pub(super) fn dir(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.root.as_raw_fd()).into()
    }

    /// Blocks that the server has written, and those of them without some of their
    /// changes, which it writes again.
    pub(super) fn double_writes(&self) -> Option<(u64, u64)> {
        let mut text = vec![0; 1 << 14];
        let len = getxattr(self.dir(), fuse::STATS_XATTR, &mut text[..]).ok()?;
        let stats: Value = serde_json::from_slice(&text[..len]).ok()?;
        let of_graph = |name: &str| stats["graph"][name].as_u64();
        Some((of_graph("blocks_issued")?, of_graph("blocks_partial")?))
    }
}

/// The engine whose format the kernel has too, and the kernel's type of it.
fn ours() -> Result<(&'static dyn engine::Engine, &'static str)> {
    let of_kernel = |engine: &&'static dyn engine::Engine| Some((*engine, engine.kernel_type()?));
    let found = engines::all().iter().find_map(of_kernel);
    found.ok_or_else(|| Error::Usage("no engine has a format of the kernel's".into()))
}

/// Our server, to be ended if this process ends first.
fn server(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(program);
    command.args(["mount", "--foreground"]);
    command
}

/// Mounts, and takes the mount out of the tree at once: it is removed with its descriptor.
fn kernel_mount(kind: &str, data: Option<&str>, node: &Path, dir: &Path) -> Result<OwnedFd> {
    let mut command = Command::new("mount");
    command.args(["-t", kind]);
    if let Some(data) = data {
        command.arg("-o").arg(format!("data={data}"));
    }
    run(command.arg(node).arg(dir))?;
    let root = open(dir);
    run(Command::new("umount").arg("--lazy").arg(dir))?;
    root
}

fn open(dir: &Path) -> Result<OwnedFd> {
    rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty())
        .map_err(std::io::Error::from)
        .what(|| format!("opening {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_owner_and_the_mode() {
        let names: Vec<_> = Target::on_devices().iter().map(Target::to_string).collect();
        assert_eq!(names.len(), 10);
        assert!(names.contains(&Target::SOFT_UPDATES.to_string()));
        assert_eq!(Target::SOFT_UPDATES.to_string(), "selvedge softupdates");
        assert_eq!(names[5..7], ["kernel ext2", "kernel ext3 writeback"]);
        assert_eq!(names[9], Target::EXT4.to_string());
    }
}
