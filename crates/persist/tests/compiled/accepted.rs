//! Correct variants of the refused programs.

use medium::MemoryPmem;
use mnemosyne::memory::{Flat, Session};
use mnemosyne::tx::Stop;
use persist::{Persist, Ptr, TypedTx};
use std::sync::Arc;

#[derive(Persist)]
struct Counter {
    count: u64,
    next: Option<Ptr<Counter>>,
}

fn count(session: &mut Session<Flat<Arc<MemoryPmem>>>, of: Ptr<Counter>) -> u64 {
    let counter = session.run(|tx| Ok::<_, Stop<()>>(tx.get(of)?));
    counter.unwrap().count
}

fn main() {}
