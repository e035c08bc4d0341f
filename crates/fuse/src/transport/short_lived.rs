//! Names that the kernel must not keep: each lookup of one finds a new inode without a name, which
//! ends with its last descriptor.
//!
//! The kernel keeps the entry of a closed file, and with it the inode, even if the entry's time is
//! over. It drops both at the last close if the entry was invalidated before.
//!
//! # No deadlock
//! The invalidation waits for the lock of the directory, whose holder may wait for any request. So
//! a thread of its own invalidates. The kernel's lookup holds that lock until it has the entry, so
//! the invalidation finds it.

use fuser::{INodeNo, Notifier};
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

/// A directory, and a name in it.
type Entry = (INodeNo, OsString);

/// Invalidates entries; the thread that does so starts with the first one.
#[derive(Debug, Default)]
pub(crate) struct ShortLived(Mutex<Option<Sender<Entry>>>);

impl ShortLived {
    /// Invalidates an entry that a reply has just given to the kernel.
    pub(crate) fn add(&self, dir: INodeNo, name: OsString, notifier: &Arc<OnceLock<Notifier>>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = entries.get_or_insert_with(|| start(notifier.clone()));
        // Without a thread the kernel keeps the inode until it needs the memory.
        let _ = entries.send((dir, name));
    }
}

/// Starts the thread, which ends with the sender.
fn start(notifier: Arc<OnceLock<Notifier>>) -> Sender<Entry> {
    let (entries, added) = channel();
    let spawned = thread::Builder::new()
        .name("drop-names".into())
        .spawn(move || invalidate(&added, &notifier));
    if let Err(e) = spawned {
        tracing::warn!("closed patchgroups stay for a while: no thread could be started: {e}");
    }
    entries
}

fn invalidate(added: &Receiver<Entry>, notifier: &OnceLock<Notifier>) {
    while let Ok((dir, name)) = added.recv() {
        if let Some(notifier) = notifier.get() {
            // ENOENT: the kernel has dropped it already.
            let _ = notifier.inval_entry(dir, &name);
        }
    }
}
