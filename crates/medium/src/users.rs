//! The users of a file: the kernel, and processes that have it locked.

use std::fmt;
use std::path::PathBuf;

/// A use that the kernel makes of a file or block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// A loop device shows the file as a block device, which may be in use itself.
    Loop {
        /// The device, such as `/dev/loop0`.
        device: PathBuf,
        /// The use of the loop device, if it is in use.
        used: Option<Box<Claim>>,
    },
    /// A file system on it is mounted, on this directory.
    Mounted(PathBuf),
    /// The file or device is swap space.
    Swap,
    /// The device is a part of this one.
    Part(String),
    /// The device is claimed, and the kernel does not report by what.
    Unknown,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loop { device, used: None } => {
                let device = device.display();
                write!(
                    f,
                    "in use by the loop device {device}; detach it with `losetup -d {device}`"
                )
            }
            Self::Loop {
                device,
                used: Some(used),
            } => write!(
                f,
                "in use by the loop device {}, which is {used}",
                device.display()
            ),
            Self::Mounted(dir) => {
                let dir = dir.display();
                write!(
                    f,
                    "mounted by the kernel on {dir}; unmount it with `umount {dir}`"
                )
            }
            Self::Swap => f.write_str("in use as swap space; see swapoff(8)"),
            Self::Part(device) => write!(f, "in use as a part of the device {device}"),
            Self::Unknown => f.write_str("in use by the kernel or another program"),
        }
    }
}

/// A process that has a file locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id in our namespace.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}
