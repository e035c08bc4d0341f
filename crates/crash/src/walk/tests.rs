//! The explorer on small protocols whose legal states are known.

use super::*;
use crate::PersistModel;
use crate::media::memory::StatePmem;
use medium::recording::Event;
use medium::{MemoryPmem, Pmem, Recording, Rule};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A judge of a protocol. Its recovery returns the outcome or the finding.
struct Protocol<F> {
    recover: F,
    outcomes: BTreeSet<u64>,
}

impl<F: FnMut(&StatePmem) -> Result<u64, String>> Judge<StatePmem> for Protocol<F> {
    fn judge(&mut self, pm: &Arc<StatePmem>, _tail: Policy, _crashes: usize) -> Verdict<Event> {
        pm.start_record();
        let result = (self.recover)(pm);
        let (decisions, trace) = (pm.decisions(), pm.recorded());
        let outcome = *result.as_ref().unwrap_or(&0);
        self.outcomes.insert(outcome);
        let recovery = (!trace.is_empty()).then_some(Recovery {
            decisions,
            trace,
            key: None,
        });
        Verdict {
            wrong: result.err(),
            outcome,
            recovery,
        }
    }

    fn demands(&self) -> u64 {
        0
    }
}

const LIMITS: Limits = Limits {
    leaves: 4096,
    recovery_depth: 1,
    samples: 16,
    tails: 2,
    seed: 7,
    moments: usize::MAX,
    lives: 0,
};

struct Explored {
    outcomes: BTreeSet<u64>,
    tally: Tally,
    found: Option<Found>,
}

fn trace_of(program: impl Fn(&dyn Pmem)) -> Vec<Event> {
    let pm = Recording::new(MemoryPmem::new(4096));
    program(&pm);
    pm.take()
}

fn explore_with(
    limits: Limits,
    model: PersistModel,
    trace: &[Event],
    recover: impl FnMut(&StatePmem) -> Result<u64, String>,
) -> Explored {
    let pm = Arc::new(StatePmem::new(model, &[0; 512]));
    let outcomes = BTreeSet::new();
    let mut judge = Protocol { recover, outcomes };
    let mut tally = Tally::default();
    let mut walk = Walk {
        medium: &pm,
        judge: &mut judge,
        limits,
        tally: &mut tally,
        crashes: Vec::new(),
    };
    let found = walk.events(trace).err();
    let outcomes = judge.outcomes;
    Explored {
        outcomes,
        tally,
        found,
    }
}

fn explore(
    model: PersistModel,
    program: impl Fn(&dyn Pmem),
    recover: impl FnMut(&StatePmem) -> Result<u64, String>,
) -> Explored {
    explore_with(LIMITS, model, &trace_of(program), recover)
}

fn word(pm: &dyn Pmem, off: u64) -> u64 {
    pm.load(off).unwrap()
}

/// A protocol in which a set flag makes data valid. `data` and `flag` are their offsets.
fn flag_protocol(data: u64, flag: u64) -> impl Fn(&StatePmem) -> Result<u64, String> {
    move |pm| match (word(pm, flag), word(pm, data)) {
        (0, _) => Ok(0),
        (_, 5) => Ok(1),
        (_, other) => Err(format!("flag is set, data is {other}")),
    }
}

fn persist(pm: &dyn Pmem, off: u64, value: u64) {
    pm.store_word(off, value);
    pm.flush(off, 8);
}

#[test]
fn ordered_flag_is_clean_and_both_outcomes_are_seen() {
    for model in PersistModel::ALL {
        let program = |pm: &dyn Pmem| {
            persist(pm, 128, 5);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            persist(pm, 0, 1);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
        };
        let explored = explore(model, program, flag_protocol(128, 0));
        assert!(explored.found.is_none(), "{model}");
        assert_eq!(explored.outcomes, BTreeSet::from([0, 1]), "{model}");
    }
}

#[test]
fn missing_fence_is_found() {
    for model in PersistModel::ALL {
        let program = |pm: &dyn Pmem| {
            persist(pm, 128, 5);
            persist(pm, 0, 1);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
        };
        let explored = explore(model, program, flag_protocol(128, 0));
        assert!(explored.found.is_some(), "{model}");
    }
}

