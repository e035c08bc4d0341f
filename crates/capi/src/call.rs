//! How calls of C programs run that are, or are part of, a transaction.
//!
//! A call is a part of the transaction that is under way, or one by itself. In the middle of a
//! transaction, what is in its way has the whole transaction run again: then control leaves
//! [`Thread::run`] by a jump, and nothing with a destructor may be alive in the frames of the
//! call but in `body`, which has returned.
//!
//! For each call there is a second symbol, the transactional clone, which gcc calls inside
//! transactions.

use crate::message::{report, set_errno};
use crate::program::{self, StartError};
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_char, c_int};
use medium::WORD_BYTES;
use mnemosyne::heap::HeapError;
use mnemosyne::tx::{Interrupted, Space, TxError, Uncommitted};
use std::convert::Infallible;
use std::ffi::CStr;

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
    #[error("the root {name} is no {wanted}")]
    Layout { name: String, wanted: &'static str },
    #[error("no structure begins at {0:#x}")]
    NoStructure(u64),
    #[error("NULL was given for {0} bytes")]
    Null(usize),
    #[error("a byte string has at most 4294967295 bytes, and not {0}")]
    TooLong(usize),
    #[error("{0} bytes are more than the buffer has room for")]
    Buffer(usize),
    #[error("a place that no call has made")]
    Place,
    /// The answer, of which there is no message.
    #[error("there is none")]
    Nothing,
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
            Self::Buffer(_) => libc::EMSGSIZE,
            Self::Nothing => libc::ENOENT,
            Self::Refused(_) => libc::EIO,
            _ => libc::EINVAL,
        }
    }
}

impl Thread {
    /// Runs `body` in the transaction that is under way, or as one.
    pub fn run<T>(
        &mut self,
        mut body: impl FnMut(&mut Self) -> Result<T, Interrupted>,
    ) -> Result<T, CallError> {
        if self.depth > 0 {
            // A lack of room is told, and then must have changed nothing; which is rare.
            let before = self.refused.map(|_| self.session.savepoint());
            let why = match body(self) {
                Ok(value) => return Ok(value),
                Err(why) => why,
            };
            match why {
                Interrupted::Heap(why) if self.is_told(why) => {
                    if let Some(before) = before {
                        self.session.return_to(&before);
                    }
                    return Err(CallError::Refused(why.into()));
                }
                _ => drop(before),
            }
            self.restart(why)
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

    /// Whether the caller is told of it, and can go on.
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
    pub unsafe fn put(&mut self, at: u64, address: u64) -> Result<(), Interrupted> {
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
    pub unsafe fn address_at(&mut self, at: u64) -> Result<u64, Interrupted> {
        let mut bytes = [0; WORD_BYTES as usize];
        if self.is_young(at) {
            // SAFETY: the caller's promise.
            return Ok(unsafe { (at as *const u64).read_unaligned() });
        }
        self.session.tx().read(canonical(at), &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The offset of a durable address.
    pub fn offset(&self, address: u64) -> Result<u64, CallError> {
        let space = self.program.memory.memory().space();
        let off = space.offset(canonical(address));
        off.ok_or(CallError::Volatile(address))
    }
}

/// Runs a call on this thread, and tells why it does nothing.
pub(crate) fn call<T>(otherwise: T, body: impl FnOnce(&mut Thread) -> Result<T, CallError>) -> T {
    let done = program::start()
        .map_err(CallError::from)
        .and_then(|program| {
            // SAFETY: the program called, and is called back only when the reference is not used.
            body(unsafe { Thread::get(program) })
        });
    done.unwrap_or_else(|why| {
        match why {
            CallError::Nothing => set_errno(why.errno()),
            why => report(why.errno(), why),
        }
        otherwise
    })
}

/// A call and its transactional clone, which is the same.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $name:ident / $clone:literal
            ($($argument:ident: $ty:ty),*) -> $result:ty $body:block
    )*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $ty),*) -> $result $body

        const _: () = {
            #[unsafe(export_name = $clone)]
            unsafe extern "C" fn clone($($argument: $ty),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe { $name($($argument),*) }
            }
        };
    )*};
}
pub(crate) use calls;

/// # Safety
/// `name` must be null or a string.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> Result<&'a str, CallError> {
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
