//! The service, the objects, and a network that delivers the service's messages in any order.
//!
//! It checks, at every step: no thread is in an object beside a writer, while both sessions last; no
//! thread enters an object of which another client has changes that are not applied; the service
//! accepts a change exactly if its session lasts, which implies that its locks cover it.

use crate::clerk::{Clerk, Host};
use crate::sync::{Condvar, Mutex};
pub(crate) use aerie_proto::locks::LockId;
use aerie_proto::locks::{Access, ClientId, Epoch, Mode, Tell, ToClient, ToService};
use aerie_server::locks::{Limits, Objects, Outgoing, Service};
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const ROOT: LockId = LockId(0);
/// Two directories.
pub(crate) const DIRS: [LockId; 2] = [LockId(1), LockId(2)];
/// A file in the first directory, and at times in the second one.
pub(crate) const FILE: LockId = LockId(3);
/// Another file in the first directory.
pub(crate) const OTHER: LockId = LockId(4);
pub(crate) const LEASE: Duration = Duration::from_secs(8);

/// The memberships of the objects.
pub(crate) struct Tree {
    counts: [AtomicU64; 5],
    linked: AtomicU64,
}

impl Objects for Tree {
    fn is_member(&self, collection: LockId, child: LockId) -> bool {
        match (collection, child) {
            (ROOT, child) => DIRS.contains(&child),
            (dir, FILE) if dir == DIRS[1] => self.linked.load(SeqCst) == 1,
            (dir, FILE | OTHER) => dir == DIRS[0],
            _ => false,
        }
    }

    fn membership_count(&self, object: LockId) -> u64 {
        self.counts[object.0 as usize].load(SeqCst)
    }
}

/// An object whose path is not known, as the service sees it.
struct Alone;

impl Objects for Alone {
    fn is_member(&self, _: LockId, _: LockId) -> bool {
        false
    }

    fn membership_count(&self, _: LockId) -> u64 {
        0
    }
}

impl Tree {
    /// Adds the file to the second directory, or removes it.
    fn link(&self, link: bool) {
        let count = &self.counts[FILE.0 as usize];
        if link {
            count.fetch_add(1, SeqCst);
            self.linked.store(1, SeqCst);
        } else {
            self.linked.store(0, SeqCst);
            count.fetch_sub(1, SeqCst);
        }
    }
}

/// A change that a client has not shipped.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) path: Vec<LockId>,
    /// Whether it also adds the object to the second directory, or removes it.
    pub(crate) link: Option<bool>,
}

/// A thread in an object.
#[derive(Debug, Clone, Copy)]
struct Inside {
    session: (ClientId, Epoch),
    thread: u64,
    object: LockId,
    access: Access,
    /// It has a pass.
    is_beside: bool,
}

struct Shared {
    service: Service,
    to_service: BTreeMap<ClientId, VecDeque<ToService>>,
    to_client: BTreeMap<ClientId, Vec<ToClient>>,
    epochs: BTreeMap<ClientId, Epoch>,
    /// Clients whose messages are not delivered.
    cut_off: BTreeSet<ClientId>,
    changes: BTreeMap<ClientId, Vec<(Epoch, Change)>>,
    inside: Vec<Inside>,
    is_over: bool,
}

pub(crate) struct World {
    shared: Mutex<Shared>,
    changed: Condvar,
    pub(crate) tree: Tree,
    now_ms: AtomicU64,
}

pub(crate) struct Client {
    id: ClientId,
    world: Arc<World>,
}

pub(crate) type TheClerk = Clerk<Client>;

enum Delivery {
    ToService(ClientId),
    ToClient(ClientId),
}

impl Shared {
    fn is_live(&self, (client, epoch): (ClientId, Epoch)) -> bool {
        self.service.epoch(client) == Some(epoch)
    }

    fn send(&mut self, out: Outgoing) {
        if let Err(why) = self.service.audit() {
            panic!("{why}");
        }
        for (client, message) in out {
            if matches!(message.tell, Tell::Begun { .. }) {
                self.epochs.insert(client, message.epoch);
            }
            self.to_client.entry(client).or_default().push(message);
        }
    }

