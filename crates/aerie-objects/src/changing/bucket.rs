//! Changes of buckets.

use crate::ObjectId;
use crate::error::Result;
use crate::reading::bucket::{Bucket, HEAD, record_bytes, slot_of};
use crate::transaction::Transaction;
use medium::Pmem;

impl<P: Pmem> Transaction<'_, P> {
    /// Adds an entry; `false` if there is no room.
    pub(super) fn put(
        &mut self,
        bucket: Bucket,
        hash: u64,
        key: &[u8],
        object: ObjectId,
    ) -> Result<bool> {
        let (slots, records) = bucket.head(self)?;
        let records = records + record_bytes(key);
        if HEAD + (slots + 1) * 8 + records > bucket.bytes {
            return Ok(false);
        }
        let record = bucket.bytes - records;
        self.set(bucket.at + record, object.to_bits())?;
        self.set_bytes(bucket.at + record + 8, key)?;
        self.set(bucket.at + HEAD + slots * 8, slot_of(hash, record, key))?;
        self.set(bucket.at, (slots + 1) | records << 16)?;
        Ok(true)
    }

    /// Removes all entries of a bucket. It stays in its chain.
    pub(super) fn empty(&mut self, bucket: Bucket) -> Result<()> {
        self.set(bucket.at, 0)
    }

    /// Makes a page the one that continues a bucket, or (0) the bucket the last one of its chain.
    pub(super) fn continue_in(&mut self, bucket: Bucket, page: u64) -> Result<Bucket> {
        self.set(bucket.at + 8, page)?;
        Ok(Bucket::of_page(page))
    }
}
