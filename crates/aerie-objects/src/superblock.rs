//! The superblock, and how a store is made.

use crate::error::{Error, Result};
use crate::id::HEADER_BYTES;
use crate::layout::{MAGIC, MIN_PAGES, PAGE, VERSION, at, header};
use crate::{Kind, ObjectId};
use medium::{MediumError, Pmem, Rule};
use wordlog::Kind as LogKind;

/// The contents of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Bytes of the partition.
    pub bytes: u64,
    /// Byte offset of the redo log.
    pub log: u64,
    /// Bytes of the redo log.
    pub log_bytes: u64,
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
        match memory.load(at::VERSION)? {
            VERSION => {}
            other => return wrong(format!("version {other} of the format is unknown")),
        }
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
        let log_end = self.log.checked_add(self.log_bytes);
        self.bytes <= len
            && self.bytes.is_multiple_of(PAGE)
            && self.log == PAGE
            && self.log_bytes.is_multiple_of(PAGE)
            && log_end.is_some_and(|end| end < self.bytes)
    }

    /// The collections that are there without an entry of another one.
    pub fn collections(&self) -> [ObjectId; 3] {
        [self.root, self.open, self.attributes]
    }

    /// The first page after the log, by its number.
    pub(crate) fn first_page(&self) -> u64 {
        (self.log + self.log_bytes) / PAGE
    }
}

/// The checksum of the superblock, as it should be.
fn crc<P: Pmem + ?Sized>(memory: &P) -> Result<u64> {
    let mut bytes = [0; at::CRC as usize];
    memory.read(0, &mut bytes)?;
    bytes[..8].copy_from_slice(&MAGIC);
    Ok(crc32fast::hash(&bytes).into())
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
    let bytes = memory.len() / PAGE * PAGE;
    if bytes < MIN_PAGES * PAGE {
        let least = MIN_PAGES * PAGE;
        return Err(Error::NotAStore(format!(
            "it has {bytes} bytes, and needs {least}"
        )));
    }
    // An old store must not be found while parts of it are overwritten.
    memory.store_word(0, 0);
    memory.flush(0, 8);
    memory.fence(Rule::NullifyBeforeReuse)?;

    let log_bytes = (bytes / 64).clamp(4 * PAGE, 64 << 20) / PAGE * PAGE;
    let headers = PAGE + log_bytes;
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
        (at::VERSION, VERSION),
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
    wordlog::format(memory, PAGE, log_bytes, LogKind::TornBit)?;
    memory.fence(Rule::InitialiseBeforePoint)?;
    memory.store_word(0, u64::from_le_bytes(MAGIC));
    memory.flush(0, 8);
    Ok(memory.fence(Rule::DurableBeforeReturn)?)
}
