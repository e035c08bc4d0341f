//! Shadow paging: a store whose changes reach the medium at checkpoints only.
//!
//! # Layout
//! Block 0 of the medium is the root. It points to the blocks of a table, which gives the place
//! of each block of the store. A checkpoint writes the changed blocks and the table to free
//! places, and then moves the root.
//!
//! The blocks of the store are kept in memory, so that no call waits for a read. A checkpoint
//! does not wait for operations: calls are serial.

use super::toy::{self, BLOCK, BLOCKS, Kind, Toy};
use blockfs::conformance::Subject;
use medium::block::{Buffer, Lba, MemoryDevice};
use parking_lot::Mutex;
use patch::{
    Before, Caller, Change, Content, Op, PatchId, Patched, Rule, Store, StoreError, StoreLayer,
    attempt,
};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Places in a block of the table.
const PLACES: usize = BLOCK as usize / 4;
/// Blocks of the table.
const TABLE: usize = (BLOCKS as usize).div_ceil(PLACES);
/// Blocks of the medium: the root, and two versions of all others.
pub const ALL_BLOCKS: u64 = 1 + 2 * (BLOCKS + TABLE as u64);

/// A mistake in the order of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The root does not wait for the blocks that it leads to.
    RootFirst,
    /// Blocks are overwritten in their places.
    InPlace,
    /// A sync returns before the root is durable.
    ReturnsEarly,
}

impl Fault {
    pub const ALL: [Self; 3] = [Self::RootFirst, Self::InPlace, Self::ReturnsEarly];
}

struct State {
    /// The contents of all blocks of the store.
    blocks: Vec<Arc<Buffer>>,
    /// Blocks that were changed since the last checkpoint.
    changed: BTreeSet<usize>,
    version: Version,
}

/// The places of a checkpoint.
#[derive(Clone)]
struct Version {
    /// The place of each block.
    places: Vec<u32>,
    /// The places of the table.
    table: Vec<u32>,
}

/// The store.
pub struct Shadow {
    below: Arc<dyn Store>,
    fault: Option<Fault>,
    state: Mutex<State>,
}

fn numbers(block: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let words = block.as_chunks::<4>().0;
    words.iter().map(|word| u32::from_le_bytes(*word))
}

fn bytes(numbers: &[u32]) -> Vec<u8> {
    let mut block: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    block.resize(BLOCK as usize, 0);
    block
}

/// The medium of a checkpoint with this image.
pub fn image(blocks: &[u8]) -> Vec<u8> {
    let first = 1 + TABLE as u32;
    let table: Vec<u32> = (1..first).collect();
    let places: Vec<u32> = (first..first + BLOCKS as u32).collect();
    let mut all = bytes(&table);
    places
        .chunks(PLACES)
        .for_each(|part| all.extend(bytes(part)));
    all.extend_from_slice(blocks);
    all.resize(ALL_BLOCKS as usize * BLOCK as usize, 0);
    all
}

impl Shadow {
    /// Opens the last checkpoint.
    pub fn open(below: Arc<dyn Store>, fault: Option<Fault>) -> Result<Self, StoreError> {
        let table: Vec<u32> = numbers(&below.read(Lba(0))?).take(TABLE).collect();
        let mut places = Vec::new();
        for place in &table {
            places.extend(numbers(&below.read(Lba((*place).into()))?));
        }
        places.truncate(BLOCKS as usize);
        let blocks = places.iter().map(|place| below.read(Lba((*place).into())));
        let blocks = blocks.collect::<Result<_, _>>()?;
        let state = Mutex::new(State {
            blocks,
            changed: BTreeSet::new(),
            version: Version { places, table },
        });
        Ok(Self {
            below,
            fault,
            state,
        })
    }

    /// Makes all changes durable in one step. Returns the number of changed blocks.
    pub fn checkpoint(&self) -> Result<usize, StoreError> {
        let mut state = self.state.lock();
        let count = state.changed.len();
        if count == 0 {
            return Ok(0);
        }
        let most = (count + TABLE + 1) as u32;
        let op = self.below.begin(most, Caller::SYSTEM)?;
        let written = self.write(&op, &state);
        self.below.end(op);
        let (version, root) = written?;
        if self.fault != Some(Fault::ReturnsEarly) {
            self.below.sync(&[root])?;
        }
        state.version = version;
        state.changed.clear();
        Ok(count)
    }

