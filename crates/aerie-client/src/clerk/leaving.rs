//! Lowering of locks: after a revoke, or when they are not used.
//!
//! A lock with a target is *ready* when nothing stands on the part that it loses:
//! 1. no thread uses more of the object than the target allows,
//! 2. every use that the lock covers, and the target does not, stands on another lock,
//! 3. no lock of a child needs more than the target allows. Such locks get a target themselves.

use super::Host;
use super::state::{Entries, State, Step, Target};
use crate::seeded::{Bug, hit};
use aerie_proto::locks::{Age, Ask, GrantNo, LockId, Mode};
use std::time::Duration;

/// A lock that is about to be lowered.
pub(super) struct Leaving {
    lock: LockId,
    grant: Option<GrantNo>,
    target: Target,
    /// Whether there may be changes to ship.
    pub(super) may_write: bool,
}

impl State {
    /// A lock that can be lowered now. Does what others need before they can.
    pub(super) fn ready(&mut self, host: &impl Host) -> Option<LockId> {
        if self.has_ended() {
            return None;
        }
        // Targets for children come up on the way.
        loop {
            let targets: Vec<(LockId, Target)> = self.targets().collect();
            for (lock, target) in targets.iter().copied() {
                if self.is_ready(host, lock, target) {
                    return Some(lock);
                }
            }
            if self.targets().eq(targets.iter().copied()) {
                self.has_targets = !targets.is_empty();
                return None;
            }
        }
    }

    fn targets(&self) -> impl Iterator<Item = (LockId, Target)> {
        let entries = self.entries.iter();
        entries.filter_map(|(lock, entry)| Some((*lock, entry.target?)))
    }

    fn is_ready(&mut self, host: &impl Host, lock: LockId, mut target: Target) -> bool {
        // Threads of this client wait until it is lowered, too.
        target.age = self.age_at(lock, target.age);
        self.have_users_left(lock, target)
            && (self.replace_cover(host, lock, target) || hit(Bug::AncestorFirst))
            && self.have_children_left(lock, target)
            && self.has_no_stray(lock, target)
    }

    /// Whether no thread uses more of the object than the target. Groups that wait yield.
    fn have_users_left(&mut self, lock: LockId, target: Target) -> bool {
        let mut users = Vec::new();
        for (id, owner) in &self.owners {
            let mut uses = owner.uses();
            let stands = uses.any(|(step, cover)| {
                step.lock == lock && cover.is_none() && !step.mode.is_within(target.to)
            });
            if stands {
                users.push((*id, owner.yields_to(target.age)));
            }
        }
        for (id, _) in users.iter().filter(|(_, yields)| *yields) {
            self.yield_uses(*id);
        }
        users.iter().all(|(_, yields)| *yields)
    }

    /// Whether no use stands on what the lock covers and the target does not. Requests the locks on
    /// which they will stand. Groups that wait yield instead.
    fn replace_cover(&mut self, host: &impl Host, lock: LockId, target: Target) -> bool {
        let covered = target.to.covers();
        let is_lost = |step: &Step, cover| cover == Some(lock) && !step.mode.is_within(covered);
        for owner in self.owners.values_mut() {
            let mut uses = owner.uses();
            if owner.yields_to(target.age) && uses.any(|(step, cover)| is_lost(step, cover)) {
                drop(uses);
                owner.uses.clear();
            }
        }
        let owners = self.owners.values();
        let uses = owners.flat_map(|owner| owner.uses().map(|used| (owner.age, used)));
        let lost = uses.filter(|(_, (step, cover))| is_lost(step, *cover));
        let lost = lost.map(|(age, (step, _))| (step.lock, step.mode, age));
        let lost: Vec<(LockId, Mode, Age)> = lost.collect();
        let mut all = true;
        for (used, mode, age) in lost {
            self.stand_on(used);
            let entry = self.entries.get(&used);
            if entry.is_some_and(|entry| mode.is_within(entry.held)) {
                continue;
            }
            all = false;
            if entry.is_none_or(|entry| entry.target.is_none()) {
                self.request(host, used, mode, age, None);
            }
        }
        all
    }

    /// Makes the covered uses of an object stand on its own lock, if that is held. A revoke of that
    /// lock then waits for them, even if it came together with the grant.
    pub(super) fn stand_on(&mut self, lock: LockId) {
        let held = self
            .entries
            .get(&lock)
            .map_or(Mode::NONE, |entry| entry.held);
        let mut stand = Vec::new();
        for (id, owner) in &mut self.owners {
            let uses = owner.steps.iter().zip(&mut owner.uses).enumerate();
            for (at, (step, cover)) in uses {
                if step.lock == lock && cover.is_some() && step.mode.is_within(held) {
                    *cover = None;
                    stand.push((*id, at));
                }
            }
        }
        for (id, at) in stand {
            self.link(id, at);
        }
    }

