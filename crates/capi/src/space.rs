//! The addresses of the process, as transactions use them: some are persistent, all others volatile.

use medium::{Arena, MediumError, Pmem, WORD_BYTES};
use mnemosyne::memory::{self, Directory, DurableMemory};
use mnemosyne::tx::Space;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Durable memory with this process's addresses.
pub(crate) type Memory = DurableMemory<Directory, Machine>;
/// A thread's session of [`Memory`].
pub(crate) type Session = memory::Session<Directory, Machine>;

/// The memory of the process, with the arena in it.
///
/// Its methods access any address they receive. These are the addresses that the program's own
/// code would access without transactions, so their validity is the program's promise. Therefore
/// the type is private to this crate.
#[derive(Clone)]
pub(crate) struct Machine {
    arena: Arc<Arena>,
    base: u64,
    len: u64,
}

impl Machine {
    pub(crate) fn new(arena: Arc<Arena>) -> Self {
        let (base, len) = (arena.base(), arena.len());
        Self { arena, base, len }
    }
}

/// The second address of persistent variables. They are mapped at their section and in the arena.
/// Transactions use the address in the arena only, so that each word has one lock.
struct Alias {
    start: AtomicU64,
    len: AtomicU64,
    target: AtomicU64,
    /// Bytes of the section if its address changes in the next run, else 0.
    moved: AtomicU64,
}

static ALIAS: Alias = Alias {
    start: AtomicU64::new(0),
    len: AtomicU64::new(0),
    target: AtomicU64::new(0),
    moved: AtomicU64::new(0),
};

/// Records that `start..start + len` is also mapped at `target`. `is_moved`: `start` changes in the
/// next run. Called at most once.
pub(crate) fn set_alias(start: u64, len: u64, target: u64, is_moved: bool) {
    ALIAS.moved.store(if is_moved { len } else { 0 }, Relaxed);
    ALIAS.start.store(start, Relaxed);
    ALIAS.target.store(target, Relaxed);
    ALIAS.len.store(len, Release);
}

/// The address that transactions use for the byte at `at`.
#[inline]
pub(crate) fn canonical(at: u64) -> u64 {
    let distance = at.wrapping_sub(ALIAS.start.load(Relaxed));
    match distance < ALIAS.len.load(Acquire) {
        true => ALIAS.target.load(Relaxed) + distance,
        false => at,
    }
}

/// Whether a word that `bytes` stores at `at` is the address of a persistent variable, and that
/// address changes in the next run.
#[inline]
pub(crate) fn has_stale_address(at: u64, bytes: &[u8]) -> bool {
    let len = ALIAS.moved.load(Relaxed);
    len > 0 && bytes.len() >= WORD_BYTES as usize && {
        let skip = (at.wrapping_neg() % WORD_BYTES) as usize;
        let start = ALIAS.start.load(Relaxed);
        let (words, _) = bytes.get(skip..).unwrap_or_default().as_chunks();
        words
            .iter()
            .any(|word| u64::from_le_bytes(*word).wrapping_sub(start) < len)
    }
}

/// Loads the aligned word at `at`.
///
/// # Safety
/// The program may load a byte of the word. Then the whole word is readable, since a page has
/// whole words.
#[inline]
unsafe fn load_volatile(at: u64) -> u64 {
    debug_assert!(at.is_multiple_of(WORD_BYTES));
    // SAFETY: aligned, and readable by the caller's promise; other threads change it by
    // instructions that change whole bytes.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Relaxed)
}

impl Space for Machine {
    type Pmem = Arc<Arena>;

    fn pmem(&self) -> &Arc<Arena> {
        &self.arena
    }

    #[inline]
    fn load_at(&self, at: u64) -> Result<u64, MediumError> {
        match self.offset(at) {
            Some(off) => self.arena.load(off),
            // SAFETY: the program is about to use the word (see the type).
            None => Ok(unsafe { load_volatile(at) }),
        }
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if let Some(off) = self.offset(at) {
            return self.arena.read(off, buf);
        }
        let (mut at, mut rest) = (at, buf);
        while !rest.is_empty() {
            let skip = (at % WORD_BYTES) as usize;
            let len = rest.len().min(WORD_BYTES as usize - skip);
            let (part, more) = rest.split_at_mut(len);
            // SAFETY: the program is about to load a byte of the word (see the type).
            let word = unsafe { load_volatile(at - skip as u64) }.to_le_bytes();
            part.copy_from_slice(&word[skip..skip + len]);
            at += len as u64;
            rest = more;
        }
        Ok(())
    }

    fn store_at(&self, at: u64, word: u64, mask: u8) {
        if mask == u8::MAX {
            // SAFETY: the program stored to all of the aligned word (see the type).
            return unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(word, Relaxed);
        }
        for (n, byte) in word.to_le_bytes().into_iter().enumerate() {
            if mask & 1 << n != 0 {
                // SAFETY: the program stored to this byte (see the type).
                unsafe { AtomicU8::from_ptr((at as *mut u8).add(n)) }.store(byte, Relaxed);
            }
        }
    }

    #[inline]
    fn offset(&self, at: u64) -> Option<u64> {
        let off = at.wrapping_sub(self.base);
        (off < self.len).then_some(off)
    }

    #[inline]
    fn address(&self, off: u64) -> u64 {
        // The offset of a damaged pointer may be past the end of durable memory, where the process
        // may have other memory. The last word is in a region only if all addresses are in use.
        self.base + off.min(self.len - WORD_BYTES)
    }
}
