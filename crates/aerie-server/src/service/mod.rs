//! The service as a process: connections of clients, their sessions, and their requests.
//!
//! 1. A message is copied from the socket before it is looked at, and has a bounded size. The memory of
//!    all messages is bounded, as are connections, reserves and unread answers ([`Limits`]).
//! 2. Nobody waits for a client that does not send or read; its connection ends.
//! 3. The requests of a client are served in their order, those of different clients at a time. Messages of its
//!    clerk do not wait for requests, so that a long batch does not cost the lease. But those that give up locks
//!    wait for the batches before them.
//!    Batches are applied at a time if they change different objects, but one at a time to a protected store
//!    and to one with a single log. Remote calls run alone, if they change something or take references. A call
//!    of a client with locks is served beside its other requests, since it may wait until the client has given up
//!    a lock; it makes one call at a time.
//! 4. A batch is checked against the locks that its client holds while it is applied: its session cannot
//!    end meanwhile. A batch of another session, or one that repeats a number, has no effect.
//! 5. At the end of a session its locks are released, its reserve is free, and what only it has held is
//!    deleted. Accepted changes stay.
//!    A client that stores contents itself may be in the middle of a store when its session ends: it may be stopped
//!    (Ctrl-Z). Pages that are freed from then on stay unused until it has closed its connection, which it does after its
//!    last store, or has ended.
//! 6. A panic ends one connection.
//!
//! Each connection has a thread that receives, and one that serves requests. One more thread accepts connections, sends what clients
//! did not take at once, and ends sessions that are late. `calls` serves clients that do not map the
//! memory, under locks of the service's own clerk.

mod calls;
mod connection;
mod image;
mod inbox;
mod limits;
mod outbox;
mod pump;
mod requests;
mod serve;

pub use limits::Limits;
pub use serve::{Description, ServeError, Serving, serve, serve_protected};

use crate::locks::{self, Outgoing};
use aerie_client::clerk::Clerk;
use aerie_proto::locks::{ClientId, Tell, ToClient};
use aerie_proto::messages::{Class, Down};
use calls::OwnHost;
use connection::{Connection, Queues, Waiting};
use image::Image;
use inbox::{Budget, Inbox};
use medium::Pmem;
use outbox::{Room, Unsent};
use parking_lot::Mutex;
use pxfs::{Credentials, Pxfs};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most requests of a client that wait. A client with locks has fewer threads that wait for replies.
const QUEUE: usize = 16;

type Receivers = Queues<Receiver<Option<Waiting>>>;

/// The state of the service, shared by its threads.
pub(crate) struct Service<P: Pmem + 'static> {
    fs: Pxfs<P>,
    image: Image,
    limits: Limits,
    locks: Mutex<locks::Service>,
    connections: Mutex<Connections>,
    /// Clients whose sessions the lock service has ended.
    ended: Mutex<Vec<ClientId>>,
    /// The clerk for calls of clients that do not map the memory, and its messages.
    clerk: OnceLock<Clerk<OwnHost<P>>>,
    to_clerk: Mutex<Sender<Option<ToClient>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    budget: Arc<Budget>,
    start: Instant,
    /// Wakes the pump.
    wake: OwnedFd,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct Connections {
    all: BTreeMap<ClientId, Arc<Connection>>,
    last: u64,
}

