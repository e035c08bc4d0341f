//! The bytes of a store's table; `format.md` describes them.
//!
//! Guarantees: sizes are those of `format.md`, checked at compile time. From any bytes, a
//! function here makes a value or the broken invariant.

use crate::error::Finding;
use crate::identity::{AccessList, Entry, Identity, Rights, Subject};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes in a page, the unit of protection.
pub const PAGE_BYTES: u64 = 4096;
/// Most pages of a store: their bytes fit a 58-bit offset.
pub const MOST_PAGES: u64 = 1 << 46;
/// Most slots for records.
pub const MOST_SLOTS: u64 = 1 << 20;
/// Most bytes in the name of a partition.
pub const NAME_BYTES: usize = 64;

/// `SELVSCM` and the version, 1.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVSCM\x01");
/// Offset of the intent in the table.
pub(crate) const INTENT_OFF: u64 = 64;
/// Offset of the first slot in the table.
pub(crate) const SLOTS_OFF: u64 = 4096;
/// Bytes in a slot.
pub(crate) const SLOT_BYTES: u64 = 256;
/// Bytes of a record after the key and the sequence number.
pub(crate) const BODY_BYTES: usize = 232;

const _: () = assert!(size_of::<SuperBlock>() == 64);
const _: () = assert!(size_of::<IntentLine>() == 64);
const _: () = assert!(size_of::<Slot>() == SLOT_BYTES as usize);
const _: () = assert!(size_of::<PartitionBody>() == BODY_BYTES);
const _: () = assert!(size_of::<ListBody>() == BODY_BYTES);

/// The sizes of a store, and how its bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Pages that partitions can have together.
    pub pages: u64,
    /// Slots for records: partitions, access lists, and one more.
    pub slots: u64,
    /// In a store of one file, the identity that all extents have.
    pub only: Option<Identity>,
}

impl Geometry {
    /// Bytes of the table, in whole pages.
    pub(crate) fn table_bytes(&self) -> u64 {
        (SLOTS_OFF + self.slots * SLOT_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Whether a store can have these sizes.
    pub(crate) fn is_valid(&self) -> bool {
        let is_only = self
            .only
            .is_none_or(|only| only.is_valid() && !only.rights().write);
        (1..=MOST_PAGES).contains(&self.pages) && (2..=MOST_SLOTS).contains(&self.slots) && is_only
    }
}

/// Offset of the count of changes in the identity table of that many pages.
pub(crate) fn changes_off(pages: u64) -> u64 {
    (pages * 4).next_multiple_of(8)
}

/// Bytes of the identity table of that many pages, in whole pages.
pub(crate) fn identity_bytes(pages: u64) -> u64 {
    (changes_off(pages) + 8).next_multiple_of(PAGE_BYTES)
}

/// The first line of the table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SuperBlock {
    magic: U64,
    /// Of the bytes from here on.
    checksum: U64,
    pages: U64,
    slots: U64,
    /// 0, or the identity of a store of one file.
    only: U32,
    zeros: [u8; 28],
}

impl SuperBlock {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let mut block = Self {
            magic: MAGIC.into(),
            checksum: 0.into(),
            pages: geometry.pages.into(),
            slots: geometry.slots.into(),
            only: geometry.only.map_or(0, Identity::raw).into(),
            zeros: [0; 28],
        };
        block.checksum = xxh3_64(&block.as_bytes()[16..]).into();
        block
    }

    /// The sizes, if the table has at least as many bytes (S1).
    pub(crate) fn geometry(&self, table_bytes: u64) -> Result<Geometry, Finding> {
        let broken = |what: &str| Err(Finding::new("S1", what));
        if self.magic.get() != MAGIC {
            return broken("the table does not begin with the signature of a store, version 1");
        }
        if self.checksum.get() != xxh3_64(&self.as_bytes()[16..]) {
            return broken("the checksum of the superblock is wrong");
        }
        let only = (self.only.get() != 0).then(|| Identity::from_raw(self.only.get()));
        let geometry = Geometry {
            pages: self.pages.get(),
            slots: self.slots.get(),
            only,
        };
        if !geometry.is_valid() || geometry.table_bytes() > table_bytes {
            return broken("the sizes in the superblock are impossible, or the table is too short");
        }
        Ok(geometry)
    }
}

/// The line of the change that is being made.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IntentLine {
    pub(crate) phase: U64,
    /// Of the bytes from here on.
    checksum: U64,
    pub(crate) first: U64,
    pub(crate) pages: U64,
    pub(crate) partition: U32,
    pub(crate) from: U32,
    pub(crate) to: U32,
    zeros: [u8; 20],
}

impl IntentLine {
    /// A line in no phase.
    pub(crate) fn new(partition: u32, (first, pages): (u64, u64), from: u32, to: u32) -> Self {
        let mut line = Self {
            phase: 0.into(),
            checksum: 0.into(),
            first: first.into(),
            pages: pages.into(),
            partition: partition.into(),
            from: from.into(),
            to: to.into(),
            zeros: [0; 20],
        };
        line.checksum = xxh3_64(&line.as_bytes()[16..]).into();
        line
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.checksum.get() == xxh3_64(&self.as_bytes()[16..])
    }
}

/// The kind of a record, and its number among those of the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Partition(u32),
    List(u32),
}

/// A slot of the table: empty, or a record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Slot {
    /// 0, or the checksum of the bytes from here on, with the highest bit set.
    pub(crate) seal: U64,
    kind: U32,
    number: U32,
    pub(crate) sequence: U64,
    body: [u8; BODY_BYTES],
}

