//! Programs that keep data in persistent memory themselves.
//!
//! A program runs once, over a recording, and sets marks: operations that have begun, and
//! operations that have returned. The explorer then visits the states that a power cut could
//! leave before each fence and at each mark. It opens each state as the program would. The
//! program judges whether the state fits the marks that had been set. The explorer also cuts the
//! power in the recovery, and uses the recovered memory.
//!
//! Threads may take part. Their operations must come in the same order in each run, or a failure
//! cannot be replayed. A fence makes durable what its own thread has flushed.

mod named;

pub use named::{AnyProgram, Named, explore_all, replay_id};

use crate::choice::{Policy, mix};
use crate::media::memory::StatePmem;
use crate::media::{Medium, crash_between};
use crate::panics::caught;
use crate::report::Options;
use crate::walk::{
    CrashPath, CrashState, Found, Judge, Limits, Recovery, Tally, Verdict, Walk, revisit,
};
use medium::recording::Event;
use medium::{MemoryPmem, Pmem, Recording, WORD_BYTES};
use std::sync::Arc;

/// Memory of a program that runs, or has recovered.
pub type Memory = Arc<dyn Pmem>;

/// A program under test.
pub trait Program {
    /// The recovered memory, as [`open`](Self::open) returns it.
    type Opened;

    /// Bytes of memory that it needs.
    fn bytes(&self) -> u64;

    /// Makes the memory that the run starts from, durably.
    ///
    /// # Errors
    /// The memory cannot be made.
    fn format(&self, pm: Memory) -> Result<(), String>;

    /// Runs, always in the same way, and calls `mark` with numbers of its own.
    ///
    /// # Errors
    /// An operation failed without a crash.
    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String>;

    /// Whether crashes at a time with these marks are explored. A program may begin like another
    /// one that is explored already.
    fn is_explored(&self, _marks: &[u64]) -> bool {
        true
    }

    /// Recovers.
    ///
    /// # Errors
    /// The memory does not recover. This is a failure.
    fn open(&self, pm: Memory) -> Result<Self::Opened, String>;

    /// Judges the recovered memory, given the marks before the crash. Returns a hash of all that
    /// it read.
    ///
    /// # Errors
    /// The memory breaks a promise. This is a failure.
    fn check(&self, opened: &mut Self::Opened, marks: &[u64]) -> Result<u64, String>;

    /// Uses the recovered memory as after a restart.
    ///
    /// # Errors
    /// An operation failed. This is a failure.
    fn go_on(&self, _opened: Self::Opened) -> Result<(), String> {
        Ok(())
    }
}

/// Result of the exploration of a program.
#[derive(Debug)]
pub struct Explored {
    /// Points in time at which crashes were explored.
    pub points: u64,
    /// Points with too many states to visit all.
    pub capped_points: u64,
    /// Crash states recovered from and judged.
    pub states: u64,
    /// Crash states with distinct contents of the memory.
    pub distinct: u64,
    /// The first failure, which ended the exploration.
    pub failure: Option<Failure>,
}

/// A crash state that breaks a promise.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The broken promise, as text.
    pub what: String,
    /// Number of marks that had been set.
    pub marks: usize,
    place: CrashPath,
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
                // Operations that returned must be durable from now on.
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

/// Runs a program and visits its crash states, up to the first failure. It takes the model, the
/// bounds and the seed of `options`.
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

/// Visits the state of a failure again. Returns the present failure, as text.
///
/// # Errors
/// The state no longer exists.
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
    fn judge(&mut self, pm: &Arc<StatePmem>, tail: Policy, _crashes: usize) -> Verdict<Event> {
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
