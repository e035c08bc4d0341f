//! The heap and the named roots.
//!
//! Each call is a part of the transaction that is under way, or one by itself. For each there
//! is a second symbol, the transactional clone, which gcc calls inside transactions.
//!
//! Blocks are filled (`pmalloc_set`, `pcalloc`, `prealloc`) by plain stores, which are made
//! durable before the transaction commits: nobody else knows of them until then, and no
//! recovery writes to them. So a block may be larger than a log.

use crate::message::report;
use crate::program::{self, StartError};
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_char, c_int, c_void};
use medium::{Pmem, WORD_BYTES};
use mnemosyne::heap::HeapError;
use mnemosyne::tx::{Interrupted, Space, TxError, Uncommitted};
use std::convert::Infallible;
use std::ffi::CStr;
use std::ptr::null_mut;

/// Bytes that are copied at a time.
const CHUNK: usize = 1024;

/// Why a call does nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Refused(#[from] TxError<Infallible>),
    #[error("the address {0:#x} is not in durable memory")]
    Volatile(u64),
    #[error("no place was given for the address of the block")]
    NoPlace,
    #[error("{0} blocks of {1} bytes are more than there can be")]
    TooMuch(usize, usize),
    #[error("the name of a root is too long, empty, or no text, or there are too many roots")]
    Name,
    #[error("the root {name} has {was} bytes, and not {wanted}")]
    Size { name: String, was: u64, wanted: u64 },
}

impl CallError {
    /// The errno that comes nearest.
    fn errno(&self) -> c_int {
        match self {
            Self::Start(why) => why.errno(),
            Self::Refused(TxError::Heap(HeapError::NoSpace { .. }) | TxError::Growth { .. })
            | Self::TooMuch(..) => libc::ENOMEM,
            Self::Refused(TxError::Heap(
                HeapError::Foreign { .. } | HeapError::NotAllocated { .. },
            )) => libc::EINVAL,
            Self::Refused(TxError::TooLong { .. }) => libc::E2BIG,
            Self::Refused(_) => libc::EIO,
            _ => libc::EINVAL,
        }
    }
}

