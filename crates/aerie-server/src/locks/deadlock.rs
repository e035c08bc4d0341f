//! Detection of deadlocks: a search of the wait-for graph.
//!
//! A node is a request that waits. It waits for earlier requests of the lock that are incompatible,
//! and for requests of other clients whose thread uses the lock in an incompatible way: that thread
//! leaves the lock only after its own request is granted. Other holders release their locks when they
//! are revoked, so they are not in the graph. Every cycle is a deadlock, and the last request of a
//! cycle is the one that finds it.

use super::Service;
use super::lock::Waiter;
use aerie_proto::locks::{ClientId, LockId};
use std::collections::BTreeSet;

/// A request: its lock, client and number.
type Node = (LockId, ClientId, u64);

impl Service {
    /// A cycle through a request: each client waits at its lock for the next one, and the last one for
    /// the first.
    pub(super) fn deadlock(&self, lock: LockId, seq: u64) -> Option<Vec<(ClientId, LockId)>> {
        let mut queue = self.locks.get(&lock)?.waiting();
        let (waiter, _) = queue.find(|(waiter, _)| waiter.seq == seq)?;
        let start = (lock, waiter.client, seq);
        let mut visited = BTreeSet::new();
        let mut path: Vec<(Node, Vec<Node>)> = vec![(start, self.waits_for(start))];
        while let Some((_, next)) = path.last_mut() {
            match next.pop() {
                Some(node) if node == start => {
                    let cycle = path
                        .into_iter()
                        .map(|((lock, client, _), _)| (client, lock));
                    return Some(cycle.collect());
                }
                Some(node) if visited.insert(node) => path.push((node, self.waits_for(node))),
                Some(_) => {}
                None => {
                    path.pop();
                }
            }
        }
        None
    }

    fn waits_for(&self, (id, client, seq): Node) -> Vec<Node> {
        let Some(lock) = self.locks.get(&id) else {
            return Vec::new();
        };
        let is_it = |waiter: &Waiter| (waiter.client, waiter.seq) == (client, seq);
        let wanted = lock.waiting().find(|(waiter, _)| is_it(waiter));
        let Some((_, wanted)) = wanted else {
            return Vec::new();
        };
        let earlier = lock.waiting().take_while(|(waiter, _)| !is_it(waiter));
        let earlier =
            earlier.filter(|(other, mode)| other.client != client && !mode.is_compatible(wanted));
        let earlier = earlier.map(|(other, _)| (id, other.client, other.seq));
        let uses = self.locks.iter().flat_map(|(other_id, other)| {
            let blocking = other.waiting().filter(|(waiter, _)| {
                let mut uses = waiter.uses.iter();
                waiter.client != client
                    && uses.any(|(used, mode)| *used == id && !mode.is_compatible(wanted))
            });
            blocking.map(|(waiter, _)| (*other_id, waiter.client, waiter.seq))
        });
        earlier.chain(uses).collect()
    }
}
