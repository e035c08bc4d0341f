//! Batches: the changes that a client asks for, in the order in which it made them (paper section
//! 4.2.4, Figures 4.3 to 4.5).
//!
//! A batch is a sequence of operations of a file system (F). Each has the operations on storage objects
//! (S) that it consists of, and is accepted or refused as a whole.
//!
//! # Bytes
//! All numbers are little-endian, in words of eight bytes.
//!
//! - An operation begins with a word: 1 (F) or 2 (S) in bits 0–7, its kind in bits 8–15, the bytes of
//!   its names in bits 16–23 and 24–31, 0 in the others.
//! - In an F operation another word follows: the bytes of the operation, its S operations included, in
//!   the lower half, and a number of the client's choice in the upper half.
//! - The fields of the kind follow, a word each, and the names, each filled up to a word with zeros.
//! - The S operations of an F operation follow it.
//!
//! # Guarantees
//! A decoder ends on any bytes, and takes no memory. It must not read memory that a client can change
//! meanwhile: the service copies a batch first.

use aerie_objects::{Kind, ObjectId};

/// Most bytes of a batch.
pub const BATCH_MAX: usize = 64 << 20;

const F: u8 = 1;
const S: u8 = 2;

/// The reason why bytes are not an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end too early.
    #[error("the batch ends inside an operation")]
    Short,
    /// A word is not the first one of the expected operation.
    #[error("{0:#x} does not begin an operation")]
    Head(u64),
    /// The kind is unknown, or has other names.
    #[error("there is no operation of kind {0} with such names")]
    Kind(u8),
    /// A field is not the id of an object of the right kind.
    #[error("{0:#x} is not the id of such an object")]
    Object(u64),
}

/// An mFile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct File(pub ObjectId);

/// A collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Collection(pub ObjectId);

/// A field of an operation, as a word.
trait Field: Copy {
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Option<Self>;
}

impl Field for u64 {
    fn to_word(self) -> u64 {
        self
    }

    fn from_word(word: u64) -> Option<Self> {
        Some(word)
    }
}

impl Field for ObjectId {
    fn to_word(self) -> u64 {
        self.to_bits()
    }

    fn from_word(word: u64) -> Option<Self> {
        Self::from_bits(word)
    }
}

impl Field for File {
    fn to_word(self) -> u64 {
        self.0.to_bits()
    }

    fn from_word(word: u64) -> Option<Self> {
        let id = ObjectId::from_bits(word)?;
        (id.kind() == Kind::MFile).then_some(Self(id))
    }
}

impl Field for Collection {
    fn to_word(self) -> u64 {
        self.0.to_bits()
    }

    fn from_word(word: u64) -> Option<Self> {
        let id = ObjectId::from_bits(word)?;
        (id.kind() == Kind::Collection).then_some(Self(id))
    }
}

