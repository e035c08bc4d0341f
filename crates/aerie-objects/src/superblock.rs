//! The superblock, and how a store is made.

use crate::error::{Error, Result};
use crate::id::HEADER_BYTES;
use crate::layout::{
    LOG_MIN, LOGS_MAX, MAGIC, MIN_PAGES, PAGE, VERSION, VERSION_OF_SEVERAL, at, header,
};
use crate::{Kind, ObjectId};
use medium::{MediumError, Pmem, Rule};
use std::ops::Range;
use wordlog::Kind as LogKind;

/// Redo logs of a store of at least [`SEVERAL_FROM`] bytes: as many transactions can be open at a time.
const LOGS: u64 = 4;
/// A smaller store has one log, so that it loses no room.
const SEVERAL_FROM: u64 = 64 << 20;
/// The first log is this many times as long as each of the others, which short transactions use.
const FIRST_TIMES: u64 = 8;

/// The contents of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Bytes of the partition.
    pub bytes: u64,
    /// Byte offset of the first redo log.
    pub log: u64,
    /// Bytes of the first redo log, the longest one.
    pub log_bytes: u64,
    /// Number of redo logs.
    pub logs: u64,
    /// The UUID, its bytes as a little-endian number.
    pub uuid: u128,
    /// Seed of the hash of keys: the lower half of the UUID.
    pub seed: u64,
    /// The root collection.
    pub root: ObjectId,
    /// The collection of objects without a name that are in use.
    pub open: ObjectId,
    /// The collection of extended attributes, by the ids of their objects.
    pub attributes: ObjectId,
}

impl Superblock {
    /// Loads and checks it.
    ///
    /// # Errors
    /// [`Error::NotAStore`], and errors of the memory.
    pub fn load<P: Pmem + ?Sized>(memory: &P) -> Result<Self> {
        let wrong = |what: String| Err(Error::NotAStore(what));
        if memory.len() < MIN_PAGES * PAGE {
            return wrong(format!("it has {} bytes", memory.len()));
        }
        if memory.load(0)? != u64::from_le_bytes(MAGIC) {
            return wrong("its magic is missing".into());
        }
        let version = memory.load(at::VERSION)?;
        let Some(logs) = logs_of(version) else {
            let (version, logs) = (version as u32, version >> 32);
            return wrong(match logs {
                0 => format!("version {version} of the format is unknown"),
                _ => format!("version {version} of the format with {logs} logs is unknown"),
            });
        };
        if memory.load(at::CRC)? != crc(memory)? {
            return wrong("the checksum of the superblock does not fit".into());
        }
        let word = |off| memory.load(off);
        let id = |off| Ok::<_, MediumError>(ObjectId::from_bits(memory.load(off)?));
        let ids = (id(at::ROOT)?, id(at::OPEN)?, id(at::ATTRIBUTES)?);
        let (Some(root), Some(open), Some(attributes)) = ids else {
            return wrong("it has no root".into());
        };
        let uuid = [word(at::UUID)?, word(at::UUID + 8)?].map(u128::from);
        let uuid = uuid[0] | uuid[1] << 64;
        let found = Self {
            bytes: word(at::BYTES)?,
            log: word(at::LOG)?,
            log_bytes: word(at::LOG_BYTES)?,
            logs,
            uuid,
            seed: uuid as u64,
            root,
            open,
            attributes,
        };
        match found.fits(memory.len()) {
            true => Ok(found),
            false => wrong(format!(
                "the superblock describes another memory: {found:?}"
            )),
        }
    }

    fn fits(&self, len: u64) -> bool {
        self.bytes <= len
            && self.bytes.is_multiple_of(PAGE)
            && self.log == PAGE
            && self.log_bytes.is_multiple_of(PAGE)
            && self.log_bytes < self.bytes
            && self.log_end() < self.bytes
    }

    /// Version of the format.
    pub fn version(&self) -> u64 {
        match self.logs {
            1 => VERSION,
            _ => VERSION_OF_SEVERAL,
        }
    }

    /// Bytes of all redo logs.
    pub fn logs_bytes(&self) -> u64 {
        self.log_bytes + (self.logs - 1) * other_log_bytes(self.log_bytes)
    }

    /// The byte range of each redo log.
    pub(crate) fn log_ranges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (mut start, first) = (self.log, self.log_bytes);
        (0..self.logs).map(move |number| {
            let bytes = match number {
                0 => first,
                _ => other_log_bytes(first),
            };
            start += bytes;
            start - bytes..start
        })
    }

    fn log_end(&self) -> u64 {
        self.log + self.logs_bytes()
    }

    /// The collections that are there without an entry of another one.
    pub fn collections(&self) -> [ObjectId; 3] {
        [self.root, self.open, self.attributes]
    }

    /// The first page after the logs, by its number.
    pub(crate) fn first_page(&self) -> u64 {
        self.log_end() / PAGE
    }
}

