//! Threads that wait: they take uses of objects in the order of their paths, and request locks.

use super::Host;
use super::state::{Entry, Owner, Request, State, Status, Step};
use aerie_proto::locks::{Age, Ask, LockId, Mode};

/// Used locks that a request names, at most.
const MOST_USES: usize = 64;

enum Attempt {
    Taken(Option<LockId>),
    Blocked,
    /// This thread, which waits, is in the way, and yields.
    BlockedBy(u64),
}

/// Another thread in the way of a use.
enum Conflict {
    None,
    /// A younger thread that waits, and can give up its uses.
    Yielding(u64),
    /// A thread that has waited for the same object longer.
    Queue,
    /// A thread that uses the object.
    Firm,
}

impl State {
    /// Lets waiting threads take what they can, in the order in which they came, until none can.
    pub(super) fn advance(&mut self, host: &impl Host) {
        self.check_lease(host.now());
        if let Some(end) = self.ended {
            return self.remove(end);
        }
        let is_connected = self.epoch.is_some();
        let mut changed = is_connected;
        while std::mem::take(&mut changed) {
            let waiting = self.owners.iter().filter(|(_, owner)| owner.is_waiting());
            let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
            for id in waiting {
                changed |= self.proceed(host, id);
            }
        }
    }

    /// Takes as many steps of an owner as possible. Returns whether it took any.
    pub(super) fn proceed(&mut self, host: &impl Host, id: u64) -> bool {
        let mut is_changed = false;
        while self.owners[&id].next().is_some() {
            match self.attempt(host, id) {
                Attempt::Taken(cover) => {
                    is_changed = true;
                    self.take(id, cover);
                }
                Attempt::Blocked => return is_changed,
                Attempt::BlockedBy(other) => self.yield_uses(other),
            }
        }
        let owner = self.owners.get_mut(&id);
        if let Some(owner) = owner.filter(|owner| owner.is_waiting()) {
            owner.status = Status::Granted;
        }
        is_changed
    }

