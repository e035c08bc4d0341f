//! Media and their crash states. A [`Medium`] runs a file system, records its stores, and then
//! holds the states that a crash may leave of them, one at a time.
//!
//! [`crate::promise`] decides which states are allowed afterwards.

pub(crate) mod blocks;
pub(crate) mod memory;

use crate::choice::Policy;
use crate::report::Options;
use crate::setting::Setting;
use crate::walk::{CrashPath, CrashState};
use medium::Rule;
use oracle::snapshot::Snapshot;
use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::sync::Arc;
use vfs::System;

/// An order that a file system asked for: its name on the medium, and its rule. It prints as
/// `fence(data-before-commit)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub call: &'static str,
    pub rule: Rule,
}

impl Display for Order {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.call, self.rule)
    }
}

/// The orders of a trace before and after the first crash of a place, as text.
pub(crate) fn crash_between<M: Medium>(trace: &[M::Event], place: &CrashPath) -> String {
    let crash = place.crashes.first().map_or(0, |crash| crash.event);
    let crash = crash.min(trace.len());
    let text = |order: Option<Order>, none: &str| order.map_or(none.into(), |o| o.to_string());
    let before = text(
        (0..crash).rev().find_map(|at| M::order(trace, at)),
        "the start",
    );
    let after = text(
        (crash..trace.len()).find_map(|at| M::order(trace, at)),
        "the end",
    );
    format!("; crashed between {before} and {after}")
}

/// An operation of a trace, to be replayed in program order.
pub(crate) struct Replay<'a, M: Medium> {
    pub system: &'a M::System,
    pub trace: &'a [M::Event],
    /// The operation's events.
    pub events: Range<usize>,
    /// The state before the operation.
    pub old: &'a Snapshot,
    /// The state after it.
    pub new: &'a Snapshot,
}

/// A medium with a file system on it.
pub(crate) trait Medium:
    CrashState<Event: Clone + Send> + Send + Sync + Sized + 'static
{
    /// The trait through which file systems reach it.
    type Door: ?Sized;
    /// A file system on it.
    type System: ?Sized + System<Self::Door>;
    /// Its durable content.
    type Image: Send;
    /// Forwards every call to the medium, and keeps the trace.
    type Recorder: ?Sized;

    /// The settings in which each script is run.
    fn settings(system: &Self::System, options: &Options) -> Vec<Setting>;
    /// The image that `make` leaves on a zeroed medium that loses nothing.
    ///
    /// # Errors
    /// Those of `make`, and damage of the new file system.
    fn made(
        system: &Self::System,
        make: &mut dyn FnMut(Arc<Self::Door>) -> Result<(), String>,
    ) -> Result<Self::Image, String>;
    /// The present image.
    fn image(&self) -> Self::Image;
    /// A medium that holds `image` durably.
    ///
    /// # Errors
    /// The setting is one of another medium.
    fn of_image(image: &Self::Image, setting: Setting) -> Result<Self, String>;

    /// Restores the first image, with nothing pending.
    fn reset(&self);
    /// Crashes at this moment, and decides by `policy` what is left, until the next
    /// [`reset`](Self::reset).
    fn cut(&self, policy: Policy);

    /// Begins a trace.
    fn record(self: &Arc<Self>) -> Arc<Self::Recorder>;
    /// The medium as file systems reach it, through a recorder.
    fn door(recorder: &Arc<Self::Recorder>) -> Arc<Self::Door>;
    /// Takes the trace since the last call, or since the beginning.
    fn take(recorder: &Self::Recorder) -> Vec<Self::Event>;
    /// Takes the trace, and may end the recording to save time.
    fn stop(recorder: &Self::Recorder) -> Vec<Self::Event> {
        Self::take(recorder)
    }

    /// Whether an event changes what the medium holds.
    fn is_change(event: &Self::Event) -> bool;
    /// Whether crashes are visited at an event. The number of such events is the length of a
    /// script.
    fn is_moment(event: &Self::Event) -> bool;
    /// The order that the event at `at` makes: of a fence, a flush or a durable write.
    fn order(trace: &[Self::Event], at: usize) -> Option<Order>;
    /// Gives `events` numbers that differ from those of the trace before them.
    fn renumber(_events: &mut [Self::Event], _before: &[Self::Event]) {}
    /// Events on the medium between the kill of a server and the next opening. Nothing is lost,
    /// and nothing is flushed. `trace`: events of the killed server. `only_data`: the last call
    /// changed only the contents of files.
    fn after_kill(trace: &[Self::Event], only_data: bool) -> Vec<Self::Event>;

    /// Hash of all that an open file system can depend on. `None`: unknown.
    fn essence(&self) -> Option<u64> {
        None
    }
    /// Key of a recovery. Crashes in recoveries of the same key leave equivalent states.
    fn key_of_recovery(&self, _trace: &[Self::Event]) -> Option<u64> {
        None
    }
    /// Has `policy` decide undecided cells up to the end of the evaluation. These decisions are
    /// not part of the path.
    fn start_tail(&self, _policy: Policy) {}

    /// Replays the changes of an operation in program order. The state that callers see must
    /// change from old to new in one step. Returns how many states were read: 0 on media whose
    /// changes are not visible one by one.
    ///
    /// # Errors
    /// The first event with a wrong state, and what is wrong.
    fn switches_once(self: &Arc<Self>, _replay: &Replay<'_, Self>) -> Result<u64, (usize, String)> {
        Ok(0)
    }
}