#[test]
fn missing_flush_is_found() {
    for model in PersistModel::ALL {
        let program = |pm: &dyn Pmem| {
            pm.store_word(128, 5);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            persist(pm, 0, 1);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
        };
        let explored = explore(model, program, flag_protocol(128, 0));
        assert!(explored.found.is_some(), "{model}");
    }
}

/// A flush covers earlier stores to the line, and a fence covers the flushes of its thread.
#[test]
fn flush_before_the_store_or_by_another_thread_is_found() {
    let store_later = |pm: &dyn Pmem| {
        pm.store_word(128, 4);
        pm.flush(128, 8);
        pm.store_word(128, 5);
    };
    let stream_before = |pm: &dyn Pmem| {
        pm.store_nt(128, &4u64.to_le_bytes());
        pm.store_word(128, 5);
    };
    let flush_elsewhere = |pm: &dyn Pmem| {
        std::thread::scope(|scope| scope.spawn(|| persist(pm, 128, 5)).join().unwrap());
    };
    let wrong: [fn(&dyn Pmem); 3] = [store_later, stream_before, flush_elsewhere];
    for model in PersistModel::ALL {
        for first in wrong {
            let program = |pm: &dyn Pmem| {
                pm.store_word(0, 0); // the first thread
                first(pm);
                pm.fence(Rule::DurableBeforeReturn).unwrap();
                persist(pm, 0, 1);
                pm.fence(Rule::DurableBeforeReturn).unwrap();
            };
            let explored = explore(model, program, flag_protocol(128, 0));
            assert!(explored.found.is_some(), "{model}");
        }
    }
}

#[test]
fn torn_wide_store_is_found() {
    for model in PersistModel::ALL {
        let program = |pm: &dyn Pmem| {
            pm.store(64, &[3; 16]);
            pm.flush(64, 16);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
        };
        let equal = |pm: &StatePmem| match (word(pm, 64), word(pm, 72)) {
            (a, b) if a == b => Ok(a),
            (a, b) => Err(format!("{a} and {b}")),
        };
        assert!(explore(model, program, equal).found.is_some(), "{model}");
    }
}

#[test]
fn stores_to_one_line_keep_their_order_in_lines_only() {
    let program = |pm: &dyn Pmem| {
        pm.store_word(8, 5);
        pm.store_word(0, 1);
    };
    let words = explore(PersistModel::Words, program, flag_protocol(8, 0));
    assert!(words.found.is_some());
    let lines = explore(PersistModel::Lines, program, flag_protocol(8, 0));
    assert!(lines.found.is_none());
    assert_eq!(lines.outcomes, BTreeSet::from([0, 1]));
}

#[test]
fn streaming_needs_no_flush_and_eviction_needs_nothing() {
    for model in PersistModel::ALL {
        let program = |pm: &dyn Pmem| {
            pm.store_nt(128, &5u64.to_le_bytes());
            pm.fence(Rule::DurableBeforeReturn).unwrap();
            pm.store_word(0, 1); // never flushed, may still be evicted
        };
        let explored = explore(model, program, flag_protocol(128, 0));
        assert!(explored.found.is_none(), "{model}");
        assert_eq!(explored.outcomes, BTreeSet::from([0, 1]), "{model}");
    }
}

/// Recovery moves word 0 to word 64 and clears it; wrong if it clears first, unfenced.
fn moving_recovery(fenced: bool) -> impl Fn(&StatePmem) -> Result<u64, String> {
    move |pm| {
        let value = word(pm, 0);
        if value != 0 {
            persist(pm, 64, value);
            if fenced {
                pm.fence(Rule::DurableBeforeReturn).unwrap();
            }
            persist(pm, 0, 0);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
        }
        match (word(pm, 128), word(pm, 64)) {
            (1, 0) => Err("the value was lost".to_string()),
            (_, v) => Ok(v),
        }
    }
}

#[test]
fn crash_inside_recovery_is_explored() {
    let program = |pm: &dyn Pmem| {
        persist(pm, 0, 9);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        persist(pm, 128, 1);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
    };
    for model in PersistModel::ALL {
        assert!(
            explore(model, program, moving_recovery(true))
                .found
                .is_none()
        );
        let found = explore(model, program, moving_recovery(false)).found;
        let found = found.expect("the unfenced recovery loses the value");
        assert_eq!(found.place.crashes.len(), 2, "{model}");
        let limits = Limits {
            recovery_depth: 0,
            ..LIMITS
        };
        let trace = trace_of(program);
        let shallow = explore_with(limits, model, &trace, moving_recovery(false));
        assert!(shallow.found.is_none(), "{model}: needs the second crash");
    }
}

