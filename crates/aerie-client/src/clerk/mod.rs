//! The clerk of a client: it caches locks of the service, and gives them to threads as guards.
//! [`aerie_proto::locks`] has the protocol.
//!
//! A thread names an object by a path, from the root down. Its guard uses every object of the path:
//! the last one in the wanted mode, those above it with intents. Uses of threads conflict like locks of
//! clients do, by the same table. Each use stands on a lock of the service: of the object itself, or a
//! hierarchical one further up that covers it.
//!
//! 1. No two guards have incompatible uses of an object. Passes ([`Clerk::pass`]) are cheaper guards, which
//!    exclude guards and each other's clients, but not each other.
//! 2. Each use stands on a lock that the client holds, until the session ends. A covered use stands on
//!    a hierarchical lock, with one membership of each object from there down, counted while the lock
//!    was held.
//! 3. Threads get a lock in the order in which they began to wait for it.
//! 4. After a revoke no thread gets what the client must give up. The lock is lowered when the threads
//!    have left, everything below it that needs it has been given up, and [`Host::ship`] has returned.
//! 5. Before a hierarchical lock is lowered, the uses that it covers stand on locks of their own.
//! 6. The clerk requests locks of a path from the root down. A thread locks all objects that it needs
//!    by one [`Clerk::lock_all`], which gives up all that it has while it waits, when older threads of any
//!    client need it. A thread that has a guard and locks more can wait forever for a client that
//!    does the same. Debug builds of the service refuse such a request ([`Refusal::Deadlock`]); in
//!    release builds, the service ends one of the sessions after a lease.
//! 7. After the session has ended, all calls return [`LockError::Removed`], as if the medium had been
//!    removed, and [`Guard::is_valid`] is false. The client then needs another clerk.
//!
//! The clerk does not check that each object of a path is in the one above. The caller looks again with
//! the guard, which keeps the object from being added to or removed from the collections of the path.
//! The protocol has two rules for callers that change memberships.

mod leaving;
mod messages;
mod pass;
mod state;
mod steps;
mod waiting;

use crate::seeded::{Bug, hit};
use crate::sync::{Condvar, Mutex, MutexGuard, thread_number};
use aerie_proto::locks::{Access, End, LockId, Refusal, ToClient, ToService};
use leaving::Leaving;
use pass::Gate;
pub use pass::Pass;
use state::{State, Status};
use std::time::Duration;

/// The services that a client provides to its clerk.
pub trait Host {
    /// Sends a message to the service. Messages arrive in the order of the calls. Must not call the
    /// clerk.
    fn send(&self, message: ToService);

    /// The time of a clock that does not go back.
    fn now(&self) -> Duration;

    /// The number of collections with the object, or more: as the medium has it, with changes of
    /// this client that are not shipped. Must not call the clerk.
    fn membership_count(&self, object: LockId) -> u64;

    /// Sends all buffered changes that need the lock, and returns when the service has applied them. Called
    /// before each lock is lowered, also one for reading.
    fn ship(&self, lock: LockId);
}

/// An object to lock.
#[derive(Debug, Clone, Copy)]
pub struct Want<'a> {
    /// The objects from the root down to the wanted one.
    pub path: &'a [LockId],
    /// For reading or writing.
    pub access: Access,
    /// How much.
    pub scope: Scope,
}

/// The part of a path to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The last object.
    Object,
    /// The last object, a collection, and the right to add and remove members, which are locked
    /// themselves.
    Members,
    /// The last object and all its descendants.
    Tree,
    /// The last object. The client takes a hierarchical lock of the object at this place of the path,
    /// so that later requests for its descendants need no message.
    Within(usize),
}

/// Why a thread does not get a lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The session has ended.
    #[error("the store was removed: {0}")]
    Removed(End),
    /// The service has refused the request.
    #[error("cannot lock {0}: {1}")]
    Refused(LockId, Refusal),
    /// A path without objects.
    #[error("cannot lock an empty path")]
    EmptyPath,
}

/// A clerk, shared by the threads of a client.
pub struct Clerk<H: Host> {
    state: Mutex<State>,
    gate: Gate,
    changed: Condvar,
    host: H,
    /// Whether threads take hierarchical locks where no other client is near.
    is_widening: bool,
}

/// Locks of a thread, until it is dropped.
#[must_use = "the lock is released at once"]
pub struct Guard<'a, H: Host> {
    clerk: &'a Clerk<H>,
    owner: u64,
}

impl<H: Host> Clerk<H> {
    /// A clerk that begins a session. Its calls wait until the service has answered.
    pub fn new(host: H) -> Self {
        let state = State::begin(&host);
        Self {
            state: Mutex::new(state),
            gate: Gate::default(),
            changed: Condvar::default(),
            host,
            is_widening: false,
        }
    }

    /// A clerk that takes the lock of an object as a hierarchical one of the highest object on the path
    /// whose descendants no other client has needed lately. So a client that is alone needs one message for
    /// all.
    pub fn widening(host: H) -> Self {
        Self {
            is_widening: true,
            ..Self::new(host)
        }
    }

    /// The lease of the session, when it has begun.
    pub fn lease(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.epoch.map(|_| state.lease)
    }

    /// Why the session has ended, if it has.
    pub fn ended(&self) -> Option<End> {
        self.state.lock().ended
    }

    /// Whether threads have guards, or wait for some.
    pub fn has_guards(&self) -> bool {
        !self.state.lock().owners.is_empty()
    }

