//! The library's B+ tree and hash map, as stores of entries.

use super::ground::Session;
use super::work::Entries;
use crate::error::{Context, Result};
use medium::Pmem;
use mnemosyne::tx::Stop;
use persist::structures::{BTree, Bytes, HashMap};
use persist::{Ptr, TypedTx};
use std::convert::Infallible;

/// A structure that holds values by key.
pub(super) struct Library<T> {
    entries: Ptr<T>,
}

/// Values in the order of their keys.
pub(super) type Tree = Library<BTree<u64, Bytes>>;
/// Values by the hashes of their keys.
pub(super) type Map = Library<HashMap<u64, Bytes>>;

/// Implements the store for a structure. Both have the same calls, but no common trait.
macro_rules! entries {
    ($($structure:ident),*) => {$(
        impl Library<$structure<u64, Bytes>> {
            /// Makes an empty structure.
            pub(super) fn make<P: Pmem + Clone>(session: &mut Session<P>) -> Result<Self> {
                let made = session.run(|tx| {
                    let entries = tx.create(&$structure::new())?;
                    tx.set_root("entries", 1, entries.off())?;
                    Ok::<_, Stop<Infallible>>(entries)
                });
                let entries = made.what(|| concat!("making a ", stringify!($structure)).into())?;
                Ok(Self { entries })
            }
        }

        impl<P: Pmem + Clone> Entries<P> for Library<$structure<u64, Bytes>> {
            fn has(&self, session: &mut Session<P>, key: u64) -> Result<bool> {
                let has =
                    session.run(|tx| Ok::<_, Stop<Infallible>>(self.entries.contains(tx, &key)?));
                has.what(|| "looking for an entry".into())
            }

            fn insert(&self, session: &mut Session<P>, key: u64, value: &[u8]) -> Result<bool> {
                let before = session
                    .run(|tx| Ok::<_, Stop<Infallible>>(self.entries.insert(tx, &key, value)?));
                Ok(before.what(|| "inserting an entry".into())?.is_none())
            }

            fn delete(&self, session: &mut Session<P>, key: u64) -> Result<bool> {
                let before =
                    session.run(|tx| Ok::<_, Stop<Infallible>>(self.entries.remove(tx, &key)?));
                Ok(before.what(|| "deleting an entry".into())?.is_some())
            }
        }
    )*};
}

entries!(BTree, HashMap);
