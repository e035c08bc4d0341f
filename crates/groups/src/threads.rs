//! The processes of threads that make calls, without a search at each call.

use crate::processes::{Process, Processes};
use lru::LruCache;
use parking_lot::Mutex;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use vfs::Result;

/// Number of threads to remember. Each takes a file descriptor.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// The threads that made the last calls.
#[derive(Debug)]
pub(crate) struct Threads(Mutex<LruCache<u32, Known>>);

/// A thread and its process. A read of `name` fails once the thread has ended, also if another one
/// gets its number.
#[derive(Debug)]
struct Known {
    name: File,
    process: Process,
}

impl Default for Threads {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Threads {
    /// The process of a thread.
    pub(crate) fn process(&self, tid: u32, processes: &impl Processes) -> Result<Process> {
        let mut threads = self.0.lock();
        if let Some(known) = threads.get(&tid)
            && known.name.read_at(&mut [0; 32], 0).is_ok()
        {
            return Ok(known.process);
        }
        // The file is opened first: if the id is used again in between, the next read fails.
        let name = File::open(format!("/proc/{tid}/comm"));
        let process = processes.of_thread(tid)?;
        if let Ok(name) = name {
            threads.put(tid, Known { name, process });
        }
        Ok(process)
    }
}
