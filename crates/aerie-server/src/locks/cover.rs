//! Whether the locks of a client cover an object that it changes.
//!
//! 1. The client proves a path: from an object without memberships, the root, down to the object,
//!    each a member of the one before.
//! 2. The object is locked explicitly, or by a hierarchical lock further up on the path. Every
//!    collection above it has the intent, or is covered likewise.
//! 3. A hierarchical lock covers descendants down to the first with more than one membership: other
//!    clients can come to that one, and to everything below it, on paths that meet no intent of this
//!    client. Such an object needs an explicit lock. (Invariant 4.1 of the paper: a count never
//!    underestimates the memberships.)

use super::Service;
use crate::seeded::{Bug, hit};
use aerie_proto::locks::{ClientId, Epoch, LockId, Mode};

/// Objects on a path, at most.
const MOST_OBJECTS: usize = 4096;

/// The memberships of objects, as the service has applied them.
pub trait Objects {
    /// Whether `child` is in the collection.
    fn is_member(&self, collection: LockId, child: LockId) -> bool;

    /// The number of collections with the object, or more.
    fn membership_count(&self, object: LockId) -> u64;
}

/// Why locks do not cover an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Uncovered {
    /// The batch is of another session.
    #[error("the session of the batch has ended")]
    NoSession,
    /// The path is empty or too long.
    #[error("a path has 1 to {MOST_OBJECTS} objects, not {0}")]
    Length(usize),
    /// The path begins below the root.
    #[error("the path begins with {0}, which is in a collection")]
    Start(LockId),
    /// Two objects of the path are not parent and child.
    #[error("{1} is not in the collection {0}")]
    NotMember(LockId, LockId),
    /// A lock is missing.
    #[error("{object} is locked as ({held}), and needs ({needed})")]
    NotLocked {
        /// The object.
        object: LockId,
        /// The mode that the client holds of it, explicitly and implicitly.
        held: Mode,
        /// The mode that it needs.
        needed: Mode,
    },
}

impl Service {
    /// Whether a client holds `want` of the last object of the path, explicitly or implicitly, in a
    /// batch of the session. A change needs [`Mode::explicit`]; the collection of an insertion needs
    /// an exclusive [`Mode::intent`] too (see [`aerie_proto::locks`]).
    pub fn covers(
        &self,
        client: ClientId,
        epoch: Epoch,
        path: &[LockId],
        want: Mode,
        objects: &impl Objects,
    ) -> Result<(), Uncovered> {
        if self.epoch(client) != Some(epoch) {
            let is_accepted = hit(Bug::OldEpochAccepted);
            return is_accepted.then_some(()).ok_or(Uncovered::NoSession);
        }
        let Some((first, last)) = path.first().zip(path.len().checked_sub(1)) else {
            return Err(Uncovered::Length(0));
        };
        if path.len() > MOST_OBJECTS {
            return Err(Uncovered::Length(path.len()));
        }
        if objects.membership_count(*first) != 0 {
            return Err(Uncovered::Start(*first));
        }
        let mut implicit = Mode::NONE;
        for (at, object) in path.iter().copied().enumerate() {
            if let Some(collection) = at.checked_sub(1).map(|above| path[above]) {
                if !objects.is_member(collection, object) {
                    return Err(Uncovered::NotMember(collection, object));
                }
                if objects.membership_count(object) != 1 {
                    implicit = Mode::NONE;
                }
            }
            let own = self.held(client, object);
            let held = own.join(implicit);
            let needed = if at == last { want } else { want.needs() };
            if !needed.is_within(held) {
                return Err(Uncovered::NotLocked {
                    object,
                    held,
                    needed,
                });
            }
            implicit = implicit.join(own.covers());
        }
        Ok(())
    }
}
