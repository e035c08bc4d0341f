//! A store in one file or device, which cannot protect extents from each other.
//!
//! A descriptor is for all of a file. So all extents have one identity, which does not grant the
//! right to write: the table is in the same file. Clients of the group may read everything in the
//! file; all that they may not do goes through the service, which runs in the manager's process.
//!
//! Guarantees:
//!
//! 1. Other identities are refused, with the reason.
//! 2. Only this user can open the file by its name, or again through a descriptor.
//! 3. Partitions have a multiple of 16 pages, so that their identity tables share no cache line.

use crate::error::ScmError;
use crate::files::{Class, Files, Part, Place, Run, Share};
use crate::format::{Geometry, PAGE_BYTES};
use crate::identity::Identity;
use crate::piece::Piece;
use crate::private::{allocate, check_private};
use crate::table;
use medium::{
    EffectiveDurability, LINE_BYTES, MapOptions, MappedPmem, Pmem, Reserve, Rule,
    create_private_file,
};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Pages whose identities fill a cache line.
const UNIT_PAGES: u64 = LINE_BYTES / 4;
/// Bytes for the identity of a page. The partition's count of changes is in what they do not use.
const TABLE_BYTES_PER_PAGE: u64 = 8;
/// The space for extents begins at a multiple of this, for large pages.
const ALIGN_BYTES: u64 = 2 << 20;

/// The file of a store.
pub struct SingleFile {
    file: File,
    path: PathBuf,
    memory: Arc<MappedPmem>,
    table: Piece<Arc<MappedPmem>>,
    geometry: Geometry,
    only: Identity,
}

impl SingleFile {
    /// Makes an empty store in a device, or in a file that is made if it does not exist.
    ///
    /// # Errors
    /// [`ScmError`], also if the file or device is too small.
    pub fn create(
        path: impl AsRef<Path>,
        geometry: &Geometry,
        options: &MapOptions,
    ) -> Result<Self, ScmError> {
        let path = path.as_ref();
        if !geometry.is_valid() || geometry.only.is_none() {
            let what = "a store of one file needs an identity without the right to write";
            return Err(ScmError::Invalid(what.to_owned()));
        }
        let bytes = space_off(geometry) + geometry.pages * PAGE_BYTES;
        if !path.exists() {
            create_private_file(path, bytes.next_multiple_of(PAGE_BYTES), Reserve::Sparse)?;
        }
        let (file, memory) = map(path, options)?;
        if memory.len() < bytes {
            let what = format!("{} has less than {bytes} bytes", path.display());
            return Err(ScmError::Invalid(what));
        }
        table::format(&*memory, geometry)?;
        Self::of(path, file, memory, *geometry)
    }

    /// Opens the file or device of a store, and locks it.
    ///
    /// # Errors
    /// [`ScmError::Exposed`] if others could open it; [`ScmError::Damaged`]; errors of the file.
    pub fn open(path: impl AsRef<Path>, options: &MapOptions) -> Result<Self, ScmError> {
        let path = path.as_ref();
        let (file, memory) = map(path, options)?;
        let geometry = table::geometry(&*memory)?;
        Self::of(path, file, memory, geometry)
    }

    fn of(
        path: &Path,
        file: File,
        memory: Arc<MappedPmem>,
        geometry: Geometry,
    ) -> Result<Self, ScmError> {
        let name = path.display();
        let end = space_off(&geometry) + geometry.pages * PAGE_BYTES;
        let only = geometry.only.filter(|_| end <= memory.len());
        let only = only
            .ok_or_else(|| ScmError::Invalid(format!("{name} is not a whole store of one file")))?;
        let table = Piece::new(memory.clone(), 0, geometry.table_bytes());
        let table = table.ok_or_else(|| ScmError::Invalid(format!("{name} is too short")))?;
        let path = path.to_owned();
        Ok(Self {
            file,
            path,
            memory,
            table,
            geometry,
            only,
        })
    }

    /// Offset and bytes of the identity table of a partition.
    fn identities_at(&self, place: Place) -> (u64, u64) {
        let off = self.geometry.table_bytes() + place.first_page * TABLE_BYTES_PER_PAGE;
        (off, place.pages * TABLE_BYTES_PER_PAGE)
    }

    /// Offset and bytes of pages of a partition.
    fn pages_at(&self, place: Place, run: Run) -> (u64, u64) {
        let first = place.first_page + run.first;
        let off = space_off(&self.geometry) + first * PAGE_BYTES;
        (off, run.pages * PAGE_BYTES)
    }

    fn is_regular(&self) -> Result<bool, ScmError> {
        let found = self.file.metadata();
        Ok(found.map_err(|e| self.error("look at", e))?.is_file())
    }

