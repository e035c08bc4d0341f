//! Lowering of locks: after a revoke, or when they are not used.
//!
//! A lock with a target is lowered in a *group* with all that needs it:
//! 1. locks of children that need more than the target allows,
//! 2. if the lock covers less then, all *strays*: locks that need more of a parent than its own lock has,
//!    which was covered, maybe by this lock. No intent will protect them.
//!
//! The others of a group are given up as a whole: they then have no parents any more, so that a thread
//! that comes back to one on another path does not keep the lock from being lowered. Parents and children
//! are as threads have named them in paths; objects may have moved since, even in circles. So no lock of a
//! group waits for another one: a group is lowered in one go, when it is *quiet*, and is shipped.
//!
//! A lock is quiet when nothing stands on the part that it loses:
//! 1. no thread uses more of the object than the target allows,
//! 2. every use that the lock covers, and the target does not, stands on another lock.

use super::Host;
use super::state::{Entry, State, Step, Target};
use crate::seeded::{Bug, hit};
use aerie_proto::locks::{Age, Ask, GrantNo, LockId, Mode};
use std::collections::BTreeSet;
use std::time::Duration;

/// A lock that is about to be lowered.
#[derive(PartialEq)]
pub(super) struct Leaving {
    pub(super) lock: LockId,
    grant: Option<GrantNo>,
    /// The mode to which it is lowered. Threads may use so much of it while it is shipped.
    to: Option<Mode>,
    /// Whether there may be changes to ship.
    pub(super) may_write: bool,
}

impl State {
    /// A group that can be lowered now; its lock is the first. Does what others need before they can.
    pub(super) fn ready(&mut self, host: &impl Host) -> Option<Vec<Leaving>> {
        if self.has_ended() {
            return None;
        }
        let entries = self.entries.iter();
        let targets = entries.filter(|(_, entry)| entry.leaving().is_some());
        let targets: Vec<LockId> = targets.map(|(lock, _)| *lock).collect();
        self.has_targets = !targets.is_empty();
        targets.into_iter().find_map(|lock| {
            let group = self.group(lock);
            self.is_quiet_group(host, &group)
                .then(|| self.leaving(&group))
        })
    }

    /// The lock, and what is to be lowered with it, which gets a target.
    fn group(&mut self, lock: LockId) -> Vec<LockId> {
        let (mut group, mut members) = (vec![lock], BTreeSet::from([lock]));
        let mut has_strays = false;
        let mut next = 0;
        while let Some(lock) = group.get(next).copied() {
            next += 1;
            let Some((held, target)) = self.entries.get(&lock).and_then(Entry::leaving) else {
                continue;
            };
            let mut others = self.children_beyond(lock, target.to);
            if !has_strays && !held.covers().is_within(target.to.covers()) {
                others.extend(self.strays());
                has_strays = true;
            }
            let to = Target {
                to: Mode::NONE,
                ..target
            };
            for other in others.into_iter().filter(|other| members.insert(*other)) {
                self.entries.entry(other).or_default().lower_to(to);
                group.push(other);
            }
        }
        group
    }

    /// Children whose locks need more than a mode of this one.
    fn children_beyond(&self, lock: LockId, mode: Mode) -> Vec<LockId> {
        let range = (lock, LockId(0))..=(lock, LockId(u64::MAX));
        let children = self.children.range(range).map(|(_, child)| *child);
        let needs_more = |child: &LockId| {
            let entry = self.entries.get(child);
            entry.is_some_and(|entry| !entry.held.needs().is_within(mode))
        };
        children.filter(needs_more).collect()
    }

    /// Locks that need more of a parent than its own lock has.
    fn strays(&self) -> Vec<LockId> {
        let held = |lock| {
            let entry = self.entries.get(lock);
            entry.map_or(Mode::NONE, |entry| entry.held)
        };
        let entries = self.entries.iter();
        let strays = entries.filter(|(_, entry)| {
            let needs = entry.held.needs();
            let mut parents = entry.parents.iter();
            parents.any(|parent| !needs.is_within(held(parent)))
        });
        strays.map(|(lock, _)| *lock).collect()
    }

    fn is_quiet_group(&mut self, host: &impl Host, group: &[LockId]) -> bool {
        let target = |lock: &LockId| self.entries.get(lock).and_then(|entry| entry.target);
        let Some(targets) = group.iter().map(target).collect::<Option<Vec<Target>>>() else {
            return false;
        };
        // Threads of this client that wait for any of the locks wait until all are lowered, too.
        let ages = group.iter().zip(&targets);
        let age = ages.map(|(lock, target)| self.age_at(*lock, target.age));
        let age = age.min().unwrap_or_default();
        let mut all = true;
        for (lock, target) in group.iter().copied().zip(targets) {
            let target = Target { age, ..target };
            all &= self.have_users_left(lock, target)
                && (self.replace_cover(host, lock, target) || hit(Bug::AncestorFirst));
        }
        all
    }

    /// Whether no thread uses more of the object than the target. Threads that wait yield.
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
    /// which they will stand. Threads that wait yield instead.
    fn replace_cover(&mut self, host: &impl Host, lock: LockId, target: Target) -> bool {
        let covered = target.to.covers();
        let is_lost = |step: &Step, cover| cover == Some(lock) && !step.mode.is_within(covered);
        for owner in self.owners.values_mut() {
            let mut uses = owner.uses();
            if owner.yields_to(target.age) && uses.any(|(step, cover)| is_lost(step, cover)) {
                drop(uses);
                owner.give_up();
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

    fn leaving(&self, group: &[LockId]) -> Vec<Leaving> {
        let leaving = |lock: &LockId| {
            let entry = self.entries.get(lock);
            Leaving {
                lock: *lock,
                grant: entry.and_then(|entry| entry.grant),
                to: entry.and_then(|entry| Some(entry.target?.to)),
                may_write: entry.is_some_and(|entry| entry.held.may_write()),
            }
        };
        group.iter().map(leaving).collect()
    }

    /// Lowers a group that was shipped, unless it has changed meanwhile.
    pub(super) fn lower(&mut self, host: &impl Host, group: &[Leaving]) {
        let Some(lock) = group.first().map(|first| first.lock) else {
            return;
        };
        let locks = self.group(lock);
        if self.leaving(&locks) == group && self.is_quiet_group(host, &locks) {
            // Those that need others come before them.
            for lock in locks.into_iter().rev() {
                self.lower_one(host, lock);
            }
        }
    }

    fn lower_one(&mut self, host: &impl Host, lock: LockId) {
        let Some(entry) = self.entries.get_mut(&lock) else {
            return;
        };
        let Some((grant, target)) = entry.grant.zip(entry.target.take()) else {
            return;
        };
        let is_lower = !entry.held.is_within(target.to);
        entry.held = entry.held.meet(target.to);
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
