//! The graph against a model that merges nothing and searches everything.

use super::*;
use medium::block::Lba;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: usize = 64;
const BLOCKS: usize = 4;

fn graph(optimise: Optimise) -> (Graph, Vec<BlockSlot>) {
    let mut graph = Graph::new(optimise);
    let blocks = (0..BLOCKS)
        .map(|i| {
            let addr = Addr {
                device: 0,
                lba: Lba(i as u64),
            };
            graph.add_block(addr, Arc::new(Buffer::zeroed(BLOCK)))
        })
        .collect();
    (graph, blocks)
}

fn all_switches() -> Vec<Optimise> {
    let mut all = Vec::new();
    for bits in 0..8 {
        all.push(Optimise {
            hard: bits & 1 != 0,
            hard_merge: bits & 2 != 0,
            overlap_merge: bits & 4 != 0,
            ready_lists: true,
        });
    }
    all
}

fn after(patch: PatchId) -> Before {
    Before {
        patch,
        rule: Rule::InitialiseBeforePoint,
    }
}

/// A change in the model, which keeps all changes.
#[derive(Debug, Clone)]
struct Kept {
    id: PatchId,
    block: Option<usize>,
    change: Owned,
    /// Indices of its direct befores: those requested, and those by overlap.
    befores: BTreeSet<usize>,
    state: Durable,
    held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durable {
    No,
    Issued,
    Yes,
}

#[derive(Debug, Clone)]
enum Owned {
    Bytes(u32, Vec<u8>),
    Flip(u32, u32),
    Nothing,
}

impl Owned {
    fn borrow(&self) -> Change<'_> {
        match self {
            Self::Bytes(at, bytes) => Change::Bytes { at: *at, bytes },
            Self::Flip(at, mask) => Change::Flip {
                at: *at,
                mask: *mask,
            },
            Self::Nothing => unreachable!("an empty patch changes nothing"),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => false,
            (Self::Flip(a, m), Self::Flip(b, n)) => a == b && m & n != 0,
            _ => {
                let (a, a_len) = extent(self.borrow());
                let (b, b_len) = extent(other.borrow());
                a < b + b_len && b < a + a_len
            }
        }
    }

