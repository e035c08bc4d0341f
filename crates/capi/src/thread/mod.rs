//! The state that a thread has for transactions.
//!
//! # Where stores go
//!
//! The session holds a store back until the commit, with two exceptions.
//!
//! The first is the thread's own stack. Its frames come and go while a transaction runs, so
//! that a store that is held back could later hit another frame.
//!
//! - A store to a frame that is younger than the begin of the transaction happens at once. No
//!   other thread has its address, and the frame is gone when the transaction begins again.
//! - A store to an older frame happens at once too, but under the locks of its words and with
//!   an undo record: other threads may have been given the address.
//!
//! The second is memory that the transaction itself has allocated. Stores to it happen at
//! once, since nothing leads to the block before the commit. For durable memory this keeps
//! the contents out of the log: they are written back before the commit record. If the
//! transaction does not commit, the block stays unreachable.
//!
//! Memory that the compiler logs (`_ITM_L*`) before it stores to it itself has an undo record
//! and no lock: the compiler does so only for memory of this thread.

pub(crate) mod actions;
pub(crate) mod exceptions;
pub(crate) mod fresh;
pub(crate) mod jump;

use crate::fatal::die;
use crate::program::Program;
use crate::space::Session;
use actions::Actions;
use exceptions::Exceptions;
use fresh::Fresh;
use jump::JumpBuffer;
use mnemosyne::memory::Savepoint;
use std::arch::{asm, global_asm};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The state of a thread.
pub(crate) struct Thread {
    pub program: &'static Program,
    pub session: Session,
    /// The number of nested transactions that are running.
    pub depth: u32,
    /// The outermost transaction, and the inner ones that can be cancelled by themselves.
    pub levels: Vec<Level>,
    /// The buffer of a jump that is running.
    pub landing: JumpBuffer,
    /// The open calls of `selvedge_try`, the latest last.
    pub tries: Vec<JumpBuffer>,
    /// The number of failed attempts of the transaction.
    pub attempts: u32,
    /// The least number of bytes for which the heap had no room in this transaction.
    pub refused: Option<u64>,
    /// The id of the transaction.
    pub id: u64,
    /// The number of ids of this thread's transactions.
    pub ids: u64,
    /// The number of the thread.
    pub number: u32,
    pub undo: Undo,
    /// Volatile memory that the transaction allocated.
    pub fresh: Fresh,
    /// Blocks of durable memory that the transaction allocated.
    pub blocks: Fresh,
    pub actions: Actions,
    pub exceptions: Exceptions,
    /// The stack address at which the outermost transaction began: frames below are younger.
    outer: u64,
    /// The stack address at which the innermost transaction of `levels` began.
    inner: u64,
    /// The end of the stack that the transaction runs on.
    stack_end: u64,
    /// First address and end of the thread's own stack.
    own_stack: (u64, u64),
}

/// A transaction that can be cancelled or run again.
pub(crate) struct Level {
    pub jump: JumpBuffer,
    /// The number of transactions around it.
    pub depth: u32,
    /// The state at its begin, for an inner transaction.
    pub before: Option<Before>,
}

/// The state at the begin of an inner transaction.
pub(crate) struct Before {
    pub savepoint: Savepoint,
    pub undo: usize,
    pub fresh: u64,
    pub blocks: u64,
    pub actions: actions::Mark,
    pub exceptions: exceptions::Mark,
    pub id: u64,
}

/// The destination of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Memory, at once: the frame ends with the transaction.
    Young,
    /// Memory, at once, with an undo record for the cancel of an inner transaction.
    Middle,
    /// Memory, at once, under the locks of its words and with an undo record.
    Old,
    /// The session.
    Elsewhere,
}

// The pointer to the thread's state, which every load and store needs. Assembly selects a TLS model
// without a call, in a shared library too.
global_asm!(
    ".pushsection .tbss.selvedge_thread, \"awT\", @nobits",
    ".balign 8",
    ".globl selvedge_thread",
    ".hidden selvedge_thread",
    ".type selvedge_thread, @tls_object",
    ".size selvedge_thread, 8",
    "selvedge_thread:",
    ".zero 8",
    ".popsection",
);

