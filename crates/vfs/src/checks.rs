//! Checks of arguments that are the same in every file system, except permissions (see
//! [`crate::perm`]). Each returns the errno that Linux returns.

use crate::{Errno, Fallocate, FileType, NAME_MAX, Removal, RenameFlags, Result, XattrMode};

/// Name spaces of extended attributes. `system.` (access control lists) is not one, since no
/// file system here would enforce these lists.
const XATTR_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Checks the name of an extended attribute to be set, as the kernel does for its own file
/// systems. An earlier version may have stored other names: the super-user can read and remove
/// these.
///
/// # Errors
/// `ERANGE` if it is empty or over [`NAME_MAX`] bytes; `EOPNOTSUPP` outside of the name
/// spaces `user.`, `trusted.` and `security.`; `EINVAL` for the name space alone.
pub fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    let mut spaces = XATTR_SPACES.iter();
    match spaces.find_map(|space| name.strip_prefix(*space)) {
        None => Err(Errno::OPNOTSUPP),
        Some(b"") => Err(Errno::INVAL),
        Some(_) => Ok(()),
    }
}

/// The error for an extended attribute that does not exist: that of its name, or `ENODATA`.
pub fn absent_xattr(name: &[u8]) -> Errno {
    check_xattr_name(name).err().unwrap_or(Errno::NODATA)
}

/// Checks a name to be looked up or made in a directory.
///
/// # Errors
/// `ENAMETOOLONG` over [`NAME_MAX`] bytes; `ENOENT` if empty; `EINVAL` if it is `.` or
/// `..` or holds `/` or NUL.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    match name {
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::INVAL),
        _ if name.iter().any(|b| matches!(b, b'/' | 0)) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// Checks that a call on data is made on a regular file.
///
/// # Errors
/// `EISDIR` for a directory, `other` for other types.
pub fn must_be_regular(kind: FileType, other: Errno) -> Result<()> {
    match kind {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        FileType::Fifo
        | FileType::CharDevice
        | FileType::BlockDevice
        | FileType::Symlink
        | FileType::Socket => Err(other),
    }
}

/// The end of the range of `len` bytes at `off` in a file of at most `max_bytes`.
///
/// # Errors
/// `EFBIG` if it lies beyond `max_bytes`.
pub fn end_of(off: u64, len: u64, max_bytes: u64) -> Result<u64> {
    let end = off.checked_add(len).filter(|&end| end <= max_bytes);
    end.ok_or(Errno::FBIG)
}

impl Removal {
    /// Checks the type of the inode that loses its name.
    ///
    /// # Errors
    /// `EISDIR` if a directory is unlinked; `ENOTDIR` if rmdir removes anything else.
    pub fn check(self, is_dir: bool) -> Result<()> {
        match (self, is_dir) {
            (Self::Unlink, true) => Err(Errno::ISDIR),
            (Self::Rmdir, false) => Err(Errno::NOTDIR),
            (Self::Unlink, false) | (Self::Rmdir, true) => Ok(()),
        }
    }
}

impl RenameFlags {
    /// Whether the two names are exchanged.
    pub fn is_exchange(self) -> bool {
        self.contains(Self::EXCHANGE)
    }

    /// Checks that the flags are known and do not exclude each other.
    ///
    /// # Errors
    /// `EINVAL` if both are set, or an unknown one.
    pub fn check(self) -> Result<()> {
        let is_known = Self::all().contains(self);
        match !is_known || self.contains(Self::NO_REPLACE | Self::EXCHANGE) {
            true => Err(Errno::INVAL),
            false => Ok(()),
        }
    }

    /// Checks whether the new name may exist, or be absent.
    ///
    /// # Errors
    /// `EEXIST` if it exists and must not be replaced; `ENOENT` if it is absent and is to be
    /// exchanged.
    pub fn check_target(self, exists: bool) -> Result<()> {
        match exists {
            true if self.contains(Self::NO_REPLACE) => Err(Errno::EXIST),
            false if self.is_exchange() => Err(Errno::NOENT),
            true | false => Ok(()),
        }
    }
}

