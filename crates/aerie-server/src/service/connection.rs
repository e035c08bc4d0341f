//! A connection, and the file system's session of its client.

use super::inbox::Share;
use super::outbox::Outbox;
use aerie_proto::locks::ClientId;
use aerie_proto::messages::{Class, Down, Greeting, VERSION, encode};
use parking_lot::Mutex;
use pxfs::Session;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

pub(super) struct Connection {
    pub(super) id: ClientId,
    pub(super) uid: u32,
    pub(super) class: Class,
    pub(super) socket: Arc<UnixStream>,
    pub(super) outbox: Outbox,
    /// `None` after the end of the client's session.
    pub(super) session: Mutex<Option<Session>>,
    /// Calls of a client that has locks, which are served beside its other requests.
    pub(super) calls: SyncSender<Option<Waiting>>,
}

/// A call that waits.
pub(super) struct Waiting {
    /// The number of the request.
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
    /// Of the memory for messages.
    pub(super) share: Share,
}

impl Connection {
    pub(super) fn new(
        id: ClientId,
        uid: u32,
        class: Class,
        socket: UnixStream,
        session: Session,
        answer_bytes: usize,
        calls: SyncSender<Option<Waiting>>,
    ) -> Self {
        let socket = Arc::new(socket);
        Self {
            id,
            uid,
            class,
            outbox: Outbox::new(Arc::clone(&socket), answer_bytes),
            socket,
            session: Mutex::new(Some(session)),
            calls,
        }
    }

    /// Sends the first message, with the descriptor. Returns whether the socket took it.
    pub(super) fn greet(
        &self,
        (bytes, seed): (u64, u64),
        descriptor: Option<&OwnedFd>,
        is_protected: bool,
    ) -> bool {
        let greeting = Greeting {
            version: VERSION,
            class: self.class,
            bytes,
            seed,
            uid: self.uid,
            is_protected,
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
