//! The medium as recovery would leave it, with committed log records applied.

use medium::{MediumError, Pmem};

/// Bytes that a committed record of the redo log puts at an offset.
pub(crate) struct Patch {
    pub addr: u64,
    pub bytes: Vec<u8>,
}

pub(crate) struct Image<'p, P: ?Sized> {
    pub pm: &'p P,
    pub patches: Vec<Patch>,
}

impl<P: Pmem + ?Sized> Image<'_, P> {
    pub(crate) fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.pm.read(addr, buf)?;
        let end = addr + buf.len() as u64;
        for patch in &self.patches {
            let from = patch.addr.max(addr);
            let to = (patch.addr + patch.bytes.len() as u64).min(end);
            if from < to {
                buf[(from - addr) as usize..(to - addr) as usize].copy_from_slice(
                    &patch.bytes[(from - patch.addr) as usize..(to - patch.addr) as usize],
                );
            }
        }
        Ok(())
    }

    /// Reads an aligned word.
    pub(crate) fn word(&self, addr: u64) -> Result<u64, MediumError> {
        if self.patches.is_empty() {
            return self.pm.load(addr);
        }
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}