    /// Writes the next version. Returns it, and the patch that moves the root.
    fn write(&self, op: &Op, state: &State) -> Result<(Version, PatchId), StoreError> {
        let mut next = state.version.clone();
        let used: HashSet<u32> = next.places.iter().chain(&next.table).copied().collect();
        let mut free = (1..ALL_BLOCKS as u32).filter(|place| !used.contains(place));
        let mut befores = Vec::new();
        let put = |place: u32, bytes: &[u8], befores: &[Before]| {
            let change = Change::Bytes { at: 0, bytes };
            let lba = Lba(place.into());
            let put = self
                .below
                .change(op, lba, Content::Metadata, change, befores);
            put.map(|patched| patched.id)
        };
        for &block in &state.changed {
            if self.fault != Some(Fault::InPlace) {
                next.places[block] = free.next().expect("half of the places are free");
            }
            befores.push(put(next.places[block], &state.blocks[block], &[])?);
        }
        for (part, place) in next.places.chunks(PLACES).zip(&mut next.table) {
            *place = free.next().expect("half of the places are free");
            befores.push(put(*place, &bytes(part), &[])?);
        }
        let rule = Rule::InitialiseBeforePoint;
        let before = |patch| Before { patch, rule };
        let befores: Vec<Before> = befores.into_iter().map(before).collect();
        let befores = match self.fault {
            Some(Fault::RootFirst) => &[],
            _ => &befores[..],
        };
        let root = put(0, &bytes(&next.table), befores)?;
        Ok((next, root))
    }
}

impl StoreLayer for Shadow {
    type Below = Arc<dyn Store>;

    fn below(&self) -> &Self::Below {
        &self.below
    }

    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn read(&self, lba: Lba) -> Result<Arc<Buffer>, StoreError> {
        Ok(self.state.lock().blocks[lba.0 as usize].clone())
    }

    fn cached(&self, lba: Lba) -> Option<Arc<Buffer>> {
        StoreLayer::read(self, lba).ok()
    }

    fn prefetch(&self, _lba: Lba, _blocks: u64) {}

    fn ready(&self, _blocks: &[Lba]) -> Result<(), StoreError> {
        Ok(())
    }

    fn is_atomic(&self) -> bool {
        true
    }

    fn change(
        &self,
        _op: &Op,
        lba: Lba,
        _content: Content,
        change: Change<'_>,
        _befores: &[Before],
    ) -> Result<Patched, StoreError> {
        attempt::commit();
        let mut state = self.state.lock();
        let index = lba.0 as usize;
        state.changed.insert(index);
        let block = Arc::make_mut(&mut state.blocks[index]);
        match change {
            Change::Bytes { at, bytes } => {
                block[at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Change::Flip { at, mask } => {
                let word = block[at as usize..][..4].iter_mut();
                word.zip(mask.to_le_bytes())
                    .for_each(|(byte, mask)| *byte ^= mask);
            }
        }
        Ok(Patched {
            id: PatchId::DURABLE,
            merged: false,
        })
    }

    fn freed(
        &self,
        _op: &Op,
        _lba: Lba,
        _befores: &[Before],
        _unreachable: bool,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    fn is_pending(&self, _patch: PatchId) -> bool {
        false
    }

    fn sync(&self, _patches: &[PatchId]) -> Result<(), StoreError> {
        self.checkpoint().map(drop)
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.checkpoint().map(drop)
    }
}

/// The toy on shadow paging.
pub struct Shadowed;

impl Subject for Shadowed {
    type Format = Toy;

    fn image(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_bytes(BLOCK, image(&toy::mkfs().bytes())))
    }

    fn open(&self, store: Arc<dyn Store>) -> Result<Toy, String> {
        let shadow = Shadow::open(store, None).map_err(|e| e.to_string())?;
        Toy::open(Arc::new(shadow), Kind::PLAIN).map_err(|e| e.to_string())
    }
}
