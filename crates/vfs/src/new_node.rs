//! [`NewNode`]: a node that a call makes.

use crate::{Errno, FileType, Result, SYMLINK_MAX};

/// A node to be made. Its parts are consistent: only a device has a device number, and only a
/// symbolic link has a target, of valid length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewNode<'a> {
    kind: FileType,
    mode: u32,
    rdev: u32,
    target: &'a [u8],
}

impl<'a> NewNode<'a> {
    /// A regular file. `mode`: the permission bits, umask already applied.
    pub const fn file(mode: u32) -> Self {
        Self {
            kind: FileType::Regular,
            mode,
            rdev: 0,
            target: b"",
        }
    }

    /// A directory.
    pub const fn directory(mode: u32) -> Self {
        Self {
            kind: FileType::Directory,
            ..Self::file(mode)
        }
    }

    /// A node of `mknod(2)`: any type except directory and symbolic link. `rdev`: the device
    /// number, if `kind` is a device.
    ///
    /// # Errors
    /// `EPERM` for a directory, `EINVAL` for a symbolic link.
    pub const fn special(kind: FileType, mode: u32, rdev: u32) -> Result<Self> {
        let rdev = match kind {
            FileType::Directory => return Err(Errno::PERM),
            FileType::Symlink => return Err(Errno::INVAL),
            FileType::CharDevice | FileType::BlockDevice => rdev,
            FileType::Regular | FileType::Fifo | FileType::Socket => 0,
        };
        Ok(Self {
            kind,
            rdev,
            ..Self::file(mode)
        })
    }

    /// A symbolic link to `target`.
    ///
    /// # Errors
    /// `ENOENT` if the target is empty, `ENAMETOOLONG` over [`SYMLINK_MAX`] bytes.
    pub const fn symlink(target: &'a [u8]) -> Result<Self> {
        match target.len() {
            0 => Err(Errno::NOENT),
            1..=SYMLINK_MAX => Ok(Self {
                kind: FileType::Symlink,
                target,
                ..Self::file(0o777)
            }),
            _ => Err(Errno::NAMETOOLONG),
        }
    }

    /// Type.
    pub const fn kind(&self) -> FileType {
        self.kind
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Permission bits that the call states.
    pub const fn mode(&self) -> u32 {
        self.mode
    }

    /// Device number; 0 unless this is a device.
    pub const fn rdev(&self) -> u32 {
        self.rdev
    }

    /// Target of a symbolic link; empty unless this is one.
    pub const fn target(&self) -> &'a [u8] {
        self.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_new_node_are_consistent() {
        let rdev = |kind| NewNode::special(kind, 0o600, 7).map(|new| new.rdev());
        assert_eq!(rdev(FileType::CharDevice), Ok(7));
        assert_eq!(rdev(FileType::BlockDevice), Ok(7));
        assert_eq!(rdev(FileType::Fifo), Ok(0));
        assert_eq!(rdev(FileType::Regular), Ok(0));
        assert_eq!(rdev(FileType::Directory), Err(Errno::PERM));
        assert_eq!(rdev(FileType::Symlink), Err(Errno::INVAL));
        let target = [b't'; SYMLINK_MAX + 1];
        let link = |len: usize| NewNode::symlink(&target[..len]).map(|new| new.target().len());
        assert_eq!(link(0), Err(Errno::NOENT));
        assert_eq!(link(1), Ok(1));
        assert_eq!(link(SYMLINK_MAX), Ok(SYMLINK_MAX));
        assert_eq!(link(SYMLINK_MAX + 1), Err(Errno::NAMETOOLONG));
    }
}
