//! Inserts an entry, and splits full nodes on its path.

use super::node::{Node, View};
use super::{BTree, Head, Path, SPREAD, Target, copy_key, encode, pointers, stripe};
use crate::structures::{Item, Key, replace};
use crate::{Ptr, TypedTx};
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};

impl<K: Key, V: Item, const FANOUT: usize> Ptr<BTree<K, V, FANOUT>> {
    /// Sets the value of a key. Returns the previous one.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn insert<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
        value: &V::Borrowed,
    ) -> Result<Option<V::Owned>, Interrupted> {
        let path = match self.descend(tx, &Target::Key(key))? {
            Some(path) => path,
            None => self.make_root(tx)?,
        };
        if path.is_there {
            let (_, at) = pointers::<K, V>(&path.leaf, path.pos)?;
            return replace::<V, S>(tx, at, value).map(Some);
        }
        self.count().add(tx, stripe(&path.leaf), 1)?;
        let (key, value) = (encode::<K, S>(tx, key)?, encode::<V, S>(tx, value)?);
        self.add(tx, path, key, value)?;
        Ok(None)
    }

    /// Makes a leaf without entries the root.
    fn make_root<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Path, Interrupted> {
        let leaf = View::make(tx, Self::leaf(), None)?;
        tx.set(self.head().at(Head::ROOT), &Some(leaf.node))?;
        Ok(Path {
            above: Vec::new(),
            leaf,
            pos: 0,
            is_there: false,
        })
    }

    /// Adds an entry, and splits nodes that are full.
    fn add<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        path: Path,
        mut key: Vec<u8>,
        mut value: Vec<u8>,
    ) -> Result<(), Interrupted> {
        let (mut above, mut node, mut pos) = (path.above, path.leaf, path.pos);
        let mut is_leaf = true;
        loop {
            if node.has_room() {
                node.add(tx, pos, &key, &value)?;
                return node.save(tx);
            }
            let right;
            (key, right) = match is_leaf {
                true => self.split_leaf(tx, &mut node, pos, &key, &value)?,
                false => self.split_inner(tx, &mut node, pos, &key, &value)?,
            };
            value = right.off().to_le_bytes().into();
            match above.pop() {
                Some(parent) => (node, pos) = parent,
                None => return self.raise(tx, node.node, &key, &value),
            }
            is_leaf = false;
        }
    }

    /// Splits a full leaf, and adds an entry. Returns the key and place of the new leaf.
    fn split_leaf<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        left: &mut View,
        pos: usize,
        key: &[u8],
        value: &[u8],
    ) -> Result<(Vec<u8>, Ptr<Node>), Interrupted> {
        let next = tx.get(left.link())?;
        let mut right = View::make(tx, Self::leaf(), next)?;
        tx.set(left.link(), &Some(right.node))?;
        let stay = BTree::<K, V, FANOUT>::HALF + 1;
        while left.count() > stay {
            let end = right.count();
            right.take(tx, end, left, stay)?;
        }
        match pos.checked_sub(stay) {
            None | Some(0) => left.add(tx, pos, key, value)?,
            Some(pos) => right.add(tx, pos, key, value)?,
        }
        left.save(tx)?;
        right.save(tx)?;
        Ok((copy_key::<K, S>(tx, &right, 0)?, right.node))
    }

    /// Splits a full inner node, and adds a key and the child after it. Returns the key between
    /// the two nodes, and the place of the new one.
    fn split_inner<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        left: &mut View,
        pos: usize,
        key: &[u8],
        value: &[u8],
    ) -> Result<(Vec<u8>, Ptr<Node>), Interrupted> {
        let stay = BTree::<K, V, FANOUT>::HALF;
        let between = left.key_bytes(tx, stay)?;
        let first = tx.get(left.value(stay)?)?;
        let mut right = View::make(tx, BTree::<K, V, FANOUT>::INNER, Some(first))?;
        left.remove(stay);
        while left.count() > stay {
            let end = right.count();
            right.take(tx, end, left, stay)?;
        }
        match pos.checked_sub(stay + 1) {
            None => left.add(tx, pos, key, value)?,
            Some(pos) => right.add(tx, pos, key, value)?,
        }
        left.save(tx)?;
        right.save(tx)?;
        Ok((between, right.node))
    }

    /// Makes a new root with the old one and another node as children.
    fn raise<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        left: Ptr<Node>,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Interrupted> {
        let mut root = View::make(tx, BTree::<K, V, FANOUT>::INNER, Some(left))?;
        root.add(tx, 0, key, value)?;
        root.save(tx)?;
        let height = tx.get(self.head().at(Head::HEIGHT))? + 1;
        tx.set(self.head().at(Head::ROOT), &Some(root.node))?;
        tx.set(self.head().at(Head::HEIGHT), &height)?;
        match height >= SPREAD {
            true => self.count().spread(tx),
            false => Ok(()),
        }
    }
}
