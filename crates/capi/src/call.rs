//! How calls of C programs run that are, or are part of, a transaction.
//!
//! A call is a part of the transaction that is under way, or one by itself. In the middle of a
//! transaction, what is in its way has the whole transaction run again: then control leaves
//! [`call`] by a jump. Its body has returned by then, so that nothing with a destructor is
//! alive.
//!
//! For each call there is a second symbol, the transactional clone, which gcc calls inside
//! transactions.

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

/// How the names of the library's own roots begin.
const RESERVED: &str = "selvedge.";

/// Why a call does nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Refused(#[from] TxError<Infallible>),
    /// Nobody is told of it: the transaction that is under way runs again.
    #[error(transparent)]
    Interrupted(Interrupted),
    #[error("the address {0:#x} is not in durable memory")]
    Volatile(u64),
    #[error("no place was given for the address of the block")]
    NoPlace,
    #[error("{0} blocks of {1} bytes are more than there can be")]
    TooMuch(usize, usize),
    #[error("the name of a root has 1 to {ROOT_NAME_MAX} bytes of UTF-8")]
    Name,
    #[error("the name {0} is the library's: no other root's begins with {RESERVED:?}")]
    Reserved(String),
    #[error(
        "the root {name} is damaged: it names {at:#x}, where no block is allocated; see \
         'selvedge heap check'"
    )]
    NotThere { name: String, at: u64 },
    #[error("there is no root {0}")]
    NoRoot(String),
    #[error("there are as many roots as there can be")]
    TooManyRoots,
    #[error(
        "no block that is allocated begins at {0:#x}: it was freed already, or never allocated"
    )]
    NoBlock(u64),
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
    #[error("a cursor that no call has made")]
    Cursor,
    /// The answer, of which there is no message.
    #[error("there is none")]
    Nothing,
}

impl CallError {
    /// The errno that comes nearest.
    fn errno(&self) -> c_int {
        match self {
            Self::Start(why) => why.errno(),
            Self::Refused(why) => errno_of(why),
            Self::TooMuch(..) => libc::ENOMEM,
            Self::TooManyRoots => libc::ENOSPC,
            Self::NotThere { .. } => libc::EIO,
            Self::Buffer(_) => libc::EMSGSIZE,
            Self::NoRoot(_) | Self::Nothing => libc::ENOENT,
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

    /// Whether the caller is told of it, and can go on.
    fn is_told(&self, why: HeapError) -> bool {
        match why {
            HeapError::Foreign { .. } | HeapError::NotAllocated { .. } => true,
            // Before that, more room is looked for.
            HeapError::NoSpace { bytes } => self.refused.is_some_and(|least| bytes >= least),
            HeapError::Damaged { .. } | HeapError::Medium(_) => false,
        }
    }

    /// As the caller knows it: by addresses.
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
    /// There must be room for it.
    pub unsafe fn put(&mut self, at: u64, address: u64) -> Result<(), Interrupted> {
        let bytes = address.to_le_bytes();
        if self.depth > 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.store(at, &bytes) };
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
    match done {
        Ok(value) => return value,
        // SAFETY: in a transaction, and the reference is gone.
        Err(CallError::Interrupted(why)) => unsafe { restart(why) },
        Err(CallError::Nothing) => set_errno(CallError::Nothing.errno()),
        Err(why) => report(why.errno(), why),
    }
    otherwise
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

impl Thread {
    /// Finds out that what a root names is there.
    pub fn check_root(
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
