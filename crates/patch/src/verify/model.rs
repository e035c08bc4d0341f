//! The model: changes that are not durable, by block, with the befores that were requested.

use crate::graph::{Addr, State};
use crate::{Before, Change, PatchId};
use medium::block::Buffer;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Changes that are not durable, and empty patches.
#[derive(Default)]
pub(super) struct Model {
    blocks: HashMap<Addr, Block>,
    /// For each patch, the number of its changes that are not durable.
    open: HashMap<PatchId, u32>,
    /// Patches without data.
    empties: HashMap<PatchId, Empty>,
}

#[derive(Default)]
struct Block {
    /// The contents without the changes; `None`: unknown.
    contents: Option<Vec<u8>>,
    /// The changes, oldest first.
    changes: Vec<Recorded>,
    /// The write under way.
    sent: Option<Sent>,
}

struct Recorded {
    patch: PatchId,
    what: What,
    befores: Vec<PatchId>,
    is_sent: bool,
}

struct Sent {
    contents: Vec<u8>,
    has_completed: bool,
}

enum What {
    Bytes(usize, Vec<u8>),
    Flip(usize, u32),
}

impl What {
    fn new(change: Change<'_>) -> Self {
        match change {
            Change::Bytes { at, bytes } => Self::Bytes(at as usize, bytes.to_vec()),
            Change::Flip { at, mask } => Self::Flip(at as usize, mask),
        }
    }