/// Recovery overwrites a line without reading it, then sets word 0, with or without a fence in
/// between. The outcome is two words of the line, as two digits.
fn overwriting_recovery(fenced: bool) -> impl Fn(&StatePmem) -> Result<u64, String> {
    move |pm| {
        if word(pm, 0) == 0 {
            let sevens = [7, 0, 0, 0, 0, 0, 0, 0].repeat(8);
            pm.store(128, &sevens);
            pm.flush(128, 64);
            if fenced {
                pm.fence(Rule::DurableBeforeReturn).unwrap();
            }
            persist(pm, 0, 1);
            pm.fence(Rule::DurableBeforeReturn).unwrap();
        }
        Ok(word(pm, 128) * 10 + word(pm, 136))
    }
}

#[test]
fn words_overwritten_by_recovery_come_back_until_they_are_fenced() {
    let program = |pm: &dyn Pmem| {
        persist(pm, 128, 1);
        persist(pm, 136, 1);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
    };
    let outcomes = |model, fenced| {
        let explored = explore(model, program, overwriting_recovery(fenced));
        assert!(explored.found.is_none(), "{model}");
        explored.outcomes.into_iter().collect::<Vec<_>>()
    };
    for model in PersistModel::ALL {
        assert_eq!(outcomes(model, true), [77], "{model}");
    }
    let words = [0, 1, 7, 10, 11, 17, 70, 71, 77];
    assert_eq!(outcomes(PersistModel::Words, false), words);
    assert_eq!(
        outcomes(PersistModel::Lines, false),
        [0, 10, 11, 70, 71, 77]
    );
}

#[test]
fn overwriting_an_undecided_cell_takes_no_choice() {
    let program = |pm: &dyn Pmem| {
        (0..128).for_each(|i| persist(pm, 1024 + i * 8, i + 1));
        pm.fence(Rule::DurableBeforeReturn).unwrap();
    };
    let replay = |pm: &StatePmem| {
        pm.store(1024, &[9; 1024]);
        pm.flush(1024, 1024);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        Ok(word(pm, 1024))
    };
    for model in PersistModel::ALL {
        let tally = explore(model, program, replay).tally;
        assert_eq!(tally.capped_points, 0, "{model}");
        assert!(tally.states < 10, "{model}: {} states", tally.states);
    }
}

#[test]
fn a_failure_can_be_visited_again() {
    let program = |pm: &dyn Pmem| {
        persist(pm, 0, 9);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        persist(pm, 128, 1);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
    };
    let trace = trace_of(program);
    let found = explore(PersistModel::Words, program, moving_recovery(false)).found;
    let found = found.unwrap();
    let pm = Arc::new(StatePmem::new(PersistModel::Words, &[0; 512]));
    let mut judge = Protocol {
        recover: moving_recovery(false),
        outcomes: BTreeSet::new(),
    };
    let verdict = revisit(&pm, &trace, &found.place, &mut judge).unwrap();
    assert_eq!(verdict.wrong, Some(found.what));
}

#[test]
fn a_point_with_too_many_states_is_sampled_and_counted() {
    let program = |pm: &dyn Pmem| {
        for i in 0..40 {
            persist(pm, i * 64, 1);
        }
        pm.fence(Rule::DurableBeforeReturn).unwrap();
    };
    let sum = |pm: &StatePmem| Ok((0..40).map(|i| word(pm, i * 64)).sum());
    let limits = Limits {
        leaves: 64,
        samples: 40,
        ..LIMITS
    };
    let explored = explore_with(limits, PersistModel::Words, &trace_of(program), sum);
    assert_eq!(explored.tally.capped_points, 1);
    for one in [0, 1, 39, 40] {
        assert!(explored.outcomes.contains(&one), "{one} stores applied");
    }
}