/// The pointer to this thread's state, or null. Its offset is fixed when the program is loaded.
#[inline(always)]
fn pointer() -> *mut Thread {
    let thread;
    // SAFETY: loads this thread's variable.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + selvedge_thread@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) thread,
            options(nostack, preserves_flags, readonly),
        );
    }
    thread
}

fn set_pointer(thread: *mut Thread) {
    // SAFETY: stores this thread's variable.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + selvedge_thread@GOTTPOFF]",
            "mov qword ptr fs:[{0}], {1}",
            out(reg) _,
            in(reg) thread,
            options(nostack, preserves_flags),
        );
    }
}

/// The stack pointer of this function's caller, into which it is inlined.
#[inline(always)]
pub(crate) fn stack_pointer() -> u64 {
    let here;
    // SAFETY: reads a register.
    unsafe { asm!("mov {0}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    here
}

impl Thread {
    /// The state of this thread, which runs a transaction.
    ///
    /// # Safety
    /// No other reference from here or [`get`](Self::get) may be in use. A function that the program
    /// calls takes one, and drops it before code of the program runs.
    #[inline(always)]
    pub(crate) unsafe fn running<'a>() -> &'a mut Self {
        // SAFETY: null, or the state that `make` stored, which the end of the thread frees; the
        // rest is the caller's promise.
        match unsafe { pointer().as_mut() } {
            Some(thread) => thread,
            None => die("transactional code runs outside of a transaction"),
        }
    }

    /// The state of this thread, if it has one.
    ///
    /// # Safety
    /// As [`running`](Self::running).
    #[inline(always)]
    pub(crate) unsafe fn current<'a>() -> Option<&'a mut Self> {
        // SAFETY: as in `running`.
        unsafe { pointer().as_mut() }
    }

    /// The state of this thread, which is made if there is none.
    ///
    /// # Safety
    /// As [`running`](Self::running).
    #[inline(always)]
    pub(crate) unsafe fn get<'a>(program: &'static Program) -> &'a mut Self {
        // SAFETY: as in `running`.
        match unsafe { pointer().as_mut() } {
            Some(thread) => thread,
            // SAFETY: `make` returns a valid pointer; the rest is the caller's promise.
            None => unsafe { &mut *make(program) },
        }
    }

    /// Records the begin of a transaction that can be cancelled or run again.
    pub(crate) fn push_level(&mut self, level: Level) {
        let cfa = level.jump.cfa;
        if self.levels.is_empty() {
            let (start, end) = self.own_stack;
            // The end of a stack that the program made is not known; `cfa` stands for it.
            self.stack_end = if (start..end).contains(&cfa) {
                end
            } else {
                cfa
            };
            self.outer = cfa;
        }
        self.inner = cfa;
        self.levels.push(level);
    }

    /// Removes the innermost level.
    pub(crate) fn pop_level(&mut self) -> Option<Level> {
        let level = self.levels.pop();
        self.inner = self.levels.last().map_or(0, |level| level.jump.cfa);
        level
    }

    /// Removes all levels.
    pub(crate) fn clear_levels(&mut self) {
        self.levels.clear();
        (self.inner, self.outer, self.stack_end) = (0, 0, 0);
    }

    /// Whether a begin at `here` shows that the program has left the running transaction, by
    /// `longjmp` for example: `here` is in an older frame, or is the same begin again.
    pub(crate) fn was_left(&self, here: &JumpBuffer) -> bool {
        let is_older = here.cfa > self.outer && here.cfa <= self.stack_end;
        let outermost = self.levels.first();
        is_older || outermost.is_some_and(|level| level.jump.is_place_of(here))
    }

    /// Whether `at` is in a frame younger than the transaction. Only this thread uses it, and the
    /// session has no stores to it.
    #[inline(always)]
    pub(crate) fn is_young(&self, at: u64) -> bool {
        at >= stack_pointer() && at < self.outer
    }

    #[inline(always)]
    fn target(&self, at: u64) -> Target {
        if at < stack_pointer() || at >= self.stack_end {
            Target::Elsewhere
        } else if at < self.inner {
            Target::Young
        } else if at < self.outer {
            Target::Middle
        } else {
            Target::Old
        }
    }

    /// Prepares a store of `len` bytes at `at` in place. Returns `false` if the store belongs to the
    /// session.
    ///
    /// # Errors
    /// [`Interrupted`](mnemosyne::tx::Interrupted).
    ///
    /// # Safety
    /// The bytes must be readable.
    #[inline(always)]
    pub(crate) unsafe fn is_stored_at_once(
        &mut self,
        at: u64,
        len: usize,
    ) -> Result<bool, mnemosyne::tx::Interrupted> {
        match self.target(at) {
            Target::Elsewhere if !self.fresh.has(at, len) => return Ok(false),
            // The cancel of an inner transaction undoes its stores to memory allocated before it.
            Target::Elsewhere if self.levels.len() > 1 => self.note(at, len),
            Target::Elsewhere => {}
            Target::Young => {}
            Target::Middle => self.note(at, len),
            Target::Old => {
                for word in (at & !7..at + len as u64).step_by(8) {
                    self.session.tx().lock(word)?;
                }
                self.note(at, len);
            }
        }
        Ok(true)
    }

    /// Whether the bytes are in a durable block that the transaction allocated. Loads and stores
    /// access it in place.
    #[inline(always)]
    pub(crate) fn is_own_block(&self, at: u64, len: usize) -> bool {
        self.blocks.has(at, len)
    }

    /// Stores bytes to a block that the transaction allocated, without a log.
    pub(crate) fn fill(&mut self, at: u64, bytes: &[u8]) {
        // The cancel of an inner transaction restores the old bytes by plain stores.
        let is_inner = self.levels.len() > 1;
        if is_inner {
            self.note(at, bytes.len());
        }
        let off = at - self.program.base;
        self.session.tx().store_in_own(off, bytes, is_inner);
    }

    /// Makes an undo record for bytes before a store in place.
    fn note(&mut self, at: u64, len: usize) {
        let before = self.levels.last().and_then(|level| level.before.as_ref());
        let since = before.map_or(0, |before| before.undo);
        self.undo.note(at, len, since);
    }

    /// Removes the records of memory that the transaction allocated and has freed.
    pub(crate) fn memory_freed(&mut self, block: u64) {
        if let Some(len) = self.fresh.remove(block) {
            self.undo.forget(block, len);
        }
    }

    /// Makes an undo record for bytes before the compiler changes them.
    ///
    /// # Safety
    /// The bytes must be readable.
    pub(crate) unsafe fn note_old(&mut self, at: u64, len: usize) {
        if self.target(at) != Target::Young {
            self.note(at, len);
        }
    }
}

