//! Transactions with the heap and the roots.

use super::system::{ROOT_BYTES, ROOT_HEAD, ROOT_NAME_MAX, RootWords, System, name_len};
use super::{Backing, DurableMemory, HeapError, MemoryError};
use crate::heap::{self, HeapSession};
use crate::tx::{self, Interrupted, Space, Stop, TxError, Uncommitted};
use medium::{MediumError, WORD_BYTES};
use std::sync::Arc;
use wordlog::LogError;

/// One thread's way to run transactions, one at a time.
pub struct Session<B: Backing, S: Space<Pmem = B::Pmem> = <B as Backing>::Pmem> {
    tx: tx::Session<S>,
    heap: HeapSession<S>,
    /// How often the heap has had no room for the transaction that is to be run again.
    lacks: u32,
    /// Last: if it is dropped with the session, nobody has the memory any more.
    memory: DurableMemory<B, S>,
}

/// What a transaction has done so far, to come back to.
#[derive(Debug)]
pub struct Savepoint {
    tx: tx::Savepoint,
    heap: heap::Savepoint,
}

/// A transaction under way.
pub struct Tx<'a, S: Space> {
    tx: &'a mut tx::Session<S>,
    heap: &'a mut HeapSession<S>,
    system: System,
}

/// Rolls back what ends without a commit, even by a panic.
struct Attempt<'a, B: Backing, S: Space<Pmem = B::Pmem>>(&'a mut Session<B, S>);

impl<B: Backing, S: Space<Pmem = B::Pmem>> Drop for Attempt<'_, B, S> {
    fn drop(&mut self) {
        self.0.roll_back();
    }
}

impl<B: Backing, S: Space<Pmem = B::Pmem>> Session<B, S> {
    pub(super) fn new(memory: &DurableMemory<B, S>) -> Self {
        Self {
            tx: memory.memory().session(),
            heap: memory.heap().session(),
            lacks: 0,
            memory: memory.clone(),
        }
    }

    /// Where it belongs.
    pub fn memory(&self) -> &DurableMemory<B, S> {
        &self.memory
    }

    /// Runs a transaction: `body`, again as long as others get in its way, and durably once
    /// it returns `Ok`. `body` must not do what cannot be done again.
    ///
    /// After several conflicts, transactions of other threads wait for this one. So `body` must not
    /// wait for another thread's transaction, nor lock a mutex that another thread holds while it
    /// runs one: both threads would wait for ever. Lock such a mutex before the call.
    ///
    /// # Errors
    /// [`TxError`]; then nothing of it happened, unless the memory failed in the commit.
    pub fn run<T, E>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_, S>) -> Result<T, Stop<E>>,
    ) -> Result<T, TxError<E>> {
        let mut attempts = 0;
        loop {
            self.begin().map_err(TxError::Failed)?;
            let attempt = Attempt(self);
            let why = match body(&mut attempt.0.tx()) {
                Ok(value) => match attempt.0.commit() {
                    Ok(()) => return Ok(value),
                    Err(Uncommitted::Conflict) => Interrupted::Conflict,
                    Err(Uncommitted::Heap(why)) => Interrupted::Heap(why),
                    Err(Uncommitted::Failed(why)) => return Err(TxError::Failed(why)),
                },
                Err(Stop::Interrupted(why)) => why,
                Err(Stop::Cancel(why)) => return Err(TxError::Cancelled(why)),
            };
            if why == Interrupted::Conflict {
                attempt.0.keep_turn();
            }
            drop(attempt);
            self.overcome(why, attempts)?;
            attempts += 1;
        }
    }

    /// As [`tx::Session::keep_turn`].
    pub fn keep_turn(&mut self) {
        self.tx.keep_turn();
    }

    /// Waits until what stopped an attempt, the `attempts`-th, may be over.
    ///
    /// # Errors
    /// It will not be: what to tell the caller.
    pub fn overcome<E>(&mut self, why: Interrupted, attempts: u32) -> Result<(), TxError<E>> {
        match why {
            Interrupted::Conflict => self.tx.pause(attempts),
            Interrupted::Medium(error) => return Err(error.into()),
            Interrupted::Heap(HeapError::NoSpace { bytes }) => {
                let lacks = std::mem::take(&mut self.lacks);
                match self.memory.make_room(bytes, lacks) {
                    Ok(()) => self.lacks = lacks.saturating_add(1),
                    Err(MemoryError::Failed(why)) => return Err(TxError::Failed(why)),
                    Err(MemoryError::NoRoom { .. }) => {
                        return Err(HeapError::NoSpace { bytes }.into());
                    }
                    Err(why) => {
                        let why = why.into();
                        return Err(TxError::Growth { bytes, why });
                    }
                }
            }
            Interrupted::Heap(error) => return Err(error.into()),
            Interrupted::NoValue { off, what } => return Err(TxError::NoValue { off, what }),
        }
        Ok(())
    }

    /// Begins a transaction. [`run`](Self::run) begins, commits and retries by itself.
    ///
    /// # Errors
    /// If nothing can be committed any more.
    pub fn begin(&mut self) -> Result<(), Arc<LogError>> {
        self.tx.begin()
    }

    /// The transaction that is under way.
    pub fn tx(&mut self) -> Tx<'_, S> {
        Tx {
            tx: &mut self.tx,
            heap: &mut self.heap,
            system: self.memory.shared.system,
        }
    }

    /// Commits it. If it cannot, [`roll_back`](Self::roll_back) is to follow.
    ///
    /// # Errors
    /// [`Uncommitted`].
    pub fn commit(&mut self) -> Result<(), Uncommitted> {
        let overflow = |bytes, most| self.heap.overflow(bytes, most);
        let stamp = self.tx.commit_with(overflow)?;
        self.heap.committed(stamp);
        self.lacks = 0;
        Ok(())
    }

    /// What it has done so far.
    pub fn savepoint(&self) -> Savepoint {
        let tx = self.tx.savepoint();
        let heap = self.heap.savepoint();
        Savepoint { tx, heap }
    }

    /// Undoes what it has done since a savepoint, and no earlier return has undone. What it
    /// read since then counts as read.
    pub fn return_to(&mut self, savepoint: &Savepoint) {
        self.tx.return_to(&savepoint.tx);
        self.heap.return_to(savepoint.heap);
    }

    /// Whether nobody changed what it read: if somebody did, it is bound to fail.
    pub fn is_valid(&self) -> bool {
        self.tx.is_valid()
    }

    /// Ends it and leaves nothing of it.
    pub fn roll_back(&mut self) {
        self.tx.roll_back();
        self.heap.rolled_back();
    }
}

