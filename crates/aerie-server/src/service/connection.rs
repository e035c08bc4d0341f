//! A connection, and the file system's session of its client.

use super::image::Image;
use super::inbox::Share;
use super::outbox::{Outbox, Room};
use aerie_proto::locks::ClientId;
use aerie_proto::messages::{Class, Down, Greeting, VERSION, encode};
use parking_lot::{Condvar, Mutex};
use pxfs::Session;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::SyncSender;

pub(super) struct Connection {
    pub(super) id: ClientId,
    pub(super) uid: u32,
    pub(super) class: Class,
    pub(super) socket: Arc<UnixStream>,
    pub(super) outbox: Outbox,
    /// Whether the client stores contents in the memory itself.
    stores: bool,
    /// Whether what is freed is kept since its session has ended, as it may still store there.
    pub(super) is_late: AtomicBool,
    /// `None` after the end of the client's session.
    pub(super) session: Mutex<Option<Session>>,
    pub(super) queues: Queues<SyncSender<Option<Waiting>>>,
    /// Batches that were received, and not applied yet.
    pub(super) batches: Arc<Batches>,
}

/// The queues of a client's requests, each with a thread that serves them. `None` is their end.
pub(super) struct Queues<T> {
    /// Requests in their order.
    pub(super) requests: T,
    /// Calls of a client that has locks, which are served beside its other requests.
    pub(super) calls: T,
}

/// A request that waits.
pub(super) struct Waiting {
    /// The message.
    pub(super) bytes: Vec<u8>,
    /// Of the memory for messages.
    pub(super) _share: Share,
    /// It is counted, if it is a batch.
    pub(super) _batch: Option<Unapplied>,
}

/// The number of batches that were received, and not applied yet.
#[derive(Default)]
pub(super) struct Batches {
    count: Mutex<usize>,
    applied: Condvar,
}

/// A batch that is counted until this is dropped.
pub(super) struct Unapplied(Arc<Batches>);

impl Batches {
    pub(super) fn add(self: &Arc<Self>) -> Unapplied {
        *self.count.lock() += 1;
        Unapplied(Arc::clone(self))
    }

    /// Waits until all batches are applied.
    pub(super) fn wait(&self) {
        let mut count = self.count.lock();
        self.applied.wait_while(&mut count, |count| *count > 0);
    }
}

impl Drop for Unapplied {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.applied.notify_all();
    }
}

impl Connection {
    pub(super) fn new(
        id: ClientId,
        uid: u32,
        (class, stores): (Class, bool),
        socket: UnixStream,
        session: Session,
        room: Arc<Room>,
        queues: Queues<SyncSender<Option<Waiting>>>,
    ) -> Self {
        let socket = Arc::new(socket);
        Self {
            id,
            uid,
            class,
            outbox: Outbox::new(Arc::clone(&socket), room, stores),
            socket,
            stores,
            is_late: AtomicBool::new(false),
            session: Mutex::new(Some(session)),
            queues,
            batches: Arc::default(),
        }
    }

    /// Notes that the session ends while the client may be in the middle of a store. Returns whether that is new.
    pub(super) fn becomes_late(&self) -> bool {
        self.stores && !self.is_late.swap(true, SeqCst)
    }

    /// Sends the first message, with the descriptor. Returns whether the socket took it.
    pub(super) fn greet(
        &self,
        (bytes, seed): (u64, u64),
        descriptor: Option<&OwnedFd>,
        image: &Image,
    ) -> bool {
        let greeting = Greeting {
            version: VERSION,
            class: self.class,
            bytes,
            seed,
            uid: self.uid,
            is_protected: image.is_protected(),
            durability: image.durability().into(),
        };
        let Ok(frame) = encode(&Down::Greeting(greeting)) else {
            return false;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptor = descriptor.map(AsFd::as_fd);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return false;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(&*self.socket, &[IoSlice::new(&frame)], &mut control, flags);
        sent == Ok(frame.len())
    }
}
