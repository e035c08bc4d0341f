//! Frees what other threads may be using without asking them to lock it
//! (read-copy-update).
//!
//! Guarantee: a thread that loads a pointer inside a [`Section`] may use what it points
//! to until the section ends, if whoever frees that first takes the pointer away from
//! where it is loaded, and then calls [`synchronize`], and frees only if this returned
//! `Ok`.
//!
//! A section costs two stores to a cache line of the thread's own and no barrier: the
//! one that is missing is put into the other threads by `synchronize`, with
//! `membarrier(2)`.

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

/// The time from one look at a section that has to end to the next.
const PAUSE: Duration = Duration::from_micros(20);

/// How many sections a thread has begun and ended: odd while it is in one.
#[repr(align(64))] // A cache line, so that threads do not slow each other down.
struct Reader(AtomicU64);

/// The readers of the process. They are never freed, but given to new threads once
/// theirs have ended.
struct Readers {
    all: Vec<&'static Reader>,
    idle: Vec<&'static Reader>,
}

static READERS: Mutex<Readers> = Mutex::new(Readers {
    all: Vec::new(),
    idle: Vec::new(),
});

thread_local! {
    /// This thread's reader, once it has one. Without a destructor: it is reached as long as
    /// the thread runs.
    static READER: Cell<Option<&'static Reader>> = const { Cell::new(None) };
}

/// Has [`leave`] called when a thread ends, behind the destructors of its variables: they may
/// begin sections, too. `None`: the system has no more keys, and readers are kept for ever.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is there to be written to.
        let failed = unsafe { libc::pthread_key_create(&mut key, Some(leave)) };
        (failed == 0).then_some(key)
    })
}

/// Gives the thread's reader back.
unsafe extern "C" fn leave(_: *mut c_void) {
    if let Some(reader) = READER.take() {
        READERS.lock().idle.push(reader);
    }
}

/// What is reached inside it stays. Sections do not nest.
pub(crate) struct Section {
    reader: &'static Reader,
    /// It ends on the thread on which it began.
    _not_send: PhantomData<*const ()>,
}

/// Begins a section of this thread.
#[inline]
pub(crate) fn section() -> Section {
    let reader = READER.get().unwrap_or_else(register);
    let begun = reader.0.load(Relaxed) + 1;
    debug_assert!(!begun.is_multiple_of(2), "a section inside another");
    reader.0.store(begun, Relaxed);
    // Stands for a barrier between this store and the loads of the section: either the
    // one of `synchronize` comes before those loads, which then find the pointer gone,
    // or it comes after this store, which `synchronize` then sees.
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
        // SAFETY: the key is valid; that the value is not null has `leave` called.
        unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(reader).cast()) };
    }
    READER.set(Some(reader));
    reader
}

/// Makes [`barrier`], and so `synchronize`, possible in this process. To be called, with
/// success, before what `synchronize` is to wait for.
///
/// # Errors
/// The system has no `membarrier(2)`.
pub fn prepare() -> Result<(), Errno> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited)
}

/// Has every other thread of the process pass a barrier between its accesses before and those
/// after.
///
/// # Errors
/// The system refuses, which it does only before [`prepare`].
pub fn barrier() -> Result<(), Errno> {
    membarrier(MembarrierCommand::PrivateExpedited)
}

/// Waits until all sections have ended that may have found what was taken away before
/// the call.
pub(crate) fn synchronize() -> Result<(), Errno> {
    barrier()?;
    // A thread that registers after this has taken the lock after us, and finds what
    // we took away gone.
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

    /// One thread frees (here: spoils) what others find and use.
    #[test]
    fn nobody_uses_what_was_freed() {
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
    fn threads_that_ended_leave_their_readers_to_others() {
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
                // Before the first section, or behind it.
                (round % 2 == 0).then(|| LATE.with(|_| ()));
                drop(section());
                LATE.with(|_| ());
            };
            std::thread::spawn(work).join().unwrap();
        }
        assert!(READERS.lock().all.len() < 100);
    }
}
