//! Runs the calls of a C program that are a transaction or a part of one.
//!
//! A call is a part of the running transaction. Outside of one, it is a transaction by itself.
//! A conflict inside a transaction runs the whole transaction again: control leaves [`call`] by
//! a jump. The body of the call has returned by then, so no value with a destructor is alive.
//!
//! Each call has a second symbol, the transactional clone, which gcc calls inside transactions.

use crate::errno::errno_of;
use crate::itm::restart;
use crate::message::{report, set_errno};
use crate::program::{self, StartError};
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_char, c_int};
use medium::WORD_BYTES;
use mnemosyne::heap::HeapError;
use mnemosyne::memory::ROOT_NAME_MAX;
use mnemosyne::tx::{Interrupted, Space, TxError, Uncommitted};
use std::convert::Infallible;
use std::ffi::CStr;

/// The prefix of the names of the library's own roots.
const RESERVED: &str = "selvedge.";

/// The reason why a call has no effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Refused(#[from] TxError<Infallible>),
    /// Not reported: the running transaction runs again.
    #[error(transparent)]
    Interrupted(Interrupted),
    #[error("the address {0:#x} is not in durable memory")]
    Volatile(u64),
    #[error("the address of the pointer to the block is NULL")]
    NoPlace,
    #[error("an array of {0} elements of {1} bytes is too large")]
    TooMuch(usize, usize),
    #[error("the name of a root has 1 to {ROOT_NAME_MAX} bytes of UTF-8")]
    Name,
    #[error("the name {0} is the library's: other names do not begin with {RESERVED:?}")]
    Reserved(String),
    #[error(
        "the root {name} is damaged: it names {at:#x}, where no block is allocated; see \
         'selvedge heap check'"
    )]
    NotThere { name: String, at: u64 },
    #[error("there is no root {0}")]
    NoRoot(String),
    #[error("all roots are in use")]
    TooManyRoots,
    #[error(
        "no block that is allocated begins at {0:#x}: it was freed already, or never allocated"
    )]
    NoBlock(u64),
    #[error("the root {name} has {was} bytes, and not {wanted}")]
    Size { name: String, was: u64, wanted: u64 },
    #[error("the root {name} is not a {wanted}")]
    Layout { name: String, wanted: &'static str },
    #[error("no structure begins at {0:#x}")]
    NoStructure(u64),
    #[error("the address of {0} bytes is NULL")]
    Null(usize),
    #[error("a byte string of {0} bytes is too long: the limit is 4294967295")]
    TooLong(usize),
    #[error("the buffer has no room for {0} bytes")]
    Buffer(usize),
    #[error("the cursor is not valid: no call has made it")]
    Cursor,
    /// A result without a message: nothing was found.
    #[error("there is none")]
    Nothing,
}

impl CallError {
    /// The closest errno.
    fn errno(&self) -> c_int {
        match self {
            Self::Start(why) => why.errno(),
            Self::Refused(why) => errno_of(why),
            Self::TooMuch(..) => libc::ENOMEM,
            Self::TooManyRoots => libc::ENOSPC,
            Self::NotThere { .. } => libc::EIO,
            Self::Buffer(_) => libc::EMSGSIZE,
            Self::NoRoot(_) | Self::Nothing => libc::ENOENT,
            Self::Interrupted(_)
            | Self::Volatile(_)
            | Self::NoPlace
            | Self::Name
            | Self::Reserved(_)
            | Self::NoBlock(_)
            | Self::Size { .. }
            | Self::Layout { .. }
            | Self::NoStructure(_)
            | Self::Null(_)
            | Self::TooLong(_)
            | Self::Cursor => libc::EINVAL,
        }
    }
}

impl Thread {
    /// Runs `body` in the running transaction, or as a transaction by itself.
    pub(crate) fn run<T>(
        &mut self,
        mut body: impl FnMut(&mut Self) -> Result<T, Interrupted>,
    ) -> Result<T, CallError> {
        if self.depth > 0 {
            // Rare: the call reports that the heap has no room, and must then change nothing.
            let before = self.refused.map(|_| self.session.savepoint());
            return match body(self) {
                Ok(value) => Ok(value),
                Err(Interrupted::Heap(why)) if self.is_told(why) => {
                    if let Some(before) = before {
                        self.session.return_to(&before);
                    }
                    Err(self.refusal(why.into()))
                }
                Err(why) => Err(CallError::Interrupted(why)),
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
                Ok(Err(Uncommitted::Heap(why))) => Ok(Interrupted::Heap(why)),
                Ok(Err(Uncommitted::Failed(why))) => Err(TxError::Failed(why)),
                Err(why) => Ok(why),
            };
            if matches!(why, Ok(Interrupted::Conflict)) {
                self.session.keep_turn();
            }
            self.session.roll_back();
            let overcome = why.and_then(|why| self.session.overcome(why, attempts));
            overcome.map_err(|why| self.refusal(why))?;
            attempts += 1;
        }
    }

