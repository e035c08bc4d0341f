//! A red-black tree of words: the same code for durable and for ordinary memory.
//!
//! A node of 128 bytes: left, right, parent with the colour in its lowest bit, key, and 96
//! bytes for the user. A link of 0 is empty. The user chooses the address of the root's link.

use medium::{Pmem, WORD_BYTES};
use mnemosyne::memory::Tx;
use mnemosyne::tx::Interrupted;
use std::convert::Infallible;

/// Bytes of a node.
pub(super) const NODE_BYTES: u64 = 128;
/// Bytes of a node for the user.
pub(super) const PAYLOAD_BYTES: usize = (NODE_BYTES - AT_PAYLOAD) as usize;

const LEFT: u64 = 0;
const RIGHT: u64 = WORD_BYTES;
const AT_PARENT: u64 = 2 * WORD_BYTES;
const AT_KEY: u64 = 3 * WORD_BYTES;
const AT_PAYLOAD: u64 = 4 * WORD_BYTES;

const RED: u64 = 1;

fn opposite(side: u64) -> u64 {
    LEFT + RIGHT - side
}

/// Memory that holds the nodes.
pub(super) trait Nodes {
    /// The error of a step.
    type Error;

    fn load(&mut self, at: u64) -> Result<u64, Self::Error>;
    fn store(&mut self, at: u64, word: u64) -> Result<(), Self::Error>;
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;
    /// Allocates a node with arbitrary contents.
    fn alloc(&mut self) -> Result<u64, Self::Error>;
}

impl<P: Pmem + Clone> Nodes for Tx<'_, P> {
    type Error = Interrupted;

    fn load(&mut self, at: u64) -> Result<u64, Interrupted> {
        Tx::load(self, at)
    }

    fn store(&mut self, at: u64, word: u64) -> Result<(), Interrupted> {
        Tx::store(self, at, word)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        Tx::write(self, at, bytes)
    }

    fn alloc(&mut self) -> Result<u64, Interrupted> {
        Tx::alloc(self, NODE_BYTES)
    }
}

/// Nodes in ordinary memory. Word 0 is the root's link.
pub(super) struct Volatile {
    words: Vec<u64>,
}

impl Volatile {
    pub(super) fn new() -> Self {
        // Nothing but the link lies where a node would: no node is at 0.
        let words = vec![0; (NODE_BYTES / WORD_BYTES) as usize];
        Self { words }
    }

    fn word(&self, at: u64) -> u64 {
        self.words[(at / WORD_BYTES) as usize]
    }

    /// Appends keys and payloads to `out`, in the order of keys.
    pub(super) fn serialise(&self, out: &mut Vec<u8>) {
        let mut above = Vec::new();
        let mut node = self.word(0);
        while node != 0 || !above.is_empty() {
            while node != 0 {
                above.push(node);
                node = self.word(node + LEFT);
            }
            let Some(next) = above.pop() else { return };
            let from = ((next + AT_KEY) / WORD_BYTES) as usize;
            let to = ((next + NODE_BYTES) / WORD_BYTES) as usize;
            let words = self.words[from..to].iter();
            out.extend(words.flat_map(|word| word.to_le_bytes()));
            node = self.word(next + RIGHT);
        }
    }
}

impl Nodes for Volatile {
    type Error = Infallible;

    fn load(&mut self, at: u64) -> Result<u64, Infallible> {
        Ok(self.word(at))
    }

    fn store(&mut self, at: u64, word: u64) -> Result<(), Infallible> {
        self.words[(at / WORD_BYTES) as usize] = word;
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Infallible> {
        for (at, chunk) in (at..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.store(at, u64::from_le_bytes(word))?;
        }
        Ok(())
    }

    fn alloc(&mut self) -> Result<u64, Infallible> {
        let node = self.words.len() as u64 * WORD_BYTES;
        let len = self.words.len() + (NODE_BYTES / WORD_BYTES) as usize;
        self.words.resize(len, 0);
        Ok(node)
    }
}

/// A tree, by the address of the link to its root.
pub(super) struct Tree<'a, N> {
    pub nodes: &'a mut N,
    pub root: u64,
}