    /// The client.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Locks an object, as [`lock_all`](Self::lock_all).
    pub fn lock(&self, want: Want<'_>) -> Result<Guard<'_, H>, LockError> {
        self.acquire(&[want], false)
    }

    /// Locks several objects. While it waits for one, it gives up all when another client or thread
    /// needs them.
    pub fn lock_all(&self, wants: &[Want<'_>]) -> Result<Guard<'_, H>, LockError> {
        self.lock_sorted(wants, false)
    }

    /// As [`lock_all`](Self::lock_all), for a single call, which waits at most for ships: [`pass_soon`](Self::pass_soon)
    /// waits for its end.
    pub fn lock_briefly(&self, wants: &[Want<'_>]) -> Result<Guard<'_, H>, LockError> {
        self.lock_sorted(wants, true)
    }

    fn lock_sorted(&self, wants: &[Want<'_>], is_brief: bool) -> Result<Guard<'_, H>, LockError> {
        if let [_] = wants {
            return self.acquire(wants, is_brief);
        }
        let mut wants = wants.to_vec();
        wants.sort_by(|a, b| a.path.cmp(b.path));
        self.acquire(&wants, is_brief)
    }

    fn acquire(&self, wants: &[Want<'_>], is_brief: bool) -> Result<Guard<'_, H>, LockError> {
        if wants.iter().any(|want| want.path.is_empty()) {
            return Err(LockError::EmptyPath);
        }
        let mut state = self.state.lock();
        let now = self.host.now();
        let steps = state.steps(wants, &self.host, self.is_widening.then_some(now));
        let is_quiet = state.is_quiet(now);
        let owner = state.enqueue(now, thread_number(), steps, is_brief);
        self.settle(&state);
        match is_quiet {
            true => drop(state.proceed(&self.host, owner)),
            false => self.advance(&mut state),
        }
        loop {
            match state.status(owner) {
                Status::Granted if !self.gate.has_passes() || hit(Bug::GuardBesidePasses) => {
                    return Ok(Guard { clerk: self, owner });
                }
                Status::Waiting | Status::Granted => state = self.changed.wait(state),
                Status::Failed(why) => {
                    state.leave(owner);
                    self.advance(&mut state);
                    return Err(why);
                }
            }
        }
    }

    /// Takes a message of the service.
    pub fn deliver(&self, message: ToClient) {
        let mut state = self.state.lock();
        state.deliver(&self.host, message);
        self.advance(&mut state);
    }

    /// Renews the lease when it is time to, and ends the session when it is late. To be called several
    /// times in a lease.
    pub fn tick(&self) {
        let mut state = self.state.lock();
        state.tick(&self.host);
        self.advance(&mut state);
    }

    /// Gives back the locks that no thread has used since a time.
    pub fn release_unused(&self, since: Duration) {
        let mut state = self.state.lock();
        state.release_unused(since);
        self.advance(&mut state);
    }

    /// Answers revokes, until the session ends or [`Clerk::close`]. A thread of the client runs it.
    pub fn attend(&self) {
        let mut state = self.state.lock();
        while !state.has_ended() {
            let is_ready = !self.gate.has_passes() || hit(Bug::LoweredBesidePasses);
            match is_ready.then(|| state.ready(&self.host)).flatten() {
                Some(group) => state = self.lower(state, &group),
                None => {
                    // Threads may have yielded.
                    self.advance(&mut state);
                    state = self.changed.wait(state);
                }
            }
        }
    }

    /// Ends [`Clerk::attend`] and the session of the clerk. The locks are released when the connection
    /// is closed, so the caller ships its changes first.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.remove(End::Closed);
        self.settle(&state);
        self.changed.notify_all();
    }

    /// Waits until no thread uses locks of the session, which has ended.
    pub fn drain(&self) {
        let mut state = self.state.lock();
        while self.gate.has_passes() || !state.owners.is_empty() {
            state = self.changed.wait(state);
        }
    }

    /// Ships what needs the locks, and lowers them.
    fn lower<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        group: &[Leaving],
    ) -> MutexGuard<'a, State> {
        let may_write = group.iter().any(|leaving| leaving.may_write);
        let is_late = may_write && hit(Bug::ReleaseBeforeShip);
        if is_late {
            state.lower(&self.host, group);
        }
        state.ships_begun += 1;
        drop(state);
        for leaving in group {
            self.host.ship(leaving.lock);
        }
        state = self.state.lock();
        state.ships_ended += 1;
        if !is_late {
            state.lower(&self.host, group);
        }
        for leaving in group {
            self.gate.forget(leaving.lock);
        }
        self.advance(&mut state);
        state
    }

    /// Ends a guard.
    fn leave(&self, state: &mut State, owner: u64) {
        self.gate.publish_used(state, owner);
        state.leave(owner);
        match state.is_awaited() {
            true => self.advance(state),
            false => self.settle(state),
        }
    }

    /// Lets waiting threads proceed, and wakes them.
    fn advance(&self, state: &mut State) {
        state.advance(&self.host);
        self.settle(state);
        self.changed.notify_all();
    }
}

impl<H: Host> Guard<'_, H> {
    /// Whether the session has not ended. The client must not rely on what it has read under the guard
    /// after this returned false.
    pub fn is_valid(&self) -> bool {
        let mut state = self.clerk.state.lock();
        state.check_lease(self.clerk.host.now());
        !state.has_ended()
    }

    /// Drops the guard.
    ///
    /// # Errors
    /// [`LockError::Removed`] if it was not [valid](Self::is_valid) any more.
    pub fn release(self) -> Result<(), LockError> {
        let mut state = self.clerk.state.lock();
        state.check_lease(self.clerk.host.now());
        let ended = state.ended;
        self.clerk.leave(&mut state, self.owner);
        drop(state);
        std::mem::forget(self);
        ended.map_or(Ok(()), |end| Err(LockError::Removed(end)))
    }
}

impl<H: Host> Drop for Guard<'_, H> {
    fn drop(&mut self) {
        self.clerk.leave(&mut self.clerk.state.lock(), self.owner);
    }
}