    /// Whether the call returns this as an error, so that the transaction can continue.
    fn is_told(&self, why: HeapError) -> bool {
        match why {
            HeapError::Foreign { .. } | HeapError::NotAllocated { .. } => true,
            // The first time, the transaction runs again after an attempt to grow the heap.
            HeapError::NoSpace { bytes } => self.refused.is_some_and(|least| bytes >= least),
            HeapError::Damaged { .. } | HeapError::Medium(_) => false,
        }
    }

    /// The error with an address of the program in place of an offset.
    fn refusal(&self, why: TxError<Infallible>) -> CallError {
        match why {
            TxError::Heap(HeapError::Foreign { off } | HeapError::NotAllocated { off }) => {
                CallError::NoBlock(self.program.base + off)
            }
            why => CallError::Refused(why),
        }
    }

    /// Stores an address at `at`.
    ///
    /// # Safety
    /// The 8 bytes at `at` must be writable.
    pub(crate) unsafe fn put(&mut self, at: u64, address: u64) -> Result<(), Interrupted> {
        let bytes = address.to_le_bytes();
        if self.depth > 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.store(at, &bytes) };
        }
        // The frame of the caller exists until the commit.
        self.session.tx().write(canonical(at), &bytes)
    }

    /// Loads the address at `at`.
    ///
    /// # Safety
    /// The word must be readable.
    pub(crate) unsafe fn address_at(&mut self, at: u64) -> Result<u64, Interrupted> {
        let mut bytes = [0; WORD_BYTES as usize];
        if self.is_young(at) {
            // SAFETY: the caller's promise.
            return Ok(unsafe { (at as *const u64).read_unaligned() });
        }
        self.session.tx().read(canonical(at), &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The offset of a durable address.
    pub(crate) fn offset(&self, address: u64) -> Result<u64, CallError> {
        let space = self.program.memory.memory().space();
        let off = space.offset(canonical(address));
        off.ok_or(CallError::Volatile(address))
    }
}

/// Runs a call on this thread, and reports its error.
pub(crate) fn call<T>(otherwise: T, body: impl FnOnce(&mut Thread) -> Result<T, CallError>) -> T {
    let done = program::start()
        .map_err(CallError::from)
        .and_then(|program| {
            // SAFETY: the program called; it is called back only while the reference is not used.
            body(unsafe { Thread::get(program) })
        });
    match done {
        Ok(value) => return value,
        // SAFETY: in a transaction, and the reference is not used any more.
        Err(CallError::Interrupted(why)) => unsafe { restart(why) },
        Err(CallError::Nothing) => set_errno(CallError::Nothing.errno()),
        Err(why) => report(why.errno(), why),
    }
    otherwise
}

/// Defines a call and its transactional clone, which calls it.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $name:ident / $clone:literal
            ($($argument:ident: $ty:ty),*) -> $result:ty $body:block
    )*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $ty),*) -> $result $body

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

impl Thread {
    /// Checks that the block that a root names is allocated.
    pub(crate) fn check_root(
        &mut self,
        name: &str,
        off: u64,
    ) -> Result<Result<(), CallError>, Interrupted> {
        let name = name.to_owned();
        let at = self.program.base + off;
        Ok(match self.session.tx().is_block(off)? {
            true => Ok(()),
            false => Err(CallError::NotThere { name, at }),
        })
    }
}

/// The name of a root, which must not be one of the library's own.
///
/// # Safety
/// `name` must be null or a string.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> Result<&'a str, CallError> {
    if name.is_null() {
        return Err(CallError::Name);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let name = name.to_str().map_err(|_| CallError::Name)?;
    match name {
        _ if name.starts_with(RESERVED) => Err(CallError::Reserved(name.to_owned())),
        _ if !(1..=ROOT_NAME_MAX).contains(&name.len()) => Err(CallError::Name),
        _ => Ok(name),
    }
}
