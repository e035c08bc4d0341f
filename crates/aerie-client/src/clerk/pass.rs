//! Passes: uses of held locks that do not change the state of the clerk.
//!
//! The clerk is *open* while no thread has a guard or waits for one, no lock is to be lowered, no ship runs for
//! which calls wait, and the session lasts. A thread then gets a pass by counting it in a word that other threads
//! seldom use, so that threads on several processors do not wait for each other's caches. It sees which locks the
//! client holds.
//!
//! 1. While there is a pass, the client lowers no lock that the pass names, and drops none of its changes from what
//!    it sees, until the session ends: it begins ships beside calls only, and ends none.
//! 2. Passes and guards exclude each other. Passes do not exclude each other: what the threads of a
//!    client do under passes must be atomic by other means.
//! 3. A thread that closes the clerk waits for the passes only, and no new ones are given meanwhile.
//!
//! A thread counts its pass, and then looks whether the clerk is open. One that closes the clerk then looks for passes.
//! These steps have one order for all threads, so that one of the two sees the other.

use super::state::{Owner, State};
use super::{Clerk, Host, LockError};
use crate::seeded::{Bug, hit};
use crate::sync::{AtomicBool, AtomicU64, Ordering, thread_number};
use aerie_proto::locks::{Access, LockId, Mode};
use crossbeam_utils::CachePadded;
use std::time::Duration;

/// Locks that passes can name at a time.
const SLOTS: usize = 64;
/// How often a thread waits for others before it takes a guard.
const PHASES: usize = 8;
/// Words in which passes are counted. Threads share them if there are more.
const WORDS: usize = 16;

/// The entrance for passes.
pub(super) struct Gate {
    /// Numbers of passes, by the threads that took them. A thread that finds the gate closed is there briefly.
    passes: [CachePadded<AtomicU64>; WORDS],
    is_open: AtomicBool,
    /// Nanoseconds at which the lease ends; 0 after the end of the session.
    end: AtomicU64,
    /// Locks that the client holds. They change only while there are no passes, and none are given.
    held: [Slot; SLOTS],
}

/// A lock, and the rights that it gives as bits; none in an empty slot.
struct Slot {
    lock: AtomicU64,
    rights: AtomicU64,
}

/// The rights that a lock gives: the bit for reading, and one bit further that for writing.
#[derive(Clone, Copy)]
enum Right {
    Object = 1,
    Intent = 4,
    Descendants = 16,
}

impl Right {
    fn bit(self, access: Access) -> u64 {
        (self as u64) << u32::from(access == Access::Exclusive)
    }

