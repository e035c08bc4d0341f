//! Names of storage objects.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of the header of an object, and the alignment of headers.
pub const HEADER_BYTES: u64 = 128;
/// Bits of an id that hold the kind; the others are the offset of the header.
const KIND_BITS: u64 = 0x3f;

/// The kind of a storage object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A table from keys to objects.
    Collection = 1,
    /// A sequence of bytes.
    MFile = 2,
}

/// The name of a storage object: the byte offset of its header in the partition, and its kind in the
/// six low bits (paper section 4.2.4). It never changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct ObjectId(u64);

impl ObjectId {
    /// The object of this kind whose header begins at byte `header`, a multiple of [`HEADER_BYTES`].
    pub(crate) fn new(kind: Kind, header: u64) -> Self {
        debug_assert!(header != 0 && header.is_multiple_of(HEADER_BYTES));
        Self(header | kind as u64)
    }

    /// The id that `bits` denote; `None` if they denote none. The object need not exist.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        let is_known = [Kind::Collection, Kind::MFile].map(|kind| kind as u64);
        let header = bits & !KIND_BITS;
        let is_id = is_known.contains(&(bits & KIND_BITS))
            && header != 0
            && header.is_multiple_of(HEADER_BYTES);
        is_id.then_some(Self(bits))
    }

    /// The id as a word.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The kind.
    #[inline]
    pub fn kind(self) -> Kind {
        match self.0 & KIND_BITS {
            1 => Kind::Collection,
            _ => Kind::MFile,
        }
    }

    /// Byte offset of the header.
    #[inline]
    pub fn header(self) -> u64 {
        self.0 & !KIND_BITS
    }
}

impl TryFrom<u64> for ObjectId {
    type Error = &'static str;

    fn try_from(bits: u64) -> Result<Self, Self::Error> {
        Self::from_bits(bits).ok_or("a number that is not an id")
    }
}

impl From<ObjectId> for u64 {
    fn from(id: ObjectId) -> Self {
        id.0
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            Kind::Collection => "collection",
            Kind::MFile => "mfile",
        };
        write!(f, "{kind} {:#x}", self.header())
    }
}
