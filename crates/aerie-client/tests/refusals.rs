//! The errors that threads get when the service refuses a request or the session ends. Clerks and the
//! service run with real threads in this process.

use aerie_client::clerk::{Clerk, Host, LockError, Scope, Want};
use aerie_proto::locks::{Access, ClientId, End, LockId, Refusal, ToService};
use aerie_server::locks::{Limits, Service};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

const LIMITS: Limits = Limits {
    lease: Duration::from_secs(10),
    locks_per_client: 4,
    clients: 2,
};

struct Client {
    id: ClientId,
    /// `None` ends the service.
    service: Sender<(ClientId, Option<ToService>)>,
    now_s: Arc<AtomicU64>,
}

impl Host for Client {
    fn send(&self, message: ToService) {
        let _is_ended = self.service.send((self.id, Some(message)));
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.now_s.load(SeqCst))
    }

    fn membership_count(&self, object: LockId) -> u64 {
        u64::from(object != LockId(0))
    }

    fn ship(&self, _: LockId) {}
}

fn serve(messages: &Receiver<(ClientId, Option<ToService>)>, clerks: &[Clerk<Client>; 2]) {
    let mut service = Service::new(LIMITS);
    while let Ok((from, Some(message))) = messages.recv() {
        for (to, message) in service.receive(from, clerks[0].host().now(), message) {
            clerks[to.0 as usize].deliver(message);
        }
    }
}

/// Runs a test with two clients.
fn with_clerks(test: impl FnOnce(&[Clerk<Client>; 2])) {
    let (service, messages) = channel();
    let now_s = Arc::new(AtomicU64::new(0));
    let clerks = [0, 1].map(|id| {
        Clerk::new(Client {
            id: ClientId(id),
            service: service.clone(),
            now_s: Arc::clone(&now_s),
        })
    });
    thread::scope(|scope| {
        let clerks = &clerks;
        scope.spawn(move || serve(&messages, clerks));
        for clerk in clerks {
            scope.spawn(|| clerk.attend());
        }
        test(clerks);
        clerks.iter().for_each(Clerk::close);
        service.send((ClientId(0), None)).expect("it runs");
    });
}

fn file(path: &[LockId; 3]) -> Want<'_> {
    Want {
        path,
        access: Access::Exclusive,
        scope: Scope::Object,
    }
}

fn path(file: u64) -> [LockId; 3] {
    [LockId(0), LockId(1), LockId(file)]
}

#[test]
fn unused_locks_make_room_for_others() {
    with_clerks(|[clerk, _]| {
        for n in 2..20 {
            let guard = clerk.lock(file(&path(n)));
            assert!(guard.is_ok_and(|guard| guard.is_valid()));
        }
    });
}

#[test]
fn a_client_with_too_many_locks_in_use_is_refused() {
    with_clerks(|[clerk, _]| {
        let paths = [2, 3, 4].map(path);
        let two = clerk.lock_all(&[file(&paths[0]), file(&paths[1])]);
        let two = two.expect("four locks");
        let refused = clerk.lock(file(&paths[2])).map(drop);
        let why = LockError::Refused(LockId(4), Refusal::TooManyLocks(4));
        assert_eq!(refused, Err(why));
        drop(two);
        assert!(clerk.lock(file(&paths[2])).is_ok());
    });
}

#[test]
fn one_thread_of_a_deadlock_is_refused() {
    let both = Barrier::new(2);
    // Takes one lock, then another one beside it.
    let take = |clerk: &Clerk<Client>, first: u64, second: u64| {
        let first = path(first);
        let _guard = clerk.lock(file(&first)).expect("it is free");
        both.wait();
        clerk.lock(file(&path(second))).map(drop)
    };
    with_clerks(|[a, b]| {
        let results = thread::scope(|scope| {
            let other = scope.spawn(|| take(b, 3, 2));
            [take(a, 2, 3), other.join().expect("it does not panic")]
        });
        let is_deadlock = |result: &&Result<(), LockError>| matches!(result, Err(LockError::Refused(_, Refusal::Deadlock(cycle))) if cycle.len() == 2);
        assert_eq!(results.iter().filter(is_deadlock).count(), 1, "{results:?}");
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    });
}

/// A client whose messages wait.
struct Delayed {
    sent: Mutex<Vec<ToService>>,
    now_s: AtomicU64,
}

impl Host for Delayed {
    fn send(&self, message: ToService) {
        self.sent.lock().unwrap().push(message);
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.now_s.load(SeqCst))
    }

    fn membership_count(&self, _: LockId) -> u64 {
        1
    }

    fn ship(&self, _: LockId) {}
}

/// The service may have renewed the lease as early as the client has asked for that.
#[test]
fn a_lease_counts_from_the_request_for_it() {
    let mut service = Service::new(LIMITS);
    let clerk = Clerk::new(Delayed {
        sent: Mutex::default(),
        now_s: AtomicU64::new(0),
    });
    let mut answer = |at: u64| {
        let sent = std::mem::take(&mut *clerk.host().sent.lock().unwrap());
        for message in sent {
            for (_, told) in service.receive(ClientId(0), Duration::from_secs(at), message) {
                clerk.deliver(told);
            }
        }
    };
    let tick = |now_s| {
        clerk.host().now_s.store(now_s, SeqCst);
        clerk.tick();
        clerk.ended()
    };
    answer(0);
    assert_eq!(tick(5), None);
    assert_eq!(tick(9), None);
    answer(5);
    assert_eq!(tick(14), None);
    assert_eq!(tick(15), Some(End::NotRenewed));
}

#[test]
fn the_store_is_removed_after_the_lease() {
    with_clerks(|[clerk, other]| {
        let path = path(2);
        let guard = clerk.lock(file(&path)).expect("it is free");
        assert!(guard.is_valid());
        clerk.host().now_s.store(10, SeqCst);
        assert!(!guard.is_valid());
        let removed = LockError::Removed(End::NotRenewed);
        assert_eq!(clerk.lock(file(&path)).map(drop), Err(removed.clone()));
        other.tick();
        assert_eq!(other.lock(file(&path)).map(drop), Err(removed));
    });
}
