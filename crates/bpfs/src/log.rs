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

use crate::error::{Error, Fault, Res};
use crate::format::{BLOCK, LOG_SLOT};
use crate::seeded::{Bug, hit};
use crate::tx::{Edit, Edits, Tx, What};
use crate::volume::{Tree, Volume};
use medium::{Pmem, Rule};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// Most payload bytes in a slot.
const PAYLOAD_MAX: u64 = LOG_SLOT - 8;

/// The slots of a mounted log.
pub(crate) struct Log {
    slots: Vec<Mutex<u64>>,
}

/// A slot held by one transaction.
pub(crate) struct Slot<'l>(MutexGuard<'l, u64>);

impl Slot<'_> {
    /// Byte offset of the slot.
    pub fn addr(&self) -> u64 {
        *self.0
    }
}

impl Log {
    pub fn new(start: u64, blocks: u64) -> Self {
        Self {
            slots: slots(start, blocks).map(Mutex::new).collect(),
        }
    }

    /// Takes a free slot, or waits for one.
    pub fn slot(&self) -> Slot<'_> {
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
pub(crate) type Record = (u64, Vec<u8>);

/// Reads the committed records of all slots.
pub(crate) fn pending<P: Pmem + ?Sized>(
    pm: &P,
    start: u64,
    blocks: u64,
    end: u64,
) -> Result<Vec<(u64, Vec<Record>)>, Error> {
    let mut found = Vec::new();
    let log_end = (start + blocks) * BLOCK;
    let medium = |source| Error::Medium {
        while_doing: "reading the redo log",
        source,
    };
    for slot in slots(start, blocks) {
        let word = pm.load(slot).map_err(medium)?;
        if word == 0 {
            continue;
        }
        let bad = |why: &str| Error::Corrupt(format!("redo log slot at byte {slot}: {why}"));
        let len = word & 0xffff_ffff;
        if len > PAYLOAD_MAX {
            return Err(bad("its length is larger than a slot"));
        }
        let mut bytes = vec![0; len as usize];
        pm.read(slot + 8, &mut bytes).map_err(medium)?;
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
fn decode(mut bytes: &[u8], log_end: u64, end: u64) -> Option<Vec<Record>> {
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
pub(crate) fn replay<P: Pmem>(pm: &P, found: &[(u64, Vec<Record>)]) -> Res<()> {
    if !found.is_empty() && !hit(Bug::ReplayUnsettled) {
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

/// The visible edits of an operation: those that go through the log, and the rest.
pub(crate) struct Plan<'a> {
    pub records: Records,
    pub rest: Edits<'a>,
}

/// Decides whether all visible edits fit in a record, and whether that writes less than copies
/// would. `None`: the crawler applies them.
pub(crate) fn plan<'a, P: Pmem>(
    tx: &mut Tx<'_, 'a, P>,
    edits: &[Edit<'a>],
) -> Res<Option<Plan<'a>>> {
    if let [only] = edits
        && only.start / 8 == (only.end - 1) / 8
    {
        return Ok(None); // one store does it
    }
    let mut plan = Plan {
        records: Records::with_capacity(edits.len()),
        rest: Edits::new(),
    };
    let (mut cost, mut copied, mut words) = (16, 0, 0);
    for edit in edits {
        let tree = tx.tree(edit.tree)?;
        let size = tree.size;
        if edit.start >= size {
            plan.rest.push(*edit); // beyond the end, so hidden
            continue;
        }
        let bytes: SmallVec<[u8; 8]>;
        let shown = match edit.what {
            What::Bytes(b) => b,
            What::Word(word) => {
                bytes = SmallVec::from_slice(&word.to_le_bytes());
                &bytes
            }
            What::Zeros | What::Hole | What::Reserve | What::Blank => return Ok(None),
        };
        let keep = shown.len().min((size - edit.start) as usize);
        if keep < shown.len() {
            let What::Bytes(all) = edit.what else {
                return Ok(None);
            };
            let tail = Edit {
                tree: edit.tree,
                start: size,
                end: edit.end,
                what: What::Bytes(&all[keep..]),
            };
            plan.rest.push(tail);
        }
        if keep as u64 > PAYLOAD_MAX {
            return Ok(None);
        }
        if !records_of(tx.vol, &tree, edit.start, &shown[..keep], &mut plan.records)? {
            return Ok(None); // a hole: nothing to store into
        }
    }
    for (addr, bytes) in &plan.records {
        cost += 16 + 2 * (bytes.len() as u64).next_multiple_of(8);
        copied += BLOCK;
        words += (addr % 8 + bytes.len() as u64).div_ceil(8);
    }
    let payload = cost / 2 + 8 * plan.records.len() as u64;
    let worth = words > 1 && cost < copied && payload <= PAYLOAD_MAX;
    Ok(worth.then_some(plan))
}

/// Splits a change at block boundaries and finds the place of each part. Returns false if a
/// part lies in a hole.
fn records_of<P: Pmem>(
    vol: &Volume<P>,
    tree: &Tree,
    start: u64,
    bytes: &[u8],
    records: &mut Records,
) -> Res<bool> {
    let mut at = start;
    let mut rest = bytes;
    while !rest.is_empty() {
        let leaf = vol.leaf(tree, at / BLOCK)?;
        if leaf.is_null() {
            return Ok(false);
        }
        let take = rest.len().min((BLOCK - at % BLOCK) as usize);
        records.push((
            leaf.addr() + at % BLOCK,
            SmallVec::from_slice(&rest[..take]),
        ));
        rest = &rest[take..];
        at += take as u64;
    }
    Ok(true)
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Fault::Corrupt(e.to_string())
    }
}
