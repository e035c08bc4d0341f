//! Programs that keep data in persistent memory themselves.
//!
//! A program runs once, over a recording, and sets marks: what it has begun, and what has
//! returned. The explorer then visits the states that a power cut could leave before each
//! fence and at each mark, opens each as the program would, and has the program say whether
//! what is there fits the marks that had been set. It also cuts the power in the recovery,
//! and uses what recovered.
//!
//! Threads may take part; what they do must come in the same order in each run, or a failure
//! cannot be visited again. A fence makes durable what its own thread has flushed.

mod named;

pub use named::{AnyProgram, Named, explore_all, replay_id};

use crate::choice::{Policy, mix};
use crate::media::memory::StatePmem;
use crate::media::{Medium, crash_between};
use crate::panics::caught;
use crate::report::Options;
use crate::walk::{
    CrashState, Found, Judge, Limits, Place, Recovery, Tally, Verdict, Walk, revisit,
};
use medium::recording::Event;
use medium::{MemoryPmem, Pmem, Recording, WORD_BYTES};
use std::sync::Arc;

/// Memory of a program that runs, or has recovered.
pub type Memory = Arc<dyn Pmem>;

/// What takes part.
pub trait Program {
    /// What [`open`](Self::open) gives.
    type Opened;

    /// Bytes of memory that it needs.
    fn bytes(&self) -> u64;

    /// Makes the memory as it is before the run, durably.
    ///
    /// # Errors
    /// Why it cannot.
    fn format(&self, pm: Memory) -> Result<(), String>;

    /// Runs, always in the same way, and calls `mark` with numbers of its own.
    ///
    /// # Errors
    /// What went wrong without a crash.
    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String>;

    /// Whether crashes at a time with these marks are explored: a program may begin as one that is
    /// explored already.
    fn is_explored(&self, _marks: &[u64]) -> bool {
        true
    }

    /// Recovers.
    ///
    /// # Errors
    /// Why it cannot, which is a failure.
    fn open(&self, pm: Memory) -> Result<Self::Opened, String>;

    /// Looks at what recovered, given the marks before the crash. Returns a hash of all that
    /// it saw.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&self, opened: &mut Self::Opened, marks: &[u64]) -> Result<u64, String>;

    /// Uses what recovered as it would after a restart.
    ///
    /// # Errors
    /// What does not work.
    fn go_on(&self, _opened: Self::Opened) -> Result<(), String> {
        Ok(())
    }
}

/// What an exploration of a program found.
#[derive(Debug)]
pub struct Explored {
    /// Points in time at which crashes were explored.
    pub points: u64,
    /// Those with too many states to visit all.
    pub capped_points: u64,
    /// Crash states recovered from and judged.
    pub states: u64,
    /// Those that differ in what the memory held.
    pub distinct: u64,
    /// The first failure, at which it ended.
    pub failure: Option<Failure>,
}

/// A crash state that is wrong.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What is wrong.
    pub what: String,
    /// How many marks had been set.
    pub marks: usize,
    place: Place,
}

/// A run of a program.
struct Run<'a, P: Program> {
    program: &'a P,
    pm: Arc<StatePmem>,
    trace: Vec<Event>,
}

impl<'a, P: Program> Run<'a, P> {
    fn record(program: &'a P, options: &Options) -> Result<Self, String> {
        let live = Arc::new(MemoryPmem::new(program.bytes()));
        program.format(live.clone())?;
        let words = (0..live.len() / WORD_BYTES).map(|n| live.load(n * WORD_BYTES));
        let words = words.collect::<Result<Vec<_>, _>>();
        let pm = StatePmem::new(options.model, &words.map_err(|e| e.to_string())?);
        let recording = Arc::new(Recording::new(live));
        program.run(recording.clone(), &|id| recording.mark(id))?;
        Ok(Self {
            program,
            pm: Arc::new(pm),
            trace: recording.take(),
        })
    }

    /// Visits all points in time.
    fn crash(&self, limits: Limits, tally: &mut Tally) -> Result<(), (Found, usize)> {
        let mut marks = Vec::new();
        for (n, event) in self.trace.iter().enumerate() {
            if matches!(event, Event::Fence(_) | Event::Mark(_)) {
                self.point(n, &marks, limits, tally)?;
            }
            if let Event::Mark(id) = event {
                marks.push(*id);
                // What returned must be there from now on.
                self.point(n + 1, &marks, limits, tally)?;
            }
            self.pm.apply(event);
        }
        self.point(self.trace.len(), &marks, limits, tally)
    }

