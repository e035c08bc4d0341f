//! A B+ tree: the entries are in leaves, in order, and each leaf leads to the next.
//!
//! A leaf has entries; an inner node has keys and one child more. The child after a key has the
//! keys from that one on. All nodes but the root are at least half full. Keys of inner nodes
//! are copies, because those of leaves may be removed.

mod insert;
mod node;
mod remove;

use super::counter::Counter;
use super::{Circle, Item, Key, Pair, damaged, headed, until_over};
use crate::{Persist, Ptr, TypedTx};
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};
use node::{MOST, Node, Shape, View};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// More levels than any tree has.
const HEIGHT_MAX: u64 = 64;
/// Levels above the leaves from which on the count of entries is spread.
const SPREAD: u64 = 2;
/// The description of a valid tree in errors about a damaged one.
const WHAT: &str = "sound B+ tree";

/// A B+ tree with up to `FANOUT` entries or keys in a node: an odd number from 3 to 15.
pub struct BTree<K, V, const FANOUT: usize = 15> {
    head: Head,
    of: PhantomData<fn() -> (K, V)>,
}

#[derive(Debug, Persist)]
struct Head {
    root: Option<Ptr<Node>>,
    /// Levels above the leaves.
    height: u64,
    count: Counter,
}

headed!([K: Key, V: Item, const FANOUT: usize] BTree<K, V, FANOUT>, layout => {
    layout.word(&format!("btree/{FANOUT}"));
    K::Stored::describe(layout);
    V::Stored::describe(layout);
});

impl<K: Key, V: Item, const FANOUT: usize> BTree<K, V, FANOUT> {
    // Odd: then half of a full node and an added entry make two nodes that are half full.
    const FITS: () = assert!(FANOUT >= 3 && FANOUT <= MOST && FANOUT % 2 == 1);
    const HALF: usize = FANOUT / 2;
    const LEAF: Shape = Shape::new::<K::Stored, V::Stored>(FANOUT);
    const INNER: Shape = Shape::new::<K::Stored, Ptr<Node>>(FANOUT);

    /// An empty tree.
    pub const fn new() -> Self {
        let () = Self::FITS;
        Self {
            head: Head {
                root: None,
                height: 0,
                count: Counter::ZERO,
            },
            of: PhantomData,
        }
    }

    fn shape(height: u64) -> Shape {
        match height {
            0 => Self::LEAF,
            _ => Self::INNER,
        }
    }
}

impl<K: Key, V: Item, const FANOUT: usize> Default for BTree<K, V, FANOUT> {
    fn default() -> Self {
        Self::new()
    }
}

/// The entry for which a tree is searched.
enum Target<'a, K: Key> {
    First,
    Key(&'a K::Borrowed),
    Last,
}

/// The path from the root to a leaf.
struct Path {
    /// Inner nodes, and the number of the child in each.
    above: Vec<(View, usize)>,
    leaf: View,
    /// The position in the leaf at which the target is, or would be.
    pos: usize,
    is_there: bool,
}

/// The places of an entry's key and value.
type Pointers<K, V> = (Ptr<<K as Item>::Stored>, Ptr<<V as Item>::Stored>);

/// Operations on a [`BTree`]; with O(log n) steps, unless otherwise stated.
impl<K: Key, V: Item, const FANOUT: usize> Ptr<BTree<K, V, FANOUT>> {
    fn head(self) -> Ptr<Head> {
        self.at(BTree::HEAD)
    }

    fn count(self) -> Ptr<Counter> {
        self.head().at(Head::COUNT)
    }

    fn damaged(self) -> Interrupted {
        damaged(self.off(), WHAT)
    }

    /// The number of entries, with O(1) steps.
    ///
    /// # Errors
    /// [`Interrupted`], as for all other operations.
    pub fn len<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<u64, Interrupted> {
        self.count().total(tx)
    }