    /// A message that can be delivered.
    fn next(&self) -> Option<Delivery> {
        let is_here = |client: &ClientId| !self.cut_off.contains(client);
        let up = self
            .to_service
            .iter()
            .filter(|(_, queue)| !queue.is_empty());
        let down = self.to_client.iter().filter(|(_, queue)| !queue.is_empty());
        let up = up.filter(|(client, _)| is_here(client));
        let down = down.filter(|(client, _)| is_here(client));
        let up = up.map(|(client, _)| Delivery::ToService(*client));
        let mut all: Vec<Delivery> = up.collect();
        all.extend(down.map(|(client, _)| Delivery::ToClient(*client)));
        match all.len() {
            0 => None,
            len => Some(all.swap_remove(thread_rng().gen_range(0..len))),
        }
    }

    fn receive(&mut self, client: ClientId, now: Duration) {
        let queue = self.to_service.entry(client).or_default();
        if let Some(message) = queue.pop_front() {
            let out = self.service.receive(client, now, message);
            self.send(out);
        }
    }
}

impl World {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let shared = Shared {
            service: Service::new(limits),
            to_service: BTreeMap::new(),
            to_client: BTreeMap::new(),
            epochs: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            changes: BTreeMap::new(),
            inside: Vec::new(),
            is_over: false,
        };
        Arc::new(Self {
            shared: Mutex::new(shared),
            changed: Condvar::default(),
            tree: Tree {
                counts: [0, 1, 1, 1, 1].map(AtomicU64::new),
                linked: AtomicU64::new(0),
            },
            now_ms: AtomicU64::new(0),
        })
    }

    pub(crate) fn client(self: &Arc<Self>, id: u64) -> TheClerk {
        let new = match id % 2 {
            0 => Clerk::new,
            _ => Clerk::widening,
        };
        new(Client {
            id: ClientId(id),
            world: Arc::clone(self),
        })
    }

    /// Delivers messages until the end.
    pub(crate) fn deliver(&self, clerks: &[Arc<TheClerk>]) {
        let mut shared = self.shared.lock();
        while !shared.is_over {
            match shared.next() {
                None => shared = self.changed.wait(shared),
                Some(Delivery::ToService(client)) => shared.receive(client, self.now()),
                Some(Delivery::ToClient(client)) => {
                    let queue = shared.to_client.entry(client).or_default();
                    let at = thread_rng().gen_range(0..queue.len());
                    let message = queue.remove(at);
                    drop(shared);
                    clerks[client.0 as usize].deliver(message);
                    shared = self.shared.lock();
                }
            }
        }
    }

    pub(crate) fn end(&self) {
        self.shared.lock().is_over = true;
        self.changed.notify_all();
    }

    pub(crate) fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.load(SeqCst))
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.now_ms.fetch_add(time.as_millis() as u64, SeqCst);
    }

    /// Stops, or resumes, the messages of a client.
    pub(crate) fn cut_off(&self, client: u64, is_cut_off: bool) {
        let mut shared = self.shared.lock();
        match is_cut_off {
            true => shared.cut_off.insert(ClientId(client)),
            false => shared.cut_off.remove(&ClientId(client)),
        };
        self.changed.notify_all();
    }

    /// Delivers what other clients have sent, lets the service look at its clock, and returns whether
    /// the session of a client has ended.
    pub(crate) fn expire(&self, client: u64) -> bool {
        let mut shared = self.shared.lock();
        while let Some(Delivery::ToService(_)) | Some(Delivery::ToClient(_)) = shared.next() {
            let queues = shared.to_service.iter();
            let cut_off = &shared.cut_off;
            let mut full = queues.filter(|(id, queue)| !queue.is_empty() && !cut_off.contains(id));
            let Some(id) = full.next().map(|(id, _)| *id) else {
                break;
            };
            shared.receive(id, self.now());
        }
        let out = shared.service.tick(self.now());
        shared.send(out);
        self.changed.notify_all();
        shared.service.epoch(ClientId(client)).is_none()
    }
}

impl Host for Client {
    fn send(&self, message: ToService) {
        let mut shared = self.world.shared.lock();
        let queue = shared.to_service.entry(self.id).or_default();
        queue.push_back(message);
        self.world.changed.notify_all();
    }

    fn now(&self) -> Duration {
        self.world.now()
    }

