//! Mapped files of a process.

use super::{Process, Result, data, failed, length};
use medium::{
    ArenaError, Durability, EffectiveDurability, MapOptions, MediumError, OpenError, Pmem, Rule,
    WORD_BYTES,
};
use mnemosyne::memory::Mappings;
use paging::Pool;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A mapped file in an arena.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    file: u64,
    len: u64,
    durability: EffectiveDurability,
}

/// Mapped files of a process.
pub struct Arena {
    process: Process,
    len: u64,
    at: Mutex<BTreeMap<u64, Mapped>>,
    failed: Mutex<Option<MediumError>>,
}

impl Arena {
    pub(super) fn new(process: Process, len: u64) -> Self {
        Self {
            process,
            len,
            at: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    pub(super) fn put(
        &self,
        start: u64,
        path: &Path,
        options: &MapOptions,
    ) -> Result<(), OpenError> {
        let mapped = self.try_put(start, path, options);
        mapped.map_err(failed("map", path))
    }

    fn try_put(&self, start: u64, path: &Path, options: &MapOptions) -> Result<()> {
        let (process, disk) = (&self.process, &self.process.disk);
        let file = process.file(path)?;
        let len = disk.load(length(file))?;
        if len == 0 || start + len > self.len {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let durability = match options.durability {
            Durability::Process => EffectiveDurability::Process,
            Durability::Dax => EffectiveDurability::Dax,
            Durability::Msync | Durability::Auto => EffectiveDurability::Msync,
        };
        if durability != EffectiveDurability::Process && !options.read_only {
            process.step()?;
            disk.sync_data(file)?;
        }
        let mapped = Mapped {
            file,
            len,
            durability,
        };
        self.at.lock().insert(start, mapped);
        Ok(())
    }

    /// The file that has these bytes, and their offset in it.
    fn find(&self, off: u64, len: u64) -> Result<(Mapped, u64), MediumError> {
        let at = self.at.lock();
        let (start, mapped) = at.range(..=off).next_back().unzip();
        let found = start
            .zip(mapped)
            .map(|(start, mapped)| (*mapped, off - start));
        let is_inside = |(mapped, at): &(Mapped, u64)| at + len <= mapped.len;
        found
            .filter(is_inside)
            .ok_or(MediumError::OutOfRange { off, len })
    }

    fn fail(&self, error: MediumError) {
        self.failed.lock().get_or_insert(error);
    }
}

impl Mappings for Arena {
    fn map(&self, start: u64, path: &Path, options: &MapOptions) -> Result<(), ArenaError> {
        Ok(self.put(start, path, options)?)
    }

    fn map_paged(
        &self,
        start: u64,
        path: &Path,
        _pool: (&Arc<Pool>, u16),
        options: &MapOptions,
    ) -> Result<(), ArenaError> {
        Ok(self.put(start, path, options)?)
    }

    fn unmap(&self, start: u64) -> Result<(), ArenaError> {
        let removed = self.at.lock().remove(&start);
        removed.map(drop).ok_or(ArenaError::NotMapped { start })
    }

    fn durability(&self, start: u64) -> Option<EffectiveDurability> {
        self.at.lock().get(&start).map(|mapped| mapped.durability)
    }
}

impl Pmem for Arena {
    fn len(&self) -> u64 {
        self.len
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let (mapped, at) = self.find(off, WORD_BYTES)?;
        self.process.disk.pm.load(data(mapped.file) + at)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let (mapped, at) = self.find(off, buf.len() as u64)?;
        self.process.disk.pm.read(data(mapped.file) + at, buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        match self.find(off, bytes.len() as u64) {
            Ok(_) if self.process.is_dead() => {}
            Ok((mapped, at)) => self.process.disk.store(mapped.file, at, bytes),
            Err(error) => self.fail(error),
        }
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store(off, bytes);
        self.flush(off, bytes.len() as u64);
    }

    fn flush(&self, off: u64, len: u64) {
        match self.find(off, len) {
            Ok((mapped, _)) if mapped.durability == EffectiveDurability::Process => {}
            Ok(_) if self.process.is_dead() => {}
            Ok((mapped, at)) => self.process.disk.pm.flush(data(mapped.file) + at, len),
            Err(error) => self.fail(error),
        }
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        let killed = |_| MediumError::NotDurable { errno: 5 };
        self.process.step().map_err(killed)?;
        let is_process = |mapped: &Mapped| mapped.durability == EffectiveDurability::Process;
        if !self.at.lock().values().any(is_process) {
            self.process.disk.pm.fence(rule)?;
        }
        (*self.failed.lock()).map_or(Ok(()), Err)
    }
}