    /// Whether the tree is empty, with O(1) steps.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn is_empty<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<bool, Interrupted> {
        Ok(tx.get(self.head().at(Head::ROOT))?.is_none())
    }

    // --- finding ---------------------------------------------------------------------

    /// The path to a leaf; `None`: the tree is empty.
    fn descend<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        target: &Target<'_, K>,
    ) -> Result<Option<Path>, Interrupted> {
        let Some((mut node, height)) = self.root(tx)? else {
            return Ok(None);
        };
        let mut above = Vec::new();
        for _ in 0..height {
            let view = View::open(tx, node, BTree::<K, V, FANOUT>::INNER)?;
            let (pos, is_there) = search(tx, &view, target)?;
            // A key precedes its child.
            let child = pos + usize::from(is_there);
            node = self.child(tx, &view, child)?;
            above.push((view, child));
        }
        let leaf = View::open(tx, node, BTree::<K, V, FANOUT>::LEAF)?;
        let (pos, is_there) = search(tx, &leaf, target)?;
        Ok(Some(Path {
            above,
            leaf,
            pos,
            is_there,
        }))
    }

    /// The root, and the number of levels below it.
    fn root<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<(Ptr<Node>, u64)>, Interrupted> {
        let root = tx.get(self.head().at(Head::ROOT))?;
        match tx.get(self.head().at(Head::HEIGHT))? {
            height @ 0..HEIGHT_MAX => Ok(root.map(|root| (root, height))),
            _ => Err(self.damaged()),
        }
    }

    /// A child of an inner node, by its number.
    fn child<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        view: &View,
        child: usize,
    ) -> Result<Ptr<Node>, Interrupted> {
        match child.checked_sub(1) {
            Some(key) => tx.get(view.value(key)?),
            None => tx.get(view.link())?.ok_or_else(|| self.damaged()),
        }
    }

    /// The places of the key and value of an entry.
    fn pointers<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<Option<Pointers<K, V>>, Interrupted> {
        match self.descend(tx, &Target::Key(key))? {
            Some(path) if path.is_there => pointers::<K, V>(&path.leaf, path.pos).map(Some),
            _ => Ok(None),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn get<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<Option<V::Owned>, Interrupted> {
        let found = self.pointers(tx, key)?;
        found.map(|(_, value)| V::read(tx, value)).transpose()
    }

    /// Whether a key is present.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn contains<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<bool, Interrupted> {
        Ok(self.pointers(tx, key)?.is_some())
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn first<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<Pair<K, V>>, Interrupted> {
        let path = self.descend(tx, &Target::First)?;
        path.map(|path| read::<K, V, S>(tx, &path.leaf, 0))
            .transpose()
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn last<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<Pair<K, V>>, Interrupted> {
        let path = self.descend(tx, &Target::Last)?;
        path.map(|path| read::<K, V, S>(tx, &path.leaf, path.pos.saturating_sub(1)))
            .transpose()
    }

    /// The entries whose keys are in a range, in order: the first with O(log n) steps, each
    /// other one with O(1). For byte strings, a pair of [`Bound`]s is a range.
    pub fn range<S: Space, R: RangeBounds<K::Borrowed>>(
        self,
        tx: &mut Tx<'_, S>,
        range: R,
    ) -> impl Iterator<Item = Result<Pair<K, V>, Interrupted>> {
        let mut walk = None;
        until_over(move || {
            let walk = match &mut walk {
                Some(walk) => walk,
                start => start.insert(self.walk(tx, range.start_bound())?),
            };
            let Some((key, value)) = walk.next::<K, V, S>(tx, Self::leaf())? else {
                return Ok(None);
            };
            if is_behind::<K, S>(tx, key, range.end_bound())? {
                return Ok(None);
            }
            Ok(Some((K::read(tx, key)?, V::read(tx, value)?)))
        })
    }

    fn leaf() -> Shape {
        BTree::<K, V, FANOUT>::LEAF
    }

    /// All entries, in order.
    pub fn iter<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
    ) -> impl Iterator<Item = Result<Pair<K, V>, Interrupted>> {
        self.range(tx, ..)
    }

    /// A walk along the entries from this bound on.
    fn walk<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        start: Bound<&K::Borrowed>,
    ) -> Result<Walk, Interrupted> {
        let target = match start {
            Bound::Included(key) | Bound::Excluded(key) => Target::Key(key),
            Bound::Unbounded => Target::First,
        };
        let path = self.descend(tx, &target)?;
        let skips = |path: &Path| path.is_there && matches!(start, Bound::Excluded(_));
        Ok(Walk {
            pos: path
                .as_ref()
                .map_or(0, |path| path.pos + usize::from(skips(path))),
            leaf: path.map(|path| path.leaf),
            circle: Circle::default(),
        })
    }

    // --- the whole tree --------------------------------------------------------------

    /// Removes all entries, with O(n) steps.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        for block in self.blocks(tx)? {
            tx.free(block)?;
        }
        tx.set(self.head(), &BTree::<K, V, FANOUT>::new().head)
    }

    /// Removes the first entries, at most `most` of them, with O(log n) steps for each. Returns
    /// whether no entry, and no block in the heap, is left.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear_some<S: Space>(self, tx: &mut Tx<'_, S>, most: u64) -> Result<bool, Interrupted> {
        for _ in 0..most {
            match self.descend(tx, &Target::First)? {
                Some(path) => self.remove_at(tx, path)?,
                None => break,
            }
        }
        let is_over = self.is_empty(tx)?;
        if is_over {
            self.count().clear(tx)?;
        }
        Ok(is_over)
    }

    /// The blocks of the heap that the tree has, with O(n) steps, to account for all allocated
    /// ones.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn blocks<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Vec<u64>, Interrupted> {
        let mut blocks = Vec::from_iter(self.count().block(tx)?);
        let (mut level, mut height) = match self.root(tx)? {
            Some((root, height)) => (vec![root], height),
            None => return Ok(blocks),
        };
        // In a damaged tree, nodes may lead to each other.
        let mut seen = HashSet::new();
        loop {
            let mut below = Vec::new();
            for node in level {
                if !seen.insert(node.off()) {
                    return Err(self.damaged());
                }
                blocks.push(node.off());
                let view = View::open(tx, node, BTree::<K, V, FANOUT>::shape(height))?;
                self.add_blocks(tx, &view, height, &mut blocks)?;
                for child in (0..=view.count()).filter(|_| height > 0) {
                    below.push(self.child(tx, &view, child)?);
                }
            }
            match height.checked_sub(1) {
                Some(next) => (level, height) = (below, next),
                None => return Ok(blocks),
            }
        }
    }

    /// Adds the blocks of a node's keys and values.
    fn add_blocks<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        view: &View,
        height: u64,
        blocks: &mut Vec<u64>,
    ) -> Result<(), Interrupted> {
        for pos in 0..view.count() {
            blocks.extend(K::block(tx, view.key(pos)?)?);
            if height == 0 {
                blocks.extend(V::block(tx, view.value(pos)?)?);
            }
        }
        Ok(())
    }
}