/// The old values of bytes that were changed in place.
#[derive(Default)]
pub(crate) struct Undo {
    /// The address of each range, and its index in `bytes`.
    ranges: Vec<(u64, usize)>,
    bytes: Vec<u8>,
    /// By address and length: the index of the range recorded last.
    noted: HashMap<(u64, usize), usize>,
}

/// The address of a range whose memory was freed.
const GONE: u64 = 0;

impl Undo {
    /// Records `len` bytes at `at`, unless one of the ranges from `since` on is the same.
    fn note(&mut self, at: u64, len: usize, since: usize) {
        let next = self.ranges.len();
        let last = self.noted.entry((at, len)).or_insert(next);
        if (since..next).contains(last) {
            return;
        }
        *last = next;
        self.ranges.push((at, self.bytes.len()));
        // SAFETY: the callers promise that the bytes are readable. No other thread changes them,
        // since they are this thread's only, or locked.
        let old = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        self.bytes.extend_from_slice(old);
    }

    /// Drops the records of `len` bytes at `start`, which are freed.
    fn forget(&mut self, start: u64, len: u64) {
        let mut end = self.bytes.len();
        for (at, first) in self.ranges.iter_mut().rev() {
            if at.wrapping_sub(start) < len {
                self.noted.remove(&(*at, end - *first));
                *at = GONE;
            }
            end = *first;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.bytes.clear();
        self.noted.clear();
    }

    /// Restores the bytes of the ranges from `len` on, except in frames younger than `cfa`. Those
    /// frames have ended, and our own frames may have their place.
    pub(crate) fn roll_back(&mut self, len: usize, cfa: u64) {
        let here = stack_pointer();
        for (at, start) in self.ranges.drain(len..).rev() {
            let old = &self.bytes[start..];
            self.noted.remove(&(at, old.len()));
            let is_gone = at == GONE || at.wrapping_sub(here) < cfa.wrapping_sub(here);
            if !is_gone {
                // SAFETY: the bytes were writable when they were recorded. They are in a frame
                // older than the transaction, or in memory that exists until its end or `forget`.
                unsafe {
                    std::ptr::copy_nonoverlapping(old.as_ptr(), at as *mut u8, old.len());
                }
            }
            self.bytes.truncate(start);
        }
    }
}

/// Makes the state of a new thread.
#[cold]
fn make(program: &'static Program) -> *mut Thread {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let thread = Box::new(Thread {
        program,
        session: program.memory.session(),
        depth: 0,
        levels: Vec::new(),
        landing: JumpBuffer::default(),
        tries: Vec::new(),
        attempts: 0,
        refused: None,
        id: 0,
        ids: 0,
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
        undo: Undo::default(),
        fresh: Fresh::default(),
        blocks: Fresh::default(),
        actions: Actions::default(),
        exceptions: Exceptions::default(),
        outer: 0,
        inner: 0,
        stack_end: 0,
        own_stack: own_stack(),
    });
    let thread = Box::into_raw(thread);
    set_pointer(thread);
    // The destructor of a key runs after those of the program's thread-local variables, which may
    // use transactions.
    // SAFETY: the key is valid; `end` frees the state that is stored here.
    if unsafe { libc::pthread_setspecific(key(), thread.cast()) } != 0 {
        die("the system has no memory for another thread");
    }
    thread
}