impl<P: Pmem + 'static> Service<P> {
    fn start(fs: Pxfs<P>, image: Image, limits: Limits) -> Result<Arc<Self>, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (to_clerk, messages) = channel();
        let service = Arc::new(Self {
            fs,
            image,
            limits,
            locks: Mutex::new(locks::Service::new(limits.of_locks())),
            connections: Mutex::default(),
            ended: Mutex::default(),
            clerk: OnceLock::new(),
            to_clerk: Mutex::new(to_clerk),
            threads: Mutex::default(),
            budget: Arc::new(Budget::new(limits.request_bytes)),
            start: Instant::now(),
            wake,
            is_stopping: AtomicBool::new(false),
        });
        service.start_clerk(messages);
        Ok(service)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes the pump stop all threads.
    fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
        self.wake();
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Has the lock service do something, and sends its messages.
    fn with_locks(&self, act: impl FnOnce(&mut locks::Service) -> Outgoing) {
        let mut locks = self.locks.lock();
        let out = act(&mut locks);
        // No other client gets a lock of the session before.
        for (to, message) in &out {
            if let Tell::Expired(_) = message.tell {
                let connection = self.connections.lock().all.get(to).cloned();
                connection
                    .into_iter()
                    .for_each(|late| self.note_late(&late));
            }
        }
        drop(locks);
        self.dispatch(out);
    }

    /// Keeps what is freed while a client may still store there, whose session ends.
    fn note_late(&self, connection: &Connection) {
        if connection.becomes_late() {
            self.fs.keep_freed();
        }
    }

    /// Sends the messages of the lock service.
    fn dispatch(&self, out: Outgoing) {
        for (to, message) in out {
            if matches!(message.tell, Tell::Expired(_)) {
                self.ended.lock().push(to);
                self.wake();
            }
            if to == calls::CLIENT {
                let _ = self.to_clerk.lock().send(Some(message));
                continue;
            }
            let connection = self.connections.lock().all.get(&to).cloned();
            if let Some(connection) = connection {
                self.send(&connection, &Down::Lock(message));
            }
        }
    }

    fn send(&self, connection: &Connection, message: &Down) {
        if connection.outbox.send(message) == Unsent::Some {
            self.wake();
        }
    }

    /// Takes a new connection, or refuses it with a reason.
    fn connect(&self, socket: UnixStream) -> Result<(Arc<Connection>, Receivers), String> {
        let failed = |what: &str, e: &dyn std::fmt::Display| format!("cannot {what}: {e}");
        let peer = medium::peer(&socket).map_err(|e| failed("read your credentials", &e))?;
        let class = self.image.class(&peer);
        let class = class.map_err(|e| failed("read the mode of the image", &e))?;
        let mut connections = self.connections.lock();
        let room = match class {
            Class::Trusted => Room::new(self.limits.answer_bytes),
            _ => self.room_of(peer.uid, &connections)?,
        };
        if connections.all.len() >= self.limits.clients {
            let most = self.limits.clients;
            return Err(format!("the service has {most} connections already"));
        }
        connections.last += 1;
        let id = ClientId(connections.last);
        let uid = peer.uid;
        let who = Credentials {
            uid,
            gid: peer.gid,
            groups: peer.groups,
        };
        let session = self.fs.begin(who, class == Class::Trusted);
        let (requests, waiting_requests) = sync_channel(QUEUE);
        let (calls, waiting_calls) = sync_channel(1);
        let queues = Queues { requests, calls };
        let class = (class, self.image.is_stored_to_by(class));
        let connection = Connection::new(id, uid, class, socket, session, room, queues);
        let connection = Arc::new(connection);
        connections.all.insert(id, Arc::clone(&connection));
        let receivers = Queues {
            requests: waiting_requests,
            calls: waiting_calls,
        };
        Ok((connection, receivers))
    }

    /// The memory that the connections of a user share, if there may be one more.
    fn room_of(&self, uid: u32, connections: &Connections) -> Result<Arc<Room>, String> {
        let is_own = |other: &&Arc<Connection>| other.uid == uid && other.class != Class::Trusted;
        let own = connections.all.values().filter(is_own);
        let rooms: Vec<_> = own.map(|other| &other.outbox.room).collect();
        let most = self.limits.per_user;
        if rooms.len() >= most {
            return Err(format!("your user has {most} connections already"));
        }
        let new = || Room::new(self.limits.answer_bytes);
        Ok(rooms.first().map_or_else(new, |room| Arc::clone(room)))
    }

    /// Serves a connection until it ends.
    fn attend(&self, connection: &Arc<Connection>, queues: Receivers) {
        let Queues { requests, calls } = queues;
        std::thread::scope(|scope| {
            let start = |queue: Receiver<Option<Waiting>>| {
                let thread = std::thread::Builder::new().name("aerie-requests".to_owned());
                thread.spawn_scoped(scope, move || self.attend_requests(connection, queue))
            };
            let has_calls = self.image.is_protected() && !Self::is_remote(connection);
            let started = match has_calls {
                true => start(calls).and_then(|_| start(requests)),
                false => start(requests),
            };
            match started {
                Ok(thread) => {
                    self.attend_messages(connection);
                    if connection.outbox.is_closed() {
                        // The client has not closed it, or not yet.
                        self.note_late(connection);
                    }
                    // The locks of a batch are the client's until its end.
                    let _ = connection.queues.requests.send(None);
                    let _ = thread.join();
                }
                Err(e) => self.refuse(connection, format!("cannot start a thread: {e}")),
            }
            self.disconnect(connection);
        });
    }

    /// Serves the requests of a queue until its end. A panic ends the connection.
    fn attend_requests(&self, connection: &Connection, queue: Receiver<Option<Waiting>>) {
        let mut is_broken = false;
        while let Ok(Some(waiting)) = queue.recv() {
            if is_broken {
                continue;
            }
            let serve = || self.serve(connection, &waiting.bytes);
            is_broken = catch_unwind(AssertUnwindSafe(serve)).is_err();
            if is_broken {
                self.refuse(connection, "a bug of the service".into());
                connection.outbox.close();
            }
        }
    }

    fn attend_messages(&self, connection: &Arc<Connection>) {
        let served = catch_unwind(AssertUnwindSafe(|| self.receive(connection)));
        if let Err(why) = served.unwrap_or_else(|_| Err("a bug of the service".into())) {
            self.refuse(connection, why);
            connection.outbox.close();
        }
    }

    /// Reports to the client why its connection ends.
    fn refuse(&self, connection: &Connection, why: String) {
        tracing::warn!("the connection of {} ends: {why}", connection.id);
        self.send(connection, &Down::Bye(why));
    }

    fn disconnect(&self, connection: &Connection) {
        self.with_locks(|locks| locks.disconnect(connection.id, self.now()));
        self.end_session(connection);
        connection.outbox.close();
        // A call that waits gets the locks of the client, and fails.
        let _ = connection.queues.calls.send(None);
        if connection.is_late.load(SeqCst) {
            self.await_last_store(connection);
            self.fs.give_kept();
        }
        self.connections.lock().all.remove(&connection.id);
    }

    /// Waits for the end of a connection whose client may still store to the memory.
    fn await_last_store(&self, connection: &Connection) {
        let is_over = || self.is_stopping();
        let patience = self.limits.lease;
        if let Ok(mut inbox) =
            Inbox::new(&connection.socket, &self.budget, None, patience, &is_over)
        {
            inbox.drain();
        }
    }

    fn receive(&self, connection: &Connection) -> Result<(), String> {
        let superblock = self.fs.superblock();
        let who = match &*connection.session.lock() {
            Some(session) => session.who().clone(),
            None => return Ok(()),
        };
        // The connection to the manager ends with this one.
        let (descriptor, _manager) = self.image.descriptor(connection.class, &who)?;
        let store = (superblock.bytes, superblock.seed);
        if !connection.greet(store, descriptor.as_ref(), &self.image) {
            return Ok(());
        }
        drop(descriptor);
        let user = (connection.class != Class::Trusted).then_some(connection.uid);
        let (patience, is_closed) = (self.limits.lease, || connection.outbox.is_closed());
        let inbox = Inbox::new(&connection.socket, &self.budget, user, patience, &is_closed);
        let mut inbox = inbox.map_err(|e| e.to_string())?;
        let mut last = 0;
        loop {
            match inbox.next(|bytes, share| self.handle(connection, bytes, share, &mut last)) {
                Ok(handled) => handled?,
                Err(inbox::Ended::Closed) => return Ok(()),
                Err(why) => return Err(why.to_string()),
            }
        }
    }

    /// Ends the file system's session of a client, if it has not ended.
    fn end_session(&self, connection: &Connection) {
        if let Some(session) = connection.session.lock().take() {
            self.fs.end(session);
        }
    }

    /// Ends the sessions that the lock service has ended.
    fn end_sessions(&self) {
        let ended = std::mem::take(&mut *self.ended.lock());
        for client in ended {
            let connection = self.connections.lock().all.get(&client).cloned();
            if let Some(connection) = connection {
                self.end_session(&connection);
            }
        }
    }

    fn is_remote(connection: &Connection) -> bool {
        connection.class == Class::Remote
    }
}
