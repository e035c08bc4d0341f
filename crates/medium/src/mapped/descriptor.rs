//! Mappings of files that another process opened, and passed as descriptors.
//!
//! Guarantees:
//!
//! 1. The kernel enforces the access of the descriptor. A mapping of a read-only descriptor
//!    cannot be made writable, whatever the process does.
//! 2. No lock is taken or needed: other processes may map the file too, and change its bytes at
//!    any time. Each load is atomic, and each byte of a [`read`](crate::Pmem::read) is old or new.
//! 3. A page that is lost is an error, as in every mapping of this module.

use super::guarded::Guarded;
use super::target::{Target, map};
use super::{MapOptions, MappedPmem};
use crate::open_error::OpenError;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

impl MappedPmem {
    /// Maps all of the regular file, block device or DAX device that `descriptor` refers to.
    /// `name` describes it in errors.
    ///
    /// # Errors
    /// [`OpenError`], also if `options` requires a right to write that the descriptor lacks.
    pub fn map_descriptor(
        descriptor: OwnedFd,
        name: impl AsRef<Path>,
        options: &MapOptions,
    ) -> Result<Self, OpenError> {
        let name = name.as_ref();
        let mut target = Target::of_descriptor(name, File::from(descriptor))?;
        let (mapping, durability) = map(name, &mut target, options)?;
        let guarded = Guarded::of(&mapping, &target, durability, options);
        Self::mapped(name, target, (mapping, guarded), durability, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pmem, Reserve, Rule, create_file};
    use rustix::io::Errno;
    use rustix::mm::{MprotectFlags, mprotect};

    const READ: MapOptions = MapOptions {
        durability: crate::Durability::Auto,
        power_safe: false,
        force_flush: false,
        read_only: true,
        over_idle_loops: false,
        no_links: false,
        guarded: false,
        simulate_power_cut: false,
    };

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        create_file(file.path(), 8192, Reserve::Sparse).unwrap();
        file
    }

    fn read_only(file: &tempfile::NamedTempFile) -> OwnedFd {
        File::open(file.path()).unwrap().into()
    }

    #[test]
    fn two_mappings_of_a_file_share_its_bytes() {
        let file = file();
        let writer = file.reopen().unwrap().into();
        let writer = MappedPmem::map_descriptor(writer, "w", &MapOptions::default()).unwrap();
        let reader = MappedPmem::map_descriptor(read_only(&file), "r", &READ).unwrap();
        writer.store_word(4096, 7);
        writer.fence(Rule::DurableBeforeReturn).unwrap();
        assert_eq!(reader.load(4096), Ok(7));
        reader.store_word(4096, 8);
        assert!(reader.fence(Rule::DurableBeforeReturn).is_err());
        assert_eq!(writer.load(4096), Ok(7));
    }

    #[test]
    fn a_read_only_descriptor_gives_no_right_to_write() {
        let file = file();
        let refused = MappedPmem::map_descriptor(read_only(&file), "it", &MapOptions::default());
        let refused = refused.err().unwrap().to_string();
        assert!(refused.starts_with("cannot map it"), "{refused}");

        let reader = MappedPmem::map_descriptor(read_only(&file), "it", &READ).unwrap();
        let base = reader.mapping.base().as_ptr().cast();
        let both = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages are those of `reader`; more rights than it uses do no harm.
        let refused = unsafe { mprotect(base, 8192, both) };
        assert_eq!(refused, Err(Errno::ACCESS));
    }

    #[test]
    fn a_descriptor_of_another_kind_is_refused() {
        let pipe = std::io::pipe().unwrap().0.into();
        let error = MappedPmem::map_descriptor(pipe, "it", &READ).err().unwrap();
        assert!(error.to_string().starts_with("it is a pipe"), "{error}");
        let dir = File::open("/").unwrap().into();
        assert!(MappedPmem::map_descriptor(dir, "it", &READ).is_err());
    }
}
