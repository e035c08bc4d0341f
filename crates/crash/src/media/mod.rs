//! What a crash can leave of a medium. A [`Medium`] runs a file system, records what it
//! stores, and then holds any state that a crash may leave of that, one at a time.
//!
//! What is allowed afterwards is not its business: see [`crate::promise`].

pub(crate) mod blocks;
pub(crate) mod memory;

use crate::choice::Policy;
use crate::report::Options;
use crate::setting::Setting;
use crate::system::Failure;
use crate::trial::Run;
use crate::walk::{CrashState, Place};
use medium::Rule;
use std::fmt::{self, Display, Formatter};
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

/// Says between which orders of a trace the first crash of a place is: one that is not enough,
/// perhaps, and one that was still to come.
pub(crate) fn crash_between<M: Medium>(trace: &[M::Event], place: &Place) -> String {
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

/// A medium with a file system on it.
pub(crate) trait Medium:
    CrashState<Event: Clone + Send> + Send + Sync + Sized + 'static
{
    /// The trait through which file systems reach it.
    type Door: ?Sized;
    /// A file system on it.
    type System: ?Sized + System<Self::Door>;
    /// All that it holds durably.
    type Image: Send;
    /// Passes everything on to the medium, and keeps the trace.
    type Recorder: ?Sized;

    /// The settings in which each script is run.
    fn settings(system: &Self::System, options: &Options) -> Vec<Setting>;
    /// The image that `make` leaves on a zeroed medium that loses nothing.
    ///
    /// # Errors
    /// Those of `make`; what is wrong with the new file system.
    fn made(
        system: &Self::System,
        make: &mut dyn FnMut(Arc<Self::Door>) -> Result<(), String>,
    ) -> Result<Self::Image, String>;
    /// The image as it is now.
    fn image(&self) -> Self::Image;
    /// A medium that holds `image` durably.
    ///
    /// # Errors
    /// The setting is one of another medium.
    fn of_image(image: &Self::Image, setting: Setting) -> Result<Self, String>;

    /// Back to the image at the very start, with nothing pending.
    fn reset(&self);
    /// Decides by `policy` what a crash at this moment leaves, until the next
    /// [`reset`](Self::reset).
    fn cut(&self, policy: Policy);

    /// Begins a record of what is done to it.
    fn record(self: &Arc<Self>) -> Arc<Self::Recorder>;
    /// The way through a recorder.
    fn door(recorder: &Arc<Self::Recorder>) -> Arc<Self::Door>;
    /// Takes the trace since the last call, or since the beginning.
    fn take(recorder: &Self::Recorder) -> Vec<Self::Event>;
    /// Takes the trace, and ends the record if that saves time.
    fn stop(recorder: &Self::Recorder) -> Vec<Self::Event> {
        Self::take(recorder)
    }

    /// Whether an event changes what the medium holds.
    fn is_change(event: &Self::Event) -> bool;
    /// Whether a crash is worth visiting at an event, which says how long a script is.
    fn is_moment(event: &Self::Event) -> bool;
    /// The order that the event at `at` makes: of a fence, a flush or a durable write.
    fn order(trace: &[Self::Event], at: usize) -> Option<Order>;
    /// Gives `events` numbers that differ from those of the trace before them.
    fn renumber(_events: &mut [Self::Event], _before: &[Self::Event]) {}
    /// What the medium does after a server was killed that did `trace`, until the next one
    /// has opened it: nothing is lost, but nobody flushes. `only_data`: the last call changed
    /// only the contents of files.
    fn after_kill(trace: &[Self::Event], only_data: bool) -> Vec<Self::Event>;

    /// Hash of all that can matter to an open file system. `None`: not known.
    fn essence(&self) -> Option<u64> {
        None
    }
    /// Recoveries with the same key leave, at a crash in them, the same as far as it matters.
    fn key_of_recovery(&self, _trace: &[Self::Event]) -> Option<u64> {
        None
    }
    /// From here to the end of the evaluation `policy` decides what is undecided, and that is
    /// not part of the path.
    fn start_tail(&self, _policy: Policy) {}

    /// Replays the changes of phase `phase` in program order: what callers would see must go
    /// from old to new in one step. Returns how often it was looked at. Media whose changes
    /// cannot be seen one by one look never.
    fn switches_once(_run: &Run<'_, Self>, _phase: usize) -> Result<u64, Failure> {
        Ok(0)
    }
}
