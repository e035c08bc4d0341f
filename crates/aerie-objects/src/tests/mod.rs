//! Tests.

mod beside;
mod classes;
mod crashes;
mod hostile;
mod kills;
mod leaks;
mod model;
mod protection;
mod readers;
mod speculation;
mod trees;

use crate::{Result, Store};
use medium::MemoryPmem;
use std::collections::BTreeMap;
use std::sync::Arc;

type Memory = Arc<MemoryPmem>;

/// An empty store of this size.
fn empty(bytes: u64) -> Store<Memory> {
    let memory = Arc::new(MemoryPmem::new(bytes));
    crate::format(&memory, 7).unwrap();
    Store::open(memory).unwrap()
}

/// All entries of the root collection, by listing.
fn listed(store: &Store<Memory>) -> Result<BTreeMap<Vec<u8>, crate::ObjectId>> {
    let all = crate::list_all(store.memory(), store.root(), store.seed())?;
    let count = all.len();
    let entries: BTreeMap<_, _> = all.into_iter().map(|e| (e.key, e.object)).collect();
    assert_eq!(entries.len(), count, "a key is listed twice");
    Ok(entries)
}

fn assert_clean(store: &Store<Memory>) {
    let report = crate::check(store.memory());
    assert!(report.is_clean(), "{:?}", report.findings);
}