/// Declares the operations of one level: the number of each kind, its fields, and its names.
macro_rules! operations {
    ($(#[$doc:meta])* $level:ident {
        $($(#[$about:meta])* $kind:literal $op:ident ($($field:ident: $type:ty),*) [$($name:ident),*];)+
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // of the fields: the operation's says what they are
        pub enum $level<'a> {
            $($(#[$about])* $op { $($field: $type,)* $($name: &'a [u8],)* },)+
        }

        impl<'a> $level<'a> {
            fn encode(&self, begin: impl FnOnce(u8, [u8; 2]) -> Vec<u64>, bytes: &mut Vec<u8>) {
                match *self {
                    $(Self::$op { $($field,)* $($name,)* } => {
                        let names: &[&[u8]] = &[$($name),*];
                        let len = |n| names.get(n).map_or(0, |name: &&[u8]| name.len() as u8);
                        let words = begin($kind, [len(0), len(1)]);
                        let fields = [$(Field::to_word($field)),*];
                        bytes.extend(words.into_iter().chain(fields).flat_map(u64::to_le_bytes));
                        for name in names {
                            bytes.extend(*name);
                            bytes.resize(bytes.len().next_multiple_of(8), 0);
                        }
                    })+
                }
            }

            /// Reads what follows the first words.
            fn decode(kind: u8, lens: [u8; 2], from: &mut Reader<'a>) -> Result<Self, Malformed> {
                match kind {
                    $($kind => {
                        let count = <[&str]>::len(&[$(stringify!($name)),*]);
                        if (lens[0] > 0, lens[1] > 0) != (count > 0, count > 1) {
                            return Err(Malformed::Kind(kind));
                        }
                        $(let $field = from.field()?;)*
                        #[allow(unused_mut, unused_variables)] // in kinds without names
                        let mut lens = lens.into_iter();
                        $(let $name = from.name(lens.next().unwrap_or(0))?;)*
                        Ok(Self::$op { $($field,)* $($name,)* })
                    })+
                    other => Err(Malformed::Kind(other)),
                }
            }
        }
    };
}

operations! {
    /// An operation on storage objects (Table 4.3). Extents are pages, by their byte offsets.
    Storage {
        /// Takes an extent of the client's reserve.
        0 CreateExtent(extent: u64) [];
        /// Frees an extent that was removed.
        1 DeleteExtent(extent: u64) [];
        /// Makes an mFile of the client's reserve.
        2 CreateMFile(file: File) [];
        /// Removes an mFile that no collection has, with its extents.
        3 DeleteMFile(file: File) [];
        /// Adds an extent to an mFile, at an index in pages.
        4 AddExtent(file: File, index: u64, extent: u64) [];
        /// Removes the extent at an index of an mFile.
        5 RemoveExtent(file: File, index: u64, extent: u64) [];
        /// Removes and deletes all extents of an mFile from an index on.
        6 CutExtents(file: File, from: u64) [];
        /// Sets the size of an mFile, in bytes.
        7 SetSize(file: File, bytes: u64) [];
        /// Makes a collection of the client's reserve.
        8 CreateCollection(collection: Collection) [];
        /// Removes an empty collection that no collection has.
        9 DeleteCollection(collection: Collection) [];
        /// Adds an entry to a collection.
        10 AddObject(collection: Collection, object: ObjectId) [key];
        /// Removes an entry, which leads to this object, from a collection.
        11 RemoveObject(collection: Collection, object: ObjectId) [key];
    }
}

operations! {
    /// An operation of a file system.
    FileOp {
        /// Makes a file with a name.
        0 MakeFile(parent: Collection, file: File) [name];
        /// Makes a directory with a name.
        1 MakeDirectory(parent: Collection, directory: Collection) [name];
        /// Adds a name of a file.
        2 Link(parent: Collection, file: File) [name];
        /// Removes a name, and the object if it was the last one.
        3 Unlink(parent: Collection) [name];
        /// Moves a name to another directory or another name, and replaces an object of that name.
        4 Rename(parent: Collection, new_parent: Collection) [name, new_name];
        /// Adds extents to a file, and sets its size in bytes.
        5 Write(file: File, bytes: u64) [];
        /// Sets the size of a file in bytes, and removes the extents beyond.
        6 Truncate(file: File, bytes: u64) [];
    }
}

/// An operation of a file system, with its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation<'a> {
    /// The operation.
    pub op: FileOp<'a>,
    /// The number that the client has given it.
    pub number: u32,
    storage: &'a [u8],
}

impl<'a> Operation<'a> {
    /// Its operations on storage objects. The iterator ends after an error.
    pub fn storage(&self) -> impl Iterator<Item = Result<Storage<'a>, Malformed>> + use<'a> {
        let mut rest = Reader(self.storage);
        std::iter::from_fn(move || {
            let next = (!rest.0.is_empty()).then(|| rest.storage())?;
            if next.is_err() {
                rest.0 = &[];
            }
            Some(next)
        })
    }
}

/// The operations of a batch. A malformed one comes as its number and the reason. Without a number,
/// nothing after it can be read.
pub fn operations(
    batch: &[u8],
) -> impl Iterator<Item = Result<Operation<'_>, (Option<u32>, Malformed)>> {
    let mut rest = batch;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match frame(std::mem::take(&mut rest)) {
            Ok((number, record, next)) => {
                rest = next;
                let operation = Reader(record).operation(number);
                Some(operation.map_err(|why| (Some(number), why)))
            }
            Err(why) => Some(Err((None, why))),
        }
    })
}

/// Number and bytes of the first operation, and the bytes that follow it.
fn frame(batch: &[u8]) -> Result<(u32, &[u8], &[u8]), Malformed> {
    let mut reader = Reader(batch);
    let (head, size) = (reader.word()?, reader.word()?);
    let bytes = size as u32 as usize;
    match head as u8 == F && bytes >= 16 && bytes.is_multiple_of(8) {
        false => Err(Malformed::Head(head)),
        true if bytes > batch.len() => Err(Malformed::Short),
        true => Ok(((size >> 32) as u32, &batch[..bytes], &batch[bytes..])),
    }
}

/// Reads bytes from the start.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn word(&mut self) -> Result<u64, Malformed> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn field<T: Field>(&mut self) -> Result<T, Malformed> {
        let word = self.word()?;
        T::from_word(word).ok_or(Malformed::Object(word))
    }

    fn name(&mut self, len: u8) -> Result<&'a [u8], Malformed> {
        let len = usize::from(len);
        let (name, rest) = self
            .0
            .split_at_checked(len.next_multiple_of(8))
            .ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(&name[..len])
    }

    /// The kind of an operation of this level, and the bytes of its names.
    fn head(&mut self, level: u8) -> Result<(u8, [u8; 2]), Malformed> {
        let head = self.word()?;
        match head.to_le_bytes() {
            [found, kind, first, second, 0, 0, 0, 0] if found == level => {
                Ok((kind, [first, second]))
            }
            _ => Err(Malformed::Head(head)),
        }
    }

    fn operation(mut self, number: u32) -> Result<Operation<'a>, Malformed> {
        let (kind, lens) = self.head(F)?;
        self.word()?; // the frame has it
        let op = FileOp::decode(kind, lens, &mut self)?;
        let storage = self.0;
        Ok(Operation {
            op,
            number,
            storage,
        })
    }

    fn storage(&mut self) -> Result<Storage<'a>, Malformed> {
        let (kind, lens) = self.head(S)?;
        Storage::decode(kind, lens, self)
    }
}