    fn error(&self, doing: &'static str, e: impl Into<std::io::Error>) -> ScmError {
        ScmError::system(doing, self.path.display().to_string(), e)
    }
}

/// Offset of the first page.
fn space_off(geometry: &Geometry) -> u64 {
    let tables = geometry.table_bytes() + geometry.pages * TABLE_BYTES_PER_PAGE;
    tables.next_multiple_of(ALIGN_BYTES)
}

fn map(path: &Path, options: &MapOptions) -> Result<(File, Arc<MappedPmem>), ScmError> {
    let file = File::options()
        .read(true)
        .write(!options.read_only)
        .open(path);
    let file = file.map_err(|e| ScmError::system("open", path.display().to_string(), e))?;
    check_private(&file, path, 0o600)?;
    let memory = MappedPmem::open(path, options)?;
    Ok((file, Arc::new(memory)))
}

impl Files for SingleFile {
    type Memory = Piece<Arc<MappedPmem>>;

    fn table(&self) -> &Self::Memory {
        &self.table
    }

    fn allow(&self, identity: Identity) -> Result<(), ScmError> {
        let only = self.only;
        match identity == only {
            true => Ok(()),
            false => Err(ScmError::OneIdentity { only, identity }),
        }
    }

    fn make(&self, place: Place) -> Result<(), ScmError> {
        if !place.pages.is_multiple_of(UNIT_PAGES) {
            let what =
                format!("in a store of one file, a partition has {UNIT_PAGES} pages or a multiple");
            return Err(ScmError::Invalid(what));
        }
        let (off, bytes) = self.identities_at(place);
        table::zero(&*self.memory, off, bytes);
        Ok(())
    }

    fn remove(&self, place: Place) -> Result<(), ScmError> {
        self.punch(place.class(self.only), place.all())
    }

    fn keep(&self, _: &[Place]) -> Result<(), ScmError> {
        Ok(())
    }

    fn identities(&self, place: Place) -> Result<Self::Memory, ScmError> {
        let (off, bytes) = self.identities_at(place);
        let piece = Piece::new(self.memory.clone(), off, bytes);
        piece.ok_or_else(|| self.error("map", Errno::INVAL))
    }

    fn classes(&self, _: Place) -> Result<Vec<Identity>, ScmError> {
        // No client can store to the one class, so that there is nothing to check or to restore.
        Ok(Vec::new())
    }

    fn allocate(&self, class: Class, run: Run) -> Result<(), ScmError> {
        self.punch(class, run)?;
        if !self.is_regular()? {
            return Ok(());
        }
        let at = self.pages_at(class.place, run);
        allocate(&self.file, FallocateFlags::empty(), at).map_err(|e| match e {
            Errno::NOSPC | Errno::DQUOT => ScmError::NoRoom {
                what: self.path.display().to_string(),
                pages: run.pages,
            },
            e => self.error("allocate room in", e),
        })
    }

    fn copy(&self, _: Class, to: Class, _: Run) -> Result<(), ScmError> {
        let (only, identity) = (self.only, to.identity);
        Err(ScmError::OneIdentity { only, identity })
    }

    fn punch(&self, class: Class, run: Run) -> Result<(), ScmError> {
        let at = self.pages_at(class.place, run);
        if self.is_regular()? {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = allocate(&self.file, flags, at);
            return punched.map_err(|e| self.error("punch a hole in", e));
        }
        table::zero(&*self.memory, at.0, at.1);
        Ok(())
    }

    fn sync(&self, _: Class, rule: Rule) -> Result<(), ScmError> {
        self.memory.fence(rule)?;
        let survives = self.memory.durability() == EffectiveDurability::Process;
        if survives || !self.is_regular()? {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|e| self.error("synchronise", e))
    }

    fn restore(&self, _: Class, _: &[Run]) -> Result<(), ScmError> {
        Ok(())
    }

    fn room_bytes(&self, _: Class) -> Result<u64, ScmError> {
        Ok(0)
    }

    fn contents(&self, _: Class, _: Run) -> Result<Option<u64>, ScmError> {
        Ok(None)
    }

    fn share(&self, place: Place, part: Part, writable: bool) -> Result<Share, ScmError> {
        let (base, bytes) = match part {
            Part::Identities => self.identities_at(place),
            Part::Class(identity) => {
                self.allow(identity)?;
                self.pages_at(place, place.all())
            }
        };
        check_private(&self.file, &self.path, 0o600)?;
        // The file that is open, whatever its name is by now.
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = File::options().read(true).write(writable).open(name);
        let descriptor = file.map_err(|e| self.error("open", e))?.into();
        Ok(Share {
            descriptor,
            base,
            bytes,
        })
    }
}
