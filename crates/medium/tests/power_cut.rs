//! Simulated power cuts: fenced stores survive, and every state is legal.

use medium::{
    CutAfter, LINE_BYTES, MediumError, MemoryPmem, PersistModel, Pmem, PowerCut, Rule, Unit, units,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const LEN: u64 = 256;
const LINES: usize = (LEN / LINE_BYTES) as usize;

#[derive(Debug, Clone)]
enum Op {
    Store(u64, Vec<u8>),
    Stream(u64, Vec<u8>),
    Flush(u64, u64),
    Fence,
}

fn op() -> impl Strategy<Value = Op> {
    let run = || (0..LEN - 24, prop::collection::vec(1u8.., 1..24));
    prop_oneof![
        6 => run().prop_map(|(off, bytes)| Op::Store(off, bytes)),
        3 => run().prop_map(|(off, bytes)| Op::Stream(off, bytes)),
        4 => (0..LEN - 64, 0u64..64).prop_map(|(off, len)| Op::Flush(off, len)),
        2 => Just(Op::Fence),
    ]
}

/// The contents of a unit after each of its stores, the number of durable ones, and the number
/// that the next fence makes durable.
#[derive(Clone)]
struct History<const N: usize> {
    states: Vec<[u8; N]>,
    durable: usize,
    claimed: usize,
}

impl<const N: usize> History<N> {
    fn new() -> Self {
        Self {
            states: vec![[0; N]],
            durable: 0,
            claimed: 0,
        }
    }

    fn store(&mut self, unit: &Unit, stream: bool) {
        let mut state = *self.states.last().unwrap();
        let len = unit.len as usize;
        state[unit.off as usize % N..][..len].copy_from_slice(&unit.bytes[..len]);
        self.states.push(state);
        if stream {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.claimed = self.states.len() - 1;
    }

    fn fence(&mut self) {
        self.durable = self.claimed;
    }

    fn allows(&self, found: &[u8]) -> bool {
        self.states[self.durable..].iter().any(|s| s == found)
    }
}

/// A second, simpler model of the crash states, with whole contents instead of undo.
struct Reference {
    words: Vec<History<8>>,
    lines: Vec<History<64>>,
}

impl Reference {
    fn after(ops: &[Op]) -> Self {
        let mut r = Self {
            words: vec![History::new(); LEN as usize / 8],
            lines: vec![History::new(); LINES],
        };
        for op in ops {
            match op {
                Op::Store(off, bytes) => r.store(*off, bytes, false),
                Op::Stream(off, bytes) => r.store(*off, bytes, true),
                Op::Flush(off, len) if *len > 0 => {
                    let touched = off / 64..=(off + len - 1) / 64;
                    for line in touched.map(|l| l as usize) {
                        r.lines[line].flush();
                        r.words[line * 8..][..8].iter_mut().for_each(History::flush);
                    }
                }
                Op::Flush(..) => {}
                Op::Fence => {
                    r.words.iter_mut().for_each(History::fence);
                    r.lines.iter_mut().for_each(History::fence);
                }
            }
        }
        r
    }

    fn store(&mut self, off: u64, bytes: &[u8], stream: bool) {
        for unit in units(off, bytes) {
            self.words[unit.off as usize / 8].store(&unit, stream);
            self.lines[unit.off as usize / 64].store(&unit, stream);
        }
    }

    fn allows(&self, model: PersistModel, found: &[u8]) -> bool {
        match model {
            PersistModel::Words => all(&self.words, found),
            PersistModel::Lines => all(&self.lines, found),
        }
    }
}

fn all<const N: usize>(histories: &[History<N>], found: &[u8]) -> bool {
    let mut parts = histories.iter().zip(found.chunks(N));
    parts.all(|(history, part)| history.allows(part))
}

fn run(ops: &[Op]) -> PowerCut<MemoryPmem> {
    let pm = PowerCut::new(MemoryPmem::new(LEN));
    for op in ops {
        match op {
            Op::Store(off, bytes) => pm.store(*off, bytes),
            Op::Stream(off, bytes) => pm.store_nt(*off, bytes),
            Op::Flush(off, len) => pm.flush(*off, *len),
            Op::Fence => pm.fence(Rule::DurableBeforeReturn).unwrap(),
        }
    }
    pm
}

fn contents(pm: &impl Pmem) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    pm.read(0, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_leaves_a_legal_state(
        ops in prop::collection::vec(op(), 0..40),
        seed in any::<u64>(),
    ) {
        let reference = Reference::after(&ops);
        for model in PersistModel::ALL {
            for seed in seed..=seed.saturating_add(8) {
                let pm = run(&ops);
                let before = contents(&pm);
                let report = pm.cut(seed, model).unwrap();
                let found = contents(pm.inner());
                prop_assert!(reference.allows(model, &found), "{} {:?}", report, found);
                if report.lost == 0 {
                    prop_assert_eq!(&found, &before);
                }
                let again = run(&ops);
                again.cut(seed, model).unwrap();
                prop_assert_eq!(&contents(again.inner()), &found, "the seed decides");
            }
        }
    }

    #[test]
    fn all_that_was_fenced_survives(
        ops in prop::collection::vec(op(), 0..40),
        seed in any::<u64>(),
    ) {
        for model in PersistModel::ALL {
            let pm = run(&ops);
            pm.flush(0, LEN);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            let before = contents(&pm);
            let report = pm.cut(seed, model).unwrap();
            prop_assert_eq!((report.stores, report.lines, report.lost), (0, 0, 0));
            prop_assert_eq!(contents(pm.inner()), before);
        }
    }
}

/// The states of `ops` after many seeds, as the first words of the region.
fn reached<const N: usize>(ops: &[Op], model: PersistModel) -> BTreeSet<[u64; N]> {
    let state = |seed| {
        let pm = run(ops);
        pm.cut(seed, model).unwrap();
        std::array::from_fn(|i| pm.inner().load(i as u64 * 8).unwrap())
    };
    (0..400).map(state).collect()
}

fn word(off: u64, value: u64) -> Op {
    Op::Store(off, value.to_le_bytes().to_vec())
}

#[test]
fn every_legal_state_is_reached_and_no_other() {
    let ops = [word(0, 1), word(8, 1), word(0, 2)];
    let words = reached(&ops, PersistModel::Words);
    let expected = [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]];
    assert_eq!(words, BTreeSet::from(expected));
    let lines = reached(&ops, PersistModel::Lines);
    assert_eq!(lines, BTreeSet::from([[0, 0], [1, 0], [1, 1], [2, 1]]));
    // Two stores of one call to one word: one byte, then two.
    let unaligned = [Op::Store(1, vec![1; 3])];
    for model in PersistModel::ALL {
        let expected = BTreeSet::from([[0], [0x100], [0x0101_0100]]);
        assert_eq!(reached(&unaligned, model), expected);
    }
}

#[test]
fn a_flush_covers_earlier_stores_only() {
    let ops = [word(0, 1), Op::Flush(0, 8), word(0, 2), Op::Fence];
    for model in PersistModel::ALL {
        assert_eq!(reached(&ops, model), BTreeSet::from([[1], [2]]));
    }
    let unfenced = [word(0, 1), Op::Flush(0, 8)];
    assert_eq!(
        reached(&unfenced, PersistModel::Words),
        BTreeSet::from([[0], [1]])
    );
    let unflushed = [word(0, 1), Op::Fence];
    assert_eq!(
        reached(&unflushed, PersistModel::Words),
        BTreeSet::from([[0], [1]])
    );
}

#[test]
fn a_fenced_streaming_store_makes_older_stores_durable() {
    let streamed = |off, value: u64| Op::Stream(off, value.to_le_bytes().to_vec());
    let ops = [word(0, 1), word(8, 1), streamed(8, 2), Op::Fence];
    // The other word of the line is free under `Words`, and before it under `Lines`.
    assert_eq!(
        reached(&ops, PersistModel::Words),
        BTreeSet::from([[0, 2], [1, 2]])
    );
    assert_eq!(reached(&ops, PersistModel::Lines), BTreeSet::from([[1, 2]]));
}

#[test]
fn a_fence_covers_its_own_thread_only() {
    let mut kept = BTreeSet::new();
    for seed in 0..100 {
        let pm = PowerCut::new(MemoryPmem::new(LEN));
        pm.store_word(0, 1);
        pm.flush(0, 8);
        std::thread::scope(|s| {
            s.spawn(|| pm.fence(Rule::DurableBeforeReturn).unwrap())
                .join()
                .unwrap()
        });
        pm.cut(seed, PersistModel::Words).unwrap();
        kept.insert(pm.inner().load(0).unwrap());
    }
    assert_eq!(kept, BTreeSet::from([0, 1]));
}

#[test]
fn after_the_cut_every_call_fails() {
    let pm = PowerCut::new(MemoryPmem::new(LEN));
    pm.store_word(0, 1);
    assert_eq!(pm.outcome(), None);
    let report = pm.cut(3, PersistModel::Lines).unwrap();
    let after = contents(pm.inner());
    pm.store_word(8, 1);
    pm.store_nt(64, &[1; 64]);
    assert_eq!(
        pm.fence(Rule::DurableBeforeReturn),
        Err(MediumError::PowerCut)
    );
    assert_eq!(pm.load(0), Err(MediumError::PowerCut));
    assert_eq!(pm.read(0, &mut [0]), Err(MediumError::PowerCut));
    assert_eq!(contents(pm.inner()), after);
    assert_eq!(
        pm.cut(4, PersistModel::Words),
        Ok(report),
        "the first cut counts"
    );
    assert_eq!(pm.outcome(), Some(Ok(report)));
    assert!(
        report
            .to_string()
            .contains("seed 3 under the model 'lines'"),
        "{report}"
    );
}

#[test]
fn an_armed_cut_happens_at_its_moment() {
    let pm = PowerCut::new(MemoryPmem::new(LEN));
    pm.cut_after(CutAfter::Fences(2), 1, PersistModel::Words);
    pm.store_word(0, 1);
    pm.flush(0, 8);
    assert_eq!(pm.fence(Rule::DurableBeforeReturn), Ok(()));
    pm.store_word(8, 1);
    assert_eq!(pm.outcome(), None);
    assert_eq!(
        pm.fence(Rule::DurableBeforeReturn),
        Err(MediumError::PowerCut)
    );
    let report = pm.outcome().unwrap().unwrap();
    assert_eq!((report.seed, report.stores), (1, 1));
    assert_eq!(pm.inner().load(0), Ok(1));

    let pm = PowerCut::new(MemoryPmem::new(LEN));
    pm.cut_after(CutAfter::Stores(4), 1, PersistModel::Words);
    pm.store(0, &[1; 3]);
    assert_eq!(pm.outcome(), None);
    pm.store_nt(8, &[1; 24]);
    assert_eq!(pm.outcome().unwrap().unwrap().stores, 5);
}

#[test]
fn models_parse_back() {
    for model in PersistModel::ALL {
        assert_eq!(model.to_string().parse(), Ok(model));
    }
    let error = "bytes".parse::<PersistModel>().unwrap_err();
    assert_eq!(error.to_string(), "'bytes' is not one of words, lines");
}

/// Threads count up, each in a word of its own (some share a line). Each fenced value is
/// reported to the observer before the next is stored.
#[test]
fn a_cut_keeps_the_fenced_values_of_each_thread() {
    const THREADS: u64 = 4;
    for seed in 0..40 {
        let model = PersistModel::ALL[seed as usize % 2];
        let pm = PowerCut::new(MemoryPmem::new(LEN));
        let told: [AtomicU64; THREADS as usize] = Default::default();
        pm.cut_after(CutAfter::Fences(200 + seed), seed, model);
        std::thread::scope(|s| {
            for t in 0..THREADS {
                let (pm, told) = (&pm, &told[t as usize]);
                s.spawn(move || {
                    for value in 1.. {
                        if t % 2 == 0 {
                            pm.store_word(t * 40, value);
                            pm.flush(t * 40, 8);
                        } else {
                            pm.store_nt(t * 40, &value.to_le_bytes());
                        }
                        if pm.fence(Rule::DurableBeforeReturn).is_err() {
                            return;
                        }
                        told.store(value, SeqCst);
                    }
                });
            }
        });
        pm.outcome().unwrap().unwrap();
        for t in 0..THREADS {
            let found = pm.inner().load(t * 40).unwrap();
            let told = told[t as usize].load(SeqCst);
            assert!((told..=told + 1).contains(&found), "{found} after {told}");
        }
    }
}
