//! Turns SIGBUS on a mapping into an error.
//!
//! A load or store of a mapped page that is no longer there (the file was truncated,
//! its file system is full, the memory is broken) raises SIGBUS, which ends a process
//! by default. Guarantees:
//!
//! 1. A fault inside a watched mapping marks the mapping as failed, with the offset
//!    of the page, before the access that faulted ends; the access itself meets a
//!    page of zeros. Whoever reads the mark after an access learns of the fault.
//! 2. The mark stays.
//! 3. Any other SIGBUS goes to the handler that was there before, or kills.
//! 4. The handler only loads and stores atomics and makes system calls.

use crate::MediumError;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Mappings that one process can watch at a time.
pub(crate) const SLOTS: usize = 2048;
/// No page of the mapping has failed.
const INTACT: u64 = u64::MAX;

static TABLE: [Slot; SLOTS] = [const { Slot::free() }; SLOTS];
/// Serialises registration; the handler does not take it.
static REGISTRATION: Mutex<()> = Mutex::new(());
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

struct Slot {
    /// First address; 0 while the slot is free.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Bytes that fail and are replaced together: the page size of the mapping.
    page: AtomicUsize,
    /// Offset in the mapping of the first page that failed, or `INTACT`.
    failed_at: AtomicU64,
}

impl Slot {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            failed_at: AtomicU64::new(INTACT),
        }
    }
}

/// Marks a mapping under watch as failed.
pub struct Marker(&'static Slot);

impl Marker {
    /// Marks it as failed at `off`, as a fault there would. Not after the end of the watch.
    pub fn fail(&self, off: u64) {
        let _ = self
            .0
            .failed_at
            .compare_exchange(INTACT, off, SeqCst, SeqCst);
    }
}

/// A mapping under watch until [`end`](Watch::end).
pub(crate) struct Watch(&'static Slot);

impl Watch {
    /// Watches `len` bytes at `start`, made of pages of `page` bytes. `None` if the
    /// process watches too many mappings already.
    pub(crate) fn new(start: *mut u8, len: usize, page: usize) -> Option<Self> {
        let _one_at_a_time = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
        PREVIOUS.get_or_init(install);
        let slot = TABLE.iter().find(|slot| slot.start.load(SeqCst) == 0)?;
        slot.end.store(start as usize + len, SeqCst);
        slot.page.store(page, SeqCst);
        slot.failed_at.store(INTACT, SeqCst);
        // Last: from here on the handler believes the rest.
        slot.start.store(start as usize, SeqCst);
        Some(Self(slot))
    }

    /// The error of the first page that failed, if one did.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), MediumError> {
        // The handler runs on the thread whose access faulted. Keep the compiler
        // from loading the mark before that access.
        std::sync::atomic::compiler_fence(SeqCst);
        match self.0.failed_at.load(std::sync::atomic::Ordering::Relaxed) {
            INTACT => Ok(()),
            off => Err(MediumError::Unreadable { off }),
        }
    }

    /// What marks the mapping as failed.
    pub(crate) fn marker(&self) -> Marker {
        Marker(self.0)
    }

    /// Ends the watch. To be called before unmapping: the addresses may become
    /// somebody else's.
    pub(crate) fn end(&mut self) {
        self.0.start.store(0, SeqCst);
    }
}

/// Installs the handler and returns the one that was there before.
fn install() -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction` (default action, empty mask).
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    let mut ours = previous;
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // On the alternate stack, because the previous handler may need to be there (the
    // standard library's looks for stack overflows).
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both structures are valid, and `on_sigbus` is a handler that does only
    // what a handler may (guarantee 4). Neither call can fail for SIGBUS.
    unsafe {
        libc::sigaction(libc::SIGBUS, null(), &mut previous);
        libc::sigaction(libc::SIGBUS, &ours, null_mut());
    }
    previous
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler; for a
    // SIGBUS that the kernel raised (code above 0) it holds the address.
    let (by_kernel, address) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    if !(by_kernel && recover(address)) {
        forward(signal, info, context, by_kernel);
    }
}

/// Marks the mapping around `address` and puts a page of zeros there.
fn recover(address: usize) -> bool {
    for slot in &TABLE {
        let start = slot.start.load(SeqCst);
        let end = slot.end.load(SeqCst);
        let page = slot.page.load(SeqCst);
        // A slot that changes hands while we look is not ours: the mapping that
        // faulted is in use and keeps its slot.
        if start == 0 || address < start || address >= end || slot.start.load(SeqCst) != start {
            continue;
        }
        let off = (address - start) / page * page;
        let _ = slot
            .failed_at
            .compare_exchange(INTACT, off as u64, SeqCst, SeqCst);
        // SAFETY: the page belongs to a mapping that is reached through `Raw` only,
        // which holds no references to it and promises nothing about its bytes.
        let replaced = unsafe {
            mmap_anonymous(
                (start + off) as *mut c_void,
                page,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        return replaced.is_ok();
    }
    false
}

/// Does what would have happened without this module.
fn forward(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, by_kernel: bool) {
    let previous = PREVIOUS.get();
    let action = previous.map_or(libc::SIG_DFL, |p| p.sa_sigaction);
    let flags = previous.map_or(0, |p| p.sa_flags);
    match action {
        libc::SIG_IGN if !by_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: both calls are async-signal-safe. The signal is blocked in
            // here, so it kills once the handler returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: the action was installed with SA_SIGINFO, so it is such a function.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the action was installed without SA_SIGINFO and is neither
            // default nor ignore, so it is a function of the signal number.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}
