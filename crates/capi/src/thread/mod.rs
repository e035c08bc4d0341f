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
    /// Transactions that have begun and not ended, one inside the other.
    pub depth: u32,
    /// Where to go back to: the outermost transaction, and those inside that can be cancelled
    /// by themselves.
    pub levels: Vec<Level>,
    /// Where to go back to now.
    pub landing: JumpBuffer,
    /// Where to go back to if a transaction cannot be done, the latest last.
    pub tries: Vec<JumpBuffer>,
    /// How often the transaction has failed.
    pub attempts: u32,
    /// A block of so many bytes is not to be had, as this transaction found out.
    pub refused: Option<u64>,
    /// Of the transaction.
    pub id: u64,
    /// How many ids were given out.
    pub ids: u64,
    /// Of the thread.
    pub number: u32,
    pub undo: Undo,
    /// What the transaction allocated: volatile memory, and blocks of durable memory.
    pub fresh: Fresh,
    pub blocks: Fresh,
    pub actions: Actions,
    pub exceptions: Exceptions,
    /// Where the outermost transaction began on the stack, and the innermost one that can be
    /// gone back to: frames below are younger.
    outer: u64,
    inner: u64,
    /// The end of the stack that the transaction runs on.
    stack_end: u64,
    /// The stack that the system gave the thread.
    own_stack: (u64, u64),
}

/// A transaction that can be gone back to.
pub(crate) struct Level {
    pub jump: JumpBuffer,
    /// How many there were around it.
    pub depth: u32,
    /// What there was when it began; of an inner one.
    pub before: Option<Before>,
}

/// What an inner transaction found when it began.
pub(crate) struct Before {
    pub savepoint: Savepoint,
    pub undo: usize,
    pub fresh: u64,
    pub blocks: u64,
    pub actions: actions::Mark,
    pub exceptions: exceptions::Mark,
    pub id: u64,
}

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// To memory at once: the frame goes if the transaction does.
    Young,
    /// To memory at once, with an undo record: only an inner transaction must not leave it.
    Middle,
    /// To memory at once, under its lock and with an undo record.
    Old,
    /// To the session.
    Elsewhere,
}

// The thread's state. By assembly, so that one instruction finds it in a shared library too:
// this is asked for at every load and store.
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