    fn membership_count(&self, object: LockId) -> u64 {
        self.world.tree.membership_count(object)
    }

    fn ship(&self, _: LockId) {
        let mut shared = self.world.shared.lock();
        let changes = shared.changes.entry(self.id).or_default();
        // The counts in `tree` are without changes that are not shipped.
        let has_link = changes.iter().any(|(_, change)| change.link.is_some());
        if shared.cut_off.contains(&self.id) && !has_link && thread_rng().gen_bool(0.5) {
            // It arrives when the client is reachable again, or never.
            return;
        }
        let changes = shared.changes.remove(&self.id).unwrap_or_default();
        for (epoch, change) in changes {
            let tree = &self.world.tree;
            let Change { path, link } = &change;
            let change_of = Mode::explicit(Access::Exclusive);
            let insertion = change_of.join(Mode::intent(Access::Exclusive));
            let covers = |path: &[LockId], want| {
                let service = &shared.service;
                match path {
                    [_] => service.covers(self.id, epoch, path, want, &Alone),
                    _ => service.covers(self.id, epoch, path, want, tree),
                }
            };
            let other_dir = [ROOT, DIRS[1]];
            let result = covers(path, change_of)
                .and_then(|()| link.map_or(Ok(()), |_| covers(&other_dir, insertion)));
            let is_live = shared.is_live((self.id, epoch));
            assert_eq!(result.is_ok(), is_live, "{change:?}: {result:?}");
            if let Some(link) = link.filter(|_| is_live) {
                tree.link(link);
            }
        }
    }
}

impl Client {
    /// Enters objects under a guard. Returns whether the session lasts.
    pub(crate) fn enter(&self, thread: u64, objects: &[LockId], access: Access) -> bool {
        self.enter_as(thread, objects, access, false)
    }

    /// Enters objects under a pass, perhaps beside threads of this client with passes.
    pub(crate) fn enter_beside(&self, thread: u64, objects: &[LockId], access: Access) -> bool {
        self.enter_as(thread, objects, access, true)
    }

    fn enter_as(&self, thread: u64, objects: &[LockId], access: Access, is_beside: bool) -> bool {
        let mut shared = self.world.shared.lock();
        let epoch = shared.epochs.get(&self.id).copied().unwrap_or_default();
        let session = (self.id, epoch);
        if !shared.is_live(session) {
            return false;
        }
        for object in objects.iter().copied() {
            let me = Inside {
                session,
                thread,
                object,
                access,
                is_beside,
            };
            let others = shared.inside.iter().filter(|other| {
                let both_beside = is_beside && other.is_beside && other.session == session;
                other.object == object && !both_beside
            });
            for other in others {
                let is_alone = access == Access::Exclusive || other.access == Access::Exclusive;
                assert!(
                    !is_alone || !shared.is_live(other.session),
                    "{me:?} {other:?}"
                );
            }
            let others = shared
                .changes
                .iter()
                .filter(|(client, _)| **client != self.id);
            for (client, (epoch, change)) in
                others.flat_map(|(c, all)| all.iter().map(move |x| (c, x)))
            {
                let is_visible = change.path.last() != Some(&object);
                let is_late = !shared.is_live((*client, *epoch));
                assert!(
                    is_visible || is_late,
                    "{me:?} misses {change:?} of {client}"
                );
            }
            shared.inside.push(me);
        }
        true
    }

    /// Leaves the objects, with changes that are to be shipped.
    pub(crate) fn leave(&self, thread: u64, changes: Vec<Change>) {
        let mut shared = self.world.shared.lock();
        let epoch = shared.epochs.get(&self.id).copied().unwrap_or_default();
        let changes = changes.into_iter().map(|change| (epoch, change));
        shared.changes.entry(self.id).or_default().extend(changes);
        let is_me = |other: &Inside| (other.session.0, other.thread) == (self.id, thread);
        shared.inside.retain(|other| !is_me(other));
    }

    /// Closes the connection, unless it is cut.
    pub(crate) fn disconnect(&self) {
        let mut shared = self.world.shared.lock();
        if !shared.cut_off.contains(&self.id) {
            let out = shared.service.disconnect(self.id, self.world.now());
            shared.send(out);
            self.world.changed.notify_all();
        }
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.world.tree
    }
}
