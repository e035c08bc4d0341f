//! Revokes that a client answers a little later. If several clients change one directory all the time, its lock would
//! move for each call, which takes several times as long as the call. So a client that goes on with changes keeps a
//! lock for [`HOLD`] after it was granted. Others wait for so much longer at most. A client that makes no changes gives
//! it up at the next look.
//!
//! The protocol permits it: messages of the service may overtake each other, so that a revoke may come late.

use aerie_proto::locks::{LockId, Tell, ToClient};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use vfs::sync::{Condvar, Mutex};

/// The time after its grant for which a lock is kept.
const HOLD: Duration = Duration::from_millis(2);
/// The time between two looks at the client's progress.
const LOOK: Duration = Duration::from_micros(100);
/// Grants that are remembered.
const MOST: usize = 1024;

/// The revokes that wait.
#[derive(Default)]
pub(crate) struct Linger {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    granted: HashMap<LockId, Instant>,
    waiting: Vec<Waiting>,
    has_ended: bool,
}

struct Waiting {
    until: Instant,
    /// The time of the next look.
    look: Instant,
    /// The client's progress at the last look.
    progress: u64,
    message: ToClient,
}

impl Linger {
    /// Takes a message that has come now. Returns it unless it is a revoke that waits.
    pub(crate) fn take(&self, message: ToClient, progress: u64, now: Instant) -> Option<ToClient> {
        let lock = match message.tell {
            Tell::Granted { lock, .. } => {
                let mut state = self.state.lock();
                if state.granted.len() >= MOST {
                    state.granted.clear();
                }
                state.granted.insert(lock, now);
                return Some(message);
            }
            Tell::Revoke { lock, .. } => lock,
            _ => return Some(message),
        };
        let mut state = self.state.lock();
        let until = state.granted.get(&lock).map(|granted| *granted + HOLD);
        let until = until.filter(|until| *until > now && !state.has_ended);
        let Some(until) = until else {
            return Some(message);
        };
        state.waiting.push(Waiting {
            until,
            look: now + LOOK,
            progress,
            message,
        });
        drop(state);
        self.came.notify_all();
        None
    }

    /// Waits for a time, or until revokes wait for the next look. Returns whether it has not ended.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.has_ended {
            let time = match state.waiting.is_empty() {
                true => time,
                false => time.min(LOOK),
            };
            state = self.came.wait_for(state, time);
        }
        !state.has_ended
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// Returns the revokes that wait no longer: their time is over, or the client has made no progress and is not
    /// busy with a call.
    pub(crate) fn due(&self, progress: u64, is_busy: bool, now: Instant) -> Vec<ToClient> {
        let mut state = self.state.lock();
        let mut due = Vec::new();
        for mut waiting in std::mem::take(&mut state.waiting) {
            let goes_on = is_busy || waiting.progress != progress;
            if waiting.look > now {
                state.waiting.push(waiting);
            } else if waiting.until > now && goes_on {
                (waiting.look, waiting.progress) = (now + LOOK, progress);
                state.waiting.push(waiting);
            } else {
                due.push(waiting.message);
            }
        }
        due
    }

    /// Ends [`pause`](Self::pause). No more revokes wait.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aerie_proto::locks::{Age, Epoch, GrantNo, Mode};

    const LOCK: LockId = LockId(64);

    fn message(tell: Tell) -> ToClient {
        let (epoch, seq) = (Epoch(1), 1);
        ToClient { epoch, seq, tell }
    }

    fn granted() -> ToClient {
        let (lock, mode, of) = (LOCK, Mode::NONE, 1);
        message(Tell::Granted { lock, mode, of })
    }

    fn revoke(lock: LockId) -> ToClient {
        let (grant, to, age) = (GrantNo(1), Mode::NONE, Age::default());
        message(Tell::Revoke {
            lock,
            grant,
            to,
            age,
        })
    }

    #[test]
    fn a_revoke_waits_while_the_client_goes_on() {
        let (linger, now) = (Linger::default(), Instant::now());
        assert_eq!(linger.take(granted(), 0, now), Some(granted()));
        assert_eq!(linger.take(revoke(LOCK), 5, now), None);
        assert!(linger.has_waiting());
        assert_eq!(linger.due(5, false, now), []);
        assert_eq!(linger.due(6, false, now + LOOK), []);
        assert_eq!(linger.due(6, true, now + LOOK * 2), []);
        assert_eq!(linger.due(6, false, now + LOOK * 2), []);
        assert_eq!(linger.due(6, false, now + LOOK * 3), [revoke(LOCK)]);
        assert!(!linger.has_waiting());
    }

    #[test]
    fn the_time_of_a_lock_ends() {
        let (linger, now) = (Linger::default(), Instant::now());
        let _ = linger.take(granted(), 0, now);
        assert_eq!(linger.take(revoke(LOCK), 0, now + HOLD / 2), None);
        assert_eq!(linger.due(1, true, now + HOLD * 3 / 4), []);
        assert_eq!(linger.due(2, true, now + HOLD), [revoke(LOCK)]);
    }

    #[test]
    fn a_lock_that_was_not_granted_lately_is_given_up_at_once() {
        let (linger, now) = (Linger::default(), Instant::now());
        let other = LockId(128);
        assert_eq!(linger.take(revoke(other), 0, now), Some(revoke(other)));
        let _ = linger.take(granted(), 0, now);
        assert_eq!(linger.take(revoke(other), 0, now), Some(revoke(other)));
        let late = linger.take(revoke(LOCK), 0, now + HOLD);
        assert_eq!(late, Some(revoke(LOCK)));
    }

    #[test]
    fn nothing_waits_after_the_end() {
        let (linger, now) = (Linger::default(), Instant::now());
        let _ = linger.take(granted(), 0, now);
        linger.end();
        assert_eq!(linger.take(revoke(LOCK), 0, now), Some(revoke(LOCK)));
        assert!(!linger.pause(Duration::from_secs(60)));
    }
}