    fn point(
        &self,
        event: usize,
        marks: &[u64],
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), (Found, usize)> {
        let program = self.program;
        if !program.is_explored(marks) {
            return Ok(());
        }
        let mut walk = Walk {
            medium: &self.pm,
            judge: &mut ProgramJudge { program, marks },
            limits,
            tally,
            crashes: Vec::new(),
        };
        walk.point(event).map_err(|found| (found, marks.len()))
    }
}

/// Runs a program and visits its crash states, up to the first that is wrong. Of `options`
/// it takes the model, the bounds and the seed.
///
/// # Errors
/// The program does not run without a crash.
pub fn explore<P: Program>(program: &P, options: &Options) -> Result<Explored, String> {
    let run = Run::record(program, options)?;
    let limits = Limits {
        leaves: options.states_per_point,
        recovery_depth: options.recovery_depth,
        samples: options.samples,
        tails: 1,
        moments: usize::MAX,
        lives: 0,
        seed: options.seed,
    };
    let mut tally = Tally::default();
    let failure = run.crash(limits, &mut tally).err();
    Ok(Explored {
        points: tally.points,
        capped_points: tally.capped_points,
        states: tally.states,
        distinct: tally.distinct.len() as u64,
        failure: failure.map(|(found, marks)| Failure {
            what: found.what + &crash_between::<StatePmem>(&run.trace, &found.place),
            marks,
            place: found.place,
        }),
    })
}

/// Visits a failure again. Returns what is wrong there now.
///
/// # Errors
/// There is no such place any more.
pub fn replay<P: Program>(
    program: &P,
    options: &Options,
    failure: &Failure,
) -> Result<Option<String>, String> {
    let run = Run::record(program, options)?;
    let is_mark = |event: &Event| match event {
        Event::Mark(id) => Some(*id),
        _ => None,
    };
    let event = failure.place.crashes.first().map_or(0, |crash| crash.event);
    let before = run.trace.get(..event).ok_or("there are fewer events")?;
    let marks: Vec<u64> = before.iter().filter_map(is_mark).collect();
    if marks.len() != failure.marks {
        let (found, given) = (marks.len(), failure.marks);
        return Err(format!("{found} marks precede event {event}, not {given}"));
    }
    let marks = &marks;
    let mut judge = ProgramJudge { program, marks };
    let verdict = revisit(&run.pm, &run.trace, &failure.place, &mut judge)?;
    let between = crash_between::<StatePmem>(&run.trace, &failure.place);
    Ok(verdict.wrong.map(|what| what + &between))
}

struct ProgramJudge<'a, P> {
    program: &'a P,
    marks: &'a [u64],
}

impl<P: Program> ProgramJudge<'_, P> {
    fn evaluate(
        &self,
        pm: &Arc<StatePmem>,
        tail: Policy,
        verdict: &mut Verdict<Event>,
    ) -> Result<(), String> {
        pm.start_record();
        let opened = self.program.open(pm.clone());
        let (decisions, trace) = (pm.decisions(), pm.recorded());
        // Flushes and fences alone make no state that a crash could not leave before.
        let is_store = |e: &Event| matches!(e, Event::Store(_) | Event::StoreNt(_));
        if trace.iter().any(is_store) {
            verdict.recovery = Some(Recovery {
                decisions,
                trace,
                key: None,
            });
        }
        let mut opened = opened.map_err(|e| format!("does not open: {e}"))?;
        verdict.outcome = self.program.check(&mut opened, self.marks)?;
        pm.start_tail(tail);
        self.program.go_on(opened)
    }
}

impl<P: Program> Judge<StatePmem> for ProgramJudge<'_, P> {
    fn judge(&mut self, pm: &Arc<StatePmem>, tail: Policy) -> Verdict<Event> {
        let mut verdict = Verdict {
            wrong: None,
            outcome: 0,
            recovery: None,
        };
        let result = caught(|| self.evaluate(pm, tail, &mut verdict));
        verdict.wrong = result.err();
        verdict
    }

    fn demands(&self) -> u64 {
        self.marks.iter().fold(0, |h, mark| mix(h, *mark))
    }
}
