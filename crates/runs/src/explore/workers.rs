//! Judges states in several threads.

use super::{Explored, Explorer, Failure, Report, State, Subject};
use crate::checker::Verdict;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// States that wait for a checker.
const QUEUE: usize = 64;

/// The hash of a tree, and the length of the output so far.
type Key = (u64, usize);

/// The verdicts so far. A message is kept once.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<Key, Option<String>>>);

impl Known {
    fn get(&self, key: &Key) -> Option<Option<String>> {
        self.0.lock().get(key).cloned()
    }

    fn set(&self, key: Key, wrong: Option<String>) {
        self.0.lock().insert(key, wrong);
    }
}

/// Counts and failures of one subject.
#[derive(Default)]
struct Results {
    failed: AtomicU64,
    /// One state for each distinct message, and the number of its states.
    failures: Mutex<HashMap<String, (State, String, u64)>>,
    error: Mutex<Option<String>>,
    is_over: AtomicBool,
}

impl Results {
    fn fail(&self, state: State, message: String, most: usize) {
        self.failed.fetch_add(1, Relaxed);
        let mut failures = self.failures.lock();
        let kind = kind_of(&message);
        if let Some((first, text, count)) = failures.get_mut(&kind) {
            *count += 1;
            // The state with the fewest lost effects is nearest to the cause. On an engine that is the
            // one after the fewest calls.
            if loss(&state) < loss(first) {
                (*first, *text) = (state, message);
            }
        } else if failures.len() < most {
            failures.insert(kind, (state, message, 1));
        }
    }
}

fn loss(state: &State) -> usize {
    let lost = state.lost.as_ref().map(|lost| lost.lost.len());
    lost.unwrap_or(state.returned)
}

/// Messages that differ in numbers only are of one kind.
pub(super) fn kind_of(message: &str) -> String {
    let mut kind = String::new();
    for c in message.chars().take(200) {
        match c.is_ascii_digit() {
            true if kind.ends_with('#') => {}
            true => kind.push('#'),
            false => kind.push(c),
        }
    }
    kind
}

/// Explores one subject and adds its failures to the report.
pub(super) fn explore(
    explorer: &Explorer<'_>,
    subject: &Subject<'_>,
    known: &Known,
    progress: &(dyn Fn(&str, u64) + Sync),
    report: &mut Report,
) -> Result<Explored, String> {
    let name = subject.name();
    let results = Results::default();
    let (states, judged) = (AtomicU64::new(0), AtomicU64::new(0));
    let (send, receive) = sync_channel::<(Key, State)>(QUEUE);
    let receive = Mutex::new(receive);
    let complete = thread::scope(|scope| {
        for _ in 0..explorer.options.jobs.max(1) {
            scope.spawn(|| work(explorer, &receive, known, &results));
        }
        let mut seen = HashSet::new();
        let produced = explorer.produce(subject, &mut |state| {
            states.fetch_add(1, Relaxed);
            let Ok(tree) = &state.tree else {
                // An image that cannot be opened needs no checker.
                let why = state.tree.as_ref().err().cloned().unwrap_or_default();
                results.fail(state, why, explorer.options.max_failures);
                return true;
            };
            let key = (tree.hash(), explorer.output(state.returned).len());
            if !seen.insert(key) {
                return true;
            }
            let count = judged.fetch_add(1, Relaxed) + 1;
            progress(&name, count);
            count <= explorer.options.limit
                && !results.is_over.load(Relaxed)
                && send.send((key, state)).is_ok()
        });
        drop(send);
        produced
    });
    if let Some(error) = results.error.into_inner() {
        return Err(error);
    }
    let mut explored = Explored {
        model: name,
        states: states.into_inner(),
        judged: judged.into_inner().min(explorer.options.limit),
        failed: results.failed.into_inner(),
        complete: false,
        refused: None,
        seconds: 0.0,
    };
    match complete {
        Ok(complete) => explored.complete = complete,
        Err(why) if matches!(subject, Subject::Engine(..)) => explored.refused = Some(why),
        Err(why) => return Err(why),
    }
    let mut failures: Vec<_> = results.failures.into_inner().into_values().collect();
    failures.sort_by(|a, b| (loss(&a.0), &a.1).cmp(&(loss(&b.0), &b.1)));
    for (state, message, count) in failures {
        if report.failures.len() < explorer.options.max_failures {
            let failure = Failure::new(explorer, subject, state, message, count)?;
            report.failures.push(failure);
        } else {
            report.more_failures += 1;
        }
    }
    Ok(explored)
}

/// Judges states until there are no more.
fn work(
    explorer: &Explorer<'_>,
    states: &Mutex<Receiver<(Key, State)>>,
    known: &Known,
    results: &Results,
) {
    let run = || -> Result<(), String> {
        let mut bench = explorer.bench()?;
        loop {
            let Ok((key, state)) = states.lock().recv() else {
                return Ok(());
            };
            let wrong = match (known.get(&key), &state.tree) {
                (Some(wrong), _) => wrong,
                (None, Err(why)) => Some(why.clone()),
                (None, Ok(tree)) => match explorer.judge(&mut bench, tree, state.returned)? {
                    Verdict::Fine => None,
                    Verdict::Wrong(why) => Some(why),
                },
            };
            known.set(key, wrong.clone());
            if let Some(message) = wrong {
                results.fail(state, message, explorer.options.max_failures);
            }
        }
    };
    if let Err(error) = run() {
        results.error.lock().get_or_insert(error);
        results.is_over.store(true, Relaxed);
        // The producer must not wait for this worker.
        while states.lock().recv().is_ok() {}
    }
}
