//! A queue: first in, first out, in blocks that form a chain.

use super::{Circle, Item, damaged, element, headed, put, until_over};
use crate::{Persist, Ptr, TypedTx};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};
use std::marker::PhantomData;

/// The description of a valid queue in errors about a damaged one.
const WHAT: &str = "sound queue";

/// A queue of `T`, in blocks of `BLOCK`.
pub struct Queue<T, const BLOCK: usize = 32> {
    head: Head,
    of: PhantomData<fn() -> T>,
}

#[derive(Debug, Persist)]
struct Head {
    first: Option<Ptr<Block>>,
    last: Option<Ptr<Block>>,
    /// Number of elements ever pushed, and so the number of the next one. The `n`-th is at `n %
    /// BLOCK` in its block.
    pushed: u64,
    /// Number of elements ever popped.
    popped: u64,
}

/// The head of a block, before its elements.
#[derive(Debug, Persist)]
struct Block {
    next: Option<Ptr<Block>>,
}

headed!([T: Item, const BLOCK: usize] Queue<T, BLOCK>, layout => {
    layout.word(&format!("queue/{BLOCK}"));
    T::Stored::describe(layout);
});

impl<T: Item, const BLOCK: usize> Queue<T, BLOCK> {
    const HAS_ROOM: () = assert!(BLOCK > 0, "a block has room");

    /// An empty queue.
    pub const fn new() -> Self {
        let () = Self::HAS_ROOM;
        Self {
            head: Head {
                first: None,
                last: None,
                pushed: 0,
                popped: 0,
            },
            of: PhantomData,
        }
    }

    /// The place of the `n`-th element in its block.
    fn place(block: Ptr<Block>, n: u64) -> Result<Ptr<T::Stored>, Interrupted> {
        element(block.off().saturating_add(Block::SIZE), n % BLOCK as u64)
    }

    /// Whether the `n`-th element is the first in its block.
    fn is_first(n: u64) -> bool {
        n.is_multiple_of(BLOCK as u64)
    }
}

impl<T: Item, const BLOCK: usize> Default for Queue<T, BLOCK> {
    fn default() -> Self {
        Self::new()
    }
}

/// Operations on a [`Queue`]; with O(1) steps, unless otherwise stated.
impl<T: Item, const BLOCK: usize> Ptr<Queue<T, BLOCK>> {
    fn head(self) -> Ptr<Head> {
        self.at(Queue::HEAD)
    }

    fn damaged(self) -> Interrupted {
        damaged(self.off(), WHAT)
    }

    /// The number of elements.
    ///
    /// # Errors
    /// [`Interrupted`], as for all other operations.
    pub fn len<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<u64, Interrupted> {
        let Head { pushed, popped, .. } = tx.get(self.head())?;
        pushed.checked_sub(popped).ok_or_else(|| self.damaged())
    }

