//! Frees what other threads may be using, without a lock in those threads (read-copy-update).
//!
//! Guarantee: a thread that loads a pointer inside a [`Section`] may use its target until the
//! section ends. The thread that frees the target first removes the pointer from where it is
//! loaded, then calls [`synchronize`], and frees only if this returned `Ok`.
//!
//! A section costs two stores to a cache line of the thread's own, and no barrier.
//! `synchronize` makes the other threads pass the missing barrier, with `membarrier(2)`.

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};
use std::time::Duration;

/// The time between two looks at a section that has to end.
const PAUSE: Duration = Duration::from_micros(20);

/// The number of begins and ends of a thread's sections: odd inside a section.
#[repr(align(64))] // A cache line, so that threads do not slow each other down.
struct Reader(AtomicU64);

/// The readers of the process. They are never freed: a new thread takes that of a thread that
/// has ended.
struct Readers {
    all: Vec<&'static Reader>,
    idle: Vec<&'static Reader>,
}

static READERS: Mutex<Readers> = Mutex::new(Readers {
    all: Vec::new(),
    idle: Vec::new(),
});

thread_local! {
    /// This thread's reader, once it has one. Without a destructor, so that it can be used
    /// until the thread ends.
    static READER: Cell<Option<&'static Reader>> = const { Cell::new(None) };
}

/// The key that calls [`leave`] at a thread's end, after the destructors of its variables:
/// these may begin sections, too. `None`: the system has no more keys, and readers are kept
/// forever.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is a valid place for the result.
        let failed = unsafe { libc::pthread_key_create(&mut key, Some(leave)) };
        (failed == 0).then_some(key)
    })
}

/// Returns the thread's reader.
unsafe extern "C" fn leave(_: *mut c_void) {
    if let Some(reader) = READER.take() {
        READERS.lock().idle.push(reader);
    }
}

/// A span in which loaded targets are not freed. Sections do not nest.
pub(crate) struct Section {
    reader: &'static Reader,
    /// A section ends on the thread on which it began.
    _not_send: PhantomData<*const ()>,
}

/// Begins a section of this thread.
#[inline]
pub(crate) fn section() -> Section {
    let reader = READER.get().unwrap_or_else(register);
    let begun = reader.0.load(Relaxed) + 1;
    debug_assert!(!begun.is_multiple_of(2), "a section inside another");
    reader.0.store(begun, Relaxed);
    // In place of a barrier between this store and the loads of the section. If the barrier of
    // `synchronize` comes before those loads, they find the pointer removed. If it comes after
    // this store, `synchronize` finds the section.
    compiler_fence(SeqCst);
    Section {
        reader,
        _not_send: PhantomData,
    }
}

impl Drop for Section {
    #[inline]
    fn drop(&mut self) {
        let ended = self.reader.0.load(Relaxed) + 1;
        self.reader.0.store(ended, Release);
    }
}

#[cold]
fn register() -> &'static Reader {
    let mut readers = READERS.lock();
    let reader = readers.idle.pop().unwrap_or_else(|| {
        let new: &Reader = Box::leak(Box::new(Reader(AtomicU64::new(0))));
        readers.all.push(new);
        new
    });
    drop(readers);
    if let Some(key) = key() {
        // SAFETY: the key is valid; a value that is not null makes the system call `leave`.
        unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(reader).cast()) };
    }
    READER.set(Some(reader));
    reader
}

/// Makes [`barrier`], and so `synchronize`, possible in this process. Must succeed before the
/// first section for which `synchronize` is to wait.
///
/// # Errors
/// The system has no `membarrier(2)`.
pub fn prepare() -> Result<(), Errno> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited)
}

/// Makes every other thread of the process pass a barrier between its earlier and its later
/// accesses.
///
/// # Errors
/// The system refuses, which it does only before [`prepare`].
pub fn barrier() -> Result<(), Errno> {
    membarrier(MembarrierCommand::PrivateExpedited)
}

/// Waits until all sections have ended that may have loaded a pointer removed before the call.
pub(crate) fn synchronize() -> Result<(), Errno> {
    barrier()?;
    // A thread that registers later takes the lock after us, and finds the pointer removed.
    let readers = READERS.lock().all.clone();
    for reader in readers {
        let seen = reader.0.load(Acquire);
        while !seen.is_multiple_of(2) && reader.0.load(Acquire) == seen {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicBool, AtomicPtr};

    /// One thread frees (here: overwrites) what others find and use.
    #[test]
    fn no_thread_uses_freed_memory() {
        prepare().unwrap();
        const SPOILED: u64 = u64::MAX;
        let places: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
        let found = AtomicPtr::new(null_mut::<AtomicU64>());
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !done.load(Relaxed) {
                        let _section = section();
                        // SAFETY: null or one of `places`, which outlive the threads.
                        let Some(place) = (unsafe { found.load(Acquire).as_ref() }) else {
                            continue;
                        };
                        for _ in 0..50 {
                            assert_ne!(place.load(Relaxed), SPOILED);
                        }
                    }
                });
            }
            for round in 0..500 {
                let place = &places[round % 2];
                place.store(round as u64, Relaxed);
                found.store(std::ptr::from_ref(place).cast_mut(), Release);
                std::thread::yield_now();
                found.store(null_mut(), Release);
                synchronize().unwrap();
                place.store(SPOILED, Relaxed);
            }
            done.store(true, Relaxed);
        });
    }

    #[test]
    fn synchronize_waits_for_a_section() {
        prepare().unwrap();
        let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                let section = section();
                begun.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(20));
                ended.store(true, SeqCst);
                drop(section);
            });
            while !begun.load(SeqCst) {
                std::thread::yield_now();
            }
            synchronize().unwrap();
            assert!(ended.load(SeqCst));
        });
    }

    #[test]
    fn readers_of_ended_threads_are_reused() {
        /// Begins a section when the thread ends.
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                drop(section());
            }
        }
        thread_local!(static LATE: Late = const { Late });
        for round in 0..1000 {
            let work = move || {
                // Before the first section, or after it.
                (round % 2 == 0).then(|| LATE.with(|_| ()));
                drop(section());
                LATE.with(|_| ());
            };
            std::thread::spawn(work).join().unwrap();
        }
        assert!(READERS.lock().all.len() < 100);
    }
}