/// The offset of the place from the thread pointer is known when the program starts.
#[inline(always)]
fn pointer() -> *mut Thread {
    let thread;
    // SAFETY: loads the variable above, of this thread.
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
    // SAFETY: stores the variable above, of this thread.
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

/// The stack pointer, here.
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
    /// No other reference from here or [`get`](Self::get) may be in use: whoever is called by
    /// a program takes one, and gives it up before anything of the program runs.
    #[inline(always)]
    pub unsafe fn running<'a>() -> &'a mut Self {
        // SAFETY: null, or what `make` stored there, which stays as long as the thread; the
        // caller vouches for the rest.
        match unsafe { pointer().as_mut() } {
            Some(thread) => thread,
            None => die("code of a transaction runs outside of one"),
        }
    }

    /// The state of this thread, if it has one.
    ///
    /// # Safety
    /// As [`running`](Self::running).
    #[inline(always)]
    pub unsafe fn current<'a>() -> Option<&'a mut Self> {
        // SAFETY: as in `running`.
        unsafe { pointer().as_mut() }
    }

    /// The state of this thread.
    ///
    /// # Safety
    /// As [`running`](Self::running).
    #[inline(always)]
    pub unsafe fn get<'a>(program: &'static Program) -> &'a mut Self {
        // SAFETY: as in `running`.
        match unsafe { pointer().as_mut() } {
            Some(thread) => thread,
            // SAFETY: `make` stores a pointer to what stays.
            None => unsafe { &mut *make(program) },
        }
    }

    /// A transaction begins that can be gone back to.
    pub fn push_level(&mut self, level: Level) {
        let cfa = level.jump.cfa;
        if self.levels.is_empty() {
            let (start, end) = self.own_stack;
            // Of a stack of the program's own making we know only where we are.
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

    /// The innermost of these is over.
    pub fn pop_level(&mut self) -> Option<Level> {
        let level = self.levels.pop();
        self.inner = self.levels.last().map_or(0, |level| level.jump.cfa);
        level
    }

    /// All of them are.
    pub fn clear_levels(&mut self) {
        self.levels.clear();
        (self.inner, self.outer, self.stack_end) = (0, 0, 0);
    }

    /// Whether a begin here shows that the transaction under way has lost its frame: the new one is
    /// in an older frame, or is the same one again. Somebody left it by `longjmp` or the like.
    pub fn was_left(&self, here: &JumpBuffer) -> bool {
        let is_older = here.cfa > self.outer && here.cfa <= self.stack_end;
        let outermost = self.levels.first();
        is_older || outermost.is_some_and(|level| level.jump.is_place_of(here))
    }

    /// Whether `at` is in a frame that is younger than the transaction: nobody else's, and
    /// never in the session.
    #[inline(always)]
    pub fn is_young(&self, at: u64) -> bool {
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

    /// Prepares a store of `len` bytes at `at` that is done at once. `false`: it is not to be,
    /// but goes to the session.
    ///
    /// # Errors
    /// [`Interrupted`](mnemosyne::tx::Interrupted).
    ///
    /// # Safety
    /// The bytes must be there.
    #[inline(always)]
    pub unsafe fn is_stored_at_once(
        &mut self,
        at: u64,
        len: usize,
    ) -> Result<bool, mnemosyne::tx::Interrupted> {
        match self.target(at) {
            Target::Elsewhere if !self.fresh.has(at, len) => return Ok(false),
            // What was allocated before an inner transaction must not keep what that stores.
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

    /// Whether the bytes are in a block of durable memory that the transaction allocated, and in
    /// which they are loaded from and stored to in place.
    #[inline(always)]
    pub fn is_own_block(&self, at: u64, len: usize) -> bool {
        self.blocks.has(at, len)
    }

    /// Stores bytes to a block that the transaction allocated, without a log.
    pub fn fill(&mut self, at: u64, bytes: &[u8]) {
        // A block that is older than an inner transaction must not keep what that stores: its
        // cancel puts the old bytes back by plain stores.
        let is_inner = self.levels.len() > 1;
        if is_inner {
            self.note(at, bytes.len());
        }
        let off = at - self.program.base;
        self.session.tx().store_in_own(off, bytes, is_inner);
    }

    /// Notes bytes that are about to be changed in place.
    fn note(&mut self, at: u64, len: usize) {
        let before = self.levels.last().and_then(|level| level.before.as_ref());
        let since = before.map_or(0, |before| before.undo);
        self.undo.note(at, len, since);
    }

    /// Memory that the transaction allocated goes before its end.
    pub fn goes(&mut self, block: u64) {
        if let Some(len) = self.fresh.remove(block) {
            self.undo.forget(block, len);
        }
    }

    /// Notes bytes that the compiler is about to change.
    ///
    /// # Safety
    /// The bytes must be there.
    pub unsafe fn note_old(&mut self, at: u64, len: usize) {
        if self.target(at) != Target::Young {
            self.note(at, len);
        }
    }
}

/// Bytes that were changed in place, as they were.
#[derive(Default)]
pub(crate) struct Undo {
    /// Where, and where in `bytes` they begin.
    ranges: Vec<(u64, usize)>,
    bytes: Vec<u8>,
    /// The range that was noted last, by where and how long it is.
    noted: HashMap<(u64, usize), usize>,
}

/// Where a range is whose memory is not there any more.
const GONE: u64 = 0;

impl Undo {
    /// Notes `len` bytes at `at`, unless they were noted since there were `since` ranges.
    fn note(&mut self, at: u64, len: usize, since: usize) {
        let next = self.ranges.len();
        let last = self.noted.entry((at, len)).or_insert(next);
        if (since..next).contains(last) {
            return;
        }
        *last = next;
        self.ranges.push((at, self.bytes.len()));
        // SAFETY: the callers of this module's methods say that the bytes are there; nobody
        // else changes them meanwhile, since they are the thread's own, or locked.
        let old = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        self.bytes.extend_from_slice(old);
    }

    /// Leaves alone what was noted in `len` bytes at `start`, which go.
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

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes.clear();
        self.noted.clear();
    }

    /// Puts back what was there when so many ranges had been noted, but for frames younger
    /// than `cfa`: those are gone, and ours may be where they were.
    pub fn roll_back(&mut self, len: usize, cfa: u64) {
        let here = stack_pointer();
        for (at, start) in self.ranges.drain(len..).rev() {
            let old = &self.bytes[start..];
            self.noted.remove(&(at, old.len()));
            let is_gone = at == GONE || at.wrapping_sub(here) < cfa.wrapping_sub(here);
            if !is_gone {
                // SAFETY: the bytes were there when they were noted, in a frame that is older
                // than the transaction, or in memory that is there until its end, or until
                // `forget`.
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
    // A key, because its destructor runs after those of the program's thread-local variables,
    // which may still use transactions.
    // SAFETY: the key is valid; `end` takes what is stored here.
    if unsafe { libc::pthread_setspecific(key(), thread.cast()) } != 0 {
        die("the system has no memory for another thread");
    }
    thread
}

fn key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is there to be written to.
        if unsafe { libc::pthread_key_create(&mut key, Some(end)) } != 0 {
            die("the process has too many keys for thread-specific data");
        }
        key
    })
}

/// The thread ends.
unsafe extern "C" fn end(thread: *mut c_void) {
    let thread = thread.cast::<Thread>();
    set_pointer(null_mut());
    // SAFETY: `make` stored a pointer out of a box, and nobody has it any more.
    let thread = unsafe { Box::from_raw(thread) };
    if thread.depth > 0 {
        die("a thread ends inside a transaction");
    }
}

/// Where the stack of this thread begins and ends; nowhere, if the system does not tell.
fn own_stack() -> (u64, u64) {
    // SAFETY: zeros are a `pthread_attr_t` that the next call replaces.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: `attributes` is there to be written to.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) } != 0 {
        return (0, 0);
    }
    let (mut start, mut len) = (null_mut(), 0);
    // SAFETY: `attributes` was filled, and is destroyed once; the others are there.
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
    fn a_range_is_noted_once_in_each_level() {
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
        // In an inner transaction again, which is cancelled, and then in the outer one.
        for round in 0..1000 {
            store(&mut undo, 0, 5 + round, 2);
            store(&mut undo, 2, 5 + round, 2);
        }
        assert_eq!(undo.len(), 4);
        undo.roll_back(2, stack_pointer());
        assert_eq!(words, [999, 999, 3]);
        store(&mut undo, 2, 7, 0);
        // What goes is left alone, and is new when it comes again.
        undo.forget(at + 8, 8);
        store(&mut undo, 1, 8, 0);
        store(&mut undo, 1, 9, 0);
        undo.roll_back(0, stack_pointer());
        assert_eq!(words, [1, 999, 3]);
        assert!(undo.noted.is_empty());
    }
}
