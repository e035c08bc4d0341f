//! Transactions with the heap and the roots.

use super::system::{ROOT_BYTES, ROOT_HEAD, ROOT_NAME_MAX, RootWords, System, name_len};
use super::{Backing, DurableMemory, HeapError, MemoryError};
use crate::heap::{self, HeapSession};
use crate::tx::{self, Interrupted, Space, Stop, TxError, Uncommitted};
use medium::{MediumError, WORD_BYTES};
use std::sync::Arc;
use wordlog::LogError;

/// Runs transactions of one thread, one at a time.
pub struct Session<B: Backing, S: Space<Pmem = B::Pmem> = <B as Backing>::Pmem> {
    tx: tx::TxSession<S>,
    heap: HeapSession<S>,
    /// Number of times that the heap had no room for the transaction that will run again.
    lacks: u32,
    /// The last field: it may be the last owner of the memory.
    memory: DurableMemory<B, S>,
}

/// The changes of a transaction at some point, to return to.
#[derive(Debug)]
pub struct Savepoint {
    tx: tx::Savepoint,
    heap: heap::Savepoint,
}

/// A transaction under way.
pub struct Tx<'a, S: Space> {
    tx: &'a mut tx::TxSession<S>,
    heap: &'a mut HeapSession<S>,
    system: System,
}

/// Rolls back a transaction that ends without a commit, also by a panic.
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

    /// The memory of this session.
    pub fn memory(&self) -> &DurableMemory<B, S> {
        &self.memory
    }

    /// Runs `body` as a transaction, and repeats it after conflicts. It is durable once this
    /// returns `Ok`. `body` must not do anything that cannot be repeated.
    ///
    /// After several conflicts, transactions of other threads wait for this one. So `body` must not
    /// wait for another thread's transaction. Nor may it lock a mutex that another thread holds
    /// while it runs one: both threads would wait forever. Lock such a mutex before the call.
    ///
    /// # Errors
    /// [`TxError`]; then the transaction had no effect, unless the memory failed in the commit.
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

    /// As [`tx::TxSession::keep_turn`].
    pub fn keep_turn(&mut self) {
        self.tx.keep_turn();
    }

    /// Waits until the reason that stopped an attempt, the `attempts`-th, may be over.
    ///
    /// # Errors
    /// The error for the caller, if the reason cannot end.
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
    /// [`LogError`]: no further transaction can commit.
    pub fn begin(&mut self) -> Result<(), Arc<LogError>> {
        self.tx.begin()
    }

    /// The transaction under way.
    pub fn tx(&mut self) -> Tx<'_, S> {
        Tx {
            tx: &mut self.tx,
            heap: &mut self.heap,
            system: self.memory.shared.system,
        }
    }

    /// Commits the transaction under way. After an error call [`roll_back`](Self::roll_back).
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

    /// The changes of the transaction so far.
    pub fn savepoint(&self) -> Savepoint {
        let tx = self.tx.savepoint();
        let heap = self.heap.savepoint();
        Savepoint { tx, heap }
    }

    /// Undoes changes since a savepoint that no earlier return has undone. Reads since then still
    /// count.
    pub fn return_to(&mut self, savepoint: &Savepoint) {
        self.tx.return_to(&savepoint.tx);
        self.heap.return_to(savepoint.heap);
    }

    /// Whether no other thread has changed a word that was read. Otherwise the commit would fail.
    pub fn is_valid(&self) -> bool {
        self.tx.is_valid()
    }

    /// Ends the transaction without any effect.
    pub fn roll_back(&mut self) {
        self.tx.roll_back();
        self.heap.rolled_back();
    }
}

impl<S: Space> Tx<'_, S> {
    /// Loads the aligned word at `at`.
    ///
    /// # Errors
    /// [`Interrupted`], which the body passes on. So with all methods below.
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
        self.check_writable(at)?;
        self.tx.store(at, word)
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        self.check_writable(at)?;
        self.tx.write(at, bytes)
    }

    /// As [`tx::TxSession::lock`].
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn lock(&mut self, at: u64) -> Result<(), Interrupted> {
        self.tx.lock(at)
    }

    /// As [`tx::TxSession::forget`].
    pub fn forget(&mut self, at: u64, len: u64) {
        self.tx.forget(at, len);
    }

    /// Fails for an address in the system region, which transactions of programs must not write to.
    #[inline]
    fn check_writable(&self, at: u64) -> Result<(), Interrupted> {
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

    /// Allocates a block of at least `bytes`, with undefined contents. Returns its offset, a
    /// multiple of 16, and of 64 if `bytes` is a multiple of that.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn alloc(&mut self, bytes: u64) -> Result<u64, Interrupted> {
        self.heap.alloc(self.tx, bytes)
    }

    /// Copies `bytes` to offset `off` without a log, in a block that this transaction allocated (a
    /// shadow update). This costs a fence, and saves twice the bytes in the log. A return to a
    /// savepoint does not undo it.
    ///
    /// # Errors
    /// [`Interrupted`]; [`HeapError::NotAllocated`] if this transaction did not allocate the block,
    /// or it is too short.
    pub fn fill(&mut self, off: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        self.heap.fill(self.tx, off, bytes)
    }

    /// Checks that blocks that this transaction allocated may be stored to at once, without a log.
    /// That is by [`store_in_own`](Self::store_in_own), or by a caller that then calls
    /// [`note_filled`](Self::note_filled). No reader of the freed block may still use the memory.
    ///
    /// # Errors
    /// [`Interrupted::Conflict`] after a failed commit, which may have released the block.
    pub fn may_fill(&self) -> Result<(), Interrupted> {
        self.tx.may_fill()
    }

    /// Stores `bytes` at offset `off` at once, in such a block. They are durable before the commit.
    /// If they `may_be_undone`, so are the old bytes that the caller may restore by plain stores.
    /// See [`may_fill`](Self::may_fill).
    #[inline]
    pub fn store_in_own(&mut self, off: u64, bytes: &[u8], may_be_undone: bool) {
        self.tx.store_in_own(off, bytes, may_be_undone);
    }

    /// Makes stores of the caller at `off..off + len` durable before the commit. Streamed stores
    /// need no length. See [`may_fill`](Self::may_fill).
    #[inline]
    pub fn note_filled(&mut self, off: u64, len: u64) {
        self.tx.note_filled(off, len);
    }

    /// Frees the block at offset `off`.
    ///
    /// # Errors
    /// [`Interrupted`]; [`HeapError::NotAllocated`] or [`HeapError::Foreign`] if no block begins
    /// there.
    pub fn free(&mut self, off: u64) -> Result<(), Interrupted> {
        self.heap.free(self.tx, off)
    }

    /// The bytes of the block at offset `off`, at least as many as were requested.
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

    /// Finds the root of a name: the layout of the object, and its offset.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn root(&mut self, name: &str) -> Result<Option<(u64, u64)>, Interrupted> {
        let found = self.find_root(name)?.filter(|_| !name.is_empty());
        Ok(found.map(|(_, words)| (words.layout, words.off)))
    }

    /// Stores a root of this name, new or changed. Returns false if the name is empty or longer
    /// than [`ROOT_NAME_MAX`], or there are too many roots.
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

    /// Removes the root of this name. The object stays. Returns false if there is none.
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

    /// Finds the root of this name: its address and words. With an empty name, finds a free root.
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
            // Also of another name: a damaged one may have been this one.
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