    /// Applies the change to contents that may be unknown.
    fn apply(&self, contents: &mut Option<Vec<u8>>, block_bytes: usize) {
        match (self, contents) {
            (Self::Bytes(0, bytes), contents) if bytes.len() == block_bytes => {
                *contents = Some(bytes.clone());
            }
            (_, None) => {}
            (Self::Bytes(at, bytes), Some(contents)) => {
                contents[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            (Self::Flip(at, mask), Some(contents)) => {
                let word = contents[*at..at + 4].iter_mut();
                word.zip(mask.to_le_bytes())
                    .for_each(|(byte, mask)| *byte ^= mask);
            }
        }
    }
}

struct Empty {
    befores: Vec<PatchId>,
    held: bool,
}

fn ids(befores: &[Before]) -> Vec<PatchId> {
    befores.iter().map(|before| before.patch).collect()
}

impl Model {
    /// Whether the model has a record of the block. Then it needs no contents.
    pub(super) fn is_known(&self, addr: Addr) -> bool {
        self.blocks.contains_key(&addr)
    }

    /// Records a change. `contents`: the old block, if the model has no record of it.
    pub(super) fn change(
        &mut self,
        addr: Addr,
        contents: Option<Arc<Buffer>>,
        change: Change<'_>,
        patch: PatchId,
        befores: &[Before],
    ) {
        let block = self.blocks.entry(addr).or_insert_with(|| Block {
            contents: contents.map(|contents| contents.to_vec()),
            ..Block::default()
        });
        block.changes.push(Recorded {
            patch,
            what: What::new(change),
            befores: ids(befores),
            is_sent: false,
        });
        *self.open.entry(patch).or_default() += 1;
    }

    /// Cancels the changes of a block that no write under way includes.
    pub(super) fn cancel(&mut self, addr: Addr) {
        let Some(block) = self.blocks.get_mut(&addr) else {
            return;
        };
        // The cache keeps the cancelled bytes.
        block.contents = None;
        let (sent, cancelled) = std::mem::take(&mut block.changes)
            .into_iter()
            .partition(|change| change.is_sent);
        block.changes = sent;
        let is_done = block.sent.is_none();
        self.close(cancelled);
        if is_done {
            self.blocks.remove(&addr);
        }
    }

    fn close(&mut self, changes: Vec<Recorded>) {
        for change in changes {
            if let Some(open) = self.open.get_mut(&change.patch) {
                *open -= 1;
                if *open == 0 {
                    self.open.remove(&change.patch);
                }
            }
        }
    }

    pub(super) fn empty(&mut self, empty: PatchId, befores: &[Before], held: bool) {
        let befores = ids(befores);
        self.empties.insert(empty, Empty { befores, held });
    }

    pub(super) fn set_befores(&mut self, empty: PatchId, befores: &[Before]) {
        if let Some(empty) = self.empties.get_mut(&empty) {
            empty.befores = ids(befores);
        }
    }

    pub(super) fn add_before(&mut self, empty: PatchId, before: Before) {
        if let Some(empty) = self.empties.get_mut(&empty) {
            empty.befores.push(before.patch);
        }
    }

    pub(super) fn release(&mut self, empty: PatchId) {
        if let Some(empty) = self.empties.get_mut(&empty) {
            empty.held = false;
        }
    }

    /// Checks and records the write of a block. `state` returns the graph's state of a patch.
    ///
    /// # Errors
    /// The violation of V1, V2 or V3.
    pub(super) fn send(
        &mut self,
        addr: Addr,
        data: &[u8],
        state: impl Fn(PatchId) -> State,
    ) -> Result<(), String> {
        self.drop_ended(addr, &state)?;
        let Some(block) = self.blocks.get(&addr) else {
            return Ok(());
        };
        let goes: Vec<bool> = block
            .changes
            .iter()
            .map(|change| state(change.patch) == State::Issued)
            .collect();
        let mut going: HashMap<PatchId, u32> = HashMap::new();
        let sent = block.changes.iter().zip(&goes).filter(|(_, goes)| **goes);
        for (change, _) in sent.clone() {
            *going.entry(change.patch).or_default() += 1;
        }
        let mut contents = block.contents.clone();
        for (change, _) in sent {
            for &before in &change.befores {
                if let Some(missing) = self.missing(before, &going, &state) {
                    return Err(format!(
                        "V1: it is written with {:?}, before {missing:?}, which is not durable",
                        change.patch
                    ));
                }
            }
            change.what.apply(&mut contents, data.len());
        }
        if contents.as_deref().is_some_and(|contents| contents != data) {
            return Err("V2: it is written with bytes that its changes do not make".into());
        }
        if let Some(block) = self.blocks.get_mut(&addr) {
            let changes = block.changes.iter_mut().zip(goes);
            changes.for_each(|(change, goes)| change.is_sent = goes);
            block.sent = Some(Sent {
                contents: data.to_vec(),
                has_completed: false,
            });
        }
        Ok(())
    }

    /// A patch at or before `before` that is neither durable nor in this write.
    fn missing(
        &self,
        before: PatchId,
        going: &HashMap<PatchId, u32>,
        state: &impl Fn(PatchId) -> State,
    ) -> Option<PatchId> {
        let mut todo = vec![before];
        let mut seen = HashSet::new();
        while let Some(patch) = todo.pop() {
            if !seen.insert(patch) {
                continue;
            }
            if let Some(open) = self.open.get(&patch) {
                let ends = state(patch) == State::Free;
                if going.get(&patch) != Some(open) && !ends {
                    return Some(patch);
                }
            } else if let Some(empty) = self.empties.get(&patch) {
                if empty.held {
                    return Some(patch);
                }
                todo.extend(&empty.befores);
            } else if state(patch) != State::Free {
                return Some(patch);
            }
        }
        None
    }

    /// Drops patches of a block that were freed without a write, and checks that they had no
    /// effect (V3).
    fn drop_ended(&mut self, addr: Addr, state: &impl Fn(PatchId) -> State) -> Result<(), String> {
        let Some(block) = self.blocks.get_mut(&addr) else {
            return Ok(());
        };
        let has_ended = |change: &Recorded| !change.is_sent && state(change.patch) == State::Free;
        let (ended, left): (Vec<_>, Vec<_>) = std::mem::take(&mut block.changes)
            .into_iter()
            .partition(has_ended);
        block.changes = left;
        let mut contents = block.contents.clone();
        let block_bytes = contents.as_ref().map_or(0, Vec::len);
        for change in &ended {
            change.what.apply(&mut contents, block_bytes);
        }
        let is_same = contents == block.contents;
        self.close(ended);
        match is_same {
            true => Ok(()),
            false => Err("V3: changes of it have ended that were never written".into()),
        }
    }

    /// Records that a write has completed.
    pub(super) fn completed(&mut self, addr: Addr, is_durable: bool) {
        let Some(block) = self.blocks.get_mut(&addr) else {
            return;
        };
        if let Some(sent) = &mut block.sent {
            sent.has_completed = true;
        }
        if is_durable {
            self.durable(addr);
        }
    }

    /// Records a flush that began after the writes of these blocks had completed.
    pub(super) fn flushed(&mut self, blocks: &[Addr]) {
        for &addr in blocks {
            self.durable(addr);
        }
        self.forget_empties();
    }

    /// Blocks of a device whose writes have completed and are not durable.
    pub(super) fn written(&self, device: u8) -> Vec<Addr> {
        let is_written = |block: &Block| block.sent.as_ref().is_some_and(|sent| sent.has_completed);
        let blocks = self.blocks.iter().filter(|(_, block)| is_written(block));
        let addrs = blocks.map(|(addr, _)| *addr);
        addrs.filter(|addr| addr.device == device).collect()
    }

    fn durable(&mut self, addr: Addr) {
        let Some(block) = self.blocks.get_mut(&addr) else {
            return;
        };
        let Some(sent) = block.sent.take() else {
            return;
        };
        let is_known = block.contents.is_some() || block.changes.iter().any(|c| c.is_sent);
        if is_known {
            block.contents = Some(sent.contents);
        }
        let (ended, left) = std::mem::take(&mut block.changes)
            .into_iter()
            .partition(|change| change.is_sent);
        block.changes = left;
        if block.changes.is_empty() {
            self.blocks.remove(&addr);
        }
        self.close(ended);
    }

    /// Drops empty patches that are durable, if there are many.
    fn forget_empties(&mut self) {
        if self.empties.len() < 1024 {
            return;
        }
        let open = &self.open;
        let is_open = |id: &PatchId| open.contains_key(id);
        let waits: HashSet<PatchId> = self
            .empties
            .iter()
            .filter(|(_, empty)| empty.held || empty.befores.iter().any(is_open))
            .map(|(id, _)| *id)
            .collect();
        let waits_for = |empty: &Empty| empty.befores.iter().any(|id| waits.contains(id));
        self.empties
            .retain(|id, empty| waits.contains(id) || waits_for(empty));
    }
}
