//! Crash states of calls on a file system, for a caller that judges them itself.
//!
//! The calls run once, over a recorded medium. Then the states are visited that a power cut could
//! leave, at the same points in time as those of a script. The file system recovers from each
//! state, and the caller sees it. Crashes inside a recovery are not visited: the promise of the
//! engine covers them.

mod recording;

use crate::choice::mix;
use crate::media::blocks::StateDevice;
use crate::media::memory::StatePmem;
use crate::schedule::Schedule;
use crate::setting::Setting;
use crate::{BlockSystem, PersistModel, PmemSystem};
use recording::Recording;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use vfs::FileSystem;

/// A file system, by the kind of its medium.
#[derive(Clone, Copy)]
pub enum Observed<'a> {
    /// On a block device.
    Blocks(&'a BlockSystem),
    /// On persistent memory, whose words a crash keeps or loses one by one.
    Memory(&'a PmemSystem),
}

/// Calls that can be made again and again, always in the same way.
pub trait Calls {
    /// Makes the tree in which the calls start.
    ///
    /// # Errors
    /// The call that failed, in one line.
    fn prepare(&mut self, fs: &dyn FileSystem) -> Result<(), String>;
    /// Begins: the file system was opened again since [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// The call that failed, in one line.
    fn begin(&mut self, fs: &dyn FileSystem) -> Result<(), String>;
    /// Number of calls.
    fn len(&self) -> usize;
    /// Whether there is no call.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Makes call number `n`.
    ///
    /// # Errors
    /// The call that failed, in one line.
    fn call(&mut self, fs: &dyn FileSystem, n: usize) -> Result<(), String>;
    /// Whether the return of call number `n` is a promise: states before and after it are visited
    /// apart.
    fn is_promise(&self, n: usize) -> bool;
}

/// A crash state that can be visited again: the schedule of write-back, the event of the trace
/// after the crash, and the choices for the blocks or words that were not durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The schedule.
    pub schedule: Schedule,
    event: usize,
    choices: Vec<u32>,
}

/// `each/12/0.1.0`; choices of 0 at the end are left out.
impl Display for Spot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/", self.schedule, self.event)?;
        let last = self.choices.iter().rposition(|choice| *choice > 0);
        let chosen = last.map_or(&[][..], |last| &self.choices[..=last]);
        let chosen: Vec<String> = chosen.iter().map(u32::to_string).collect();
        f.write_str(&chosen.join("."))
    }
}

impl FromStr for Spot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let [schedule, event, choices] = parts[..] else {
            return Err(format!("`{text}` does not name a crash state"));
        };
        let number = |text: &str| text.parse::<u32>().map_err(|e| format!("`{text}`: {e}"));
        let choices = choices.split('.').filter(|text| !text.is_empty());
        Ok(Self {
            schedule: schedule.parse()?,
            event: number(event)? as usize,
            choices: choices.map(number).collect::<Result<_, _>>()?,
        })
    }
}

/// A recovered crash state.
pub struct Seen<'a> {
    /// The file system, after recovery; or the reason why it cannot be opened.
    pub fs: Result<&'a dyn FileSystem, &'a str>,
    /// Number of calls that had returned.
    pub returned: usize,
    spot: &'a dyn Fn() -> Spot,
}

impl Seen<'_> {
    /// The place of the state. On persistent memory a word is decided when it is first read, so the
    /// place has the choices for what was read so far.
    pub fn spot(&self) -> Spot {
        (self.spot)()
    }
}

/// Bounds of an observation.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// States of a point in time up to which all are visited.
    pub states_per_point: usize,
    /// Random subsets, and single blocks, tried at a point with more states.
    pub samples: usize,
    /// Most points in time. About that many of a longer trace are drawn.
    pub points: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// The part that is visited, and the number of parts. Each part has random points of the whole
    /// trace, and each point is in one part.
    pub part: (usize, usize),
}

impl Bounds {
    fn is_in_part(&self, event: usize) -> bool {
        let (part, of) = self.part;
        of <= 1 || mix(!self.seed, event as u64) % of as u64 == part as u64
    }
}

/// The calls, run over a recorded medium.
pub struct Observation<'a>(Of<'a>);

enum Of<'a> {
    Blocks(Recording<'a, StateDevice>),
    Memory(Recording<'a, StatePmem>),
}

impl<'a> Observation<'a> {
    /// Runs calls under a schedule of write-back. On persistent memory it applies to what the file
    /// system keeps in memory.
    ///
    /// # Errors
    /// A call fails.
    pub fn new(
        system: Observed<'a>,
        calls: &mut dyn Calls,
        schedule: Schedule,
    ) -> Result<Self, String> {
        let setting = |model| Setting {
            model,
            schedule: Some(schedule),
        };
        let of = match system {
            Observed::Blocks(system) => {
                Of::Blocks(Recording::new(system, calls, schedule, setting(None))?)
            }
            Observed::Memory(system) => {
                let words = setting(Some(PersistModel::Words));
                Of::Memory(Recording::new(system, calls, schedule, words)?)
            }
        };
        Ok(Self(of))
    }

    /// About how many bytes of memory it takes: its events, without the contents of written blocks,
    /// and the medium.
    pub fn memory_bytes(&self) -> u64 {
        match &self.0 {
            Of::Blocks(recording) => recording.memory_bytes(),
            Of::Memory(recording) => recording.memory_bytes(),
        }
    }

    /// Number of points in time.
    pub fn points(&self) -> usize {
        match &self.0 {
            Of::Blocks(recording) => recording.points(),
            Of::Memory(recording) => recording.points(),
        }
    }

    /// Visits the crash states, in the order of the trace, until `see` returns false. Returns
    /// whether all points in time of the part were visited with all their states.
    ///
    /// # Errors
    /// `see` panicked.
    pub fn visit(
        &self,
        bounds: &Bounds,
        see: &mut dyn FnMut(&Seen<'_>) -> bool,
    ) -> Result<bool, String> {
        match &self.0 {
            Of::Blocks(recording) => recording.visit(bounds, see),
            Of::Memory(recording) => recording.visit(bounds, see),
        }
    }

    /// Visits one state again.
    ///
    /// # Errors
    /// There is no such state.
    pub fn again(&self, spot: &Spot, see: &mut dyn FnMut(&Seen<'_>) -> bool) -> Result<(), String> {
        match &self.0 {
            Of::Blocks(recording) => recording.again(spot, see),
            Of::Memory(recording) => recording.again(spot, see),
        }
    }
}