impl Slot {
    pub(crate) fn new(key: Key, sequence: u64, body: [u8; BODY_BYTES]) -> Self {
        let (kind, number) = match key {
            Key::Partition(number) => (1, number),
            Key::List(number) => (2, number),
        };
        let mut slot = Self {
            seal: 0.into(),
            kind: kind.into(),
            number: number.into(),
            sequence: sequence.into(),
            body,
        };
        slot.seal = slot.right_seal().into();
        slot
    }

    fn right_seal(&self) -> u64 {
        xxh3_64(&self.as_bytes()[8..]) | 1 << 63
    }

    /// The record, if the slot has one (S3).
    pub(crate) fn record(&self) -> Result<Option<(Key, Record)>, Finding> {
        if self.seal.get() == 0 {
            return Ok(None);
        }
        if self.seal.get() != self.right_seal() {
            return Err(Finding::new("S3", "the checksum of a record is wrong"));
        }
        let number = self.number.get();
        match self.kind.get() {
            1 => {
                let body = zerocopy::transmute!(self.body);
                let record = PartitionRecord::read(&body)?;
                Ok(Some((Key::Partition(number), Record::Partition(record))))
            }
            2 if (1..=Identity::LAST_GROUP).contains(&number) => {
                let body = zerocopy::transmute!(self.body);
                Ok(Some((Key::List(number), Record::List(read_list(&body)?))))
            }
            kind => {
                let what =
                    format!("a record has kind {kind} and number {number}, which no record has");
                Err(Finding::new("S3", what))
            }
        }
    }
}

/// The contents of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Partition(PartitionRecord),
    List(AccessList),
}

impl Record {
    pub(crate) fn body(&self) -> [u8; BODY_BYTES] {
        match self {
            Self::Partition(partition) => zerocopy::transmute!(partition.body()),
            Self::List(list) => zerocopy::transmute!(list_body(list)),
        }
    }
}

/// A partition: its place in the store, its name, and the access to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRecord {
    /// Its name, which no other partition has.
    pub name: String,
    /// Its first page in the store.
    pub first_page: u64,
    /// Its size in pages.
    pub pages: u64,
    /// The user that may change it.
    pub owner: u32,
    /// The group whose access list applies to other users; 0 if they have no access. A right to
    /// read is that to map the partition, a right to write that to change its extents.
    pub group: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PartitionBody {
    first_page: U64,
    pages: U64,
    owner: U32,
    group: U32,
    name_bytes: U64,
    name: [u8; NAME_BYTES],
    zeros: [u8; 136],
}

/// Whether a partition can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.contains(|c: char| c.is_control())
}

impl PartitionRecord {
    fn body(&self) -> PartitionBody {
        let mut name = [0; NAME_BYTES];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        PartitionBody {
            first_page: self.first_page.into(),
            pages: self.pages.into(),
            owner: self.owner.into(),
            group: self.group.into(),
            name_bytes: (self.name.len() as u64).into(),
            name,
            zeros: [0; 136],
        }
    }

    /// The partition in a record (S5).
    fn read(body: &PartitionBody) -> Result<Self, Finding> {
        let bytes = usize::try_from(body.name_bytes.get()).unwrap_or(usize::MAX);
        let name = body.name.get(..bytes);
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let Some(name) = name.filter(|name| is_name(name)) else {
            return Err(Finding::new("S5", "a partition has an impossible name"));
        };
        if body.group.get() > Identity::LAST_GROUP {
            let what = format!("the partition {name} has an impossible group");
            return Err(Finding::new("S5", what));
        }
        Ok(Self {
            name: name.to_owned(),
            first_page: body.first_page.get(),
            pages: body.pages.get(),
            owner: body.owner.get(),
            group: body.group.get(),
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ListBody {
    entries: U64,
    entry: [EntryBody; AccessList::MOST],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EntryBody {
    /// Bits 0 and 1: the rights; from bit 2 on: 0 a user, 1 a group, 2 everyone.
    what: U32,
    id: U32,
}

fn list_body(list: &AccessList) -> ListBody {
    let nothing = EntryBody {
        what: 0.into(),
        id: 0.into(),
    };
    let mut body = ListBody {
        entries: (list.entries().len() as u64).into(),
        entry: [nothing; AccessList::MOST],
    };
    for (place, entry) in body.entry.iter_mut().zip(list.entries()) {
        let (subject, id) = match entry.subject {
            Subject::User(uid) => (0, uid),
            Subject::Group(gid) => (1, gid),
            Subject::Everyone => (2, 0),
        };
        place.what = (subject << 2 | entry.rights.bits()).into();
        place.id = id.into();
    }
    body
}

/// The access list in a record (S6).
fn read_list(body: &ListBody) -> Result<AccessList, Finding> {
    let entries = usize::try_from(body.entries.get()).unwrap_or(usize::MAX);
    let Some(entries) = body.entry.get(..entries) else {
        return Err(Finding::new("S6", "an access list has too many entries"));
    };
    let read = |entry: &EntryBody| {
        let subject = match (entry.what.get() >> 2, entry.id.get()) {
            (0, uid) => Subject::User(uid),
            (1, gid) => Subject::Group(gid),
            (2, 0) => Subject::Everyone,
            _ => return Err(Finding::new("S6", "an access list has an impossible entry")),
        };
        let rights = Rights::from_bits(entry.what.get());
        Ok(Entry { subject, rights })
    };
    let entries = entries.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    AccessList::new(entries).ok_or_else(|| Finding::new("S6", "an access list is too long"))
}