    /// Whether no lock of a child needs more than the target. Those that do are given up as a whole:
    /// they then have no parents any more, so that a thread that comes back to one on another path
    /// does not keep this lock from being lowered.
    fn have_children_left(&mut self, lock: LockId, target: Target) -> bool {
        let Target { to, age } = target;
        let range = (lock, LockId(0))..=(lock, LockId(u64::MAX));
        let mut all = true;
        for (_, child) in self.children.range(range) {
            if let Some(entry) = self.entries.get_mut(child)
                && !entry.held.needs().is_within(to)
            {
                all = false;
                let to = Mode::NONE;
                entry.lower_to(Target { to, age });
                self.has_targets = true;
            }
        }
        all
    }

    /// Whether every lock has all its parents held, if the target covers less than the lock. Locks below a
    /// collection that was only covered are given up: no intent will protect them.
    fn has_no_stray(&mut self, lock: LockId, target: Target) -> bool {
        let Target { to, age } = target;
        let held = self
            .entries
            .get(&lock)
            .map_or(Mode::NONE, |entry| entry.held);
        if held.covers().is_within(to.covers()) {
            return true;
        }
        let is_held = |entries: &Entries, lock| {
            let entry = entries.get(lock);
            entry.is_some_and(|entry| !entry.held.is_none())
        };
        let entries = &self.entries;
        let strays = entries.iter().filter(|(_, entry)| {
            let mut parents = entry.parents.iter();
            !entry.held.is_none() && parents.any(|parent| !is_held(entries, parent))
        });
        let strays: Vec<LockId> = strays.map(|(lock, _)| *lock).collect();
        self.has_targets |= !strays.is_empty();
        for stray in &strays {
            if let Some(entry) = self.entries.get_mut(stray) {
                entry.lower_to(Target {
                    to: Mode::NONE,
                    age,
                });
            }
        }
        strays.is_empty()
    }

    pub(super) fn leaving(&self, lock: LockId) -> Leaving {
        let entry = self.entries.get(&lock);
        Leaving {
            lock,
            grant: entry.and_then(|entry| entry.grant),
            target: entry.and_then(|entry| entry.target).unwrap_or(Target {
                to: Mode::NONE,
                age: Age::default(),
            }),
            may_write: entry.is_some_and(|entry| entry.held.may_write()),
        }
    }

    /// Lowers a lock, unless it has changed meanwhile.
    pub(super) fn lower(&mut self, host: &impl Host, leaving: &Leaving) {
        let Leaving { lock, target, .. } = *leaving;
        let to = target.to;
        let entry = self.entries.get(&lock);
        let is_same = entry.is_some_and(|entry| {
            entry.grant == leaving.grant && entry.target.is_some() && !entry.held.is_none()
        });
        if !is_same || !self.is_ready(host, lock, target) {
            return;
        }
        let Some((entry, grant)) = self.entries.get_mut(&lock).zip(leaving.grant) else {
            return;
        };
        let is_lower = !entry.held.is_within(to);
        entry.held = entry.held.meet(to);
        entry
            .target
            .take_if(|target| entry.held.is_within(target.to));
        let mode = entry.held;
        if mode.is_none() {
            for parent in std::mem::take(&mut entry.parents) {
                self.children.remove(&(parent, lock));
            }
            if entry.requests.is_empty() {
                self.entries.remove(&lock);
            }
            self.is_full = false;
            self.send(host, Ask::Release { lock, grant });
        } else if is_lower {
            self.send(host, Ask::Convert { lock, grant, mode });
        }
    }

    /// Gives up the locks that no thread uses, or has used after a time. Returns whether there are any.
    pub(super) fn release_unused(&mut self, since: Duration) -> bool {
        let owners = self.owners.values();
        let used = owners.flat_map(|owner| owner.steps.iter().map(|step| step.lock));
        let used: std::collections::BTreeSet<LockId> = used.collect();
        let mut any = false;
        self.has_targets = true;
        for (lock, entry) in &mut self.entries {
            if !entry.held.is_none() && entry.used <= since && !used.contains(lock) {
                entry.lower_to(Target {
                    to: Mode::NONE,
                    age: Age::default(),
                });
                any = true;
            }
        }
        any
    }
}
