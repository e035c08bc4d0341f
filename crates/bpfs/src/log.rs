//! The redo log of mode `log`: several small stores become one atomic step.
//!
//! In the spirit of section 3.7 of the dissertation: a rename, or an overwrite of a few bytes,
//! need not copy 4 KiB blocks. A slot holds one record at a time:
//!
//! ```text
//! word 0    header: payload bytes (low half), CRC-32 of the payload (high half); 0 empty
//! then      payload: address, length, bytes padded to 8; repeated
//! ```
//!
//! # Guarantees
//! L1. A header that is not 0 matches its payload: the payload was durable before it.
//! L2. While a header is not 0, no other thread writes the bytes that its record covers, so
//!     that replay is idempotent.
//! L3. A header is 0, durably, before the locks that guard what it covers are released.

use crate::error::{Error, Res};
use crate::format::{BLOCK, LOG_SLOT};
use crate::seeded::{Bug, hit};
use medium::{Pmem, Rule};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// Most payload bytes in a slot.
pub(crate) const PAYLOAD_MAX: u64 = LOG_SLOT - 8;

/// The slots of a mounted log.
pub(crate) struct RedoLog {
    slots: Vec<Mutex<u64>>,
}

/// A slot held by one transaction.
pub(crate) struct Slot<'l>(MutexGuard<'l, u64>);

impl Slot<'_> {
    /// Byte offset of the slot.
    pub(crate) fn addr(&self) -> u64 {
        *self.0
    }
}

impl RedoLog {
    pub(crate) fn new(start: u64, blocks: u64) -> Self {
        Self {
            slots: slots(start, blocks).map(Mutex::new).collect(),
        }
    }

    /// Takes a free slot, or waits for one.
    pub(crate) fn slot(&self) -> Slot<'_> {
        let free = self.slots.iter().find_map(Mutex::try_lock);
        Slot(free.unwrap_or_else(|| self.slots[0].lock()))
    }
}

/// Byte offsets of the slots of a log.
pub(crate) fn slots(start: u64, blocks: u64) -> impl Iterator<Item = u64> {
    (start * BLOCK..(start + blocks) * BLOCK).step_by(LOG_SLOT as usize)
}

/// Encodes records.
pub(crate) fn payload<'r>(records: impl Iterator<Item = (u64, &'r [u8])>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256); // most records are of a few words
    for (addr, bytes) in records {
        out.extend(addr.to_le_bytes());
        out.extend((bytes.len() as u64).to_le_bytes());
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out
}

/// The header that commits a payload.
pub(crate) fn header(payload: &[u8]) -> u64 {
    u64::from(crc32fast::hash(payload)) << 32 | payload.len() as u64
}

/// One record of a replay: byte offset on the medium, and bytes.
pub(crate) type RedoRecord = (u64, Vec<u8>);

/// Reads the committed records of all slots.
pub(crate) fn pending<P: Pmem + ?Sized>(
    pm: &P,
    start: u64,
    blocks: u64,
    end: u64,
) -> Result<Vec<(u64, Vec<RedoRecord>)>, Error> {
    let mut found = Vec::new();
    let log_end = (start + blocks) * BLOCK;
    let medium = Error::medium("reading the redo log");
    for slot in slots(start, blocks) {
        let word = pm.load(slot).map_err(&medium)?;
        if word == 0 {
            continue;
        }
        let bad = |why: &str| Error::Corrupt(format!("redo log slot at byte {slot}: {why}"));
        let len = word & 0xffff_ffff;
        if len > PAYLOAD_MAX {
            return Err(bad("its length is larger than a slot"));
        }
        let mut bytes = vec![0; len as usize];
        pm.read(slot + 8, &mut bytes).map_err(&medium)?;
        if header(&bytes) != word {
            return Err(bad("its checksum does not match"));
        }
        found.push((
            slot,
            decode(&bytes, log_end, end).ok_or_else(|| bad("a record is malformed"))?,
        ));
    }
    Ok(found)
}

/// Decodes a payload; `None` unless every record lies between `log_end` and `end`.
fn decode(mut bytes: &[u8], log_end: u64, end: u64) -> Option<Vec<RedoRecord>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (addr, rest) = bytes.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let (addr, len) = (u64::from_le_bytes(*addr), u64::from_le_bytes(*len));
        let padded = usize::try_from(len.checked_next_multiple_of(8)?).ok()?;
        let data = rest.get(..padded)?;
        if addr < log_end || addr.checked_add(len)? > end {
            return None;
        }
        records.push((addr, data[..len as usize].to_vec()));
        bytes = &rest[padded..];
    }
    Some(records)
}

/// Applies the committed records. Idempotent: the next replay completes one that a crash
/// interrupts.
pub(crate) fn replay<P: Pmem>(pm: &P, found: &[(u64, Vec<RedoRecord>)]) -> Res<()> {
    if !found.is_empty() && !hit(Bug::ReplayUnflushed) {
        // A killed server may have left the records in the caches only.
        for (slot, _) in found {
            pm.flush(*slot, LOG_SLOT);
        }
        pm.fence(Rule::LogBeforeHome)?;
    }
    for (slot, records) in found {
        for (addr, bytes) in records {
            pm.store(*addr, bytes);
            pm.flush(*addr, bytes.len() as u64);
        }
        pm.fence(Rule::HomeBeforeReclaim)?; // clear only records that are in place
        if hit(Bug::ReplayKeepsRecord) {
            continue;
        }
        pm.store_word(*slot, 0);
        pm.flush(*slot, 8);
        pm.fence(Rule::NullifyBeforeReuse)?; // a later crash must not replay this again
    }
    Ok(())
}

/// The stores of one record: byte offsets on the medium, and bytes.
pub(crate) type Records = Vec<(u64, SmallVec<[u8; 16]>)>;
