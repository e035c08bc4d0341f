//! Turns SIGBUS on a mapping into an error.
//!
//! A load or store of a lost page raises SIGBUS, which by default ends the process. A page is
//! lost when the file is truncated, its file system is full or the memory is broken.
//! Guarantees:
//!
//! 1. A fault inside a watched mapping marks the mapping as failed, with the offset of the
//!    page, before the faulting access ends. The access itself reaches a page of zeros. A
//!    reader that checks the mark after its access finds the fault.
//! 2. The mark stays.
//! 3. Any other SIGBUS is forwarded to the previous handler, or kills the process.
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
    /// First address of another mapping of the same bytes, or the same address.
    second: AtomicUsize,
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
            second: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            failed_at: AtomicU64::new(INTACT),
        }
    }
}

/// Marks a mapping under watch as failed.
pub struct Marker(&'static Slot);

impl Marker {
    /// Marks the mapping as failed at `off`, as a fault there would. No effect after the watch.
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
    /// Watches `len` bytes at each of two addresses, made of pages of `page` bytes, as one mapping. The addresses
    /// may be the same. `None` if the process watches too many mappings already.
    pub(crate) fn new([start, second]: [*mut u8; 2], len: usize, page: usize) -> Option<Self> {
        let _one_at_a_time = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
        PREVIOUS.get_or_init(install);
        let slot = TABLE.iter().find(|slot| slot.start.load(SeqCst) == 0)?;
        slot.end.store(start as usize + len, SeqCst);
        slot.second.store(second as usize, SeqCst);
        slot.page.store(page, SeqCst);
        slot.failed_at.store(INTACT, SeqCst);
        // Stored last: from here on the handler uses the other fields.
        slot.start.store(start as usize, SeqCst);
        Some(Self(slot))
    }

    /// The error of the first page that failed, if one did.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), MediumError> {
        // The handler runs on the thread whose access faulted. The fence stops the compiler
        // from loading the mark before that access.
        std::sync::atomic::compiler_fence(SeqCst);
        match self.0.failed_at.load(std::sync::atomic::Ordering::Relaxed) {
            INTACT => Ok(()),
            off => Err(MediumError::Unreadable { off }),
        }
    }

    /// A handle that marks the mapping as failed.
    pub(crate) fn marker(&self) -> Marker {
        Marker(self.0)
    }

    /// Ends the watch. Must be called before unmapping, because the addresses may be reused.
    pub(crate) fn end(&mut self) {
        self.0.start.store(0, SeqCst);
    }
}

/// Installs the handler and returns the previous one.
fn install() -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction` (default action, empty mask).
    let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
    let mut ours = previous;
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // The alternate stack, because the previous handler may need it: the standard library's
    // detects stack overflows.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both structures are valid, and `on_sigbus` only makes calls that a handler may
    // make (guarantee 4). Neither call can fail for SIGBUS.
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

/// Marks the mapping around `address` as failed and maps a page of zeros there.
fn recover(address: usize) -> bool {
    for slot in &TABLE {
        let start = slot.start.load(SeqCst);
        let end = slot.end.load(SeqCst);
        let page = slot.page.load(SeqCst);
        let second = slot.second.load(SeqCst);
        // A slot that changes owner meanwhile is not ours: the mapping that faulted is in use
        // and keeps its slot.
        if start == 0 || slot.start.load(SeqCst) != start {
            continue;
        }
        let len = end.saturating_sub(start);
        let mut both = [start, second].into_iter();
        let Some(base) = both.find(|base| address.wrapping_sub(*base) < len) else {
            continue;
        };
        let off = (address - base) / page * page;
        let _ = slot
            .failed_at
            .compare_exchange(INTACT, off as u64, SeqCst, SeqCst);
        // SAFETY: the page belongs to a mapping that is accessed through `Raw` only, which
        // holds no references to it and guarantees nothing about its bytes.
        let replaced = unsafe {
            mmap_anonymous(
                (base + off) as *mut c_void,
                page,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )
        };
        return replaced.is_ok();
    }
    false
}

/// Acts as the process would without this module.
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