impl<N: Nodes> Tree<'_, N> {
    /// Inserts a node, after all others of its key.
    pub(super) fn insert(
        &mut self,
        key: u64,
        payload: &[u8; PAYLOAD_BYTES],
    ) -> Result<(), N::Error> {
        let (mut parent, mut link) = (0, self.root);
        loop {
            let node = self.nodes.load(link)?;
            if node == 0 {
                break;
            }
            let is_left = key < self.nodes.load(node + AT_KEY)?;
            (parent, link) = (node, node + if is_left { LEFT } else { RIGHT });
        }
        let node = self.nodes.alloc()?;
        self.nodes.store(node + LEFT, 0)?;
        self.nodes.store(node + RIGHT, 0)?;
        self.nodes.store(node + AT_PARENT, parent | RED)?;
        self.nodes.store(node + AT_KEY, key)?;
        self.nodes.write(node + AT_PAYLOAD, payload)?;
        self.nodes.store(link, node)?;
        self.balance(node)
    }

    /// Restores the rule that no red node has a red parent, after `node` became red.
    fn balance(&mut self, mut node: u64) -> Result<(), N::Error> {
        loop {
            let parent = self.parent(node)?;
            if parent == 0 {
                return self.set_red(node, false);
            }
            if !self.is_red(parent)? {
                return Ok(());
            }
            // A red node is not the root.
            let above = self.parent(parent)?;
            let side = match self.nodes.load(above + LEFT)? == parent {
                true => LEFT,
                false => RIGHT,
            };
            let uncle = self.nodes.load(above + opposite(side))?;
            if uncle != 0 && self.is_red(uncle)? {
                self.set_red(parent, false)?;
                self.set_red(uncle, false)?;
                self.set_red(above, true)?;
                node = above;
                continue;
            }
            let mut top = parent;
            if self.nodes.load(parent + opposite(side))? == node {
                self.rotate(parent, side)?;
                top = node;
            }
            self.set_red(top, false)?;
            self.set_red(above, true)?;
            return self.rotate(above, opposite(side));
        }
    }

    /// Moves a node down to a side; the child on the other side takes its place.
    fn rotate(&mut self, node: u64, side: u64) -> Result<(), N::Error> {
        let up = self.nodes.load(node + opposite(side))?;
        let inner = self.nodes.load(up + side)?;
        self.nodes.store(node + opposite(side), inner)?;
        if inner != 0 {
            self.set_parent(inner, node)?;
        }
        let parent = self.parent(node)?;
        let link = if parent == 0 {
            self.root
        } else if self.nodes.load(parent + LEFT)? == node {
            parent + LEFT
        } else {
            parent + RIGHT
        };
        self.nodes.store(link, up)?;
        self.set_parent(up, parent)?;
        self.nodes.store(up + side, node)?;
        self.set_parent(node, up)
    }

    fn parent(&mut self, node: u64) -> Result<u64, N::Error> {
        Ok(self.nodes.load(node + AT_PARENT)? & !RED)
    }

    fn is_red(&mut self, node: u64) -> Result<bool, N::Error> {
        Ok(self.nodes.load(node + AT_PARENT)? & RED != 0)
    }

    fn set_parent(&mut self, node: u64, parent: u64) -> Result<(), N::Error> {
        let colour = self.nodes.load(node + AT_PARENT)? & RED;
        self.nodes.store(node + AT_PARENT, parent | colour)
    }

    fn set_red(&mut self, node: u64, is_red: bool) -> Result<(), N::Error> {
        let parent = self.parent(node)?;
        self.nodes
            .store(node + AT_PARENT, parent | u64::from(is_red))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the black nodes on each path down. Panics if the tree breaks a rule.
    fn black_height(nodes: &mut Volatile, node: u64, parent: u64, keys: &mut Vec<u64>) -> u32 {
        if node == 0 {
            return 1;
        }
        let word = nodes.word(node + AT_PARENT);
        assert_eq!(word & !RED, parent);
        let red_parent = parent != 0 && nodes.word(parent + AT_PARENT) & RED != 0;
        let red = word & RED != 0;
        assert!(!red || parent != 0 && !red_parent);
        let left = black_height(nodes, nodes.word(node + LEFT), node, keys);
        keys.push(nodes.word(node + AT_KEY));
        let right = black_height(nodes, nodes.word(node + RIGHT), node, keys);
        assert_eq!(left, right);
        left + u32::from(!red)
    }

    #[test]
    fn it_stays_a_red_black_tree() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut nodes = Volatile::new();
        let mut expected = Vec::new();
        for n in 0..600_u64 {
            // Falling, rising and random keys.
            let key = [1000 - n, 2000 + n, random.u64(..5000)][n as usize / 200];
            let mut tree = Tree {
                nodes: &mut nodes,
                root: 0,
            };
            tree.insert(key, &[n as u8; PAYLOAD_BYTES]).unwrap();
            expected.push(key);
            let (root, mut keys) = (nodes.word(0), Vec::new());
            black_height(&mut nodes, root, 0, &mut keys);
            expected.sort_unstable();
            assert_eq!(keys, expected);
        }
        let mut bytes = Vec::new();
        nodes.serialise(&mut bytes);
        let entry = 8 + PAYLOAD_BYTES;
        let keys = bytes.chunks(entry).map(|one| one[..8].try_into().unwrap());
        assert!(keys.map(u64::from_le_bytes).eq(expected));
    }
}
