//! Lists of extended attributes, and the calls on them that are the same in every file system.

use crate::{Ctx, Errno, Result, XattrMode, absent_xattr, check_xattr_name, perm};

/// Longest value that the kernel passes on.
const VALUE_MAX: usize = 65536;

/// Names and values of extended attributes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A change of the attributes of an inode.
#[derive(Debug, Clone, Copy)]
pub enum XattrChange<'a> {
    /// Sets one to a value.
    Set {
        /// Name.
        name: &'a [u8],
        /// Value.
        value: &'a [u8],
        /// The treatment of an existing or missing one.
        mode: XattrMode,
    },
    /// Removes one.
    Remove {
        /// Name.
        name: &'a [u8],
    },
}

impl<'a> XattrChange<'a> {
    /// Sets an attribute.
    ///
    /// # Errors
    /// Those of the name; `E2BIG` if the value is too long for any file system.
    pub fn set(name: &'a [u8], value: &'a [u8], mode: XattrMode) -> Result<Self> {
        check_xattr_name(name)?;
        match value.len() <= VALUE_MAX {
            true => Ok(Self::Set { name, value, mode }),
            false => Err(Errno::TOOBIG),
        }
    }

    /// The name.
    pub fn name(&self) -> &'a [u8] {
        match *self {
            Self::Set { name, .. } | Self::Remove { name } => name,
        }
    }

    /// Changes the list.
    ///
    /// # Errors
    /// Those of the mode; that of [`absent_xattr`] if there is none to remove.
    pub fn apply(&self, all: &mut Xattrs) -> Result<()> {
        let at = all.iter().position(|(name, _)| name == self.name());
        match *self {
            Self::Set { name, value, mode } => {
                mode.check(at.is_some())?;
                match at {
                    Some(at) => all[at].1 = value.to_vec(),
                    None => all.push((name.to_vec(), value.to_vec())),
                }
            }
            Self::Remove { name } => drop(all.remove(at.ok_or(absent_xattr(name))?)),
        }
        Ok(())
    }
}

/// The value of an attribute.
///
/// # Errors
/// That of [`absent_xattr`] without it.
pub fn value_of(all: Xattrs, name: &[u8]) -> Result<Vec<u8>> {
    let found = all.into_iter().find(|(other, _)| other == name);
    found.map(|(_, value)| value).ok_or(absent_xattr(name))
}

/// The names that the caller [may see](perm::may_list_xattr).
pub fn names_for(cx: &Ctx, all: Xattrs) -> Vec<Vec<u8>> {
    let names = all.into_iter().map(|(name, _)| name);
    names
        .filter(|name| perm::may_list_xattr(cx, name))
        .collect()
}
