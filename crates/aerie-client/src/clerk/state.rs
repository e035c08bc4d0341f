//! The state of a clerk: the locks of the client, and the guards of its threads.

use super::{Host, LockError};
use crate::seeded::{Bug, hit};
use aerie_proto::locks::{Age, Ask, End, Epoch, GrantNo, LockId, Mode, ToService};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a client takes no hierarchical lock of an object after others have needed its descendants.
pub(super) const CONTENTION: Duration = Duration::from_secs(10);
/// Objects that are remembered for that.
const MOST_CONTENDED: usize = 4096;

/// A use of an object that a thread needs.
pub(super) struct Step {
    pub(super) lock: LockId,
    pub(super) mode: Mode,
    /// The mode to request of the service. It contains `mode`.
    pub(super) ask: Mode,
    /// The step of the first object of the path.
    pub(super) start: usize,
    /// The memberships when the thread began to wait, for a seeded bug.
    pub(super) count_before: Option<u64>,
}

/// The progress of a guard.
#[derive(Clone)]
pub(super) enum Status {
    Waiting,
    Granted,
    Failed(LockError),
}

/// A guard, or a thread that waits for one.
pub(super) struct Owner {
    /// `thread_number`. The standard library would take memory of the program's `malloc` for its id, which the
    /// library of `selvedge run` must not do in a handler of a signal.
    pub(super) thread: usize,
    pub(super) began: Duration,
    pub(super) steps: Vec<Step>,
    /// Of the first steps, in order: the lock further up on which the use stands, or `None` for that
    /// of the object itself.
    pub(super) uses: Vec<Option<LockId>>,
    /// While it waits, it gives up its uses when older owners need them.
    pub(super) age: Age,
    pub(super) status: Status,
    /// Whether it leaves soon when it has its locks.
    pub(super) is_brief: bool,
}

impl Owner {
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.status, Status::Waiting)
    }

    pub(super) fn leaves_soon(&self) -> bool {
        self.is_brief && matches!(self.status, Status::Granted)
    }

    /// Sets the session, if the age was drawn before it began.
    pub(super) fn set_epoch(&mut self, epoch: Epoch) {
        self.age.1 = epoch;
    }

    /// Whether it gives up its uses for others of this age: if they are older, or itself.
    pub(super) fn yields_to(&self, age: Age) -> bool {
        self.is_waiting() && age <= self.age
    }

    /// Gives up what it has. Others are near, so it asks for no more than it needs from now on.
    pub(super) fn give_up(&mut self) {
        self.uses.clear();
        self.steps.iter_mut().for_each(|step| step.ask = step.mode);
    }

    /// The uses that it has.
    pub(super) fn uses(&self) -> impl Iterator<Item = (&Step, Option<LockId>)> {
        self.steps.iter().zip(self.uses.iter().copied())
    }

    pub(super) fn next(&self) -> Option<&Step> {
        self.steps
            .get(self.uses.len())
            .filter(|_| self.is_waiting())
    }
}

/// A request without an answer.
pub(super) struct Request {
    pub(super) seq: u64,
    pub(super) mode: Mode,
    pub(super) age: Age,
    /// The highest number that had been received; every later grant has a higher one.
    pub(super) floor: u64,
    /// The waiting thread that caused it.
    pub(super) owner: Option<u64>,
}

/// A mode to which a lock is to be lowered.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Target {
    pub(super) to: Mode,
    /// The lowest age of the threads of other clients that wait.
    pub(super) age: Age,
}

impl Target {
    pub(super) fn and(self, other: Option<Self>) -> Self {
        Self {
            to: other.map_or(self.to, |other| self.to.meet(other.to)),
            age: other.map_or(self.age, |other| self.age.min(other.age)),
        }
    }
}

/// A lock of the client.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) held: Mode,
    /// The last grant.
    pub(super) grant: Option<GrantNo>,
    /// The mode to which it is to be lowered.
    pub(super) target: Option<Target>,
    pub(super) requests: Vec<Request>,
    /// A revoke whose grant has not arrived.
    pub(super) early: Option<(GrantNo, Target)>,
    /// The collections through which threads came to it.
    pub(super) parents: BTreeSet<LockId>,
    pub(super) used: Duration,
}

impl Entry {
    /// The mode on which threads may stand.
    pub(super) fn effective(&self) -> Mode {
        match self.target {
            Some(target) if !hit(Bug::GrantsAfterRevoke) => self.held.meet(target.to),
            _ => self.held,
        }
    }

    /// The mode and the target of a lock that is to be lowered.
    pub(super) fn leaving(&self) -> Option<(Mode, Target)> {
        let target = self.target.filter(|_| !self.held.is_none())?;
        Some((self.held, target))
    }

    /// Adds a target.
    pub(super) fn lower_to(&mut self, target: Target) {
        self.target = Some(target.and(self.target));
    }
}

pub(super) type Entries = BTreeMap<LockId, Entry>;