impl Thread {
    /// Runs `body` in the transaction that is under way, or as one.
    fn run<T>(
        &mut self,
        mut body: impl FnMut(&mut Self) -> Result<T, Interrupted>,
    ) -> Result<T, CallError> {
        if self.depth > 0 {
            return match body(self) {
                Ok(value) => Ok(value),
                Err(Interrupted::Heap(why)) if self.is_told(why) => {
                    Err(CallError::Refused(why.into()))
                }
                Err(why) => self.restart(why),
            };
        }
        let mut attempts = 0;
        loop {
            self.session.begin().map_err(TxError::Failed)?;
            let step = body(self);
            let step = step.map(|value| self.session.commit().map(|()| value));
            let why = match step {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(Uncommitted::Conflict)) => Ok(Interrupted::Conflict),
                Ok(Err(Uncommitted::TooLong { words, most })) => {
                    Err(TxError::TooLong { words, most })
                }
                Ok(Err(Uncommitted::Failed(why))) => Err(TxError::Failed(why)),
                Err(why) => Ok(why),
            };
            self.session.roll_back();
            self.session.overcome(why?, attempts)?;
            attempts += 1;
        }
    }

    /// Whether the caller is told of it, and can go on; it has changed nothing.
    fn is_told(&self, why: HeapError) -> bool {
        match why {
            HeapError::Foreign { .. } | HeapError::NotAllocated { .. } => true,
            // Before that, more room is looked for.
            HeapError::NoSpace { bytes } => self.refused.is_some_and(|least| bytes >= least),
            HeapError::Damaged { .. } | HeapError::Medium(_) => false,
        }
    }

    /// Stores an address at `at`.
    ///
    /// # Safety
    /// There must be room for it.
    unsafe fn put(&mut self, at: u64, address: u64) -> Result<(), Interrupted> {
        let bytes = address.to_le_bytes();
        if self.depth > 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.try_store(at, &bytes) };
        }
        // Our callers' frames stay until the commit.
        self.session.tx().write(canonical(at), &bytes)
    }

    /// Loads the address at `at`.
    ///
    /// # Safety
    /// It must be there.
    unsafe fn address_at(&mut self, at: u64) -> Result<u64, Interrupted> {
        let mut bytes = [0; WORD_BYTES as usize];
        if self.is_young(at) {
            // SAFETY: the caller's promise.
            return Ok(unsafe { (at as *const u64).read_unaligned() });
        }
        self.session.tx().read(canonical(at), &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The offset of a durable address.
    fn offset(&self, address: u64) -> Result<u64, CallError> {
        let space = self.program.memory.memory().space();
        let off = space.offset(canonical(address));
        off.ok_or(CallError::Volatile(address))
    }

    /// A new block, which `fill` fills, given where it is.
    fn alloc(
        &mut self,
        len: u64,
        place: u64,
        mut fill: impl FnMut(&mut Self, u64) -> Result<(), Interrupted>,
    ) -> Result<u64, CallError> {
        let base = self.program.base;
        self.run(|thread| {
            let off = thread.session.tx().alloc(len.max(1))?;
            fill(thread, off)?;
            if place != 0 {
                // SAFETY: the program gave this place.
                unsafe { thread.put(place, base + off) }?;
            }
            Ok(base + off)
        })
    }

    /// Fills a block that this transaction allocated, durably.
    fn fill(&mut self, off: u64, len: u64, byte: u8) -> Result<(), Interrupted> {
        let pm = self.program.memory.memory().space().pmem();
        let bytes = [byte; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let part = (len - at).min(CHUNK as u64);
            pm.store_nt(off + at, &bytes[..part as usize]);
        }
        // Data before commit.
        Ok(pm.fence()?)
    }

    /// Copies a block into one that this transaction allocated, durably.
    fn fill_from(&mut self, from: u64, to: u64, len: u64) -> Result<(), Interrupted> {
        let program = self.program;
        let pm = program.memory.memory().space().pmem();
        let mut bytes = [0; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let part = &mut bytes[..(len - at).min(CHUNK as u64) as usize];
            self.session.tx().read(program.base + from + at, part)?;
            pm.store_nt(to + at, part);
        }
        // Data before commit.
        Ok(pm.fence()?)
    }
}

/// Runs a call on this thread, and tells why it does nothing.
fn call<T>(otherwise: T, body: impl FnOnce(&mut Thread) -> Result<T, CallError>) -> T {
    let done = program::start()
        .map_err(CallError::from)
        .and_then(|program| {
            // SAFETY: the program called, and is called back only when the reference is not used.
            body(unsafe { Thread::get(program) })
        });
    done.unwrap_or_else(|why| {
        report(why.errno(), why);
        otherwise
    })
}

/// A call and its transactional clone, which is the same.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $name:ident / $clone_name:ident = $clone:literal
            ($($argument:ident: $ty:ty),*) -> $result:ty $body:block
    )*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $ty),*) -> $result $body

        $(#[$doc])*
        #[unsafe(export_name = $clone)]
        pub unsafe extern "C" fn $clone_name($($argument: $ty),*) -> $result {
            // SAFETY: the caller's promise.
            unsafe { $name($($argument),*) }
        }
    )*};
}