#[test]
fn audit_reports_a_judge_that_depends_on_more_than_it_reads() {
    // The lazy walk misses that the outcome depends on the number of calls.
    let program = |pm: &dyn Pmem| {
        for i in 0..8 {
            persist(pm, i * 64, 1);
        }
        pm.fence(Rule::DurableBeforeReturn).unwrap();
    };
    let calls = std::cell::Cell::new(0u64);
    let drifting = |pm: &StatePmem| {
        calls.set(calls.get() + 1);
        let sum: u64 = (0..8).map(|i| word(pm, i * 64)).sum();
        Ok(sum + 100 * (calls.get() / 256))
    };
    let found = explore(PersistModel::Words, program, drifting).found;
    assert!(found.is_some_and(|f| f.what.starts_with("audit")));
}

/// Every legal crash state of a trace, by brute force: all combinations of prefixes.
fn brute_force(model: PersistModel, trace: &[Event]) -> BTreeSet<Vec<u64>> {
    let cell_of = |off: u64| match model {
        PersistModel::Words => off / 8,
        PersistModel::Lines => off / 64,
    };
    let mut all = BTreeSet::new();
    let mut durable = vec![0u64; 512];
    // Stores in order: cell, unit, and the threads whose next fence makes it durable.
    let mut pending: Vec<(u64, medium::Unit, BTreeSet<u32>)> = Vec::new();
    let mut thread = 0;
    for event in trace
        .iter()
        .chain([&Event::Fence(Rule::DurableBeforeReturn)])
    {
        match event {
            Event::Store(unit) | Event::StoreNt(unit) => {
                let cell = cell_of(unit.off);
                pending.push((cell, *unit, BTreeSet::new()));
                if matches!(event, Event::StoreNt(_)) {
                    let mine = pending.iter_mut().filter(|p| p.0 == cell);
                    mine.for_each(|p| p.2.extend([thread]));
                }
            }
            Event::Flush { line } => {
                let mine = pending.iter_mut().filter(|p| p.1.off / 64 == line / 64);
                mine.for_each(|p| p.2.extend([thread]));
            }
            Event::Fence(_) => {
                combine(&durable, &pending, &mut all);
                for (_, unit, _) in pending.iter().filter(|p| p.2.contains(&thread)) {
                    let word = &mut durable[unit.off as usize / 8];
                    *word = unit.apply(*word);
                }
                pending.retain(|p| !p.2.contains(&thread));
            }
            Event::Thread(number) => thread = *number,
            Event::Mark(_) => {}
        }
    }
    all
}

fn combine(
    durable: &[u64],
    pending: &[(u64, medium::Unit, BTreeSet<u32>)],
    all: &mut BTreeSet<Vec<u64>>,
) {
    let Some((cell, ..)) = pending.first() else {
        all.insert(durable.to_vec());
        return;
    };
    let (mine, rest): (Vec<_>, Vec<_>) = pending.iter().cloned().partition(|p| p.0 == *cell);
    let mut image = durable.to_vec();
    combine(&image, &rest, all);
    for (_, unit, _) in mine {
        let word = &mut image[unit.off as usize / 8];
        *word = unit.apply(*word);
        combine(&image, &rest, all);
    }
}

fn any_step() -> impl Strategy<Value = (u8, u64, u8)> {
    (0u8..7, 0u64..32, any::<u8>())
}

proptest! {
    #[test]
    fn exactly_the_legal_states_are_visited(steps in prop::collection::vec(any_step(), 1..12)) {
        let mut trace = Vec::new();
        for (kind, at, value) in &steps {
            trace.extend(match kind {
                6 => vec![Event::Thread(*at as u32 % 2)],
                _ => trace_of(|pm| match kind {
                    0 | 1 => pm.store_word(at % 8 * 8 + at / 8 * 64, u64::from(*value)),
                    2 => pm.store(*at, &[*value; 3]),
                    3 => pm.store_nt(at * 8, &[*value; 8]),
                    4 => pm.flush(at * 8, 8),
                    _ => pm.fence(Rule::DurableBeforeReturn).unwrap(),
                }),
            });
        }
        for model in PersistModel::ALL {
            let mut seen = BTreeSet::new();
            let reader = |pm: &StatePmem| {
                let image: Vec<u64> = (0..512).map(|w| word(pm, w * 8)).collect();
                seen.insert(image);
                Ok(0)
            };
            let limits = Limits { leaves: usize::MAX, ..LIMITS };
            let explored = explore_with(limits, model, &trace, reader);
            prop_assert!(explored.found.is_none());
            prop_assert_eq!(&seen, &brute_force(model, &trace));
            prop_assert_eq!(explored.tally.distinct.len(), seen.len());
        }
    }
}