/// The number of logs in a store whose word of the version is this one, if the version is known.
fn logs_of(version: u64) -> Option<u64> {
    let logs = version >> 32;
    match version & u64::from(u32::MAX) {
        VERSION if logs == 0 => Some(1),
        VERSION_OF_SEVERAL => (2..=LOGS_MAX).contains(&logs).then_some(logs),
        _ => None,
    }
}

/// The word of the version of a store with this many logs.
fn version_of(logs: u64) -> u64 {
    match logs {
        1 => VERSION,
        _ => VERSION_OF_SEVERAL | logs << 32,
    }
}

/// Bytes of each log after the first one.
fn other_log_bytes(first: u64) -> u64 {
    (first / FIRST_TIMES / PAGE * PAGE).max(LOG_MIN)
}

/// The checksum of the superblock, as it should be.
fn crc<P: Pmem + ?Sized>(memory: &P) -> Result<u64> {
    let mut bytes = [0; at::CRC as usize];
    memory.read(0, &mut bytes)?;
    bytes[..8].copy_from_slice(&MAGIC);
    Ok(crc32fast::hash(&bytes).into())
}

/// Changes a word of the superblock, whose checksum fits again.
#[cfg(test)]
pub(crate) fn forge<P: Pmem>(memory: &P, at: u64, word: u64) -> Result<()> {
    memory.store_word(at, word);
    memory.store_word(at::CRC, crc(memory)?);
    Ok(())
}

/// Makes an empty store that takes the whole memory. `uuid` should be random.
///
/// # Errors
/// [`Error::NotAStore`] if the memory is too small, and errors of the memory.
pub fn format<P: Pmem>(memory: &P, uuid: u128) -> Result<()> {
    format_with(memory, uuid, &[])
}

/// [`format()`] with a root collection whose first own words are these.
///
/// # Errors
/// As [`format()`].
pub fn format_with<P: Pmem>(memory: &P, uuid: u128, root_words: &[u64]) -> Result<()> {
    let logs = match memory.len() {
        SEVERAL_FROM.. => LOGS,
        _ => 1,
    };
    format_logs(memory, uuid, root_words, logs)
}

/// [`format_with`] with this many redo logs, instead of a number that fits the size of the memory.
///
/// # Errors
/// [`Error::NotAStore`] for no logs or more than [`LOGS_MAX`], and as [`format()`].
pub fn format_logs<P: Pmem>(memory: &P, uuid: u128, root_words: &[u64], logs: u64) -> Result<()> {
    let bytes = memory.len() / PAGE * PAGE;
    let log_bytes = (bytes / 64).clamp(LOG_MIN, 64 << 20) / PAGE * PAGE;
    if !(1..=LOGS_MAX).contains(&logs) {
        let what = format!("it cannot have {logs} logs");
        return Err(Error::NotAStore(what));
    }
    let others = (logs - 1) * other_log_bytes(log_bytes);
    let least = MIN_PAGES * PAGE + others;
    if bytes < least {
        return Err(Error::NotAStore(format!(
            "it has {bytes} bytes, and needs {least}"
        )));
    }
    // An old store must not be found while parts of it are overwritten.
    memory.store_word(0, 0);
    memory.flush(0, 8);
    memory.fence(Rule::NullifyBeforeReuse)?;

    let headers = PAGE + log_bytes + others;
    memory.store_nt(headers, &[0; PAGE as usize]);
    let [root, open, attributes] =
        [0, 1, 2].map(|n| ObjectId::new(Kind::Collection, headers + n * HEADER_BYTES));
    for object in [root, open, attributes] {
        memory.store_word(object.header(), Kind::Collection as u64);
        // Nothing removes them.
        memory.store_word(object.header() + header::MEMBERS * 8, 1);
        memory.flush(object.header(), HEADER_BYTES);
    }
    for (n, word) in (0..header::OWN_WORDS).zip(root_words) {
        memory.store_word(root.header() + (header::OWN + n) * 8, *word);
    }
    memory.flush(root.header(), HEADER_BYTES);
    let words = [
        (at::VERSION, version_of(logs)),
        (at::BYTES, bytes),
        (at::LOG, PAGE),
        (at::LOG_BYTES, log_bytes),
        (at::UUID, uuid as u64),
        (at::UUID + 8, (uuid >> 64) as u64),
        (at::ROOT, root.to_bits()),
        (at::OPEN, open.to_bits()),
        (at::ATTRIBUTES, attributes.to_bits()),
        (at::EPOCH, 0),
    ];
    words
        .iter()
        .for_each(|(off, word)| memory.store_word(*off, *word));
    memory.store_word(at::CRC, crc(memory)?);
    memory.flush(0, PAGE);
    let mut start = PAGE;
    for number in 0..logs {
        let len = [other_log_bytes(log_bytes), log_bytes][usize::from(number == 0)];
        wordlog::format(memory, start, len, LogKind::TornBit)?;
        start += len;
    }
    memory.fence(Rule::InitialiseBeforePoint)?;
    memory.store_word(0, u64::from_le_bytes(MAGIC));
    memory.flush(0, 8);
    Ok(memory.fence(Rule::DurableBeforeReturn)?)
}
