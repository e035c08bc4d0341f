//! The library's B+ tree, as a store of entries.

use super::ground::Session;
use super::work::Entries;
use crate::error::{Context, Result};
use medium::Pmem;
use mnemosyne::Ptr;
use mnemosyne::structures::{BTree, Bytes};
use mnemosyne::tx::Stop;
use std::convert::Infallible;

/// A tree of values by key.
pub(super) struct Tree {
    entries: Ptr<BTree<u64, Bytes>>,
}

impl Tree {
    /// An empty one.
    pub(super) fn make<P: Pmem + Clone>(session: &mut Session<P>) -> Result<Self> {
        let made = session.run(|tx| {
            let entries = tx.create(&BTree::new())?;
            tx.set_root("entries", 1, entries.off())?;
            Ok::<_, Stop<Infallible>>(entries)
        });
        let entries = made.what(|| "making a B+ tree".into())?;
        Ok(Self { entries })
    }
}

impl<P: Pmem + Clone> Entries<P> for Tree {
    fn has(&self, session: &mut Session<P>, key: u64) -> Result<bool> {
        let has = session.run(|tx| Ok::<_, Stop<Infallible>>(self.entries.contains(tx, &key)?));
        has.what(|| "looking for an entry".into())
    }

    fn insert(&self, session: &mut Session<P>, key: u64, value: &[u8]) -> Result<bool> {
        let before =
            session.run(|tx| Ok::<_, Stop<Infallible>>(self.entries.insert(tx, &key, value)?));
        Ok(before.what(|| "inserting an entry".into())?.is_none())
    }

    fn delete(&self, session: &mut Session<P>, key: u64) -> Result<bool> {
        let before = session.run(|tx| Ok::<_, Stop<Infallible>>(self.entries.remove(tx, &key)?));
        Ok(before.what(|| "deleting an entry".into())?.is_some())
    }
}