/// Checks the types of the inodes that a rename moves and replaces. The caller checks that a
/// replaced directory is empty.
///
/// # Errors
/// `ENOTDIR` if a directory replaces anything else, `EISDIR` the other way round.
pub fn check_replaced(source_is_dir: bool, target_is_dir: bool) -> Result<()> {
    match (source_is_dir, target_is_dir) {
        (true, false) => Err(Errno::NOTDIR),
        (false, true) => Err(Errno::ISDIR),
        (true, true) | (false, false) => Ok(()),
    }
}

impl Fallocate {
    /// Whether the call keeps the size.
    pub fn keeps_size(self) -> bool {
        match self {
            Self::PunchHole => true,
            Self::Allocate { keep_size } | Self::ZeroRange { keep_size } => keep_size,
        }
    }
}

impl XattrMode {
    /// Checks whether the attribute may exist, or be absent.
    ///
    /// # Errors
    /// `EEXIST` if it exists and is to be created; `ENODATA` if it is absent and is to be
    /// replaced.
    pub fn check(self, exists: bool) -> Result<()> {
        match (self, exists) {
            (Self::Create, true) => Err(Errno::EXIST),
            (Self::Replace, false) => Err(Errno::NODATA),
            (Self::Set, _) | (Self::Create, false) | (Self::Replace, true) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SIZE_MAX;

    #[test]
    fn ranges_end_within_the_largest_size() {
        assert_eq!(end_of(0, SIZE_MAX, SIZE_MAX), Ok(SIZE_MAX));
        assert_eq!(end_of(1, SIZE_MAX, SIZE_MAX), Err(Errno::FBIG));
        assert_eq!(end_of(u64::MAX, 1, u64::MAX), Err(Errno::FBIG));
    }

    #[test]
    fn removals_and_renames_check_types() {
        assert_eq!(Removal::Unlink.check(true), Err(Errno::ISDIR));
        assert_eq!(Removal::Rmdir.check(false), Err(Errno::NOTDIR));
        assert_eq!(Removal::Unlink.check(false), Ok(()));
        assert_eq!(Removal::Rmdir.check(true), Ok(()));
        assert_eq!(check_replaced(true, false), Err(Errno::NOTDIR));
        assert_eq!(check_replaced(false, true), Err(Errno::ISDIR));
        assert_eq!(check_replaced(true, true), Ok(()));
        assert_eq!(check_replaced(false, false), Ok(()));
    }

    #[test]
    fn flags_of_renames_require_the_target_or_its_absence() {
        let (plain, exchange) = (RenameFlags::empty(), RenameFlags::EXCHANGE);
        assert_eq!(RenameFlags::all().check(), Err(Errno::INVAL));
        let unknown = RenameFlags::from_bits_retain(4);
        assert_eq!(unknown.check(), Err(Errno::INVAL));
        assert_eq!(exchange.check(), Ok(()));
        let targets = |flags: RenameFlags| [true, false].map(|exists| flags.check_target(exists));
        assert_eq!(targets(plain), [Ok(()), Ok(())]);
        assert_eq!(targets(exchange), [Ok(()), Err(Errno::NOENT)]);
        assert_eq!(
            targets(RenameFlags::NO_REPLACE),
            [Err(Errno::EXIST), Ok(())]
        );
    }

    #[test]
    fn modes_of_setxattr_require_the_attribute_or_its_absence() {
        let modes = [XattrMode::Set, XattrMode::Create, XattrMode::Replace];
        let found = modes.map(|mode| mode.check(true));
        assert_eq!(found, [Ok(()), Err(Errno::EXIST), Ok(())]);
        let absent = modes.map(|mode| mode.check(false));
        assert_eq!(absent, [Ok(()), Ok(()), Err(Errno::NODATA)]);
    }
}
