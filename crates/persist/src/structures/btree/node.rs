//! Nodes: entries in any slots, and a word with the slots in order.
//!
//! So an insertion writes its entry and a word, and a removal writes a word. Other entries are
//! not moved.

use super::WHAT;
use crate::structures::damaged;
use crate::tx::with_bytes;
use crate::{Persist, Ptr, TypedTx, offsets};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};

/// Most entries of a node: as many as an [`Order`] has room for.
pub(super) const MOST: usize = 15;

/// The head of a node, before its keys and values.
#[derive(Debug, Persist)]
pub(super) struct Node {
    order: u64,
    /// In a leaf, the next one; in an inner node, the child with the keys before the first.
    link: Option<Ptr<Node>>,
}

/// The slots of a node's entries in order, 4 bits each, after the number of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order(u64);

const BITS: usize = 4;

impl Order {
    /// The order in a word of a node with `slots` slots; `None`: the word is not an order.
    fn new(word: u64, slots: usize) -> Option<Self> {
        let order = Self(word);
        let mut seen = 0_u16;
        for pos in 0..order.count() {
            let bit = 1 << order.slot(pos);
            if seen & bit != 0 || order.slot(pos) >= slots {
                return None;
            }
            seen |= bit;
        }
        (order.count() <= slots).then_some(order)
    }

    fn count(self) -> usize {
        self.0 as usize & MOST
    }

    fn slot(self, pos: usize) -> usize {
        (self.0 >> (BITS * (pos + 1))) as usize & MOST
    }

    /// One of `slots` slots that has no entry.
    fn free(self, slots: usize) -> Option<usize> {
        let is_free = |slot: &usize| (0..self.count()).all(|pos| self.slot(pos) != *slot);
        (0..slots).find(is_free)
    }

    /// The order with one more entry, at `pos`.
    fn with(self, pos: usize, slot: usize) -> Self {
        let before = (1 << (BITS * (pos + 1))) - 1;
        let behind = (self.0 & !before) << BITS;
        let order = behind | (slot as u64) << (BITS * (pos + 1)) | self.0 & before;
        Self(order + 1)
    }

    /// The order without the entry at `pos`, which must exist.
    fn without(self, pos: usize) -> Self {
        let before = (1 << (BITS * (pos + 1))) - 1;
        let behind = self.0 >> BITS & !before;
        Self((behind | self.0 & before) - 1)
    }
}

/// The layout of a node's entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    slots: usize,
    /// Offset of the keys and bytes of each; `values` likewise.
    keys: (u64, u64),
    values: (u64, u64),
    bytes: u64,
}

impl Shape {
    /// The layout of `slots` slots for a `K` and a `V`.
    pub(super) const fn new<K: Persist, V: Persist>(slots: usize) -> Self {
        let (offsets, bytes) = offsets([
            (Node::SIZE, Node::ALIGN),
            (K::SIZE * slots as u64, K::ALIGN),
            (V::SIZE * slots as u64, V::ALIGN),
        ]);
        Self {
            slots,
            keys: (offsets[1], K::SIZE),
            values: (offsets[2], V::SIZE),
            bytes,
        }
    }
}

/// A node, and its state as a transaction read it.
#[derive(Debug)]
pub(super) struct View {
    pub(super) node: Ptr<Node>,
    order: Order,
    shape: Shape,
}

impl View {
    pub(super) fn open<S: Space>(
        tx: &mut Tx<'_, S>,
        node: Ptr<Node>,
        shape: Shape,
    ) -> Result<Self, Interrupted> {
        let order = Order::new(tx.get(node.at(Node::ORDER))?, shape.slots);
        let order = order.ok_or_else(|| damaged(node.off(), WHAT))?;
        Ok(Self { node, order, shape })
    }

    /// Makes a node without entries.
    pub(super) fn make<S: Space>(
        tx: &mut Tx<'_, S>,
        shape: Shape,
        link: Option<Ptr<Node>>,
    ) -> Result<Self, Interrupted> {
        let off = tx.alloc(shape.bytes)?;
        let node = Ptr::new(off).ok_or(HeapError::NotAllocated { off })?;
        let order = Order(0);
        tx.set(node, &Node { order: 0, link })?;
        Ok(Self { node, order, shape })
    }

    pub(super) fn count(&self) -> usize {
        self.order.count()
    }

    pub(super) fn has_room(&self) -> bool {
        self.count() < self.shape.slots
    }

