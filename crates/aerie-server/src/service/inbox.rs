//! Messages of a client: each is copied from the socket as a whole before anything looks at it.
//!
//! The memory for messages of all clients together is bounded. A message that has begun must arrive
//! within a time, so that no client keeps its part of that memory.

use aerie_proto::messages::{BadFrame, FRAME_MAX, HEAD_BYTES, len_of};
use parking_lot::{Condvar, Mutex};
use std::borrow::Cow;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages up to this size do not count.
const SMALL: usize = 64 << 10;

/// Memory for large messages.
pub(super) struct Budget {
    left: Mutex<usize>,
    freed: Condvar,
}

/// A part of the memory.
pub(super) struct Share(Arc<Budget>, usize);

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            left: Mutex::new(bytes.max(FRAME_MAX)),
            freed: Condvar::new(),
        }
    }

    /// Takes a part, and waits for it.
    fn take(self: &Arc<Self>, bytes: usize) -> Share {
        let bytes = if bytes > SMALL { bytes } else { 0 };
        let mut left = self.left.lock();
        self.freed.wait_while(&mut left, |left| *left < bytes);
        *left -= bytes;
        drop(left);
        Share(Arc::clone(self), bytes)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.1 > 0 {
            *self.0.left.lock() += self.1;
            self.0.freed.notify_all();
        }
    }
}

/// The reason why no message is read any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The peer has closed the connection, or the service has.
    #[error("the connection was closed")]
    Closed,
    /// A message did not arrive as a whole.
    #[error("a message did not arrive within {0:?}")]
    Late(Duration),
    #[error(transparent)]
    Bad(#[from] BadFrame),
}

/// The receiving half of a connection.
pub(super) struct Inbox<'a> {
    socket: &'a UnixStream,
    budget: &'a Arc<Budget>,
    patience: Duration,
    small: Vec<u8>,
}

impl<'a> Inbox<'a> {
    pub(super) fn new(
        socket: &'a UnixStream,
        budget: &'a Arc<Budget>,
        patience: Duration,
    ) -> std::io::Result<Self> {
        socket.set_read_timeout(Some(patience))?;
        let small = vec![0; SMALL];
        Ok(Self {
            socket,
            budget,
            patience,
            small,
        })
    }

    /// Waits for a message, and calls `handle` with its bytes. A handler that keeps them keeps their share.
    pub(super) fn next<T>(
        &mut self,
        handle: impl FnOnce(Cow<'_, [u8]>, Share) -> T,
    ) -> Result<T, Ended> {
        let mut head = [0; HEAD_BYTES];
        let first = loop {
            match self.receive(&mut head) {
                Ok(0) => {}
                other => break other?,
            }
        };
        let until = Instant::now() + self.patience;
        self.fill(&mut head[first..], until)?;
        let len = len_of(head)?;
        let share = self.budget.take(len);
        let until = Instant::now() + self.patience; // the wait for memory is not the client's
        let mut small = std::mem::take(&mut self.small);
        let bytes = match small.get_mut(..len) {
            Some(bytes) => self.fill(bytes, until).map(|()| Cow::Borrowed(&*bytes)),
            None => {
                let mut large = vec![0; len];
                self.fill(&mut large, until).map(|()| Cow::Owned(large))
            }
        };
        let result = bytes.map(|bytes| handle(bytes, share));
        self.small = small;
        result
    }

    fn fill(&self, mut bytes: &mut [u8], until: Instant) -> Result<(), Ended> {
        while !bytes.is_empty() {
            let count = self.receive(bytes)?;
            bytes = &mut bytes[count..];
            if !bytes.is_empty() && Instant::now() > until {
                return Err(Ended::Late(self.patience));
            }
        }
        Ok(())
    }

    /// Receives some bytes, or none after the patience.
    fn receive(&self, bytes: &mut [u8]) -> Result<usize, Ended> {
        loop {
            match { self.socket }.read(bytes) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => return Ok(count),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(0);
                }
                Err(_) => return Err(Ended::Closed),
            }
        }
    }
}
