//! Modes and messages of the lock service, and the protocol between a client's *clerk* and the
//! *service*. Neither side performs input or output here; the encoding is that of the transport.
//!
//! A lock has the 64-bit name of its object. Clients of one service are in *sessions* with leases.
//!
//! # Numbers
//! - A session has an *epoch*. Every message carries it; a message of another epoch is refused or
//!   ignored. No epoch is used twice.
//! - The messages of a client have increasing numbers ([`ToService::seq`]), and arrive in this
//!   order. The service refuses one whose number is not higher than the last: a replay.
//! - The messages of the service have increasing numbers of all sessions together
//!   ([`ToClient::seq`]), and may overtake each other. The number of a [`Tell::Granted`] is the name
//!   of the *grant*, which revokes and releases refer to.
//!
//! # Messages
//! | message | from | effect |
//! |---|---|---|
//! | `Begin` | client without a session | `Begun` with the epoch and the lease; ends an older session |
//! | `Renew` | client, at any time | the lease begins again; `Renewed` |
//! | `Request` | client in a session | raises the lock to at least the mode; `Granted` with all that is held then, at once or later |
//! | `Convert`, `Release` | holder of the grant | lowers the lock, or gives it up; no answer, the grant keeps its number |
//! | `Revoke` | service, to the holder of a grant | the holder lowers the lock to the target, or further, within a lease |
//! | `Expired` | service | the session has ended and all its locks are released by force |
//! | `Refused` | service | the message had no effect, with the reason |
//!
//! The requests of a lock wait in the order of their arrival. A request is granted when it is
//! compatible with all other holders and with all earlier requests. While it is compatible with the
//! earlier requests, the service revokes holders that are in its way, down to the strongest mode that
//! lets the request pass. Requests of one client do not exclude each other. So nobody starves. A holder
//! of a hierarchical lock that is revoked to an intent requests explicit locks for the descendants in
//! use first, and lowers its lock when it has them (de-escalation).
//!
//! # Order of threads
//! A thread that locks one object requests the locks of its path from the root down. Requests in this
//! order make no cycle. A thread that locks several objects at a time (a *group*) gives up what it has
//! while it waits, and begins again, but only for threads that are older: each request and revoke
//! carries an [`Age`]. The oldest group proceeds in any case, so groups neither block each other
//! forever nor take locks from each other in turns.
//!
//! # Objects and their memberships
//! A hierarchical lock covers a descendant only if each object from there down has one membership. Other
//! clients come to an object with more by paths that this client does not lock. So each object that is
//! not covered is locked explicitly. Two rules for changes of memberships follow:
//! 1. The client that adds an object to a collection locks the object through its old path and the
//!    collection both: it has the exclusive intent on the collection. Otherwise another client whose
//!    hierarchical lock was lowered to cover the descendants only would cover the new member at once.
//! 2. The client that removes an object from a collection does not use the object under the same guard
//!    after the removal was shipped: a client with a hierarchical lock on the only other collection
//!    covers the object from then on.
//!
//! # States of a lock at the clerk
//! | state | on `Granted` | on `Revoke` | next |
//! |---|---|---|---|
//! | not held, no request | ignored | ignored | `Request` when a thread needs the lock |
//! | requested | held; a revoke that came early applies to it | kept if it is of a grant that can still arrive | more requests, of older threads or for stronger modes |
//! | held | held as granted, if it answers a request | leaving | `Request` to raise it |
//! | leaving: revoked | if it answers a request: held, since the revoke was of an earlier grant | the lower of both targets | threads leave, the log is shipped, then `Convert` or `Release` |
//!
//! # Messages that cross
//! 1. *A revoke overtakes its grant.* The clerk has an outstanding request, and the revoke's grant is
//!    newer than every message that the clerk had received when it sent the request. The clerk keeps
//!    the revoke and applies it to the grant when it arrives. Any other revoke of a grant that the
//!    clerk does not hold is late, and is ignored.
//! 2. *A revoke crosses a release.* The clerk does not hold the grant any more: as above, ignored.
//!    The service receives the release, and waits for nothing else.
//! 3. *A release crosses a grant* that raises the lock. The release refers to the older grant, so the
//!    service refuses it (`Stale`). The clerk receives the grant after it has released: both have the
//!    newer grant as held.
//! 4. *A revoke crosses a grant that raises the lock.* The clerk has lost nothing: it drops the
//!    revoke of the older grant, and the service sends another one for the newer grant if a request
//!    still waits.
//! 5. *A message crosses the end of the session.* The service refuses it by its epoch. The clerk
//!    ignores what the service sent before.
//!
//! # Leases
//! The lease of a session begins when the service receives `Begin` or `Renew`; a clerk counts from
//! the time at which it sent the message, so its own view ends first. A session ends at the end of
//! its lease, or when a revoke is unanswered for a lease. So a dead or an uncooperative
//! client blocks others for at most one lease after the service has revoked its lock. The client then
//! has lost all locks and all that it has not shipped, as if the medium had been removed.

mod mode;

pub use mode::{Access, Mode};

use crate::lists::bounded;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The name of a lock: the 64-bit name of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockId(pub u64);

/// A client, by a name that the transport gives and has authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// The number of a session.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

