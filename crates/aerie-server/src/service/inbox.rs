//! Messages of a client: each is copied from the socket as a whole before anything looks at it.
//!
//! The memory for messages of all clients together is bounded. A message that has begun must arrive
//! within a time, so that no client keeps its part of that memory. Users who are not trusted have a half of it
//! together, and each of them an eighth: otherwise messages that never end could hold up those of other users for
//! longer than a lease.

use aerie_proto::messages::{BadFrame, FRAME_MAX, HEAD_BYTES, len_of};
use parking_lot::{Condvar, Mutex};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages up to this size do not count.
const SMALL: usize = 64 << 10;

/// The time between two reads of what nobody looks at.
const PAUSE: Duration = Duration::from_millis(20);

/// Memory for large messages.
pub(super) struct Budget {
    bytes: usize,
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// By users who are not trusted.
    untrusted: usize,
    of: HashMap<u32, usize>,
}

/// A part of the memory.
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
    user: Option<u32>,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes: bytes.max(2 * FRAME_MAX),
            taken: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Takes a part for a user, if the user is not trusted, and waits for it.
    fn take(self: &Arc<Self>, bytes: usize, user: Option<u32>) -> Share {
        let bytes = if bytes > SMALL { bytes } else { 0 };
        let mut taken = self.taken.lock();
        self.freed
            .wait_while(&mut taken, |taken| !self.has_room(taken, bytes, user));
        taken.change(user, |count| count + bytes);
        drop(taken);
        let budget = Arc::clone(self);
        Share {
            budget,
            bytes,
            user,
        }
    }

    fn has_room(&self, taken: &Taken, bytes: usize, user: Option<u32>) -> bool {
        let own = user.and_then(|user| taken.of.get(&user)).unwrap_or(&0);
        let is_permitted = user.is_none()
            || taken.untrusted + bytes <= self.bytes / 2
                && own + bytes <= FRAME_MAX.max(self.bytes / 8);
        bytes == 0 || is_permitted && taken.all + bytes <= self.bytes
    }
}

impl Taken {
    fn change(&mut self, user: Option<u32>, change: impl Fn(usize) -> usize) {
        self.all = change(self.all);
        if let Some(user) = user {
            self.untrusted = change(self.untrusted);
            let own = self.of.entry(user).or_default();
            *own = change(*own);
            if *own == 0 {
                self.of.remove(&user);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut taken = self.budget.taken.lock();
            taken.change(self.user, |count| count - self.bytes);
            self.budget.freed.notify_all();
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
    /// The user, if it is not trusted.
    user: Option<u32>,
    patience: Duration,
    small: Vec<u8>,
    /// Whether the service has ended the connection.
    is_closed: &'a dyn Fn() -> bool,
}

impl<'a> Inbox<'a> {
    pub(super) fn new(
        socket: &'a UnixStream,
        budget: &'a Arc<Budget>,
        user: Option<u32>,
        patience: Duration,
        is_closed: &'a dyn Fn() -> bool,
    ) -> std::io::Result<Self> {
        socket.set_read_timeout(Some(patience))?;
        let small = vec![0; SMALL];
        Ok(Self {
            socket,
            budget,
            user,
            patience,
            small,
            is_closed,
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
                _ if (self.is_closed)() => return Err(Ended::Closed),
                Ok(0) => {}
                other => break other?,
            }
        };
        let until = Instant::now() + self.patience;
        self.fill(&mut head[first..], until)?;
        let len = len_of(head)?;
        let share = self.budget.take(len, self.user);
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

    /// Reads to the end of the connection, unless it is closed before. A peer that goes on sending waits mostly.
    pub(super) fn drain(&mut self) {
        let mut unread = std::mem::take(&mut self.small);
        while !(self.is_closed)() && self.receive(&mut unread).is_ok() {
            std::thread::sleep(PAUSE);
        }
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