fn key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is writable.
        if unsafe { libc::pthread_key_create(&mut key, Some(end)) } != 0 {
            die("the process has too many keys for thread-specific data");
        }
        key
    })
}

/// Frees the state of a thread that ends.
unsafe extern "C" fn end(thread: *mut c_void) {
    let thread = thread.cast::<Thread>();
    set_pointer(null_mut());
    // SAFETY: `make` stored a pointer from a box, and no reference to it is in use.
    let thread = unsafe { Box::from_raw(thread) };
    if thread.depth > 0 {
        die("a thread ends inside a transaction");
    }
}

/// First address and end of this thread's stack; zeros if the system does not report them.
fn own_stack() -> (u64, u64) {
    // SAFETY: zeros are a `pthread_attr_t` that the next call replaces.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: `attributes` is writable.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) } != 0 {
        return (0, 0);
    }
    let (mut start, mut len) = (null_mut(), 0);
    // SAFETY: `attributes` was filled, and is destroyed once; `start` and `len` are writable.
    unsafe {
        libc::pthread_attr_getstack(&attributes, &mut start, &mut len);
        libc::pthread_attr_destroy(&mut attributes);
    }
    (start as u64, start as u64 + len as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_one_undo_record_in_each_level() {
        let mut words = vec![1_u64, 2, 3];
        let at = words.as_mut_ptr() as u64;
        let mut undo = Undo::default();
        let store = |undo: &mut Undo, n: usize, word: u64, since: usize| {
            undo.note(at + n as u64 * 8, 8, since);
            // SAFETY: one of the words.
            unsafe { (at as *mut u64).add(n).write_volatile(word) };
        };
        for round in 0..1000 {
            store(&mut undo, 0, round, 0);
            store(&mut undo, 1, round, 0);
        }
        assert_eq!((undo.len(), undo.bytes.len()), (2, 16));
        // An inner transaction stores again and is cancelled; then the outer one stores.
        for round in 0..1000 {
            store(&mut undo, 0, 5 + round, 2);
            store(&mut undo, 2, 5 + round, 2);
        }
        assert_eq!(undo.len(), 4);
        undo.roll_back(2, stack_pointer());
        assert_eq!(words, [999, 999, 3]);
        store(&mut undo, 2, 7, 0);
        // Freed memory is not restored, and gets new records when it is used again.
        undo.forget(at + 8, 8);
        store(&mut undo, 1, 8, 0);
        store(&mut undo, 1, 9, 0);
        undo.roll_back(0, stack_pointer());
        assert_eq!(words, [1, 999, 3]);
        assert!(undo.noted.is_empty());
    }
}