    pub(super) fn yield_uses(&mut self, owner: u64) {
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.give_up();
        }
    }

    fn take(&mut self, id: u64, cover: Option<LockId>) {
        let Some(owner) = self.owners.get_mut(&id) else {
            return;
        };
        let at = owner.uses.len();
        owner.uses.push(cover);
        let lock = owner.steps[at].lock;
        if let Some(entry) = self.entries.get_mut(&lock) {
            entry.used = owner.began;
        }
        if cover.is_none() {
            self.link(id, at);
        }
    }

    fn attempt(&mut self, host: &impl Host, id: u64) -> Attempt {
        let owner = &self.owners[&id];
        let Some(step) = owner.next() else {
            return Attempt::Blocked;
        };
        let (lock, mode, ask) = (step.lock, step.mode, step.ask);
        // It uses the object already, on another path.
        let stands = |(step, cover): (&Step, Option<LockId>)| step.lock == lock && cover.is_none();
        if owner.uses().any(stands) {
            return Attempt::Taken(None);
        }
        let conflict = self.conflict(id, lock, mode);
        let taken = |cover| match conflict {
            Conflict::None => Attempt::Taken(cover),
            // It yields only to a thread that can proceed then.
            Conflict::Yielding(other) => Attempt::BlockedBy(other),
            Conflict::Queue | Conflict::Firm => Attempt::Blocked,
        };
        let entry = self.entries.get(&lock);
        let is_revoked = entry.is_some_and(|entry| entry.target.is_some());
        let needed = if is_revoked { mode } else { ask };
        let effective = entry.map_or(Mode::NONE, Entry::effective);
        if needed.is_within(effective) {
            return taken(None);
        }
        if let Some(cover) = self.cover(host, owner, mode) {
            return taken(Some(cover));
        }
        if !is_revoked && !matches!(conflict, Conflict::Firm) {
            let age = self.age_at(lock, owner.age);
            self.request(host, lock, needed, age, Some(id));
        }
        Attempt::Blocked
    }

    /// The lowest age of the threads that wait for a lock, and of another one.
    pub(super) fn age_at(&self, lock: LockId, age: Age) -> Age {
        let owners = self.owners.values();
        let waiting = owners.filter(|owner| owner.next().is_some_and(|step| step.lock == lock));
        waiting.fold(age, |age, owner| age.min(owner.age))
    }

    /// Whether another thread of this client is in the way: it uses the lock, or waits for it longer.
    fn conflict(&self, id: u64, lock: LockId, mode: Mode) -> Conflict {
        let mut conflict = Conflict::None;
        let mut is_queued = false;
        for (other_id, other) in self.owners.iter().filter(|(other, _)| **other != id) {
            let is_in_way = |step: &Step| step.lock == lock && !step.mode.is_compatible(mode);
            if other.uses().any(|(step, _)| is_in_way(step)) {
                if !(other.is_waiting() && id < *other_id) {
                    return Conflict::Firm;
                }
                conflict = Conflict::Yielding(*other_id);
            }
            if *other_id < id && other.next().is_some_and(is_in_way) {
                is_queued = true;
            }
        }
        if is_queued { Conflict::Queue } else { conflict }
    }

    /// The lowest hierarchical lock on the path that covers the next step of an owner. The counts are
    /// read while the locks are held.
    fn cover(&self, host: &impl Host, owner: &Owner, mode: Mode) -> Option<LockId> {
        let at = owner.uses.len();
        let start = owner.steps[at].start;
        let covers = |lock: &LockId| {
            let entry = self.entries.get(lock);
            mode.is_within(entry.map_or(Mode::NONE, Entry::effective).covers())
        };
        let count = |step: &Step| {
            let before = step.count_before;
            before.unwrap_or_else(|| host.membership_count(step.lock))
        };
        // Usually by the lock that covers the object above, or by that object.
        if at > start {
            let above = Some(owner.steps[at - 1].lock).filter(covers);
            if let Some(above) = above.or(owner.uses[at - 1].filter(covers)) {
                return (count(&owner.steps[at]) == 1).then_some(above);
            }
        }
        let mut cover = None;
        for step in &owner.steps[start..=at] {
            if count(step) != 1 {
                cover = None;
            }
            if step.lock != owner.steps[at].lock && covers(&step.lock) {
                cover = Some(step.lock);
            }
        }
        cover
    }

    /// Requests a lock of the service, unless an equivalent request is under way.
    pub(super) fn request(
        &mut self,
        host: &impl Host,
        lock: LockId,
        mode: Mode,
        age: Age,
        owner: Option<u64>,
    ) {
        let entry = self.entries.entry(lock).or_default();
        let mut requests = entry.requests.iter();
        let is_waiting = requests.any(|other| mode.is_within(other.mode) && other.age <= age);
        if is_waiting || self.is_full {
            return;
        }
        let uses = if cfg!(debug_assertions) {
            self.uses_of_thread(owner)
        } else {
            Vec::new()
        };
        let ask = Ask::Request {
            lock,
            mode,
            age,
            uses,
        };
        let seq = self.send(host, ask);
        let request = Request {
            seq,
            mode,
            age,
            floor: self.seen,
            owner,
        };
        self.entries.entry(lock).or_default().requests.push(request);
    }

    /// The locks in use by the thread of a waiting owner: that one does not leave it before it gets more.
    fn uses_of_thread(&self, owner: Option<u64>) -> Vec<(LockId, Mode)> {
        let Some(owner) = owner.and_then(|owner| self.owners.get(&owner)) else {
            return Vec::new();
        };
        let same = self
            .owners
            .values()
            .filter(|other| other.thread == owner.thread);
        let firm = same.filter(|other| !other.is_waiting());
        let uses = firm.flat_map(|other| other.uses().map(|(step, _)| (step.lock, step.mode)));
        uses.take(MOST_USES).collect()
    }
}
