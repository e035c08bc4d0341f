//! Messages to a client.
//!
//! Nobody waits for a client that does not read: what its socket does not take is kept, and sent by [`Outbox::flush`].
//! A connection has room for one reply, and more up to a bound that the connections of a user who is not trusted share.
//! One that would need more is closed.

use aerie_proto::messages::{Down, encode};
use aerie_proto::ops::REPLY_MAX;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Unsent bytes for which each connection has room.
const OWN: usize = REPLY_MAX as usize;

/// Memory for more unsent bytes.
pub(super) struct Room {
    taken: AtomicUsize,
    most: usize,
}

impl Room {
    pub(super) fn new(most: usize) -> Arc<Self> {
        let taken = AtomicUsize::new(0);
        Arc::new(Self { taken, most })
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |taken| Some(taken + bytes).filter(|taken| *taken <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
    }
}

/// Those of a connection's unsent bytes that take shared memory.
fn shared(unsent: usize) -> usize {
    unsent.saturating_sub(OWN)
}

/// The sending half of a connection.
pub(super) struct Outbox {
    socket: Arc<UnixStream>,
    unsent: Mutex<VecDeque<u8>>,
    pub(super) room: Arc<Room>,
    is_closed: AtomicBool,
    /// The directions that [`close`](Self::close) ends.
    ends: Shutdown,
}

/// Whether bytes are left to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsent {
    None,
    /// The caller wakes the thread that flushes.
    Some,
}

impl Outbox {
    /// `is_awaited`: the connection is read to its end after [`close`](Self::close).
    pub(super) fn new(socket: Arc<UnixStream>, room: Arc<Room>, is_awaited: bool) -> Self {
        Self {
            socket,
            unsent: Mutex::new(VecDeque::new()),
            room,
            is_closed: AtomicBool::new(false),
            ends: match is_awaited {
                true => Shutdown::Write,
                false => Shutdown::Both,
            },
        }
    }

    /// Sends a message, or keeps it.
    pub(super) fn send(&self, message: &Down) -> Unsent {
        let frame = match encode(message) {
            Ok(frame) => frame,
            Err(why) => {
                tracing::error!("a message is not sent, and its connection is closed: {why}");
                self.close();
                return Unsent::None;
            }
        };
        let mut unsent = self.unsent.lock();
        let sent = match unsent.is_empty() {
            true => self.send_now(&frame),
            false => 0,
        };
        let kept = unsent.len() + frame.len() - sent;
        if !self.room.take(shared(kept) - shared(unsent.len())) {
            self.room.give_back(shared(unsent.len()));
            *unsent = VecDeque::new();
            self.close();
            return Unsent::None;
        }
        unsent.extend(&frame[sent..]);
        Self::left(&unsent)
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&self) -> Unsent {
        let mut unsent = self.unsent.lock();
        loop {
            let sent = self.send_now(unsent.as_slices().0);
            let before = unsent.len();
            unsent.drain(..sent);
            self.room.give_back(shared(before) - shared(unsent.len()));
            if unsent.len() < unsent.capacity() / 4 {
                unsent.shrink_to_fit();
            }
            if sent == 0 || unsent.is_empty() {
                return Self::left(&unsent);
            }
        }
    }

    /// The socket, if bytes are left.
    pub(super) fn waiting(&self) -> Option<BorrowedFd<'_>> {
        (!self.unsent.lock().is_empty()).then(|| self.socket.as_fd())
    }

    /// Ends the connection: the peer finds its end. The reading thread does, too, when it looks.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        let _ = self.socket.shutdown(self.ends);
    }

    /// Whether this side has ended the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Ends the connection, without regard to what the peer does.
    pub(super) fn abandon(&self) {
        self.is_closed.store(true, Relaxed);
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Sends a part of the bytes, without waiting. The connection is closed after an error.
    fn send_now(&self, bytes: &[u8]) -> usize {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::io::retry_on_intr(|| send(&*self.socket, bytes, flags)) {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => 0,
            Err(_) => {
                self.close();
                bytes.len()
            }
        }
    }

    fn left(unsent: &VecDeque<u8>) -> Unsent {
        match unsent.is_empty() {
            true => Unsent::None,
            false => Unsent::Some,
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.room.give_back(shared(self.unsent.get_mut().len()));
    }
}
