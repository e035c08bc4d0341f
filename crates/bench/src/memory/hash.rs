//! A hash table in durable memory: buckets of chained nodes, a node allocated by the
//! transaction that links it.
//!
//! Not the library's, which grows and hashes what it is given: one of the same shape as that
//! of libpmemobj's program, `tools/peers/pmemobj.c`, so that what differs is the memory below.
//!
//! A bucket and a link are the offset of a node, or 0. A node: the next one, its key, and
//! its value.

use super::ground::Session;
use super::work::Entries;
use crate::error::{Context, Result};
use medium::{LINE_BYTES, Pmem, WORD_BYTES};
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Stop};
use std::convert::Infallible;

const AT_KEY: u64 = WORD_BYTES;
const AT_VALUE: u64 = 2 * WORD_BYTES;

/// The way in which a value gets into its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// The transaction writes it, through the log.
    Logged,
    /// The thread stores it in the fresh node and fences before the commit.
    InPlace,
}

/// The table. Keys are all different, and well mixed.
pub(super) struct Table {
    buckets: u64,
    mask: u64,
    fill: Fill,
}

impl Table {
    /// Makes an empty table for that many entries.
    pub(super) fn make<P: Pmem + Clone>(
        session: &mut Session<P>,
        entries: u64,
        fill: Fill,
    ) -> Result<Self> {
        let count = entries.next_power_of_two();
        let bytes = (count * WORD_BYTES).next_multiple_of(LINE_BYTES);
        let made = session.run(|tx| {
            let buckets = tx.alloc(bytes)?;
            tx.fill(buckets, &vec![0; bytes as usize])?;
            tx.set_root("table", 1, buckets)?;
            Ok::<_, Stop<Infallible>>(buckets)
        });
        Ok(Self {
            buckets: made.what(|| "making a hash table".into())?,
            mask: count - 1,
            fill,
        })
    }

    fn bucket(&self, key: u64) -> u64 {
        self.buckets + (key & self.mask) * WORD_BYTES
    }

    /// Returns the address of the link to the node of a key, or to the end of its chain, and the
    /// value of that link.
    fn find<P: Pmem + Clone>(
        &self,
        tx: &mut Tx<'_, P>,
        key: u64,
    ) -> std::result::Result<(u64, u64), Interrupted> {
        let mut link = self.bucket(key);
        loop {
            let node = tx.load(link)?;
            if node == 0 || tx.load(node + AT_KEY)? == key {
                return Ok((link, node));
            }
            link = node;
        }
    }
}

impl<P: Pmem + Clone> Entries<P> for Table {
    fn has(&self, session: &mut Session<P>, key: u64) -> Result<bool> {
        let has = session.run(|tx| Ok::<_, Stop<Infallible>>(self.find(tx, key)?.1 != 0));
        has.what(|| "looking for an entry".into())
    }

    fn insert(&self, session: &mut Session<P>, key: u64, value: &[u8]) -> Result<bool> {
        let inserted = session.run(|tx| {
            if self.find(tx, key)?.1 != 0 {
                return Ok::<_, Stop<Infallible>>(false);
            }
            let bucket = self.bucket(key);
            let node = tx.alloc(AT_VALUE + value.len() as u64)?;
            let next = tx.load(bucket)?;
            match self.fill {
                Fill::Logged => {
                    tx.store(node, next)?;
                    tx.store(node + AT_KEY, key)?;
                    tx.write(node + AT_VALUE, value)?;
                }
                Fill::InPlace => {
                    // In one piece, at the price of a copy: two would flush a line twice.
                    let words = [next, key].map(u64::to_le_bytes);
                    tx.fill(node, &[words.as_flattened(), value].concat())?;
                }
            }
            tx.store(bucket, node)?;
            Ok(true)
        });
        inserted.what(|| "inserting an entry".into())
    }

    fn delete(&self, session: &mut Session<P>, key: u64) -> Result<bool> {
        let deleted = session.run(|tx| {
            let (link, node) = self.find(tx, key)?;
            if node == 0 {
                return Ok::<_, Stop<Infallible>>(false);
            }
            let next = tx.load(node)?;
            tx.store(link, next)?;
            tx.free(node)?;
            Ok(true)
        });
        deleted.what(|| "deleting an entry".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ground;
    use medium::MemoryPmem;
    use mnemosyne::memory::{Layout, Options};
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn entries_are_there_until_they_are_deleted() {
        for fill in [Fill::Logged, Fill::InPlace] {
            let pm = Arc::new(MemoryPmem::new(4 << 20));
            let layout = Layout {
                logs: 1,
                log_bytes: 64 << 10,
                ..Layout::default()
            };
            let options = Options {
                heap_growth: 256 << 10,
                ..Options::default()
            };
            let store = ground::make(pm, &layout, &options).unwrap();
            let mut session = store.session();
            // Four entries in each bucket.
            let table = Table::make(&mut session, 16, fill).unwrap();
            let mut model = HashSet::new();
            let mut random = fastrand::Rng::with_seed(1);
            for _ in 0..2000 {
                let key = random.u64(..64);
                let value = vec![0x77; random.usize(1..300)];
                match random.bool() {
                    true => assert_eq!(
                        table.insert(&mut session, key, &value).unwrap(),
                        model.insert(key)
                    ),
                    false => {
                        assert_eq!(table.delete(&mut session, key).unwrap(), model.remove(&key))
                    }
                }
            }
            for key in 0..64 {
                assert_eq!(table.has(&mut session, key).unwrap(), model.contains(&key));
            }
        }
    }
}