    fn apply(&self, data: &mut [u8]) {
        match self {
            Self::Bytes(at, bytes) => {
                data[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            Self::Flip(at, mask) => flip(data, *at, *mask),
            Self::Nothing => {}
        }
    }
}

struct Pair {
    graph: Graph,
    blocks: Vec<BlockSlot>,
    kept: Vec<Kept>,
    /// The contents of each issued block.
    flying: BTreeMap<usize, Vec<u8>>,
    /// Blocks whose contents are not needed.
    cancelled: BTreeSet<usize>,
    exact: bool,
}

impl Pair {
    fn new(optimise: Optimise) -> Self {
        let (graph, blocks) = graph(optimise);
        let exact = !optimise.hard && !optimise.overlap_merge;
        Self {
            graph,
            blocks,
            kept: Vec::new(),
            flying: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            exact,
        }
    }

    /// The changes that the numbers in `picks` select, modulo the number of changes so far.
    fn befores(&self, picks: &[usize]) -> BTreeSet<usize> {
        let n = self.kept.len();
        picks
            .iter()
            .filter(|_| n > 0)
            .map(|pick| pick % n)
            .collect()
    }

    fn change(&mut self, block: usize, change: Owned, picks: &[usize]) {
        let mut befores = self.befores(picks);
        let asked: Vec<Before> = befores.iter().map(|&i| after(self.kept[i].id)).collect();
        let id = self
            .graph
            .change(self.blocks[block], change.borrow(), &asked)
            .id;
        for (i, older) in self.kept.iter().enumerate() {
            if older.block == Some(block) && older.change.overlaps(&change) {
                befores.insert(i);
            }
        }
        self.kept.push(Kept {
            id,
            block: Some(block),
            change,
            befores,
            state: Durable::No,
            held: false,
        });
    }

    fn empty(&mut self, picks: &[usize], held: bool) {
        let befores = self.befores(picks);
        let asked: Vec<Before> = befores.iter().map(|&i| after(self.kept[i].id)).collect();
        let id = self.graph.empty(&asked, held);
        self.kept.push(Kept {
            id,
            block: None,
            change: Owned::Nothing,
            befores,
            state: Durable::No,
            held,
        });
        self.complete_empties();
    }

    /// Pending changes of a block become empty patches.
    fn cancel(&mut self, block: usize) {
        self.graph.cancel(self.blocks[block]);
        self.cancelled.insert(block);
        // No patch waits for an issued change of a cancelled block.
        let flying = |k: &Kept| k.block == Some(block) && k.state == Durable::Issued;
        let flying: Vec<usize> = (0..self.kept.len())
            .filter(|&i| flying(&self.kept[i]))
            .collect();
        for kept in &mut self.kept {
            if kept.block == Some(block) && kept.state == Durable::No {
                kept.block = None;
                kept.change = Owned::Nothing;
                kept.befores.retain(|i| !flying.contains(i));
            }
            // A change that merged past an empty patch depended on the issued write of its
            // block.
            if kept.block.is_none() && !self.exact {
                kept.befores.retain(|i| !flying.contains(i));
            }
        }
        for _ in 0..self.kept.len() {
            self.complete_empties();
        }
    }

    fn complete_empties(&mut self) {
        for i in 0..self.kept.len() {
            let done = |j: &usize| self.kept[*j].state == Durable::Yes;
            if self.kept[i].block.is_none()
                && !self.kept[i].held
                && self.kept[i].befores.iter().all(done)
            {
                self.kept[i].state = Durable::Yes;
            }
        }
    }

    /// The befores of a patch. Merging may skip empty patches that are not held.
    fn true_befores(&self, i: usize) -> BTreeSet<usize> {
        if self.exact {
            return self.kept[i].befores.clone();
        }
        let mut found = BTreeSet::new();
        let mut todo: Vec<usize> = self.kept[i].befores.iter().copied().collect();
        while let Some(j) = todo.pop() {
            let before = &self.kept[j];
            if before.block.is_none() && !before.held && before.state == Durable::No {
                todo.extend(&before.befores);
            } else {
                found.insert(j);
            }
        }
        found
    }

    /// The changes that the model would write: those whose open befores are among them.
    fn legal(&self, block: usize) -> BTreeSet<usize> {
        if self.flying.contains_key(&block) {
            return BTreeSet::new();
        }
        let mut set: BTreeSet<usize> = (0..self.kept.len())
            .filter(|&i| self.kept[i].block == Some(block) && self.kept[i].state == Durable::No)
            .collect();
        loop {
            let bad = set.iter().copied().find(|&i| {
                let open = |j: &usize| self.kept[*j].state != Durable::Yes && !set.contains(j);
                self.true_befores(i).iter().any(open)
            });
            match bad {
                Some(i) => set.remove(&i),
                None => return set,
            };
        }
    }

    fn issue(&mut self, block: usize) -> bool {
        let b = self.blocks[block];
        let ready = self.graph.block(b).is_ready();
        assert_eq!(
            ready,
            self.graph.is_ready_by_search(b),
            "two ways to be ready"
        );
        let legal = self.legal(block);
        if self.exact {
            assert_eq!(ready, !legal.is_empty(), "the same blocks are ready");
        }
        if !ready {
            return false;
        }
        let image = self.graph.issue(b);
        let sent: BTreeSet<usize> = (0..self.kept.len())
            .filter(|&i| self.kept[i].block == Some(block) && self.kept[i].state == Durable::No)
            .filter(|&i| {
                let slot = self.graph.resolve(self.kept[i].id).expect("not durable");
                self.graph.patches[slot as usize].state == State::Issued
            })
            .collect();
        assert!(
            sent.is_subset(&legal),
            "P2: sent {sent:?}, may send {legal:?}"
        );
        for &i in &sent {
            let open = |j: &usize| self.kept[*j].state != Durable::Yes && !sent.contains(j);
            assert!(!self.true_befores(i).iter().any(open), "P2: {i}");
        }
        if self.exact {
            assert_eq!(sent, legal, "the same write set");
        }
        for &i in &sent {
            self.kept[i].state = Durable::Issued;
        }
        let mut expected = vec![0; BLOCK];
        for kept in self.kept.iter().filter(|k| k.block == Some(block)) {
            if kept.state != Durable::No {
                kept.change.apply(&mut expected);
            }
        }
        if !self.cancelled.contains(&block) {
            assert_eq!(&image[..], &expected[..], "the same image");
        }
        self.flying.insert(block, expected);
        true
    }

    fn commit(&mut self, block: usize) {
        if self.flying.remove(&block).is_none() {
            return;
        }
        self.graph.commit(self.blocks[block]);
        for kept in self.kept.iter_mut().filter(|k| k.block == Some(block)) {
            if kept.state == Durable::Issued {
                kept.state = Durable::Yes;
            }
        }
        for _ in 0..self.kept.len() {
            self.complete_empties();
        }
        self.verify();
    }

    fn verify(&self) {
        self.graph.verify().unwrap();
        for (i, kept) in self.kept.iter().enumerate() {
            // A merged patch may become durable later than in the model, never earlier.
            if kept.state != Durable::Yes {
                assert!(self.graph.is_pending(kept.id), "P5: {i} committed early");
            } else if self.exact {
                assert!(!self.graph.is_pending(kept.id), "{i} is durable");
            }
        }
    }

    /// Writes until all changes are durable.
    fn drain(&mut self) {
        for i in 0..self.kept.len() {
            if std::mem::take(&mut self.kept[i].held) {
                self.graph.release(self.kept[i].id);
            }
        }
        for _ in 0..self.kept.len() {
            self.complete_empties();
        }
        loop {
            for block in 0..BLOCKS {
                self.issue(block);
            }
            if self.flying.is_empty() {
                break;
            }
            (0..BLOCKS).for_each(|block| self.commit(block));
        }
        for (i, kept) in self.kept.iter().enumerate() {
            assert!(
                !self.graph.is_pending(kept.id),
                "P3: {i} can never be written"
            );
        }
        let stats = self.graph.stats();
        assert_eq!(
            (stats.patches_now, stats.edges_now, stats.undo_now),
            (0, 0, 0)
        );
    }
}

#[derive(Debug, Clone)]
enum Step {
    Bytes(usize, u32, usize, Vec<usize>),
    Flip(usize, u32, u32, Vec<usize>),
    Empty(Vec<usize>, bool),
    Issue(usize),
    Commit(usize),
    Release(usize),
    Cancel(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let block = 0..BLOCKS;
    let picks = || prop::collection::vec(any::<usize>(), 0..3);
    let step = prop_oneof![
        6 => (block.clone(), 0..BLOCK as u32, 1..20usize, picks())
            .prop_map(|(b, at, len, p)| Step::Bytes(b, at, len.min(BLOCK - at as usize), p)),
        4 => (block.clone(), 0..4u32, 0..6u32, picks())
            .prop_map(|(b, word, bit, p)| Step::Flip(b, word * 4, 1 << bit, p)),
        1 => (picks(), any::<bool>()).prop_map(|(p, held)| Step::Empty(p, held)),
        3 => block.clone().prop_map(Step::Issue),
        3 => block.clone().prop_map(Step::Commit),
        1 => block.prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..60)
}

fn run(optimise: Optimise, steps: &[Step]) {
    let mut pair = Pair::new(optimise);
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Bytes(block, at, len, picks) => {
                let bytes = vec![n as u8 + 1; *len];
                pair.change(*block, Owned::Bytes(*at, bytes), picks);
            }
            Step::Flip(block, at, mask, picks) => {
                pair.change(*block, Owned::Flip(*at, *mask), picks);
            }
            Step::Empty(picks, held) => pair.empty(picks, *held),
            Step::Issue(block) => {
                pair.issue(*block);
            }
            Step::Commit(block) => pair.commit(*block),
            Step::Cancel(block) => pair.cancel(*block),
            Step::Release(pick) => {
                let i = pair.befores(&[*pick]).into_iter().next();
                if let Some(i) = i.filter(|&i| pair.kept[i].held) {
                    pair.kept[i].held = false;
                    pair.graph.release(pair.kept[i].id);
                    for _ in 0..pair.kept.len() {
                        pair.complete_empties();
                    }
                }
            }
        }
        pair.verify();
    }
    pair.drain();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_graph_writes_what_the_model_allows(steps in steps()) {
        for optimise in all_switches() {
            run(optimise, &steps);
        }
    }
}

/// Figure 2.3: an application appends 16 KiB to an empty file by four writes of 4 KiB.
fn four_appends(optimise: Optimise) -> Stats {
    let mut graph = Graph::new(optimise);
    let mut block = |lba: u64| {
        let lba = Lba(lba);
        graph.add_block(Addr { device: 0, lba }, Arc::new(Buffer::zeroed(4096)))
    };
    let [bitmap, inode, group, superblock] = [1, 2, 3, 4].map(&mut block);
    let data = [10, 11, 12, 13].map(&mut block);
    fn bytes(at: u32, bytes: &[u8]) -> Change<'_> {
        Change::Bytes { at, bytes }
    }
    graph.change(superblock, bytes(12, &[1; 4]), &[]);
    graph.change(group, bytes(12, &[1; 2]), &[]);
    for (k, &data) in data.iter().enumerate() {
        let k = k as u32;
        let (at, mask) = (0, 1 << k);
        let b = graph.change(bitmap, Change::Flip { at, mask }, &[]).id;
        let d = graph.change(data, bytes(0, &[0; 4096]), &[]).id;
        graph.change(inode, bytes(40 + 4 * k, &[9; 4]), &[after(b), after(d)]);
        let written = graph.change(data, bytes(0, &[7; 4096]), &[]).id;
        graph.change(inode, bytes(4, &[k as u8 + 1; 4]), &[after(written)]);
    }
    graph.change(inode, bytes(16, &[5; 4]), &[]);
    graph.verify().unwrap();
    *graph.stats()
}

