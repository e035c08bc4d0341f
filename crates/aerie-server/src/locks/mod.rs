//! The lock service: a state machine of messages, which [`aerie_proto::locks`] describes. The caller
//! moves the messages, gives the time, and calls [`Service::tick`] at [`Service::deadline`].
//!
//! 1. The modes of all holders of a lock are compatible, at any time.
//! 2. A request is granted before all later requests with which it is incompatible. Every request is
//!    granted, withdrawn with its session, or refused, provided that the time proceeds.
//! 3. A session blocks others for at most one lease after it was revoked, or after the end of the batch that was
//!    applied then, and until the end of one more batch.
//! 4. A message that is not allowed has no effect but one answer, with the reason. Nothing panics.
//! 5. Memory is bounded by [`Limits`]: by the locks of each client, and by the number of clients.
//! 6. [`Service::covers`] accepts only what the client holds in a session that has not ended.
//!
//! A caller with several threads keeps the service locked from `covers` until the change is applied,
//! or keeps a session from ending meanwhile by [`Service::pin`].
//!
//! Debug builds detect deadlocks (see [`Refusal::Deadlock`]): cycles of requests that each wait for a
//! lock in use by a thread that waits itself, or for an earlier request. A cycle with a thread that
//! waits for another thread of its own client is not found. The search reads all waiting requests.

mod audit;
mod cover;
mod deadlock;
mod lock;

pub use cover::{Objects, Uncovered};

use crate::seeded::{Bug, hit};
use aerie_proto::locks::{
    Ask, ClientId, End, Epoch, GrantNo, LockId, Mode, Refusal, Tell, ToClient, ToService,
};
use lock::{Lock, Revoked, Step, Waiter};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Used locks in a request, at most.
const MOST_USES: usize = 64;

/// Requests of a client that wait for one lock, at most. Each message about the lock takes time in proportion to
/// the square of all that wait for it. The clerk of a client has a few.
const MOST_REQUESTS: usize = 32;

/// Bounds of the service.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a session lasts after its renewal, and how long a revoke may be unanswered.
    pub lease: Duration,
    /// Locks that a client holds or requests.
    pub locks_per_client: usize,
    /// Sessions.
    pub clients: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            locks_per_client: 1 << 16,
            clients: 1 << 10,
        }
    }
}

/// Messages to send, each to a client.
pub type Outgoing = Vec<(ClientId, ToClient)>;

struct Session {
    epoch: Epoch,
    /// The number of the client's last message.
    seq: u64,
    renewed: Duration,
    /// Locks that the client holds or requests.
    locks: BTreeSet<LockId>,
    /// Requests that wait.
    waits: usize,
    pins: usize,
    /// The time of the first of the pins.
    pinned: Duration,
}

/// The service. Times are of any clock that does not go back.
pub struct Service {
    limits: Limits,
    sessions: BTreeMap<ClientId, Session>,
    locks: BTreeMap<LockId, Lock>,
    /// Revokes without an answer, by the time at which they were sent.
    unanswered: BTreeSet<(Duration, LockId, ClientId)>,
    /// The number of the last message.
    seq: u64,
    out: Outgoing,
}

