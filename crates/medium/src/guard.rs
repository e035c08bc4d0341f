//! Memory that only the stores of this crate can change.
//!
//! Guarantees:
//!
//! 1. Memory that a [`Guard`] covers can be neither written nor read by any thread, outside of the time for which
//!    that thread [opens](Guard::open) it. An access kills the process by SIGSEGV (`SEGV_PKUERR`).
//! 2. A handler of a signal has no access either, also if the signal interrupts an open window. The interrupted
//!    code has it again after the handler.
//! 3. A child made by `fork` has the same guard.
//!
//! It is a protection key of the processor, one for all mappings of the process. The kernel denies each thread all
//! keys but the first at its start (a thread inherits the rights of its creator), and each handler of a signal. So
//! a thread that has never opened the guard has no access. It guards against mistakes, not against malice: any
//! code can execute `wrpkru`.

use rustix::io::Errno;
use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The protection key of the process for guarded memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    key: u32,
}

/// The time in which a thread has access to guarded memory; ends when the value is dropped.
pub(crate) struct Window {
    #[cfg(target_arch = "x86_64")]
    denied: u32,
    /// The rights are those of a thread.
    thread: std::marker::PhantomData<*const ()>,
}

/// Whether mappings of stores in programs have a guard against stray stores, as
/// [`MapOptions::guarded`](crate::MapOptions::guarded) requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarding {
    /// They have.
    On,
    /// The variable [`Guarding::VARIABLE`] of the environment is `off`.
    Off,
    /// The processor or the kernel has no protection keys, or the process uses all of them.
    Unavailable,
}

impl Guarding {
    /// The variable that turns the guard off.
    pub const VARIABLE: &str = "SELVEDGE_GUARD";

    /// The guard of programs with this environment on this machine.
    pub fn of_environment() -> Self {
        match std::env::var_os(Self::VARIABLE) {
            Some(value) if value == "off" => Self::Off,
            _ if Guard::of_process().is_some() => Self::On,
            _ => Self::Unavailable,
        }
    }
}

impl fmt::Display for Guarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("a stray store into the store kills the program"),
            Self::Off => write!(f, "no guard against stray stores ({}=off)", Self::VARIABLE),
            Self::Unavailable => {
                f.write_str("no guard against stray stores: this machine has no protection keys")
            }
        }
    }
}

static GUARD: OnceLock<Option<Guard>> = OnceLock::new();

impl Guard {
    /// The guard of this process. `None` if the processor or the kernel has no protection keys, or the program
    /// uses all of them.
    pub(crate) fn of_process() -> Option<Self> {
        *GUARD.get_or_init(imp::allocate)
    }

    /// Covers `len` bytes of memory, which stay readable and writable for threads that open the guard.
    ///
    /// # Errors
    /// The error of `pkey_mprotect(2)`.
    ///
    /// # Safety
    /// The bytes must be a mapping that is accessed through this guard only.
    pub(crate) unsafe fn cover(self, start: NonNull<u8>, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { imp::cover(self.key, start, len) }
    }

    /// Gives this thread access to the memory.
    #[inline]
    pub(crate) fn open(self) -> Window {
        imp::open(self.key)
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod imp {
    use super::{Errno, Guard, NonNull, Window};
    use std::arch::asm;
    use std::marker::PhantomData;

    /// Denies loads, and so stores.
    const DENIED: u32 = 1;
    /// Denies stores.
    const READ_ONLY: u32 = 2;

    pub(super) fn allocate() -> Option<Guard> {
        // SAFETY: the call affects no memory. It fails without protection keys.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, DENIED) };
        let key = u32::try_from(key).ok()?;
        Some(Guard { key })
    }

    pub(super) unsafe fn cover(key: u32, start: NonNull<u8>, len: usize) -> Result<(), Errno> {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the caller vouches for the mapping.
        match unsafe { libc::syscall(libc::SYS_pkey_mprotect, start.as_ptr(), len, both, key) } {
            0 => Ok(()),
            _ => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
            }
        }
    }

    #[inline]
    pub(super) fn open(key: u32) -> Window {
        let mask = (DENIED | READ_ONLY) << (2 * key);
        let denied = rights() | mask;
        set_rights(denied & !mask);
        let thread = PhantomData;
        Window { denied, thread }
    }

    impl Drop for Window {
        #[inline]
        fn drop(&mut self) {
            set_rights(self.denied);
        }
    }

    /// The thread's rights to each key: PKRU.
    #[inline]
    fn rights() -> u32 {
        let rights;
        // SAFETY: a key was allocated, so the processor has the register; the instruction changes only EAX
        // and EDX.
        unsafe {
            asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack, preserves_flags));
        }
        rights
    }

    /// Replaces the thread's rights. The compiler keeps accesses on their side of it, since it may touch memory;
    /// the processor keeps them, too.
    #[inline]
    fn set_rights(rights: u32) {
        // SAFETY: as above. Only the rights to the key of `Guard` change, whose memory has no references.
        unsafe {
            asm!("wrpkru", in("ecx") 0, in("eax") rights, in("edx") 0, options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod imp {
    use super::{Errno, Guard, NonNull, Window};

    pub(super) fn allocate() -> Option<Guard> {
        None
    }

    pub(super) unsafe fn cover(_key: u32, _start: NonNull<u8>, _len: usize) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    #[inline]
    pub(super) fn open(_key: u32) -> Window {
        let thread = std::marker::PhantomData;
        Window { thread }
    }
}
