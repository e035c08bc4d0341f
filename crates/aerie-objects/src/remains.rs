//! Bytes that nothing reads any more, in pages of live objects: removed entries, the rest of a file's last
//! page, deleted headers. They are cleared in place, since no reader depends on them.

use crate::error::Result;
use crate::id::HEADER_BYTES;
use crate::layout::{PAGE, header};
use crate::reading::bucket::{Bucket, HEAD, chain};
use crate::reading::collection::Table;
use crate::reading::object::{size, word};
use crate::reading::tree::{next_page, page};
use crate::superblock::Superblock;
use crate::{Kind, ObjectId};
use medium::Pmem;

/// Clears the remains in the pages of an object. A fence makes that durable.
pub(crate) fn clear_object<P: Pmem>(
    memory: &P,
    superblock: &Superblock,
    object: ObjectId,
) -> Result<()> {
    match object.kind() {
        Kind::MFile => clear_end(memory, object),
        Kind::Collection => {
            let table = Table::load(memory, object, superblock.seed)?;
            for number in 0..table.buckets {
                for bucket in chain(memory, table.bucket(memory, number)?) {
                    clear_bucket(memory, bucket?)?;
                }
            }
            Ok(())
        }
    }
}

/// Clears the deleted headers in a page of headers.
pub(crate) fn clear_headers<P: Pmem>(memory: &P, page: u64) -> Result<()> {
    for at in (page..page + PAGE).step_by(HEADER_BYTES as usize) {
        let object = ObjectId::new(Kind::MFile, at);
        if word(memory, object, header::KIND)? == 0 {
            // The version of the next object there follows that of the last one.
            let version = header::VERSION * 8;
            zero(memory, at, at + version);
            zero(memory, at + version + 8, at + HEADER_BYTES);
        }
    }
    Ok(())
}

/// Clears the bytes of an mFile after its end.
fn clear_end<P: Pmem>(memory: &P, file: ObjectId) -> Result<()> {
    let size = size(memory, file)?;
    if !size.is_multiple_of(PAGE)
        && let Some(page) = page(memory, file, size / PAGE)?
    {
        zero(memory, page + size % PAGE, page + PAGE);
    }
    let mut next = size.div_ceil(PAGE);
    while let Some(index) = next_page(memory, file, next)? {
        if let Some(page) = page(memory, file, index)? {
            zero(memory, page, page + PAGE);
        }
        next = index + 1;
    }
    Ok(())
}

/// Clears what is neither a slot nor the record of an entry.
fn clear_bucket<P: Pmem>(memory: &P, bucket: Bucket) -> Result<()> {
    let (slots, _) = bucket.head(memory)?;
    let mut records: Vec<_> = bucket.entries(memory)?;
    records.sort_unstable_by_key(|entry| entry.record().start);
    let mut at = bucket.at + HEAD + slots * 8;
    for record in records.iter().map(|entry| entry.record()) {
        zero(memory, at, record.start);
        at = record.end;
    }
    zero(memory, at, bucket.at + bucket.bytes);
    Ok(())
}

fn zero<P: Pmem>(memory: &P, start: u64, end: u64) {
    const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    if start < end {
        memory.store(start, &ZEROS[..(end - start) as usize]);
        memory.flush(start, end - start);
    }
}