    /// Whether the queue is empty.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn is_empty<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<bool, Interrupted> {
        Ok(self.len(tx)? == 0)
    }

    /// Appends an element.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn push<S: Space>(self, tx: &mut Tx<'_, S>, item: &T::Borrowed) -> Result<(), Interrupted> {
        let Head { last, pushed, .. } = tx.get(self.head())?;
        let block = match Queue::<T, BLOCK>::is_first(pushed) {
            true => self.append(tx, last)?,
            false => last.ok_or_else(|| self.damaged())?,
        };
        put::<T, S>(tx, Queue::<T, BLOCK>::place(block, pushed)?, item)?;
        tx.set(self.head().at(Head::PUSHED), &(pushed.wrapping_add(1)))
    }

    /// Appends a block to the chain.
    fn append<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        last: Option<Ptr<Block>>,
    ) -> Result<Ptr<Block>, Interrupted> {
        let elements = T::Stored::SIZE.checked_mul(BLOCK as u64);
        let bytes = elements.and_then(|bytes| bytes.checked_add(Block::SIZE));
        let off = tx.alloc(bytes.unwrap_or(u64::MAX))?;
        let block = Ptr::new(off).ok_or(HeapError::NotAllocated { off })?;
        tx.set(block, &Block { next: None })?;
        let link = match last {
            Some(last) => last.at(Block::NEXT),
            None => self.head().at(Head::FIRST),
        };
        tx.set(link, &Some(block))?;
        tx.set(self.head().at(Head::LAST), &Some(block))?;
        Ok(block)
    }

    /// The place of the first element, valid until it is removed.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn front<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
    ) -> Result<Option<Ptr<T::Stored>>, Interrupted> {
        let head = tx.get(self.head())?;
        if head.pushed == head.popped {
            return Ok(None);
        }
        let first = head.first.ok_or_else(|| self.damaged())?;
        Queue::<T, BLOCK>::place(first, head.popped).map(Some)
    }

    /// The first element, which is not removed.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn peek<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<T::Owned>, Interrupted> {
        let front = self.front(tx)?;
        front.map(|at| T::read(tx, at)).transpose()
    }

    /// Removes the first element.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn pop<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<T::Owned>, Interrupted> {
        let item = self.peek(tx)?;
        if item.is_some() {
            self.drop_front(tx)?;
        }
        Ok(item)
    }

    /// Removes the first element, which must exist, and its block after the last in it.
    fn drop_front<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        let head = tx.get(self.head())?;
        let first = head.first.ok_or_else(|| self.damaged())?;
        T::free(tx, Queue::<T, BLOCK>::place(first, head.popped)?)?;
        let popped = head.popped.wrapping_add(1);
        tx.set(self.head().at(Head::POPPED), &popped)?;
        match Queue::<T, BLOCK>::is_first(popped) {
            true => self.drop_block(tx, first),
            false => Ok(()),
        }
    }

    /// Frees the first block.
    fn drop_block<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        first: Ptr<Block>,
    ) -> Result<(), Interrupted> {
        let next = tx.get(first.at(Block::NEXT))?;
        tx.delete(first)?;
        tx.set(self.head().at(Head::FIRST), &next)?;
        match next {
            Some(_) => Ok(()),
            None => tx.set(self.head().at(Head::LAST), &None),
        }
    }

    /// Removes all elements, with O(n) steps.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        self.clear_some(tx, u64::MAX).map(drop)
    }

    /// Removes the first elements, at most `most` of them. Returns whether no element, and no
    /// block in the heap, is left.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear_some<S: Space>(self, tx: &mut Tx<'_, S>, most: u64) -> Result<bool, Interrupted> {
        let len = self.len(tx)?;
        for _ in 0..len.min(most) {
            self.drop_front(tx)?;
        }
        if len > most {
            return Ok(false);
        }
        if let Some(rest) = tx.get(self.head().at(Head::FIRST))? {
            self.drop_block(tx, rest)?;
        }
        // A partly used block is freed, so the next element must start a new one.
        tx.set(self.head().at(Head::PUSHED), &0)?;
        tx.set(self.head().at(Head::POPPED), &0)?;
        Ok(true)
    }

    /// The elements, in order.
    pub fn iter<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
    ) -> impl Iterator<Item = Result<T::Owned, Interrupted>> {
        let mut walk = None;
        until_over(move || {
            let walk = match &mut walk {
                Some(walk) => walk,
                start => start.insert(Walk::new(self, tx)?),
            };
            let at = walk.next(tx)?;
            at.map(|at| T::read(tx, at)).transpose()
        })
    }

    /// The blocks of the heap that the queue has, with O(n) steps, to account for all allocated
    /// ones.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn blocks<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Vec<u64>, Interrupted> {
        let mut blocks = Vec::new();
        let (mut next, mut circle) = (tx.get(self.head().at(Head::FIRST))?, Circle::default());
        while let Some(block) = next {
            circle.step(block.off())?;
            blocks.push(block.off());
            next = tx.get(block.at(Block::NEXT))?;
        }
        if T::HAS_BLOCK {
            let mut walk = Walk::new(self, tx)?;
            while let Some(at) = walk.next(tx)? {
                blocks.extend(T::block(tx, at)?);
            }
        }
        Ok(blocks)
    }
}

/// A walk along the elements.
struct Walk<T, const BLOCK: usize> {
    queue: Ptr<Queue<T, BLOCK>>,
    block: Option<Ptr<Block>>,
    /// The numbers of the next element, and of the one after the last.
    next: u64,
    end: u64,
    circle: Circle,
}

impl<T: Item, const BLOCK: usize> Walk<T, BLOCK> {
    fn new<S: Space>(queue: Ptr<Queue<T, BLOCK>>, tx: &mut Tx<'_, S>) -> Result<Self, Interrupted> {
        let head = tx.get(queue.head())?;
        Ok(Self {
            queue,
            block: head.first,
            next: head.popped,
            end: head.pushed,
            circle: Circle::default(),
        })
    }

    fn next<S: Space>(
        &mut self,
        tx: &mut Tx<'_, S>,
    ) -> Result<Option<Ptr<T::Stored>>, Interrupted> {
        if self.next == self.end {
            return Ok(None);
        }
        let block = self.block.ok_or_else(|| self.queue.damaged())?;
        let at = Queue::<T, BLOCK>::place(block, self.next)?;
        self.next = self.next.wrapping_add(1);
        if Queue::<T, BLOCK>::is_first(self.next) {
            self.block = tx.get(block.at(Block::NEXT))?;
            self.block
                .map_or(Ok(()), |next| self.circle.step(next.off()))?;
        }
        Ok(Some(at))
    }
}
