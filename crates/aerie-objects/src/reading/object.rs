//! Headers of objects.

use crate::error::{Error, Result, damaged};
use crate::id::HEADER_BYTES;
use crate::layout::header;
use crate::load::Load;
use crate::{Kind, ObjectId};
use std::hint::spin_loop;
use std::sync::atomic::{Ordering, fence};
use std::thread::{sleep, yield_now};
use std::time::Duration;

/// Words of a header.
pub(crate) const WORDS: usize = (header::OWN + header::OWN_WORDS) as usize;
/// The first attempts to read an object that changes, between which a reader keeps its processor.
const SPINS: u32 = 100;
/// The attempts after them, between which it leaves the processor to others, such as the service.
const YIELDS: u32 = 10_000;
/// The last attempts, between which it sleeps for [`PAUSE`]. The service may have lost its own processor in
/// a change, for longer than all attempts before take.
const SLEEPS: u32 = 500;
/// Half a second in all.
const PAUSE: Duration = Duration::from_millis(1);

/// Loads a word of the header of an object, which need not exist.
pub(crate) fn word<M: Load + ?Sized>(memory: &M, object: ObjectId, word: u64) -> Result<u64> {
    memory.load(object.header() + word * 8)
}

/// Checks that an object exists. Returns its generation (56 bits), which distinguishes it from all
/// others that have had its id.
///
/// An id from somebody who can write to the memory must be checked by
/// [`Transaction::has`](crate::Transaction::has) as well: what looks like a header may be the contents
/// of a file.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn generation<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<u64> {
    let [kind] = first_words(memory, object)?;
    Ok(kind >> 8)
}

/// The first words of the header of an object, of which it checks that it exists. That takes less time than loads of more
/// than two of them.
fn first_words<M: Load + ?Sized, const N: usize>(memory: &M, object: ObjectId) -> Result<[u64; N]> {
    if object.header() + HEADER_BYTES > memory.len_bytes() {
        return Err(Error::NoObject(object));
    }
    let mut words = [0; N];
    match N {
        1 => words[0] = memory.load(object.header())?,
        _ => memory.load_words(object.header(), &mut words)?,
    }
    match words[header::KIND as usize] & 0xff == object.kind() as u64 {
        true => Ok(words),
        false => Err(Error::NoObject(object)),
    }
}

/// The number of entries of collections that lead to the object (invariant 4.1 of the paper).
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn members<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<u64> {
    generation(memory, object)?;
    word(memory, object, header::MEMBERS)
}

/// The collection that has the only entry for this object. `None` for the root, for an object without
/// an entry, and for an mFile of which it is unknown, since it has or had several.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn parent<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<Option<ObjectId>> {
    generation(memory, object)?;
    Ok(ObjectId::from_bits(word(memory, object, header::PARENT)?))
}

/// The collection that has the object, if only one entry leads to it and its header names the collection.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn only_parent<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<Option<ObjectId>> {
    let words: [u64; header::OWN as usize] = first_words(memory, object)?;
    let is_only = words[header::MEMBERS as usize] == 1;
    let parent = ObjectId::from_bits(words[header::PARENT as usize]);
    Ok(parent.filter(|_| is_only))
}

/// Whether `collection` is `other` or inside it.
///
/// # Errors
/// [`Error::NoObject`], [`Error::Damaged`] if the collections above have no end, and errors of the
/// memory.
pub fn is_inside<M: Load + ?Sized>(
    memory: &M,
    collection: ObjectId,
    other: ObjectId,
) -> Result<bool> {
    let mut at = Some(collection);
    for _ in 0..memory.len_bytes() / HEADER_BYTES {
        match at {
            Some(at) if at == other => return Ok(true),
            Some(below) => at = parent(memory, below)?,
            None => return Ok(false),
        }
    }
    let why = "the collections above it have no end";
    Err(damaged("header", collection.header(), why))
}

/// The bytes of an mFile.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn size<M: Load + ?Sized>(memory: &M, file: ObjectId) -> Result<u64> {
    match file.kind() {
        Kind::MFile => generation(memory, file).and_then(|_| word(memory, file, header::SIZE)),
        Kind::Collection => Err(Error::NoObject(file)),
    }
}

/// Pages of an object, those of its tree too.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn pages<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<u64> {
    generation(memory, object)?;
    word(memory, object, header::PAGES)
}

/// A number that is another one after each change of the object's header and pages.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn version<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<u64> {
    generation(memory, object)?;
    word(memory, object, header::VERSION)
}

/// Word `n` of those that belong to the layer above, below [`OWN_WORDS`](crate::OWN_WORDS).
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn own<M: Load + ?Sized>(memory: &M, object: ObjectId, n: u64) -> Result<u64> {
    assert!(n < header::OWN_WORDS, "an object has no own word {n}");
    generation(memory, object)?;
    word(memory, object, header::OWN + n)
}

/// The words of a header that the layer above reads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Distinguishes the object from all others that have had its id (56 bits).
    pub generation: u64,
    /// Bytes of an mFile; meaningless for a collection.
    pub size: u64,
    /// Pages of the object, those of its tree too.
    pub pages: u64,
    /// Words that belong to the layer above.
    pub own: [u64; header::OWN_WORDS as usize],
}

/// Reads the header of an object, of which it checks once that it exists.
///
/// # Errors
/// [`Error::NoObject`], and errors of the memory.
pub fn header<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<Header> {
    let words: [u64; WORDS] = first_words(memory, object)?;
    let mut own = [0; header::OWN_WORDS as usize];
    own.copy_from_slice(&words[header::OWN as usize..]);
    Ok(Header {
        generation: words[header::KIND as usize] >> 8,
        size: words[header::SIZE as usize],
        pages: words[header::PAGES as usize],
        own,
    })
}

/// Reads an object that the service may change meanwhile: `read` runs again until the object did not
/// change during a run, for half a second at least.
///
/// # Errors
/// [`Error::Unstable`], and those of `read`.
pub fn stable<M: Load + ?Sized, T>(
    memory: &M,
    object: ObjectId,
    read: impl Fn() -> Result<T>,
) -> Result<T> {
    for attempt in 0..SPINS + YIELDS + SLEEPS {
        if let Some(result) = unchanged(memory, object, &read)? {
            return result;
        }
        match attempt {
            ..SPINS => spin_loop(),
            n if n < SPINS + YIELDS => yield_now(),
            _ => sleep(PAUSE),
        }
    }
    Err(Error::Unstable(object))
}

/// Reads an object once. Returns nothing if it changed meanwhile.
pub(crate) fn unchanged<M: Load + ?Sized, T>(
    memory: &M,
    object: ObjectId,
    read: impl FnOnce() -> T,
) -> Result<Option<T>> {
    let before = word(memory, object, header::VERSION)?;
    fence(Ordering::Acquire);
    if !before.is_multiple_of(2) {
        return Ok(None);
    }
    let result = read();
    fence(Ordering::Acquire);
    let is_same = word(memory, object, header::VERSION)? == before;
    Ok(is_same.then_some(result))
}
