//! Removes an entry, and evens or merges nodes on its path.

use super::node::View;
use super::{BTree, Head, Path, Target, copy_key, pointers, read, stripe, take_all};
use crate::structures::{Item, Key, Pair};
use crate::{Ptr, TypedTx};
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};

impl<K: Key, V: Item, const FANOUT: usize> Ptr<BTree<K, V, FANOUT>> {
    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn remove<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<Option<V::Owned>, Interrupted> {
        match self.descend(tx, &Target::Key(key))? {
            Some(path) if path.is_there => {
                let (_, at) = pointers::<K, V>(&path.leaf, path.pos)?;
                let value = V::read(tx, at)?;
                self.remove_at(tx, path)?;
                Ok(Some(value))
            }
            _ => Ok(None),
        }
    }

    /// Removes the entry with the smallest key.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn pop_first<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
    ) -> Result<Option<Pair<K, V>>, Interrupted> {
        let Some(path) = self.descend(tx, &Target::First)? else {
            return Ok(None);
        };
        let entry = read::<K, V, S>(tx, &path.leaf, path.pos)?;
        self.remove_at(tx, path)?;
        Ok(Some(entry))
    }

    /// Removes the entry with the largest key.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn pop_last<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<Pair<K, V>>, Interrupted> {
        let Some(mut path) = self.descend(tx, &Target::Last)? else {
            return Ok(None);
        };
        path.pos = path.pos.saturating_sub(1);
        let entry = read::<K, V, S>(tx, &path.leaf, path.pos)?;
        self.remove_at(tx, path)?;
        Ok(Some(entry))
    }

    /// Removes the entry to which a path leads.
    pub(super) fn remove_at<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        path: Path,
    ) -> Result<(), Interrupted> {
        let Path {
            above,
            mut leaf,
            pos,
            ..
        } = path;
        let (key, value) = pointers::<K, V>(&leaf, pos)?;
        K::free(tx, key)?;
        V::free(tx, value)?;
        leaf.remove(pos);
        leaf.save(tx)?;
        self.count().add(tx, stripe(&leaf), -1)?;
        self.fill_up(tx, above, leaf)
    }

    /// Makes a node from which an entry was removed half full again, and those above it.
    fn fill_up<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        mut above: Vec<(View, usize)>,
        mut node: View,
    ) -> Result<(), Interrupted> {
        let mut height = 0;
        while node.count() < BTree::<K, V, FANOUT>::HALF {
            let Some((mut parent, child)) = above.pop() else {
                return self.lower(tx, &node, height);
            };
            if parent.count() == 0 {
                return Err(self.damaged());
            }
            // With the left sibling; the first child with the right one.
            let key = child.saturating_sub(1);
            let sibling = if child == 0 { 1 } else { child - 1 };
            let sibling = self.child(tx, &parent, sibling)?;
            let sibling = View::open(tx, sibling, BTree::<K, V, FANOUT>::shape(height))?;
            let (mut left, mut right) = match child {
                0 => (node, sibling),
                _ => (sibling, node),
            };
            let from_parent = usize::from(height > 0);
            if left.count() + right.count() + from_parent > FANOUT {
                return match height {
                    0 => self.even_leaves(tx, &parent, key, &mut left, &mut right),
                    _ => self.even_inner(tx, &parent, key, &mut left, &mut right),
                };
            }
            match height {
                0 => self.merge_leaves(tx, &parent, key, &mut left, &mut right)?,
                _ => self.merge_inner(tx, &parent, key, &mut left, &mut right)?,
            }
            left.save(tx)?;
            tx.delete(right.node)?;
            parent.remove(key);
            parent.save(tx)?;
            (node, height) = (parent, height + 1);
        }
        Ok(())
    }

    /// Removes the root, if it has at most one child.
    fn lower<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        root: &View,
        height: u64,
    ) -> Result<(), Interrupted> {
        if root.count() > 0 {
            return Ok(());
        }
        let below = match height {
            0 => None,
            _ => Some(self.child(tx, root, 0)?),
        };
        tx.set(self.head().at(Head::ROOT), &below)?;
        tx.set(self.head().at(Head::HEIGHT), &height.saturating_sub(1))?;
        tx.delete(root.node)
    }

    /// Moves all entries of the right leaf to the left one.
    fn merge_leaves<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        parent: &View,
        key: usize,
        left: &mut View,
        right: &mut View,
    ) -> Result<(), Interrupted> {
        take_all(tx, left, right)?;
        let next = tx.get(right.link())?;
        tx.set(left.link(), &next)?;
        K::free(tx, parent.key(key)?)
    }

    /// Moves all entries of the right node to the left one, with the key between them.
    fn merge_inner<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        parent: &View,
        key: usize,
        left: &mut View,
        right: &mut View,
    ) -> Result<(), Interrupted> {
        let between = parent.key_bytes(tx, key)?;
        let first = self.child(tx, right, 0)?;
        let end = left.count();
        left.add(tx, end, &between, &first.off().to_le_bytes())?;
        take_all(tx, left, right)
    }

    /// Moves an entry from the fuller leaf to the other one.
    fn even_leaves<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        parent: &View,
        key: usize,
        left: &mut View,
        right: &mut View,
    ) -> Result<(), Interrupted> {
        let end = left.count();
        match end < right.count() {
            true => left.take(tx, end, right, 0)?,
            false => right.take(tx, 0, left, end.saturating_sub(1))?,
        }
        left.save(tx)?;
        right.save(tx)?;
        K::free(tx, parent.key(key)?)?;
        let between = copy_key::<K, S>(tx, right, 0)?;
        parent.set_key(tx, key, &between)
    }

    /// Moves a child from the fuller node to the other one. Its key replaces that of the
    /// parent, which moves down.
    fn even_inner<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        parent: &View,
        key: usize,
        left: &mut View,
        right: &mut View,
    ) -> Result<(), Interrupted> {
        let between = parent.key_bytes(tx, key)?;
        let first = self.child(tx, right, 0)?;
        let (end, first_bytes) = (left.count(), first.off().to_le_bytes());
        let (up, new_first) = if end < right.count() {
            left.add(tx, end, &between, &first_bytes)?;
            let entry = (right.key_bytes(tx, 0)?, self.child(tx, right, 1)?);
            right.remove(0);
            entry
        } else {
            right.add(tx, 0, &between, &first_bytes)?;
            let last = end.saturating_sub(1);
            let entry = (left.key_bytes(tx, last)?, self.child(tx, left, end)?);
            left.remove(last);
            entry
        };
        tx.set(right.link(), &Some(new_first))?;
        left.save(tx)?;
        right.save(tx)?;
        parent.set_key(tx, key, &up)
    }
}