    pub(super) fn link(&self) -> Ptr<Option<Ptr<Node>>> {
        self.node.at(Node::LINK)
    }

    /// The place of the `pos`-th key.
    pub(super) fn key<K: Persist>(&self, pos: usize) -> Result<Ptr<K>, Interrupted> {
        self.place(self.key_off(self.order.slot(pos)))
    }

    /// The place of the `pos`-th value.
    pub(super) fn value<V: Persist>(&self, pos: usize) -> Result<Ptr<V>, Interrupted> {
        self.place(self.value_off(self.order.slot(pos)))
    }

    fn place<T: Persist>(&self, off: u64) -> Result<Ptr<T>, Interrupted> {
        Ptr::new(off).ok_or_else(|| damaged(self.node.off(), WHAT))
    }

    // A node's first word was read, so the node does not start at the largest offset.

    fn key_off(&self, slot: usize) -> u64 {
        self.node.off() + self.shape.keys.0 + slot as u64 * self.shape.keys.1
    }

    fn value_off(&self, slot: usize) -> u64 {
        self.node.off() + self.shape.values.0 + slot as u64 * self.shape.values.1
    }

    /// Copies the `pos`-th key out.
    pub(super) fn key_bytes<S: Space>(
        &self,
        tx: &mut Tx<'_, S>,
        pos: usize,
    ) -> Result<Vec<u8>, Interrupted> {
        let mut bytes = vec![0; self.shape.keys.1 as usize];
        let at = tx.address(self.key_off(self.order.slot(pos)));
        tx.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the `pos`-th key.
    pub(super) fn set_key<S: Space>(
        &self,
        tx: &mut Tx<'_, S>,
        pos: usize,
        key: &[u8],
    ) -> Result<(), Interrupted> {
        let at = tx.address(self.key_off(self.order.slot(pos)));
        tx.write(at, key)
    }

    /// Adds an entry as the `pos`-th. As after all changes of the order, the caller must
    /// [save](Self::save) it.
    pub(super) fn add<S: Space>(
        &mut self,
        tx: &mut Tx<'_, S>,
        pos: usize,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Interrupted> {
        let slot = self.order.free(self.shape.slots);
        let slot = slot.ok_or_else(|| damaged(self.node.off(), WHAT))?;
        let (key_at, value_at) = (self.key_off(slot), self.value_off(slot));
        tx.write(tx.address(key_at), key)?;
        tx.write(tx.address(value_at), value)?;
        self.order = self.order.with(pos, slot);
        Ok(())
    }

    /// Moves the entry `at` of another node to this one, as its `pos`-th.
    pub(super) fn take<S: Space>(
        &mut self,
        tx: &mut Tx<'_, S>,
        pos: usize,
        from: &mut Self,
        at: usize,
    ) -> Result<(), Interrupted> {
        let key = from.key_bytes(tx, at)?;
        let value_at = tx.address(from.value_off(from.order.slot(at)));
        with_bytes(self.shape.values.1, |value| {
            tx.read(value_at, value)?;
            self.add(tx, pos, &key, value)
        })?;
        from.remove(at);
        Ok(())
    }

    /// Removes the `pos`-th entry.
    pub(super) fn remove(&mut self, pos: usize) {
        self.order = self.order.without(pos);
    }

    /// Writes the order.
    pub(super) fn save<S: Space>(&self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        tx.set(self.node.at(Node::ORDER), &self.order.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_acts_as_a_vector_of_slots() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut order, mut model) = (Order(0), Vec::new());
        for _ in 0..10_000 {
            let pos = rng.usize(..=model.len());
            if let Some(slot) = order.free(MOST).filter(|_| rng.bool()) {
                order = order.with(pos, slot);
                model.insert(pos, slot);
            } else if pos < model.len() {
                order = order.without(pos);
                model.remove(pos);
            }
            let slots = (0..order.count()).map(|pos| order.slot(pos));
            assert!(slots.eq(model.iter().copied()));
            assert_eq!(Order::new(order.0, MOST), Some(order));
            assert_eq!(order.free(MOST).is_none(), model.len() == MOST);
        }
    }

    #[test]
    fn words_that_are_not_an_order_are_rejected() {
        // Too many entries; the same slot twice; a slot that does not exist.
        for word in [0x3_2104, 0x002, 0x31] {
            assert_eq!(Order::new(word, 3), None, "{word:x}");
        }
        assert_eq!(Order::new(0x212, 3), Some(Order(0x212)));
    }
}