pub(super) struct State {
    pub(super) epoch: Option<Epoch>,
    pub(super) seq: u64,
    /// The highest number of a message of the service.
    pub(super) seen: u64,
    pub(super) lease: Duration,
    /// When the session began or was renewed last, by the clerk's clock: when it sent the message.
    pub(super) renewed: Duration,
    /// A renewal without an answer: its number and time.
    pub(super) renewing: Option<(u64, Duration)>,
    pub(super) ended: Option<End>,
    pub(super) entries: Entries,
    /// Pairs of parent and child, as in [`Entry::parents`].
    pub(super) children: BTreeSet<(LockId, LockId)>,
    /// By the order in which they came.
    pub(super) owners: BTreeMap<u64, Owner>,
    /// The number of the last owner.
    pub(super) last_owner: u64,
    /// Whether the service has refused a request since the client has too many locks. Requests then
    /// wait until it has fewer.
    pub(super) is_full: bool,
    /// Whether a lock may have a target.
    pub(super) has_targets: bool,
    /// Ships that have begun, and that have ended.
    pub(super) ships_begun: u64,
    pub(super) ships_ended: u64,
    /// Threads that wait until passes are given.
    pub(super) hoping: usize,
    /// Objects whose descendants other clients have needed, and when.
    contended: BTreeMap<LockId, Duration>,
}

impl State {
    pub(super) fn begin(host: &impl Host) -> Self {
        let mut state = Self {
            epoch: None,
            seq: 0,
            seen: 0,
            lease: Duration::MAX,
            renewed: host.now(),
            renewing: None,
            ended: None,
            entries: BTreeMap::new(),
            children: BTreeSet::new(),
            owners: BTreeMap::new(),
            last_owner: 0,
            is_full: false,
            has_targets: false,
            ships_begun: 0,
            ships_ended: 0,
            hoping: 0,
            contended: BTreeMap::new(),
        };
        state.send(host, Ask::Begin);
        state
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn send(&mut self, host: &impl Host, ask: Ask) -> u64 {
        self.seq += 1;
        let epoch = self.epoch.unwrap_or_default();
        let seq = self.seq;
        host.send(ToService { epoch, seq, ask });
        seq
    }

    pub(super) fn enqueue(
        &mut self,
        now: Duration,
        thread: usize,
        steps: Vec<Step>,
        is_brief: bool,
    ) -> u64 {
        self.last_owner += 1;
        let epoch = self.epoch.unwrap_or(Epoch(u64::MAX));
        let owner = Owner {
            thread,
            began: now,
            uses: Vec::with_capacity(steps.len()),
            steps,
            age: Age(now, epoch, self.last_owner),
            status: Status::Waiting,
            is_brief,
        };
        self.owners.insert(self.last_owner, owner);
        self.last_owner
    }

    pub(super) fn status(&self, owner: u64) -> Status {
        self.owners[&owner].status.clone()
    }

    /// Whether a new owner can proceed without regard to others: none waits, and the session lasts.
    pub(super) fn is_quiet(&self, now: Duration) -> bool {
        let is_late = now >= self.renewed.saturating_add(self.lease);
        let is_connected = self.epoch.is_some() && !self.has_ended() && !is_late;
        is_connected && !self.owners.values().any(Owner::is_waiting)
    }

    /// Whether somebody may wait for an owner to leave.
    pub(super) fn is_awaited(&self) -> bool {
        let is_hoped = self.hoping > 0 || self.owners.values().any(Owner::is_waiting);
        self.has_targets || self.has_ended() || is_hoped
    }

    /// Records that other clients need descendants of an object.
    pub(super) fn contend(&mut self, lock: LockId, now: Duration) {
        if self.contended.len() >= MOST_CONTENDED {
            self.contended.clear();
        }
        self.contended.insert(lock, now);
    }

    /// The first object of a path whose descendants no other client has needed lately.
    pub(super) fn quiet_place(&self, path: &[LockId], now: Duration) -> Option<usize> {
        let is_quiet = |lock| {
            let last = self.contended.get(lock);
            last.is_none_or(|last| last.saturating_add(CONTENTION) <= now)
        };
        path.iter().position(is_quiet)
    }

    pub(super) fn leave(&mut self, owner: u64) {
        self.owners.remove(&owner);
        self.is_full = false;
    }

    /// Ends the session: nothing is held any more.
    pub(super) fn remove(&mut self, end: End) {
        let end = *self.ended.get_or_insert(end);
        self.entries.clear();
        self.children.clear();
        for owner in self.owners.values_mut() {
            owner.uses.clear();
            if owner.is_waiting() {
                owner.status = Status::Failed(LockError::Removed(end));
            }
        }
    }

    /// Records that the lock of a step was reached through the object before it on its path.
    pub(super) fn link(&mut self, owner: u64, at: usize) {
        let steps = &self.owners[&owner].steps;
        if at > steps[at].start {
            let (parent, lock) = (steps[at - 1].lock, steps[at].lock);
            self.children.insert((parent, lock));
            self.entries.entry(lock).or_default().parents.insert(parent);
        }
    }
}
