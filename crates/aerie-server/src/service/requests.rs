//! The messages of a client.

use super::Service;
use super::calls::is_space;
use super::connection::{Connection, Waiting};
use super::inbox::Share;
use crate::locks::Objects;
use aerie_objects::{ObjectId, Reserve};
use aerie_proto::locks::{Access, Ask, ClientId, Epoch, LockId, Mode, ToService};
use aerie_proto::messages::{ByteBuf, Down, Request, Up, decode};
use aerie_proto::ops;
use medium::Pmem;
use pxfs::Session;
use std::borrow::Cow;

/// A reserve takes one page of this many that are free,
const PART_OF_FREE: usize = 8;
/// and this many in any case.
const LEAST: usize = 64;

pub(super) const ENDED: &str =
    "the session has ended: its locks are released, and what was not shipped is lost";

impl<P: Pmem + 'static> Service<P> {
    /// Serves a message, or puts a request into a queue. `last` is the number of the last request. An error ends
    /// the connection.
    pub(super) fn handle(
        &self,
        connection: &Connection,
        bytes: Cow<'_, [u8]>,
        share: Share,
        last: &mut u64,
    ) -> Result<(), String> {
        match decode(&bytes).map_err(|why| why.to_string())? {
            Up::Lock(_) if Self::is_remote(connection) => {
                return Err("a client that does not map the memory has no locks".to_owned());
            }
            Up::Lock(message) => self.handle_lock(connection, message),
            Up::Ask { number, .. } if number <= *last => {
                let why = format!("the request repeats number {number}");
                self.reply(connection, number, Err(why));
            }
            Up::Ask { number, request } => {
                *last = number;
                let is_batch = matches!(request, Request::Batch { .. });
                let is_beside = self.is_beside(connection, &request);
                let waiting = Some(Waiting {
                    bytes: bytes.into_owned(),
                    _share: share,
                    _batch: is_batch.then(|| connection.batches.add()),
                });
                let queues = &connection.queues;
                if !is_beside {
                    // Its thread ends before this one only after it has closed the connection.
                    let _ = queues.requests.send(waiting);
                } else if queues.calls.try_send(waiting).is_err() {
                    let why = "the client makes more than one call at a time".to_owned();
                    self.reply(connection, number, Err(why));
                }
            }
        }
        Ok(())
    }

    /// Serves a message of the clerk. A batch has the locks that the client held when it sent the batch, so what
    /// takes locks away waits for the end of the batch.
    fn handle_lock(&self, connection: &Connection, message: ToService) {
        match message.ask {
            Ask::Renew | Ask::Request { .. } => {}
            Ask::Begin | Ask::Convert { .. } | Ask::Release { .. } => connection.batches.wait(),
        }
        let now = self.now();
        self.with_locks(|locks| locks.receive(connection.id, now, message));
    }

    /// Whether a request is served beside the other ones of the client.
    fn is_beside(&self, connection: &Connection, request: &Request<'_>) -> bool {
        let has_locks = self.image.is_protected() && !Self::is_remote(connection);
        match request {
            Request::Call(bytes) if has_locks => {
                ops::decode(bytes).is_ok_and(|call| !is_space(&call))
            }
            _ => false,
        }
    }

    /// Serves a request from a queue.
    pub(super) fn serve(&self, connection: &Connection, bytes: &[u8]) {
        // It was decoded before, when it came.
        if let Ok(Up::Ask { number, request }) = decode(bytes) {
            let result = self.answer(connection, request);
            self.reply(connection, number, result);
        }
    }

    fn reply(&self, connection: &Connection, number: u64, result: Result<Vec<u8>, String>) {
        let result = result.map(ByteBuf::from);
        self.send(connection, &Down::Reply { number, result });
    }

    fn answer(&self, connection: &Connection, request: Request<'_>) -> Result<Vec<u8>, String> {
        let is_remote = Self::is_remote(connection);
        match request {
            Request::Call(bytes) => self.call(connection, bytes),
            _ if is_remote => Err("a client that does not map the memory makes calls".to_owned()),
            Request::Batch { epoch, bytes } => self.batch(connection, epoch, bytes),
            Request::Reserve { pages, headers } => {
                let mut session = connection.session.lock();
                let session = session.as_mut().ok_or(ENDED)?;
                Ok(ops::encode(&self.reserve(session, pages, headers)))
            }
        }
    }

    /// Reserves more for a client: no more than the limit in all, and a part of what is free, since other
    /// clients need some.
    fn reserve(&self, session: &mut Session, pages: u32, headers: u32) -> Reserve {
        let (has_pages, has_headers) = session.reserved();
        let most = |wanted: u32, has| {
            let left = self.limits.reserve.saturating_sub(has);
            left.min(wanted as usize)
        };
        let free = self.fs.free_pages() as usize / PART_OF_FREE;
        let pages = most(pages, has_pages).min(free.max(LEAST));
        self.fs.grant(session, pages, most(headers, has_headers))
    }

    fn batch(
        &self,
        connection: &Connection,
        epoch: Epoch,
        bytes: &[u8],
    ) -> Result<Vec<u8>, String> {
        let client = connection.id;
        let pin = Pin::new(self, client, epoch).ok_or(ENDED)?;
        let mut session = connection.session.lock();
        let session = session.as_mut().ok_or(ENDED)?;
        let answers = self.fs.apply(session, &pin, bytes);
        let answers = answers.map_err(|error| {
            tracing::error!("a batch was not applied: {error}");
            format!("the store has failed: {error}")
        })?;
        Ok(ops::encode(&answers))
    }
}

/// Keeps a session, and so its locks, while a batch of it is applied.
struct Pin<'a, P: Pmem + 'static> {
    service: &'a Service<P>,
    client: ClientId,
    epoch: Epoch,
}

impl<'a, P: Pmem + 'static> Pin<'a, P> {
    fn new(service: &'a Service<P>, client: ClientId, epoch: Epoch) -> Option<Self> {
        let now = service.now();
        let is_live = service.locks.lock().pin(client, epoch, now);
        is_live.then_some(Self {
            service,
            client,
            epoch,
        })
    }
}

impl<P: Pmem + 'static> Drop for Pin<'_, P> {
    fn drop(&mut self) {
        let now = self.service.now();
        self.service
            .locks
            .lock()
            .unpin(self.client, self.epoch, now);
    }
}

impl<P: Pmem + 'static> pxfs::Authority for Pin<'_, P> {
    /// A change of a collection adds or removes members, which the intent covers.
    fn covers(&self, path: &[ObjectId]) -> Result<(), String> {
        let explicit = Mode::explicit(Access::Exclusive);
        let want = match path.first().map(|object| object.kind()) {
            Some(aerie_objects::Kind::Collection) => explicit.join(Mode::intent(Access::Exclusive)),
            _ => explicit,
        };
        let path: Vec<LockId> = path
            .iter()
            .rev()
            .map(|object| LockId(object.to_bits()))
            .collect();
        let objects = ByParents(path.first().copied().unwrap_or(LockId(0)));
        let locks = self.service.locks.lock();
        let covered = locks.covers(self.client, self.epoch, &path, want, &objects);
        covered.map_err(|why| why.to_string())
    }
}

/// The path was made from the parents of objects. It begins with the root, or with an object that other
/// clients lock explicitly, too: its parent is not known.
struct ByParents(LockId);

impl Objects for ByParents {
    fn is_member(&self, _: LockId, _: LockId) -> bool {
        true
    }

    fn membership_count(&self, object: LockId) -> u64 {
        u64::from(object != self.0)
    }
}
