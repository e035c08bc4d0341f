//! One lock: its holders, and the queue of requests.
//!
//! 1. The modes of holders are compatible.
//! 2. No request in the queue could be granted: another client holds the lock, or requested it
//!    earlier, in an incompatible mode.
//! 3. A holder whose revoke is unanswered has the time of the first such revoke, and the target.

use crate::seeded::{Bug, hit};
use aerie_proto::locks::{Age, ClientId, GrantNo, LockId, Mode};
use std::collections::VecDeque;
use std::time::Duration;

/// A client that holds the lock.
pub(super) struct Holder {
    client: ClientId,
    pub(super) mode: Mode,
    pub(super) grant: GrantNo,
    revoked: Option<Revoked>,
}

/// A revoke without an answer.
#[derive(Clone, Copy)]
pub(super) struct Revoked {
    pub(super) to: Mode,
    /// The lowest age of the requests that wait.
    pub(super) age: Age,
    pub(super) since: Duration,
}

/// A request in the queue.
pub(super) struct Waiter {
    pub(super) client: ClientId,
    /// The number of the message.
    pub(super) seq: u64,
    pub(super) mode: Mode,
    pub(super) age: Age,
    pub(super) uses: Vec<(LockId, Mode)>,
}

/// A message that follows from a change.
pub(super) enum Step {
    /// The request, the grant, all that is held, and the time of the revoke that it makes obsolete.
    Grant(Waiter, GrantNo, Mode, Option<Duration>),
    /// The client, the number of the message, the grant, and the revoke.
    Revoke(ClientId, u64, GrantNo, Revoked),
}

#[derive(Default)]
pub(super) struct Lock {
    holders: Vec<Holder>,
    waiting: VecDeque<Waiter>,
}

impl Lock {
    pub(super) fn is_unused(&self) -> bool {
        self.holders.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn holder(&self, client: ClientId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.client == client)
    }

    pub(super) fn held(&self, client: ClientId) -> Mode {
        self.holder(client).map_or(Mode::NONE, |holder| holder.mode)
    }

