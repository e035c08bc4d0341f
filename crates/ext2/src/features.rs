//! Names of features, as in e2fsprogs, and the features that this program supports.

use crate::Error;
use crate::format::{Incompat, RoCompat, Super};
use blockfs::mount::OpenOptions;

/// Incompatible features that this program reads and writes.
pub(crate) const INCOMPAT: Incompat = Incompat::FILETYPE;
/// Read-only compatible features that this program writes.
pub(crate) const RO_COMPAT: RoCompat = RoCompat::all();

const COMPAT_NAMES: [(u32, &str); 11] = [
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];
const INCOMPAT_NAMES: [(u32, &str); 16] = [
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x1_0000, "encrypt"),
    (0x2_0000, "casefold"),
];
const RO_COMPAT_NAMES: [(u32, &str); 17] = [
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x1_0000, "orphan_present"),
];

/// Names of the bits of one field. A bit without a name is its number.
fn names(kind: &str, table: &[(u32, &str)], bits: u32) -> Vec<String> {
    let each = (0..32).map(|n| 1 << n).filter(|bit| bits & bit != 0);
    each.map(|bit| match table.iter().find(|(known, _)| *known == bit) {
        Some((_, name)) => (*name).to_string(),
        None => format!("{kind}_{bit:#x}"),
    })
    .collect()
}

/// All features of a file system.
pub(crate) fn all(sup: &Super) -> Vec<String> {
    let mut all = names("compat", &COMPAT_NAMES, sup.compat.get());
    all.extend(incompat(sup.incompat.get()));
    all.extend(ro_compat(sup.ro_compat.get()));
    all
}

/// Names of incompatible features.
pub(crate) fn incompat(bits: u32) -> Vec<String> {
    names("incompat", &INCOMPAT_NAMES, bits)
}

/// Names of read-only compatible features.
pub(crate) fn ro_compat(bits: u32) -> Vec<String> {
    names("ro_compat", &RO_COMPAT_NAMES, bits)
}

/// A feature that a change needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    LargeFile,
    Attributes,
}

/// Refuses images with unknown features.
pub(crate) fn check(sup: &Super, options: &OpenOptions) -> Result<(), Error> {
    if sup.revision.get() == 0 {
        return Ok(());
    }
    let mut bits = sup.incompat.get();
    if options.replayed {
        bits &= !Incompat::RECOVER.bits();
    } else if bits & Incompat::RECOVER.bits() != 0 {
        return Err(Error::NeedsReplay);
    }
    let unknown = bits & !INCOMPAT.bits();
    if unknown != 0 {
        return Err(Error::Features(incompat(unknown).join(", ")));
    }
    let unknown = sup.ro_compat.get() & !RO_COMPAT.bits();
    if unknown != 0 && !options.read_only {
        return Err(Error::OnlyReadable(ro_compat(unknown).join(", ")));
    }
    Ok(())
}