    fn all(mode: Mode) -> u64 {
        let below = mode.covers();
        let mut rights = 0;
        for access in [Access::Shared, Access::Exclusive] {
            let (object, intent) = (Mode::explicit(access), Mode::intent(access));
            let has = [
                (Self::Object, object.is_within(mode)),
                (Self::Intent, intent.is_within(mode)),
                (Self::Descendants, object.is_within(below)),
            ];
            let has = has.iter().filter(|(_, has)| *has);
            rights |= has.fold(0, |bits, (right, _)| bits | right.bit(access));
        }
        rights
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Gate {
    fn default() -> Self {
        let slot = |_| Slot {
            lock: AtomicU64::new(0),
            rights: AtomicU64::new(0),
        };
        Self {
            passes: std::array::from_fn(|_| AtomicU64::new(0).into()),
            is_open: AtomicBool::new(false),
            end: AtomicU64::new(0),
            held: std::array::from_fn(slot),
        }
    }
}

impl Gate {
    pub(super) fn has_passes(&self) -> bool {
        let mut all = self.passes.iter();
        all.any(|passes| passes.load(Ordering::SeqCst) > 0)
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn open(&self, end: Duration) {
        self.end.store(nanoseconds(end), Ordering::Relaxed);
        self.is_open.store(true, Ordering::SeqCst);
    }

    fn close(&self, has_ended: bool) {
        if has_ended {
            self.end.store(0, Ordering::Relaxed);
        }
        self.is_open.store(false, Ordering::SeqCst);
    }

    /// Counts a pass in a word. It is one if the gate is open.
    fn enter(&self, word: usize) {
        self.passes[word].fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether somebody may wait for the end of the last pass.
    fn leave(&self, word: usize) -> bool {
        self.passes[word].fetch_sub(1, Ordering::SeqCst);
        !self.is_open()
    }

    fn slot(&self, lock: LockId) -> &Slot {
        let hash = lock.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.held[hash as usize % SLOTS]
    }

    fn has(&self, lock: LockId, right: u64) -> bool {
        let slot = self.slot(lock);
        slot.lock.load(Ordering::Relaxed) == lock.0
            && slot.rights.load(Ordering::Relaxed) & right == right
    }

    /// Names a lock to passes. The gate is closed.
    fn publish(&self, lock: LockId, mode: Mode) {
        let slot = self.slot(lock);
        slot.lock.store(lock.0, Ordering::Relaxed);
        slot.rights.store(Right::all(mode), Ordering::Relaxed);
    }

    /// Removes a lock that was lowered. The gate is closed.
    pub(super) fn forget(&self, lock: LockId) {
        if self.slot(lock).lock.load(Ordering::Relaxed) == lock.0 {
            self.slot(lock).rights.store(0, Ordering::Relaxed);
        }
    }

    /// Names the locks of an owner that leaves, for the next passes.
    pub(super) fn publish_used(&self, state: &State, owner: u64) {
        if !self.has_passes() {
            let used = state.modes_of(owner);
            used.for_each(|(lock, mode)| self.publish(lock, mode));
        }
    }
}

/// A use of the locks that the client holds.
#[must_use = "the pass ends at once"]
pub struct Pass<'a, H: Host> {
    clerk: &'a Clerk<H>,
    /// Where it is counted.
    word: usize,
}

impl<H: Host> Clerk<H> {
    /// Gives a pass, if the clerk is open. The thread must not wait for a guard or for
    /// [`quietly`](Self::quietly) while it has one.
    pub fn pass(&self) -> Option<Pass<'_, H>> {
        if !self.gate.is_open() {
            return None;
        }
        let word = thread_number() % WORDS;
        self.gate.enter(word);
        let pass = Pass { clerk: self, word };
        let is_open = self.gate.is_open() || hit(Bug::PassUnseen);
        is_open.then_some(pass)
    }

    /// As [`pass`](Self::pass). The thread waits for the ships and the brief guards that it finds, if nothing else
    /// keeps the clerk closed: if it took a guard itself, it would keep others from passes, and those it. It waits
    /// for later ones only a few times, since other threads might have some all the time. It must not have a guard.
    pub fn pass_soon(&self) -> Option<Pass<'_, H>> {
        if let Some(pass) = self.pass() {
            return Some(pass);
        }
        for _ in 0..PHASES {
            let mut state = self.state.lock();
            let (begun, last) = (state.ships_begun, state.last_owner);
            while state.will_be_calm() && (state.ships_ended < begun || state.has_owner_up_to(last))
            {
                state.hoping += 1;
                state = self.changed.wait(state);
                state.hoping -= 1;
            }
            if !state.will_be_calm() {
                return None;
            }
            drop(state);
            if let Some(pass) = self.pass() {
                return Some(pass);
            }
        }
        None
    }

    /// Ships while there are no passes. The thread may have a guard, and no pass.
    pub fn quietly<T>(&self, ship: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        state.ships_begun += 1;
        self.settle(&state);
        while self.gate.has_passes() {
            state = self.changed.wait(state);
        }
        drop(state);
        let shipped = ship();
        let mut state = self.state.lock();
        state.ships_ended += 1;
        self.advance(&mut state);
        shipped
    }

    /// Opens or closes the gate.
    pub(super) fn settle(&self, state: &State) {
        match state.is_calm() {
            true => self.gate.open(state.renewed.saturating_add(state.lease)),
            false => self.gate.close(state.has_ended()),
        }
    }
}

impl<H: Host> Pass<'_, H> {
    /// Whether the locks that the client holds permit access to an object. `above` returns the only
    /// collection with an object, and `None` if it is unknown, or there are several.
    ///
    /// A collection is permitted to be changed together with its members only.
    pub fn permits(
        &self,
        object: LockId,
        access: Access,
        is_collection: bool,
        above: impl Fn(LockId) -> Option<LockId>,
    ) -> bool {
        let has = |lock, right: Right| self.clerk.gate.has(lock, right.bit(access));
        let is_whole = !is_collection || access == Access::Shared;
        let mut is_held =
            has(object, Right::Object) && (is_whole || has(object, Right::Descendants));
        let mut at = object;
        while let Some(collection) = above(at) {
            if has(collection, Right::Descendants) {
                return true;
            }
            is_held = is_held && has(collection, Right::Intent);
            at = collection;
        }
        is_held
    }

    /// Ends the pass.
    ///
    /// # Errors
    /// [`LockError::Removed`] if the session has ended meanwhile: what was read is not valid.
    pub fn release(self) -> Result<(), LockError> {
        let clerk = self.clerk;
        let is_late = nanoseconds(clerk.host.now()) >= clerk.gate.end.load(Ordering::Relaxed);
        drop(self);
        if !is_late {
            return Ok(());
        }
        let mut state = clerk.state.lock();
        clerk.advance(&mut state);
        state
            .ended
            .map_or(Ok(()), |end| Err(LockError::Removed(end)))
    }
}

impl<H: Host> Drop for Pass<'_, H> {
    fn drop(&mut self) {
        if self.clerk.gate.leave(self.word) {
            // A thread that has found this pass waits now, or has yet to look.
            drop(self.clerk.state.lock());
            self.clerk.changed.notify_all();
        }
    }
}

impl State {
    /// Whether passes can be given.
    fn is_calm(&self) -> bool {
        let is_shipping = self.ships_ended < self.ships_begun;
        self.may_be_calm() && self.owners.is_empty() && !is_shipping
    }

    /// Whether passes can be given after the end of ships and brief guards.
    fn will_be_calm(&self) -> bool {
        self.may_be_calm() && self.owners.values().all(Owner::leaves_soon)
    }

    fn may_be_calm(&self) -> bool {
        self.epoch.is_some() && !self.has_ended() && !self.has_targets
    }

    fn has_owner_up_to(&self, last: u64) -> bool {
        self.owners.range(..=last).next().is_some()
    }

    /// The locks on the paths of an owner, and how far the client holds them.
    fn modes_of(&self, owner: u64) -> impl Iterator<Item = (LockId, Mode)> {
        let steps = self.owners.get(&owner).into_iter();
        let locks = steps.flat_map(|owner| owner.steps.iter().map(|step| step.lock));
        locks.filter_map(|lock| Some((lock, self.entries.get(&lock)?.effective())))
    }
}