#[test]
fn four_appends_need_23_patches_or_8() {
    let step = |hard, hard_merge, overlap_merge| {
        let stats = four_appends(Optimise {
            hard,
            hard_merge,
            overlap_merge,
            ready_lists: true,
        });
        (stats.patches, stats.hard, stats.undo_bytes)
    };
    // a) Naive: 8 x 4096 bytes of data, 4 words of bitmap, and the small fields.
    let small = 4 * 4 + 4 * 4 + 4 * 4 + 4 + 4 + 2;
    assert_eq!(step(false, false, false), (23, 0, 8 * 4096 + small));
    // b) Hard patches: undo data remain for the second write of each block and three bits.
    assert_eq!(step(true, false, false), (23, 16, 4 * 4096 + 3 * 4));
    // c) Hard patches merge.
    assert_eq!(step(true, true, false), (15, 8, 4 * 4096 + 3 * 4));
    // d) Overlapping patches merge, too.
    assert_eq!(step(true, true, true), (8, 8, 0));
}

/// A patch that becomes wider may overlap one that it waits for. The next change there must
/// find the wider patch first.
#[test]
fn a_patch_that_becomes_wider_keeps_its_place() {
    let overlap = Optimise {
        hard: false,
        hard_merge: false,
        ..Optimise::ALL
    };
    let bytes = |at, len| Step::Bytes(0, at, len, vec![]);
    run(
        overlap,
        &[
            Step::Bytes(1, 0, 1, vec![]),
            bytes(0, 1),
            bytes(34, 2),
            Step::Bytes(0, 12, 6, vec![2, 0]),
            bytes(26, 9),
            bytes(15, 13),
            bytes(26, 1),
            Step::Issue(0),
        ],
    );
}

#[test]
fn changes_of_the_same_place_make_a_chain() {
    fn bytes(at: u32, bytes: &[u8]) -> Change<'_> {
        Change::Bytes { at, bytes }
    }
    let (mut graph, blocks) = graph(Optimise::NONE);
    let overlapping = |graph: &mut Graph, i: u8| {
        // No patch alone covers the next change.
        graph.change(blocks[0], bytes(8, &[i; 4]), &[]);
        graph.change(blocks[0], bytes(12, &[i; 4]), &[]);
        graph.change(blocks[0], bytes(6, &[i; 12]), &[]);
        let (at, mask) = (12, 1 << 5);
        graph.change(blocks[0], Change::Flip { at, mask }, &[]);
    };
    (0..50).for_each(|i| overlapping(&mut graph, i));
    graph.verify().unwrap();
    assert_eq!(graph.stats().patches, 200);
    let edges = graph.edges.len();
    assert!(edges < 2 * 200, "{edges} edges");
}