impl Service {
    /// A service without sessions.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            sessions: BTreeMap::new(),
            locks: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            seq: 0,
            out: Outgoing::new(),
        }
    }

    /// Takes a message of a client.
    pub fn receive(&mut self, from: ClientId, at: Duration, message: ToService) -> Outgoing {
        let ToService { epoch, seq, ask } = message;
        if ask == Ask::Begin {
            self.begin(from, at, epoch, seq);
            return std::mem::take(&mut self.out);
        }
        if self.is_late(from, at) {
            self.end(from, End::NotRenewed, at);
        }
        let lock = match &ask {
            Ask::Begin | Ask::Renew => None,
            Ask::Request { lock, .. } | Ask::Convert { lock, .. } | Ask::Release { lock, .. } => {
                Some(*lock)
            }
        };
        let checked = self.check(from, epoch, seq);
        let done = checked.and_then(|()| self.ask(from, at, seq, ask));
        if let Err(why) = done {
            self.tell(from, epoch, Tell::Refused { of: seq, lock, why });
        }
        std::mem::take(&mut self.out)
    }

    /// Ends the session of a client whose connection is closed.
    pub fn disconnect(&mut self, client: ClientId, at: Duration) -> Outgoing {
        self.end(client, End::Closed, at);
        let mut out = std::mem::take(&mut self.out);
        out.retain(|(to, _)| *to != client);
        out
    }

    /// Ends the sessions that are late.
    pub fn tick(&mut self, at: Duration) -> Outgoing {
        let all: Vec<ClientId> = self.sessions.keys().copied().collect();
        for client in all {
            if self.is_late(client, at) {
                self.end(client, End::NotRenewed, at);
            }
        }
        let due: Vec<(LockId, ClientId)> = self.due(at).collect();
        for (lock, client) in due {
            if !self.is_pinned(client) {
                self.end(client, End::NotReleased(lock), at);
            }
        }
        std::mem::take(&mut self.out)
    }

    /// When the next session can be late.
    pub fn deadline(&self) -> Option<Duration> {
        let renewed = self.sessions.values().map(|session| session.renewed);
        let revoked = self.unanswered.first().map(|first| first.0);
        let first = renewed.chain(revoked).min()?;
        Some(first.saturating_add(self.limits.lease))
    }

    /// Keeps a session from ending by a missed deadline, while a batch of it is applied. Returns
    /// whether it is there. One that has missed the deadline of a revoke is about to end, and gets no pin: with one
    /// batch after another it would keep the lock.
    pub fn pin(&mut self, client: ClientId, epoch: Epoch, at: Duration) -> bool {
        let is_due = self.due(at).any(|(_, of)| of == client);
        let session = self.sessions.get_mut(&client);
        let Some(session) = session.filter(|session| session.epoch == epoch) else {
            return false;
        };
        if session.pins == 0 {
            session.pinned = at;
        }
        let is_pinned = session.pins > 0 || !is_due;
        session.pins += usize::from(is_pinned);
        is_pinned
    }

    /// Undoes one [`Service::pin`]. The lease begins again: renewals may be unread, after a message that has
    /// waited for the end of the batch.
    pub fn unpin(&mut self, client: ClientId, epoch: Epoch, at: Duration) {
        let session = self.sessions.get_mut(&client);
        if let Some(session) = session.filter(|session| session.epoch == epoch) {
            session.pins = session.pins.saturating_sub(1);
            session.renewed = session.renewed.max(at);
            if session.pins == 0 {
                let pinned = session.pinned;
                self.postpone(client, pinned, at);
            }
        }
    }

    /// Lets the time of the revokes begin now that a client got during a batch. It could not answer them before.
    fn postpone(&mut self, client: ClientId, pinned: Duration, at: Duration) {
        let sent = self.unanswered.iter().rev();
        let sent = sent.take_while(|sent| sent.0 > pinned);
        let sent: Vec<_> = sent.filter(|sent| sent.2 == client).copied().collect();
        for (since, id, _) in sent {
            if let Some(lock) = self.locks.get_mut(&id) {
                lock.postpone(client, at);
                self.unanswered.remove(&(since, id, client));
                self.unanswered.insert((at, id, client));
            }
        }
    }

    /// The revokes whose deadline has passed.
    fn due(&self, at: Duration) -> impl Iterator<Item = (LockId, ClientId)> {
        let lease = self.limits.lease;
        let due = self.unanswered.iter();
        let due = due.take_while(move |due| due.0.saturating_add(lease) <= at);
        due.map(|due| (due.1, due.2))
    }

    /// The mode that a client holds of a lock.
    pub fn held(&self, client: ClientId, lock: LockId) -> Mode {
        let lock = self.locks.get(&lock);
        lock.map_or(Mode::NONE, |lock| lock.held(client))
    }

    /// The session of a client.
    pub fn epoch(&self, client: ClientId) -> Option<Epoch> {
        self.sessions.get(&client).map(|session| session.epoch)
    }

    fn is_pinned(&self, client: ClientId) -> bool {
        let session = self.sessions.get(&client);
        session.is_some_and(|session| session.pins > 0)
    }

    fn is_late(&self, client: ClientId, at: Duration) -> bool {
        let session = self
            .sessions
            .get(&client)
            .filter(|session| session.pins == 0);
        session.is_some_and(|session| session.renewed.saturating_add(self.limits.lease) <= at)
    }

    fn check(&mut self, from: ClientId, epoch: Epoch, seq: u64) -> Result<(), Refusal> {
        let session = self.sessions.get_mut(&from);
        let session = session.filter(|session| session.epoch == epoch);
        let session = session.ok_or(Refusal::NoSession)?;
        if seq <= session.seq {
            return Err(Refusal::Replay(seq));
        }
        session.seq = seq;
        Ok(())
    }

    fn begin(&mut self, from: ClientId, at: Duration, epoch: Epoch, seq: u64) {
        self.end(from, End::Replaced, at);
        if self.sessions.len() >= self.limits.clients {
            let why = Refusal::TooManyClients(self.limits.clients);
            let refused = Tell::Refused {
                of: seq,
                lock: None,
                why,
            };
            self.tell(from, epoch, refused);
            return;
        }
        // The number of the message that reports it.
        let epoch = Epoch(self.seq + 1);
        let session = Session {
            epoch,
            seq,
            renewed: at,
            locks: BTreeSet::new(),
            waits: 0,
            pins: 0,
            pinned: at,
        };
        self.sessions.insert(from, session);
        let lease = self.limits.lease;
        self.tell(from, epoch, Tell::Begun { lease });
    }

    fn ask(&mut self, from: ClientId, at: Duration, seq: u64, ask: Ask) -> Result<(), Refusal> {
        match ask {
            Ask::Begin => Ok(()),
            Ask::Renew => {
                if let Some(session) = self.sessions.get_mut(&from) {
                    session.renewed = at;
                    let epoch = session.epoch;
                    self.tell(from, epoch, Tell::Renewed { of: seq });
                }
                Ok(())
            }
            Ask::Request {
                lock,
                mode,
                age,
                uses,
            } => {
                let waiter = Waiter {
                    client: from,
                    seq,
                    mode,
                    age,
                    uses,
                };
                self.request(lock, waiter, at)
            }
            Ask::Convert { lock, grant, mode } => self.lower(from, at, lock, grant, mode),
            Ask::Release { lock, grant } => self.lower(from, at, lock, grant, Mode::NONE),
        }
    }

    fn request(&mut self, id: LockId, mut waiter: Waiter, at: Duration) -> Result<(), Refusal> {
        let (from, seq) = (waiter.client, waiter.seq);
        if waiter.mode.is_none() {
            return Err(Refusal::NoMode);
        }
        if waiter.uses.len() > MOST_USES {
            return Err(Refusal::TooManyUses(MOST_USES));
        }
        if !cfg!(debug_assertions) {
            // Only the search for deadlocks reads them.
            waiter.uses = Vec::new();
        }
        let lock = self.locks.get(&id);
        if lock.is_some_and(|lock| lock.requests(from) >= MOST_REQUESTS) {
            return Err(Refusal::TooManyRequests(MOST_REQUESTS));
        }
        let most = self.limits.locks_per_client;
        let session = self.sessions.get_mut(&from).ok_or(Refusal::NoSession)?;
        let is_known = session.locks.contains(&id);
        if session.waits >= most || !is_known && session.locks.len() >= most {
            return Err(Refusal::TooManyLocks(most));
        }
        session.locks.insert(id);
        session.waits += 1;
        self.locks.entry(id).or_default().enqueue(waiter);
        self.settle(id, at);
        if cfg!(debug_assertions)
            && let Some(cycle) = self.deadlock(id, seq)
        {
            self.withdraw(from, id, seq);
            self.settle(id, at);
            return Err(Refusal::Deadlock(cycle));
        }
        Ok(())
    }

    fn lower(
        &mut self,
        from: ClientId,
        at: Duration,
        id: LockId,
        grant: GrantNo,
        mode: Mode,
    ) -> Result<(), Refusal> {
        let lock = self.locks.get_mut(&id).ok_or(Refusal::NotHeld)?;
        let holder = lock.holder(from).ok_or(Refusal::NotHeld)?;
        if grant != holder.grant && !hit(Bug::StaleRelease) {
            return Err(Refusal::Stale(holder.grant));
        }
        let held = holder.mode;
        if !mode.is_within(held) {
            return Err(Refusal::NotLower { held, wanted: mode });
        }
        if let Some(since) = lock.lower(from, mode) {
            self.unanswered.remove(&(since, id, from));
        }
        self.forget(from, id);
        self.settle(id, at);
        Ok(())
    }

    /// Removes a request that waits.
    fn withdraw(&mut self, client: ClientId, id: LockId, seq: u64) {
        if let Some(lock) = self.locks.get_mut(&id) {
            lock.withdraw(|waiter| (waiter.client, waiter.seq) == (client, seq));
        }
        if let Some(session) = self.sessions.get_mut(&client) {
            session.waits -= 1;
        }
        self.forget(client, id);
    }

    /// Removes the lock from the client's, if the client neither holds nor requests it.
    fn forget(&mut self, client: ClientId, id: LockId) {
        let lock = self.locks.get(&id);
        if lock.is_some_and(|lock| lock.clients().any(|other| other == client)) {
            return;
        }
        if let Some(session) = self.sessions.get_mut(&client) {
            session.locks.remove(&id);
        }
    }

    /// Ends a session, if there is one, and releases all its locks.
    fn end(&mut self, client: ClientId, end: End, at: Duration) {
        let Some(session) = self.sessions.remove(&client) else {
            return;
        };
        self.tell(client, session.epoch, Tell::Expired(end));
        for id in session.locks {
            if let Some(lock) = self.locks.get_mut(&id) {
                lock.withdraw(|waiter| waiter.client == client);
                if let Some(since) = lock.lower(client, Mode::NONE) {
                    self.unanswered.remove(&(since, id, client));
                }
                self.settle(id, at);
            }
        }
    }

    /// Grants what can be granted of a lock, and revokes what is in the way of the rest.
    fn settle(&mut self, id: LockId, at: Duration) {
        let Some(lock) = self.locks.get_mut(&id) else {
            return;
        };
        let steps = lock.settle(&mut self.seq, at);
        if lock.is_unused() {
            self.locks.remove(&id);
        }
        for step in steps {
            let (client, seq, tell) = match step {
                Step::Grant(waiter, grant, mode, answered) => {
                    let Waiter {
                        client, seq: of, ..
                    } = waiter;
                    if let Some(since) = answered {
                        self.unanswered.remove(&(since, id, client));
                    }
                    if let Some(session) = self.sessions.get_mut(&client) {
                        session.waits -= 1;
                    }
                    let lock = id;
                    (client, grant.0, Tell::Granted { lock, mode, of })
                }
                Step::Revoke(client, seq, grant, revoked) => {
                    let Revoked { to, age, since } = revoked;
                    self.unanswered.insert((since, id, client));
                    let lock = id;
                    let revoke = Tell::Revoke {
                        lock,
                        grant,
                        to,
                        age,
                    };
                    (client, seq, revoke)
                }
            };
            let epoch = self.epoch(client).unwrap_or_default();
            self.out.push((client, ToClient { epoch, seq, tell }));
        }
    }

    fn tell(&mut self, to: ClientId, epoch: Epoch, tell: Tell) {
        self.seq += 1;
        let seq = self.seq;
        self.out.push((to, ToClient { epoch, seq, tell }));
    }
}
