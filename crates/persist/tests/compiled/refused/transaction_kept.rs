// says: error[E0521]
//! A transaction does not outlive its body.

use mnemosyne::memory::{Flat, Session};
use mnemosyne::tx::Stop;
use std::sync::Arc;

fn keep(session: &mut Session<Flat<Arc<medium::MemoryPmem>>>) {
    let mut kept = None;
    let done = session.run(|tx| {
        kept = Some(tx);
        Ok::<_, Stop<()>>(())
    });
    done.unwrap();
}

fn main() {}