/// Builds a batch.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    bytes: Vec<u8>,
    /// Where the last operation begins.
    start: usize,
}

impl Builder {
    /// Begins an operation. `number` comes back with the answer. Names must have 1 to 255 bytes.
    pub fn operation(&mut self, op: &FileOp<'_>, number: u32) {
        self.start = self.bytes.len();
        let size = u64::from(number) << 32;
        op.encode(
            |kind, lens| vec![head(F, kind, lens), size],
            &mut self.bytes,
        );
        self.note_size();
    }

    /// Adds a part of the last operation.
    pub fn storage(&mut self, op: &Storage<'_>) {
        op.encode(|kind, lens| vec![head(S, kind, lens)], &mut self.bytes);
        self.note_size();
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Stores the bytes of the last operation in its second word.
    fn note_size(&mut self) {
        let size = (self.bytes.len() - self.start) as u32;
        self.bytes[self.start + 8..self.start + 12].copy_from_slice(&size.to_le_bytes());
    }
}

fn head(level: u8, kind: u8, [first, second]: [u8; 2]) -> u64 {
    u64::from_le_bytes([level, kind, first, second, 0, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn file(n: u64) -> File {
        File(ObjectId::from_bits(n << 7 | 2).unwrap())
    }

    fn collection(n: u64) -> Collection {
        Collection(ObjectId::from_bits(n << 7 | 1).unwrap())
    }

    /// Two operations with all that operations can have.
    fn batch() -> Builder {
        let mut batch = Builder::default();
        let (parent, new_parent) = (collection(1), collection(2));
        let (name, new_name): (&[u8], &[u8]) = (b"old name", &[7; 255]);
        let rename = FileOp::Rename {
            parent,
            new_parent,
            name,
            new_name,
        };
        batch.operation(&rename, 5);
        let object = file(3).0;
        batch.storage(&Storage::RemoveObject {
            collection: parent,
            object,
            key: name,
        });
        batch.storage(&Storage::AddObject {
            collection: new_parent,
            object,
            key: new_name,
        });
        batch.operation(
            &FileOp::Write {
                file: file(3),
                bytes: 9,
            },
            6,
        );
        batch.storage(&Storage::CreateExtent { extent: 4096 });
        batch.storage(&Storage::AddExtent {
            file: file(3),
            index: 1,
            extent: 4096,
        });
        batch
    }

    #[test]
    fn a_batch_is_read_as_it_was_built() {
        let batch = batch();
        let found: Vec<_> = operations(batch.bytes()).map(Result::unwrap).collect();
        assert_eq!(
            found.iter().map(|one| one.number).collect::<Vec<_>>(),
            [5, 6]
        );
        let mut again = Builder::default();
        for one in found {
            again.operation(&one.op, one.number);
            one.storage().for_each(|op| again.storage(&op.unwrap()));
        }
        assert_eq!(again.bytes(), batch.bytes());
    }

    #[test]
    fn a_torn_batch_is_read_up_to_its_last_whole_operation() {
        let batch = batch();
        let whole = operations(batch.bytes()).next().unwrap().unwrap();
        for len in 0..batch.bytes().len() {
            let found: Vec<_> = operations(&batch.bytes()[..len]).collect();
            let is_first = len >= batch.start;
            assert_eq!(
                found.first().is_some_and(|first| *first == Ok(whole)),
                is_first
            );
            if len > batch.start || (len > 0 && !is_first) {
                assert_eq!(found.last(), Some(&Err((None, Malformed::Short))));
            }
        }
    }

    #[test]
    fn a_malformed_operation_does_not_hide_the_next_one() {
        let mut bytes = batch().bytes().to_vec();
        bytes[1] = 99;
        let found: Vec<_> = operations(&bytes).collect();
        assert_eq!(found[0], Err((Some(5), Malformed::Kind(99))));
        assert_eq!(found[1].unwrap().number, 6);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(
            mut bytes in vec(any::<u8>(), 0..400),
            damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            is_damaged in any::<bool>(),
        ) {
            if is_damaged {
                bytes = batch().bytes().to_vec();
                for (at, byte) in damage {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            let mut count = 0;
            for one in operations(&bytes) {
                count += 1 + one.map_or(0, |one| one.storage().count());
            }
            prop_assert!(count <= bytes.len() / 8 + 1);
        }
    }
}
