//! The clerk's part of the protocol: messages of the service, and the lease.

use super::state::{State, Status, Target};
use super::{Host, LockError};
use crate::seeded::{Bug, hit};
use aerie_proto::locks::{Ask, End, GrantNo, LockId, Mode, Refusal, Tell, ToClient};
use std::time::Duration;

impl State {
    pub(super) fn deliver(&mut self, host: &impl Host, message: ToClient) {
        let ToClient { epoch, seq, tell } = message;
        self.seen = self.seen.max(seq);
        if let Tell::Begun { lease } = tell
            && self.epoch.is_none()
        {
            self.epoch = Some(epoch);
            self.lease = lease;
            let owners = self.owners.values_mut();
            owners.for_each(|owner| owner.set_epoch(epoch));
        }
        let is_refused = self.epoch.is_none() && matches!(tell, Tell::Refused { .. });
        if self.epoch != Some(epoch) && !is_refused {
            return;
        }
        match tell {
            Tell::Begun { .. } => {}
            Tell::Renewed { of } => self.renewed(of),
            Tell::Granted { lock, mode, of } => self.granted(host, lock, GrantNo(seq), mode, of),
            Tell::Revoke {
                lock,
                grant,
                to,
                age,
            } => self.revoked(host, lock, grant, Target { to, age }),
            Tell::Expired(end) => self.remove(end),
            Tell::Refused { of, lock, why } => self.refused(host, of, lock, why),
        }
    }

    fn renewed(&mut self, of: u64) {
        if let Some((seq, sent)) = self.renewing
            && seq == of
        {
            self.renewed = sent;
            self.renewing = None;
        }
    }

    fn granted(&mut self, host: &impl Host, lock: LockId, grant: GrantNo, mode: Mode, of: u64) {
        let Some(entry) = self.entries.get_mut(&lock) else {
            return;
        };
        let mut requests = entry.requests.iter();
        let Some(at) = requests.position(|request| request.seq == of) else {
            return;
        };
        entry.requests.remove(at);
        if entry.grant.is_some_and(|newer| newer > grant) {
            return;
        }
        entry.held = mode;
        entry.grant = Some(grant);
        let early = entry.early.take_if(|(of, _)| *of <= grant);
        let early = early.filter(|(of, _)| *of == grant);
        entry.target = early.map(|(_, target)| target);
        if let Some(target) = entry.target {
            self.has_targets = true;
            self.note_contention(host, lock, mode, target);
        }
        self.stand_on(lock);
    }

    /// Records that another client needs descendants, if a target is below what a lock covers.
    fn note_contention(&mut self, host: &impl Host, lock: LockId, held: Mode, target: Target) {
        if !held.covers().is_within(target.to.covers()) {
            self.contend(lock, host.now());
        }
    }

    fn revoked(&mut self, host: &impl Host, lock: LockId, grant: GrantNo, target: Target) {
        let Some(entry) = self.entries.get_mut(&lock) else {
            return;
        };
        if !entry.held.is_none() && entry.grant == Some(grant) {
            let held = entry.held;
            entry.lower_to(target);
            self.has_targets = true;
            return self.note_contention(host, lock, held, target);
        }
        let is_newer = entry.grant.is_none_or(|held| grant > held);
        let mut requests = entry.requests.iter();
        let can_arrive = is_newer && requests.any(|request| grant.0 > request.floor);
        if can_arrive && !hit(Bug::EarlyRevokeIgnored) {
            match entry.early {
                Some((of, _)) if of > grant => {}
                Some((of, earlier)) if of == grant => {
                    entry.early = Some((grant, target.and(Some(earlier))));
                }
                _ => entry.early = Some((grant, target)),
            }
        }
    }

    fn refused(&mut self, host: &impl Host, of: u64, lock: Option<LockId>, why: Refusal) {
        if matches!(why, Refusal::NoSession | Refusal::TooManyClients(_)) {
            return self.remove(End::NotRenewed);
        }
        let Some(lock) = lock else {
            return;
        };
        let entry = self.entries.get_mut(&lock);
        let request = entry.and_then(|entry| {
            let at = entry
                .requests
                .iter()
                .position(|request| request.seq == of)?;
            Some(entry.requests.remove(at))
        });
        // Refused releases have crossed a grant.
        let Some(request) = request else {
            return;
        };
        if matches!(why, Refusal::TooManyLocks(_)) {
            self.is_full = true;
            if self.release_unused(host.now()) || request.owner.is_none() {
                return;
            }
            self.is_full = false;
        }
        let owner = request.owner.and_then(|owner| self.owners.get_mut(&owner));
        let waits = owner.filter(|owner| owner.next().is_some_and(|step| step.lock == lock));
        if let Some(owner) = waits {
            owner.uses.clear();
            owner.status = Status::Failed(LockError::Refused(lock, why));
        }
    }

    pub(super) fn tick(&mut self, host: &impl Host) {
        let now = host.now();
        self.check_lease(now);
        let is_due = now >= self.renewed.saturating_add(self.lease / 3);
        if is_due && self.renewing.is_none() && self.epoch.is_some() && !self.has_ended() {
            let seq = self.send(host, Ask::Renew);
            self.renewing = Some((seq, now));
        }
    }

    /// Ends the session if it was not renewed in time. The service's view ends later.
    pub(super) fn check_lease(&mut self, now: Duration) {
        let is_late = now >= self.renewed.saturating_add(self.lease);
        if is_late && !self.has_ended() {
            self.remove(End::NotRenewed);
        }
    }
}