calls! {
    /// Allocates a block, whose address is stored at `place` with the same transaction.
    selvedge_pmalloc / pmalloc_clone = "_ZGTt16selvedge_pmalloc"
        (len: usize, place: *mut c_void) -> *mut c_void
    {
        call(null_mut(), |thread| {
            let block = thread.alloc(len as u64, place as u64, |_, _| Ok(()))?;
            Ok(block as *mut c_void)
        })
    }

    /// The same, with all its bytes set.
    selvedge_pmalloc_set / pmalloc_set_clone = "_ZGTt20selvedge_pmalloc_set"
        (len: usize, place: *mut c_void, byte: c_int) -> *mut c_void
    {
        call(null_mut(), |thread| {
            let len = len as u64;
            let block = thread.alloc(len, place as u64, |t, off| t.fill(off, len, byte as u8))?;
            Ok(block as *mut c_void)
        })
    }

    /// The same, for an array of zeros.
    selvedge_pcalloc / pcalloc_clone = "_ZGTt16selvedge_pcalloc"
        (count: usize, len: usize, place: *mut c_void) -> *mut c_void
    {
        match count.checked_mul(len) {
            // SAFETY: the caller's promise.
            Some(len) => unsafe { selvedge_pmalloc_set(len, place, 0) },
            None => call(null_mut(), |_| Err(CallError::TooMuch(count, len))),
        }
    }

    /// Makes the block whose address is at `place` larger or smaller; it may move.
    selvedge_prealloc / prealloc_clone = "_ZGTt17selvedge_prealloc"
        (len: usize, place: *mut c_void) -> *mut c_void
    {
        call(null_mut(), |thread| resize(thread, len as u64, place as u64))
    }

    /// Frees the block whose address is at `place`, and stores null there. 0 or -1.
    selvedge_pfree / pfree_clone = "_ZGTt14selvedge_pfree"
        (place: *mut c_void) -> c_int
    {
        call(-1, |thread| {
            if place.is_null() {
                return Err(CallError::NoPlace);
            }
            thread.run(|thread| {
                // SAFETY: the program gave this place.
                let block = unsafe { thread.address_at(place as u64) }?;
                if block == 0 {
                    return Ok(Ok(0));
                }
                let off = match thread.offset(block) {
                    Ok(off) => off,
                    Err(why) => return Ok(Err(why)),
                };
                thread.session.tx().free(off)?;
                // SAFETY: as above.
                unsafe { thread.put(place as u64, 0) }?;
                Ok(Ok(0))
            })?
        })
    }

    /// Bytes of a block: at least what was asked for. 0: it is none.
    selvedge_pmalloc_usable_size / usable_size_clone = "_ZGTt28selvedge_pmalloc_usable_size"
        (block: *const c_void) -> usize
    {
        call(0, |thread| {
            let off = thread.offset(block as u64)?;
            let len = thread.run(|thread| thread.session.tx().size_of(off))?;
            Ok(len as usize)
        })
    }

    /// The root of a name, of `len` bytes; zeros if there was none. Of length 0: null if there
    /// is none.
    selvedge_root / root_clone = "_ZGTt13selvedge_root"
        (name: *const c_char, len: usize) -> *mut c_void
    {
        call(null_mut(), |thread| root(thread, name, len as u64))
    }

    /// Frees the root of a name. 0, or -1: there is none.
    selvedge_root_remove / root_remove_clone = "_ZGTt20selvedge_root_remove"
        (name: *const c_char) -> c_int
    {
        call(-1, |thread| {
            // SAFETY: the program gave a string.
            let name = unsafe { text(name) }?;
            let is_removed = thread.run(|thread| {
                let mut tx = thread.session.tx();
                let Some((_, off)) = tx.root(name)? else {
                    return Ok(false);
                };
                tx.free(off)?;
                tx.remove_root(name)
            })?;
            is_removed.then_some(0).ok_or(CallError::Name)
        })
    }
}

/// # Safety
/// `name` must be null or a string.
unsafe fn text<'a>(name: *const c_char) -> Result<&'a str, CallError> {
    if name.is_null() {
        return Err(CallError::Name);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let name = name.to_str().map_err(|_| CallError::Name)?;
    // The library's own begin so.
    let is_ours = name.starts_with("selvedge.");
    (!is_ours && !name.is_empty())
        .then_some(name)
        .ok_or(CallError::Name)
}

fn root(thread: &mut Thread, name: *const c_char, len: u64) -> Result<*mut c_void, CallError> {
    // SAFETY: the program gave a string.
    let name = unsafe { text(name) }?;
    let found = thread.run(|thread| {
        if let Some((was, off)) = thread.session.tx().root(name)? {
            return Ok(Some((was, off)));
        }
        if len == 0 {
            return Ok(Some((0, 0)));
        }
        let off = thread.session.tx().alloc(len)?;
        thread.fill(off, len, 0)?;
        let mut tx = thread.session.tx();
        if tx.set_root(name, len, off)? {
            return Ok(Some((len, off)));
        }
        tx.free(off)?;
        Ok(None)
    })?;
    match found {
        None => Err(CallError::Name),
        Some((_, 0)) => Ok(null_mut()),
        Some((was, off)) if len == 0 || was == len => {
            Ok((thread.program.base + off) as *mut c_void)
        }
        Some((was, _)) => {
            let (name, wanted) = (name.to_owned(), len);
            Err(CallError::Size { name, was, wanted })
        }
    }
}

fn resize(thread: &mut Thread, len: u64, place: u64) -> Result<*mut c_void, CallError> {
    if place == 0 {
        return Err(CallError::NoPlace);
    }
    let base = thread.program.base;
    thread.run(|thread| {
        // SAFETY: the program gave this place.
        let block = unsafe { thread.address_at(place) }?;
        let mut was = 0;
        let mut old = None;
        if block != 0 {
            let off = match thread.offset(block) {
                Ok(off) => off,
                Err(why) => return Ok(Err(why)),
            };
            was = thread.session.tx().size_of(off)?;
            // Half of it is not worth a copy.
            if len <= was && len >= was / 2 {
                return Ok(Ok(block as *mut c_void));
            }
            old = Some(off);
        }
        let new = thread.session.tx().alloc(len.max(1))?;
        if let Some(old) = old {
            thread.fill_from(old, new, len.min(was))?;
            thread.session.tx().free(old)?;
        }
        // SAFETY: as above.
        unsafe { thread.put(place, base + new) }?;
        Ok(Ok((base + new) as *mut c_void))
    })?
}
