//! A check of the whole state of the service, for tests.

use super::Service;
use aerie_proto::locks::{ClientId, LockId};
use std::collections::{BTreeMap, BTreeSet};

impl Service {
    /// Checks the invariants of the whole state, for tests.
    pub fn audit(&self) -> Result<(), String> {
        let mut of: BTreeMap<ClientId, BTreeSet<LockId>> = BTreeMap::new();
        let mut unanswered = BTreeSet::new();
        let mut waits: BTreeMap<ClientId, usize> = BTreeMap::new();
        for (id, lock) in &self.locks {
            lock.audit().map_err(|why| format!("lock {id}: {why}"))?;
            for client in lock.clients() {
                of.entry(client).or_default().insert(*id);
            }
            for (waiter, _) in lock.waiting() {
                *waits.entry(waiter.client).or_default() += 1;
            }
            unanswered.extend(
                lock.unanswered()
                    .map(|(since, client)| (since, *id, client)),
            );
        }
        if unanswered != self.unanswered {
            return Err("the list of revokes differs from the locks".into());
        }
        for (client, session) in &self.sessions {
            if session.locks != of.remove(client).unwrap_or_default() {
                return Err(format!("the list of {client} differs from the locks"));
            }
            if session.waits != waits.remove(client).unwrap_or_default() {
                return Err(format!("the requests of {client} are miscounted"));
            }
            if session.locks.len().max(session.waits) > self.limits.locks_per_client {
                return Err(format!("{client} has too many locks"));
            }
        }
        match of.keys().next() {
            Some(client) => Err(format!("{client} has locks and no session")),
            None => Ok(()),
        }
    }
}