/// The position in a node at which a target is, or would be, and whether it is there.
fn search<K: Key, S: Space>(
    tx: &mut Tx<'_, S>,
    view: &View,
    target: &Target<'_, K>,
) -> Result<(usize, bool), Interrupted> {
    let key = match target {
        Target::First => return Ok((0, false)),
        Target::Last => return Ok((view.count(), false)),
        Target::Key(key) => key,
    };
    let (mut from, mut to) = (0, view.count());
    while from < to {
        let middle = usize::midpoint(from, to);
        match K::compare(tx, view.key(middle)?, key)? {
            Ordering::Less => from = middle + 1,
            Ordering::Equal => return Ok((middle, true)),
            Ordering::Greater => to = middle,
        }
    }
    Ok((from, false))
}

/// The hash that selects a counter's word for the entries of a leaf.
fn stripe(leaf: &View) -> u64 {
    let line = leaf.node.off() / medium::LINE_BYTES;
    line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Whether a key is after the end of a range.
fn is_behind<K: Key, S: Space>(
    tx: &mut Tx<'_, S>,
    at: Ptr<K::Stored>,
    end: Bound<&K::Borrowed>,
) -> Result<bool, Interrupted> {
    Ok(match end {
        Bound::Included(end) => K::compare(tx, at, end)?.is_gt(),
        Bound::Excluded(end) => K::compare(tx, at, end)?.is_ge(),
        Bound::Unbounded => false,
    })
}

/// The places of the key and value of an entry of a leaf.
fn pointers<K: Key, V: Item>(leaf: &View, pos: usize) -> Result<Pointers<K, V>, Interrupted> {
    match pos < leaf.count() {
        true => Ok((leaf.key(pos)?, leaf.value(pos)?)),
        false => Err(damaged(leaf.node.off(), WHAT)),
    }
}

/// An entry of a leaf.
fn read<K: Key, V: Item, S: Space>(
    tx: &mut Tx<'_, S>,
    leaf: &View,
    pos: usize,
) -> Result<Pair<K, V>, Interrupted> {
    let (key, value) = pointers::<K, V>(leaf, pos)?;
    Ok((K::read(tx, key)?, V::read(tx, value)?))
}

/// An item in the form in which it lies in a node.
fn encode<T: Item, S: Space>(
    tx: &mut Tx<'_, S>,
    item: &T::Borrowed,
) -> Result<Vec<u8>, Interrupted> {
    let mut bytes = vec![0; T::Stored::SIZE as usize];
    T::encode(tx, item, &mut bytes)?;
    Ok(bytes)
}

/// A copy of a key, with its block in the heap.
fn copy_key<K: Key, S: Space>(
    tx: &mut Tx<'_, S>,
    view: &View,
    pos: usize,
) -> Result<Vec<u8>, Interrupted> {
    let key = K::read(tx, view.key(pos)?)?;
    encode::<K, S>(tx, key.borrow())
}

/// Moves all entries of one node to the end of another.
fn take_all<S: Space>(
    tx: &mut Tx<'_, S>,
    left: &mut View,
    right: &mut View,
) -> Result<(), Interrupted> {
    while right.count() > 0 {
        let end = left.count();
        left.take(tx, end, right, 0)?;
    }
    Ok(())
}

/// A walk along the entries.
struct Walk {
    leaf: Option<View>,
    pos: usize,
    circle: Circle,
}

impl Walk {
    fn next<K: Key, V: Item, S: Space>(
        &mut self,
        tx: &mut Tx<'_, S>,
        shape: Shape,
    ) -> Result<Option<Pointers<K, V>>, Interrupted> {
        while let Some(leaf) = &self.leaf {
            if self.pos < leaf.count() {
                self.pos += 1;
                return pointers::<K, V>(leaf, self.pos - 1).map(Some);
            }
            let next = tx.get(leaf.link())?;
            (self.leaf, self.pos) = (None, 0);
            if let Some(next) = next {
                self.circle.step(next.off())?;
                self.leaf = Some(View::open(tx, next, shape)?);
            }
        }
        Ok(None)
    }
}
