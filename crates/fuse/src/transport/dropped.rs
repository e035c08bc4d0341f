//! Whether the kernel still has an inode.
//!
//! The kernel releases an inode by the message FORGET, without an answer. One thread may have read
//! that message and not yet processed it while another thread answers a `statfs`, or a call that takes space. It
//! would then miss the room of a file that was just removed. So it asks the kernel about each inode
//! without a name that is still referenced: it notifies the kernel that the inode's attributes are
//! stale. If the notification fails with `ENOENT`, the kernel has no such inode, and the `statfs`
//! waits for the FORGET. An open file has an inode in the kernel, and counts as used.
//!
//! # No deadlock
//! The kernel's lookup of an inode waits for a running eviction. The eviction may wait for writes of
//! pages, which need a thread that serves requests. Therefore another thread asks the kernel, and a
//! `statfs` stops waiting after [`PATIENCE`]. It then counts inodes without a FORGET as used. While a
//! FORGET is being processed there is no deadlock, and a large file takes its time: the wait goes on, up
//! to [`LIMIT`].

use crate::ops::Ops;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use vfs::{Errno, Ino, Result};

/// Longest time that a `statfs` waits for the next FORGET: long enough for the disk to be busy. All of it
/// passes only if every thread that serves waits here, or the kernel waits for one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest time that a `statfs` waits while a FORGET is being processed.
const LIMIT: Duration = Duration::from_secs(30);

/// Time between checks of the inodes that are still referenced.
const PAUSE: Duration = Duration::from_micros(200);

/// `FUSE_NOTIFY_INVAL_INODE`, with the header that all notifications have.
const INVALIDATE_INODE: i32 = 2;
const MESSAGE_BYTES: usize = 40;

/// Inodes to ask the kernel about, and the receiver of those that it does not have.
type Question = (Vec<Ino>, SyncSender<Vec<Ino>>);

/// Asks the kernel; the thread that does so starts with the first question.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    /// `/dev/fuse`, once the session exists. `fuser`'s own notifications do not report whether
    /// the inode was there.
    device: Mutex<Option<OwnedFd>>,
    questions: OnceLock<Sender<Question>>,
    /// Messages FORGET that are being processed.
    forgetting: AtomicUsize,
}

/// The time for which a `statfs` waits.
struct Wait {
    begin: Instant,
    until: Instant,
}

impl Wait {
    fn begin(now: Instant) -> Self {
        Self {
            begin: now,
            until: now + PATIENCE,
        }
    }

    /// Whether to wait further. `is_forgetting`: a FORGET is being processed.
    fn goes_on(&mut self, now: Instant, is_forgetting: bool) -> bool {
        if is_forgetting {
            self.until = (now + PATIENCE).min(self.begin + LIMIT);
        }
        now < self.until
    }
}

/// A FORGET that is being processed.
pub(crate) struct Forgetting<'d>(&'d Dropped);

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.0.forgetting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Dropped {
    /// Once only.
    pub(crate) fn set_device(&self, device: OwnedFd) {
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
    }

    /// Notes that a FORGET is being processed, until the result is dropped.
    pub(crate) fn forgetting(&self) -> Forgetting<'_> {
        self.forgetting.fetch_add(1, Ordering::SeqCst);
        Forgetting(self)
    }

    /// Runs a call that takes space. If there is none, inodes that the kernel has dropped are given back first. A write
    /// from the kernel's cache must not use this: the kernel may wait for it before it drops an inode.
    pub(crate) fn with_space<T>(&self, ops: &Ops, call: impl Fn() -> Result<T>) -> Result<T> {
        match call() {
            Err(Errno::NOSPC) => {
                self.wait(ops);
                call()
            }
            done => done,
        }
    }

    /// Waits until the inodes are given back that the kernel has dropped.
    pub(crate) fn wait(&self, ops: &Ops) {
        let nameless = ops.nameless();
        if nameless.is_empty() {
            return;
        }
        let mut wait = Wait::begin(Instant::now());
        let Some(mut dropped) = self.dropped(nameless, wait.until) else {
            return;
        };
        let is_forgetting = || self.forgetting.load(Ordering::SeqCst) > 0;
        while !dropped.is_empty() && wait.goes_on(Instant::now(), is_forgetting()) {
            thread::sleep(PAUSE);
            let left: HashSet<Ino> = ops.nameless().into_iter().collect();
            dropped.retain(|ino| left.contains(ino));
        }
    }

    /// Those of the inodes that the kernel does not have; `None` if it is not known in time.
    fn dropped(&self, inos: Vec<Ino>, until: Instant) -> Option<Vec<Ino>> {
        let (answer, answered) = sync_channel(1);
        let questions = self.questions.get_or_init(|| self.start());
        questions.send((inos, answer)).ok()?;
        answered
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .ok()
    }

    /// Starts the thread, which ends with the last sender of questions.
    fn start(&self) -> Sender<Question> {
        let (questions, asked) = channel();
        let device = self
            .device
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(device) = device {
            // Without a thread nothing is answered, and nothing waited for.
            let _ = thread::Builder::new()
                .name("ask-kernel".into())
                .spawn(move || answer(&asked, &device));
        }
        questions
    }
}

fn answer(asked: &Receiver<Question>, device: &OwnedFd) {
    while let Ok((mut inos, answer)) = asked.recv() {
        inos.retain(|ino| is_dropped(device, *ino));
        // Nobody may wait for it any more.
        let _ = answer.try_send(inos);
    }
}

/// Drops the attributes that the kernel holds of an inode, and returns whether it has none.
fn is_dropped(device: &OwnedFd, ino: Ino) -> bool {
    rustix::io::write(device, &invalidation(ino)) == Err(rustix::io::Errno::NOENT)
}

/// Length, code and no request; then the inode, and an offset that leaves its data alone.
fn invalidation(ino: Ino) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..4].copy_from_slice(&(MESSAGE_BYTES as u32).to_ne_bytes());
    message[4..8].copy_from_slice(&INVALIDATE_INODE.to_ne_bytes());
    message[16..24].copy_from_slice(&ino.0.to_ne_bytes());
    message[24..32].copy_from_slice(&(-1i64).to_ne_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removing a large file from a busy disk takes longer than the patience for the next message.
    #[test]
    fn a_wait_goes_on_while_a_forget_is_processed() {
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut wait = Wait::begin(begin);
        assert!(wait.goes_on(begin, false) && !wait.goes_on(after(1), false));
        let mut wait = Wait::begin(begin);
        for second in 0..LIMIT.as_secs() {
            assert!(wait.goes_on(after(second), true), "{second} s");
        }
        assert!(!wait.goes_on(after(LIMIT.as_secs()), true));
        // The patience for the next message begins again.
        let mut wait = Wait::begin(begin);
        assert!(wait.goes_on(after(5), true));
        assert!(wait.goes_on(after(5) + PATIENCE / 2, false) && !wait.goes_on(after(7), false));
    }

    #[test]
    fn forgets_count_while_they_are_processed() {
        let dropped = Dropped::default();
        let count = || dropped.forgetting.load(Ordering::SeqCst);
        let (first, second) = (dropped.forgetting(), dropped.forgetting());
        assert_eq!(count(), 2);
        drop(first);
        assert_eq!(count(), 1);
        drop(second);
        assert_eq!(count(), 0);
    }
}
