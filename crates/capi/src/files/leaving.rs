//! The end of a process that has stores open: their changes are sent, as those of a closed store are.
//!
//! Guarantee: a normal end (return from `main`, `exit`) waits for that, at most [`PATIENCE`], since the program may
//! end inside of a call that has locks.

use aerie_client::Client;
use parking_lot::Mutex;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vfs::FileSystem;

/// Longest wait for the changes of all stores.
const PATIENCE: Duration = Duration::from_secs(10);

/// Open stores, each with the process that has opened it.
static OPEN: Mutex<Vec<(u32, Weak<Client>)>> = Mutex::new(Vec::new());

/// Takes note of an open store.
pub(super) fn note(client: &Arc<Client>) {
    let mut open = OPEN.lock();
    open.retain(|(_, client)| client.strong_count() > 0);
    open.push((std::process::id(), Arc::downgrade(client)));
}

// Runs after the program's own destructors and its functions of `atexit`.
#[used]
#[unsafe(link_section = ".fini_array.00101")]
static AFTER_MAIN: extern "C" fn() = after_main;

extern "C" fn after_main() {
    // In a child of `fork`, a thread that is not there may have the lock.
    let Some(open) = OPEN.try_lock().map(|mut open| std::mem::take(&mut *open)) else {
        return;
    };
    let own = |(process, client): (u32, Weak<Client>)| {
        client.upgrade().filter(|_| process == std::process::id())
    };
    let open: Vec<_> = open.into_iter().filter_map(own).collect();
    if open.is_empty() {
        return;
    }
    let (end, ended) = channel();
    let send = move || {
        for client in &open {
            // There is nobody to tell an error.
            let _ = client.sync();
        }
        // The process may end before the clients do.
        std::mem::forget(open);
        let _ = end.send(());
    };
    if std::thread::Builder::new().spawn(send).is_ok() {
        let _ = ended.recv_timeout(PATIENCE);
    }
}