impl<S: Space> Tx<'_, S> {
    /// Loads the aligned word at `at`.
    ///
    /// # Errors
    /// [`Interrupted`]; the body is to pass it on. So with all that follow.
    #[inline]
    pub fn load(&mut self, at: u64) -> Result<u64, Interrupted> {
        self.tx.load(at)
    }

    /// Copies `buf.len()` bytes from `at` on.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Interrupted> {
        self.tx.read(at, buf)
    }

    /// Stores the aligned word at `at`.
    ///
    /// # Errors
    /// [`Interrupted`].
    #[inline]
    pub fn store(&mut self, at: u64, word: u64) -> Result<(), Interrupted> {
        self.check_place(at)?;
        self.tx.store(at, word)
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        self.check_place(at)?;
        self.tx.write(at, bytes)
    }

    /// As [`tx::Session::lock`].
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn lock(&mut self, at: u64) -> Result<(), Interrupted> {
        self.tx.lock(at)
    }

    /// As [`tx::Session::forget`].
    pub fn forget(&mut self, at: u64, len: u64) {
        self.tx.forget(at, len);
    }

    /// The system region is nobody's to write to.
    #[inline]
    fn check_place(&self, at: u64) -> Result<(), Interrupted> {
        match self.tx.offset(at) {
            Some(off) if off < self.system.bytes => {
                let len = WORD_BYTES;
                Err(MediumError::OutOfRange { off, len }.into())
            }
            _ => Ok(()),
        }
    }

    /// The address of an offset in persistent memory.
    #[inline]
    pub fn address(&self, off: u64) -> u64 {
        self.tx.address(off)
    }

    /// Allocates a block of at least `bytes`, which holds anything. Returns its offset, a
    /// multiple of 16, and of 64 if `bytes` is a multiple of that.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn alloc(&mut self, bytes: u64) -> Result<u64, Interrupted> {
        self.heap.alloc(self.tx, bytes)
    }

    /// Copies `bytes` to offset `off`, in a block that this transaction allocated, without a
    /// log: a shadow update. Costs a fence, and saves the log twice the bytes. No return to a
    /// savepoint undoes it.
    ///
    /// # Errors
    /// [`Interrupted`]; [`HeapError::NotAllocated`]: the block is not of this transaction, or
    /// too short.
    pub fn fill(&mut self, off: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        self.heap.fill(self.tx, off, bytes)
    }

    /// Whether a block that this transaction allocated may be stored to in place, without a log,
    /// by [`store_in_own`](Self::store_in_own), or by a caller who reports it by
    /// [`note_filled`](Self::note_filled), and whom no reader of
    /// the block's former life can meet.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn may_fill(&self) -> Result<(), Interrupted> {
        self.tx.may_fill()
    }

    /// Stores `bytes` at offset `off` at once, in such a block. They, or what the caller puts back
    /// over them by plain stores if they `may_be_undone`, are durable before the commit. See
    /// [`may_fill`](Self::may_fill).
    #[inline]
    pub fn store_in_own(&mut self, off: u64, bytes: &[u8], may_be_undone: bool) {
        self.tx.store_in_own(off, bytes, may_be_undone);
    }

    /// Makes what the caller has stored at `off..off + len` durable before the commit; what it has
    /// streamed needs no length. See [`may_fill`](Self::may_fill).
    #[inline]
    pub fn note_filled(&mut self, off: u64, len: u64) {
        self.tx.note_filled(off, len);
    }

    /// Frees the block at offset `off`.
    ///
    /// # Errors
    /// [`Interrupted`]; that there is none is [`HeapError::NotAllocated`] or
    /// [`HeapError::Foreign`].
    pub fn free(&mut self, off: u64) -> Result<(), Interrupted> {
        self.heap.free(self.tx, off)
    }

    /// Bytes of the block at offset `off`: at least what was asked for.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn size_of(&mut self, off: u64) -> Result<u64, Interrupted> {
        self.heap.size_of(self.tx, off)
    }

    /// Whether an allocated block begins at offset `off`.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn is_block(&mut self, off: u64) -> Result<bool, Interrupted> {
        self.heap.is_block(self.tx, off)
    }

    /// The root of a name: the layout of what it is, and its offset.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn root(&mut self, name: &str) -> Result<Option<(u64, u64)>, Interrupted> {
        let found = self.find_root(name)?.filter(|_| !name.is_empty());
        Ok(found.map(|(_, words)| (words.layout, words.off)))
    }

    /// Names a root, anew or again. `false`: the name is empty or longer than
    /// [`ROOT_NAME_MAX`], or there are too many roots.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn set_root(&mut self, name: &str, layout: u64, off: u64) -> Result<bool, Interrupted> {
        if !(1..=ROOT_NAME_MAX).contains(&name.len()) {
            return Ok(false);
        }
        let at = match self.find_root(name)? {
            Some((at, _)) => at,
            None => match self.find_root("")? {
                Some((at, _)) => {
                    self.tx.write(at + ROOT_HEAD, name.as_bytes())?;
                    at
                }
                None => return Ok(false),
            },
        };
        let sealed = RootWords { layout, off }.seal(name.as_bytes());
        for (n, word) in [layout, off, sealed].into_iter().enumerate() {
            self.tx.store(at + n as u64 * WORD_BYTES, word)?;
        }
        Ok(true)
    }

    /// Takes the name from a root. What it was stays.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn remove_root(&mut self, name: &str) -> Result<bool, Interrupted> {
        match self.find_root(name)? {
            Some((at, _)) if !name.is_empty() => {
                self.tx.store(at + 2 * WORD_BYTES, 0)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Where a root of this name is, and what it says; of none, where one could be.
    fn find_root(&mut self, name: &str) -> Result<Option<(u64, RootWords)>, Interrupted> {
        if name.len() > ROOT_NAME_MAX {
            return Ok(None);
        }
        for root in 0..self.system.roots {
            let off = self.system.root(root);
            let damaged = Interrupted::NoValue { off, what: "root" };
            let at = self.tx.address(off);
            let sealed = self.tx.load(at + 2 * WORD_BYTES)?;
            if name_len(sealed).ok_or(damaged)? != name.len() {
                continue;
            }
            let mut there = [0; ROOT_BYTES as usize];
            let there = &mut there[..name.len()];
            self.tx.read(at + ROOT_HEAD, there)?;
            let words = RootWords {
                layout: self.tx.load(at)?,
                off: self.tx.load(at + WORD_BYTES)?,
            };
            // Also of another name: it may have been this one.
            if sealed != 0 && words.seal(there) != sealed {
                return Err(damaged);
            }
            if there == name.as_bytes() {
                return Ok(Some((at, words)));
            }
        }
        Ok(None)
    }
}