    /// The queue, earliest first, with the mode that each request would hold.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&Waiter, Mode)> {
        let wanted = |waiter: &Waiter| waiter.mode.join(self.held(waiter.client));
        self.waiting
            .iter()
            .map(move |waiter| (waiter, wanted(waiter)))
    }

    /// All holders, and the clients of all requests.
    pub(super) fn clients(&self) -> impl Iterator<Item = ClientId> {
        let holders = self.holders.iter().map(|holder| holder.client);
        holders.chain(self.waiting.iter().map(|waiter| waiter.client))
    }

    /// The revokes without an answer.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = (Duration, ClientId)> {
        let revoked = |holder: &Holder| Some((holder.revoked?.since, holder.client));
        self.holders.iter().filter_map(revoked)
    }

    /// The number of a client's requests in the queue.
    pub(super) fn requests(&self, client: ClientId) -> usize {
        let own = self.waiting.iter().filter(|waiter| waiter.client == client);
        own.count()
    }

    pub(super) fn enqueue(&mut self, waiter: Waiter) {
        self.waiting.push_back(waiter);
    }

    pub(super) fn withdraw(&mut self, is_withdrawn: impl Fn(&Waiter) -> bool) {
        self.waiting.retain(|waiter| !is_withdrawn(waiter));
    }

    /// Sets the time of an unanswered revoke.
    pub(super) fn postpone(&mut self, client: ClientId, at: Duration) {
        let mut holders = self.holders.iter_mut();
        let holder = holders.find(|holder| holder.client == client);
        if let Some(revoked) = holder.and_then(|holder| holder.revoked.as_mut()) {
            revoked.since = at;
        }
    }

    /// Lowers what a client holds. Returns the time of the revoke that this answers.
    pub(super) fn lower(&mut self, client: ClientId, mode: Mode) -> Option<Duration> {
        let mut holders = self.holders.iter();
        let at = holders.position(|holder| holder.client == client)?;
        let holder = &mut self.holders[at];
        holder.mode = mode;
        let answered = holder.revoked.filter(|revoked| mode.is_within(revoked.to));
        if answered.is_some() {
            holder.revoked = None;
        }
        if mode.is_none() {
            self.holders.swap_remove(at);
        }
        answered.map(|revoked| revoked.since)
    }

    /// Grants each request that is compatible with all other holders and all earlier requests of
    /// others. Revokes the holders that are in the way of a request that only holders block.
    pub(super) fn settle(&mut self, seq: &mut u64, at: Duration) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut n = 0;
        while n < self.waiting.len() {
            let (client, wanted) = self.wanted(n);
            if self.is_first(n) {
                // A later request waits for the holders too.
                let ages = self.waiting.range(n..).map(|waiter| waiter.age);
                let age = ages.min().unwrap_or_default();
                let revoked = Revoked {
                    to: wanted,
                    age,
                    since: at,
                };
                self.revoke_others(client, revoked, seq, &mut steps);
                if self.is_free(client, wanted)
                    && let Some(waiter) = self.waiting.remove(n)
                {
                    steps.push(self.grant(waiter, wanted, seq));
                    continue;
                }
            }
            n += 1;
        }
        steps
    }

    /// The client of a request, and the mode that it would hold.
    fn wanted(&self, n: usize) -> (ClientId, Mode) {
        let waiter = &self.waiting[n];
        (waiter.client, waiter.mode.join(self.held(waiter.client)))
    }

    /// Whether no earlier request of another client is in the way of a request.
    fn is_first(&self, n: usize) -> bool {
        let (client, wanted) = self.wanted(n);
        (0..n)
            .map(|earlier| self.wanted(earlier))
            .all(|(other, mode)| other == client || mode.is_compatible(wanted))
    }

    /// Whether no other holder is in the way.
    fn is_free(&self, client: ClientId, wanted: Mode) -> bool {
        let mut others = self.holders.iter().filter(|other| other.client != client);
        others.all(|other| other.mode.is_compatible(wanted))
    }

    fn grant(&mut self, waiter: Waiter, mode: Mode, seq: &mut u64) -> Step {
        let client = waiter.client;
        *seq += 1;
        let grant = GrantNo(*seq);
        let mut holders = self.holders.iter();
        let held = holders.position(|holder| holder.client == client);
        let held = held.map(|at| self.holders.swap_remove(at));
        let obsolete = held.and_then(|held| held.revoked);
        self.holders.push(Holder {
            client,
            mode,
            grant,
            revoked: None,
        });
        Step::Grant(waiter, grant, mode, obsolete.map(|revoked| revoked.since))
    }

    /// Revokes the holders that are in the way of a client, which is to hold `wanted.to`.
    fn revoke_others(
        &mut self,
        client: ClientId,
        wanted: Revoked,
        seq: &mut u64,
        steps: &mut Vec<Step>,
    ) {
        let others = self
            .holders
            .iter_mut()
            .filter(|holder| holder.client != client);
        for holder in others.filter(|holder| !holder.mode.is_compatible(wanted.to)) {
            let target = holder.mode.beside(wanted.to);
            let before = holder.revoked;
            let is_new =
                before.is_none_or(|before| !before.to.is_within(target) || wanted.age < before.age);
            if is_new {
                let revoked = Revoked {
                    to: before.map_or(target, |before| before.to.meet(target)),
                    age: before.map_or(wanted.age, |before| before.age.min(wanted.age)),
                    since: before.map_or(wanted.since, |before| before.since),
                };
                holder.revoked = Some(revoked);
                *seq += 1;
                steps.push(Step::Revoke(holder.client, *seq, holder.grant, revoked));
            }
            if hit(Bug::GrantBeforeAnswer) {
                holder.mode = target;
            }
        }
    }

    /// Checks the invariants, for tests.
    pub(super) fn audit(&self) -> Result<(), String> {
        for (n, a) in self.holders.iter().enumerate() {
            if a.mode.is_none()
                || a.revoked
                    .is_some_and(|revoked| a.mode.is_within(revoked.to))
            {
                return Err(format!(
                    "{} should not be a holder, or not revoked",
                    a.client
                ));
            }
            for b in &self.holders[..n] {
                if a.client == b.client || !a.mode.is_compatible(b.mode) {
                    let (x, y) = (a.client, b.client);
                    return Err(format!("{x} has ({}), {y} has ({})", a.mode, b.mode));
                }
            }
        }
        for n in 0..self.waiting.len() {
            let (client, wanted) = self.wanted(n);
            if self.is_first(n) && self.is_free(client, wanted) {
                return Err(format!("{client} waits for nothing"));
            }
        }
        if self.is_unused() {
            return Err("nobody holds or requests it".into());
        }
        Ok(())
    }
}