/// The time at which a thread began to wait for several locks at a time, with its session and a number
/// in the session. The default, which is lower than all others, is that of a thread that waits for one
/// lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Age(pub Duration, pub Epoch, pub u64);

/// The number of a grant: that of the message that granted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GrantNo(pub u64);

impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToService {
    /// The session; that of `Begin` is ignored.
    pub epoch: Epoch,
    /// Higher than that of all earlier messages of the session.
    pub seq: u64,
    /// The contents.
    pub ask: Ask,
}

/// The contents of a client's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Begins a session.
    Begin,
    /// Renews the lease.
    Renew,
    /// Raises a lock.
    Request {
        /// The lock.
        lock: LockId,
        /// The mode that is needed.
        mode: Mode,
        /// Of the thread that waits.
        age: Age,
        /// For the detection of deadlocks: locks that the waiting thread uses, and how.
        #[serde(deserialize_with = "bounded")]
        uses: Vec<(LockId, Mode)>,
    },
    /// Lowers a lock.
    Convert {
        /// The lock.
        lock: LockId,
        /// The grant that the client holds.
        grant: GrantNo,
        /// A mode within the one that is held.
        mode: Mode,
    },
    /// Gives up a lock.
    Release {
        /// The lock.
        lock: LockId,
        /// The grant that the client holds.
        grant: GrantNo,
    },
}

/// A message of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToClient {
    /// The session. In a refusal for want of a session: that of the refused message.
    pub epoch: Epoch,
    /// Higher than that of all earlier messages of the service.
    pub seq: u64,
    /// The contents.
    pub tell: Tell,
}

/// The contents of a message of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tell {
    /// The session has begun.
    Begun {
        /// How long locks are held after the message that began or renewed the session.
        lease: Duration,
    },
    /// The lease began again with a message.
    Renewed {
        /// The number of the client's message.
        of: u64,
    },
    /// The lock is held. The number of this message is that of the grant.
    Granted {
        /// The lock.
        lock: LockId,
        /// All that the client holds of it.
        mode: Mode,
        /// The number of the request that this answers.
        of: u64,
    },
    /// The holder must lower the lock.
    Revoke {
        /// The lock.
        lock: LockId,
        /// The grant.
        grant: GrantNo,
        /// The strongest mode that the holder may keep.
        to: Mode,
        /// The lowest age of the requests that wait.
        age: Age,
    },
    /// The session has ended, and all locks are released.
    Expired(End),
    /// A message had no effect.
    Refused {
        /// The number of the client's message.
        of: u64,
        /// The lock that it was about.
        lock: Option<LockId>,
        /// The reason.
        why: Refusal,
    },
}

/// Why a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum End {
    /// The client did not renew its lease.
    #[error("the lease was not renewed in time")]
    NotRenewed,
    /// The client did not release a lock.
    #[error("lock {0} was not released within a lease after its revocation")]
    NotReleased(LockId),
    /// The client closed its connection.
    #[error("the client closed its connection")]
    Closed,
    /// The client began another session.
    #[error("the client began another session")]
    Replaced,
}

/// Why a message had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The message is of another session, or there is none.
    #[error("the session has ended: its locks are released, and what was not shipped is lost")]
    NoSession,
    /// The number of the message is not higher than the last.
    #[error("the message repeats number {0}")]
    Replay(u64),
    /// The client does not hold the lock.
    #[error("the lock is not held")]
    NotHeld,
    /// The client holds the lock by another grant.
    #[error("the grant is not the current one, which is {}", .0.0)]
    Stale(GrantNo),
    /// A conversion that would raise the lock.
    #[error("{wanted:?} is not within {held:?}; request it instead")]
    NotLower {
        /// The mode that is held.
        held: Mode,
        /// The mode of the message.
        wanted: Mode,
    },
    /// A request for no mode.
    #[error("a request must name a mode")]
    NoMode,
    /// The client holds and requests as many locks as it may.
    #[error("a client may have {0} locks and requests; release some first")]
    TooManyLocks(usize),
    /// There are as many sessions as the service allows.
    #[error("the service has {0} clients already")]
    TooManyClients(usize),
    /// The list of used locks is too long.
    #[error("a request may name {0} used locks")]
    TooManyUses(usize),
    /// The request would wait forever. Detected by debug builds of the service.
    #[error("deadlock: {}", describe(.0))]
    Deadlock(Vec<(ClientId, LockId)>),
    /// The client waits for the lock as often as it may.
    #[error("a client may wait with {0} requests for one lock")]
    TooManyRequests(usize),
}

/// `client 1 waits for 0x40, which client 2 uses; client 2 waits for ...`
fn describe(cycle: &[(ClientId, LockId)]) -> String {
    let next = cycle.iter().cycle().skip(1);
    let edge = |((client, lock), (holder, _)): (&(ClientId, LockId), &(ClientId, LockId))| {
        format!("{client} waits for lock {lock} until {holder} leaves it")
    };
    let edges: Vec<String> = cycle.iter().zip(next).map(edge).collect();
    edges.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_names_its_cycle() {
        let cycle = vec![(ClientId(1), LockId(64)), (ClientId(2), LockId(128))];
        assert_eq!(
            Refusal::Deadlock(cycle).to_string(),
            "deadlock: client 1 waits for lock 0x40 until client 2 leaves it; \
             client 2 waits for lock 0x80 until client 1 leaves it"
        );
    }
}
