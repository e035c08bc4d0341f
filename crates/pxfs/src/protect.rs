//! The users who may read an object through a mapping of its pages (paper sections 4.2.4 and 4.3.1).
//!
//! They are those who may read the file, or list and search the directory, and all directories above it. A mode
//! that denies this to the owner or the group, and grants it to others, permits the others nothing. An object
//! without a name, and a file that has or had several, is nobody's: its path is unknown. All whom this denies
//! what the mode grants them call the service.

use crate::error::Fault;
use crate::inode::Inode;
use crate::seeded::{Bug, hit};
use aerie_objects::{Error, Load, ObjectId, Readers, Result, Superblock, own, parent};
use vfs::{Attr, perm};

/// Most directories above an object.
const DEEP: usize = 1 << 16;

/// The users whom the inode itself permits it.
fn by_mode(attr: &Attr) -> Readers {
    let wanted = match attr.kind {
        vfs::FileType::Directory => perm::Access::READ | perm::Access::EXEC,
        _ => perm::Access::READ,
    };
    let bits = wanted.bits();
    let is_granted = |shift: u32| attr.perm >> shift & bits == bits;
    match [6, 3, 0].map(is_granted) {
        [true, true, true] => Readers::Everyone,
        [true, true, false] => Readers::user_and_group(attr.uid, attr.gid),
        [true, false, _] => Readers::user(attr.uid),
        [false, ..] => Readers::NOBODY,
    }
}

/// The policy of PXFS for [`aerie_objects::Protection`].
pub(crate) fn readers(
    memory: &dyn Load,
    superblock: &Superblock,
    object: ObjectId,
) -> Result<Readers> {
    let mut readers = Readers::Everyone;
    let mut at = object;
    // A damaged store may have a loop of parents.
    for _ in 0..DEEP {
        if at == superblock.open || at == superblock.attributes {
            return Ok(Readers::NOBODY);
        }
        let above = parent(memory, at)?;
        if above.is_none() && at != superblock.root {
            return Ok(Readers::NOBODY);
        }
        // An object in the making, or a file of extended attributes.
        if own(memory, at, 0)? == 0 {
            return Ok(Readers::NOBODY);
        }
        let inode = match Inode::load(memory, superblock, at) {
            Ok(inode) => inode,
            Err(Fault::Call(_)) => return Ok(Readers::NOBODY),
            Err(Fault::Store(error)) => return Err(error),
        };
        readers = readers.meet(by_mode(&inode.attr));
        match above.filter(|_| !hit(Bug::ParentIgnored)) {
            Some(above) => at = above,
            None => return Ok(readers),
        }
    }
    Err(Error::Unstable(object))
}
