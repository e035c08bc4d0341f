//! Inodes that have lost their last name but are still open, or that are being cut.
//!
//! With a journal nothing may leak after its replay. The inodes are then on a list from the
//! superblock through their `dtime`, as in ext3, which e2fsck processes. Without a journal they are
//! recorded in memory only, as in ext2. A crash may leave them in any case, and a list would only
//! add two blocks to write for each removed file.
//!
//! # Order
//! An inode points to the next one before anything points to it. An inode leaves the list, and the
//! superblock's pointer is final, before its own fields change. So the list on the medium never
//! leads to a wrong inode. At worst an inode is left out, and leaks.

use crate::format::{Inode, Super};
use crate::inode::Node;
use crate::volume::Ext2;
use blockfs::{FormatError, Heads, Result, after};
use patch::{Before, Op, PatchId, Rule, attempt};
use std::collections::HashSet;
use std::mem::offset_of;
use vfs::Ino;

impl Ext2 {
    /// Reads the list that a crash left.
    pub(crate) fn read_orphans(&self, head: u32) -> Result<()> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut at = head;
        while at != 0 {
            if self.number(Ino(at.into())).is_none() || !seen.insert(at) {
                let what = format!("superblock: the list of orphans leads to inode {at}");
                return Err(FormatError::Corrupt(what));
            }
            found.push(at);
            at = self.load(at)?.inode.dtime.get();
        }
        let mut state = self.state.lock();
        found
            .into_iter()
            .rev()
            .for_each(|ino| state.orphans.push(ino));
        Ok(())
    }

    fn set_next(&self, op: &Op, node: &mut Node, next: u32, befores: &[Before]) -> Result<PatchId> {
        node.inode.dtime.set(next);
        let at = offset_of!(Inode, dtime);
        Ok(self.write_node(op, node, at..at + 4, befores)?.id)
    }

    fn set_head(&self, op: &Op, ino: u32, befores: &[Before]) -> Result<PatchId> {
        let at = offset_of!(Super, last_orphan);
        let set = self.change_super(op, at, &ino.to_le_bytes(), befores)?;
        self.state.lock().orphans.head_set = set;
        Ok(set)
    }

    pub(crate) fn note_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads> {
        let mut node = self.load_ino(ino)?;
        self.store.ready(&[self.super_place()])?;
        let next = {
            let mut state = self.state.lock();
            if state.orphans.contains(node.ino) {
                return Ok(Heads::new());
            }
            attempt::commit(); // memory changes first
            if !self.store.is_atomic() {
                state.orphans.unlisted.insert(node.ino);
                return Ok(befores.iter().map(|before| before.patch).collect());
            }
            let next = state.orphans.head;
            state.orphans.push(node.ino);
            next
        };
        let linked = self.set_next(op, &mut node, next, befores)?;
        let mut befores = befores.to_vec();
        befores.extend(after(Rule::InitialiseBeforePoint, [linked]));
        let noted = self.set_head(op, node.ino, &befores)?;
        Ok(Heads::from_slice(&[noted]))
    }

    pub(crate) fn unnote_orphan(&self, op: &Op, ino: Ino, befores: &[Before]) -> Result<Heads> {
        let mut node = self.load_ino(ino)?;
        let listed = self.state.lock().orphans.known.get(&node.ino).copied();
        let before = match listed {
            Some((before, _)) if before != 0 => Some(self.load(before)?),
            _ => None,
        };
        self.store.ready(&[self.super_place()])?;
        attempt::commit(); // memory changes first
        let taken = {
            let mut state = self.state.lock();
            state.orphans.unlisted.remove(&node.ino);
            state.orphans.take(node.ino)
        };
        let Some((_, next)) = taken else {
            return Ok(befores.iter().map(|before| before.patch).collect());
        };
        let off = match before {
            None => self.set_head(op, next, befores)?,
            Some(mut before) => self.set_next(op, &mut before, next, befores)?,
        };
        // The superblock on the medium may still lead to it, since a younger pointer is not
        // durable.
        let head_set = self.state.lock().orphans.head_set;
        let mut heads = Heads::from_slice(&[off]);
        if head_set != off {
            heads.push(head_set);
        }
        if node.inode.links.get() > 0 {
            let befores = after(Rule::NullifyBeforeReuse, heads.iter().copied());
            return Ok(Heads::from_slice(&[
                self.set_next(op, &mut node, 0, &befores)?
            ]));
        }
        Ok(heads)
    }

    /// The list in its order, then the others.
    pub(crate) fn list_orphans(&self) -> Vec<Ino> {
        let state = self.state.lock();
        let next = |ino: &u32| state.orphans.known.get(ino).map(|(_, next)| *next);
        let chain = std::iter::successors(Some(state.orphans.head), next);
        let inodes = chain
            .filter(|ino| *ino != 0)
            .chain(state.orphans.unlisted.iter().copied());
        inodes.map(|ino| Ino(ino.into())).collect()
    }
}
