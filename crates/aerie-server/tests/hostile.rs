//! The lock service under arbitrary messages: it never panics, keeps its invariants, and answers what
//! it refuses. And the rules for objects at the time when changes are applied.

use aerie_proto::locks::{
    Access, Age, Ask, ClientId, End, Epoch, GrantNo, LockId, Mode, Refusal, Tell, ToClient,
    ToService,
};
use aerie_server::locks::{Limits, Objects, Outgoing, Service, Uncovered};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(10);
const LIMITS: Limits = Limits {
    lease: LEASE,
    locks_per_client: 4,
    clients: 3,
};
const X: Access = Access::Exclusive;

/// A client and a service in the same process.
struct Net {
    service: Service,
    now: Duration,
    seqs: BTreeMap<ClientId, u64>,
    epochs: BTreeMap<ClientId, Epoch>,
}

impl Net {
    fn new() -> Self {
        Self {
            service: Service::new(LIMITS),
            now: Duration::ZERO,
            seqs: BTreeMap::new(),
            epochs: BTreeMap::new(),
        }
    }

    /// Sends a message with the right numbers.
    fn ask(&mut self, client: u64, ask: Ask) -> Outgoing {
        let client = ClientId(client);
        let seq = self.seqs.entry(client).or_default();
        *seq += 1;
        let epoch = self.epochs.get(&client).copied().unwrap_or_default();
        let message = ToService {
            epoch,
            seq: *seq,
            ask,
        };
        self.send(client, message)
    }

    fn send(&mut self, client: ClientId, message: ToService) -> Outgoing {
        let out = self.service.receive(client, self.now, message);
        self.service.audit().expect("the invariants hold");
        for (client, message) in &out {
            if matches!(message.tell, Tell::Begun { .. }) {
                self.epochs.insert(*client, message.epoch);
            }
        }
        out
    }

    fn request(&mut self, client: u64, lock: u64, mode: Mode) -> Outgoing {
        self.using(client, lock, mode, Vec::new())
    }

    fn using(&mut self, client: u64, lock: u64, mode: Mode, uses: Vec<(LockId, Mode)>) -> Outgoing {
        let (lock, age) = (LockId(lock), Age::default());
        self.ask(
            client,
            Ask::Request {
                lock,
                mode,
                age,
                uses,
            },
        )
    }
}

fn granted(out: &Outgoing, client: u64) -> Option<(GrantNo, Mode)> {
    out.iter().find_map(|(to, message)| match message.tell {
        Tell::Granted { mode, .. } if *to == ClientId(client) => Some((GrantNo(message.seq), mode)),
        _ => None,
    })
}

fn refusal(out: &Outgoing) -> Option<&Refusal> {
    out.iter().find_map(|(_, message)| match &message.tell {
        Tell::Refused { why, .. } => Some(why),
        _ => None,
    })
}

fn begun(clients: u64) -> Net {
    let mut net = Net::new();
    for client in 0..clients {
        net.ask(client, Ask::Begin);
    }
    net
}

#[test]
fn late_repeated_and_foreign_messages_are_refused_with_a_reason() {
    let mut net = begun(2);
    let (grant, _) = granted(&net.request(0, 7, Mode::explicit(X)), 0).expect("it is free");
    let lock = LockId(7);
    let release = |lock, grant| Ask::Release { lock, grant };
    assert_eq!(
        refusal(&net.ask(1, release(lock, grant))),
        Some(&Refusal::NotHeld)
    );
    assert_eq!(
        refusal(&net.ask(0, release(LockId(8), grant))),
        Some(&Refusal::NotHeld)
    );
    let stale = net.ask(0, release(lock, GrantNo(grant.0 - 1)));
    assert_eq!(refusal(&stale), Some(&Refusal::Stale(grant)));
    let higher = net.ask(
        0,
        Ask::Convert {
            lock,
            grant,
            mode: Mode::tree(X),
        },
    );
    assert!(matches!(refusal(&higher), Some(Refusal::NotLower { .. })));
    assert_eq!(
        refusal(&net.request(0, 7, Mode::NONE)),
        Some(&Refusal::NoMode)
    );
    let repeated = ToService {
        epoch: net.epochs[&ClientId(0)],
        seq: 1,
        ask: release(lock, grant),
    };
    let old = net.send(ClientId(0), repeated.clone());
    assert_eq!(refusal(&old), Some(&Refusal::Replay(1)));
    assert_eq!(net.service.held(ClientId(0), lock), Mode::explicit(X));
    // Another session of the client does not get the messages of the last one.
    net.ask(0, Ask::Begin);
    assert_eq!(
        refusal(&net.send(ClientId(0), repeated)),
        Some(&Refusal::NoSession)
    );
    assert_eq!(refusal(&net.ask(5, Ask::Renew)), Some(&Refusal::NoSession));
}

#[test]
fn a_client_and_the_number_of_clients_are_limited() {
    let mut net = begun(3);
    for lock in 0..4 {
        assert!(granted(&net.request(0, lock, Mode::tree(X)), 0).is_some());
    }
    let more = net.request(0, 4, Mode::tree(X));
    assert_eq!(refusal(&more), Some(&Refusal::TooManyLocks(4)));
    // Requests that wait are limited too.
    let waiting = (0..8).map(|_| net.request(1, 0, Mode::tree(X)));
    let refused = waiting.filter(|out| refusal(out).is_some()).count();
    assert_eq!(refused, 4);
    let another = net.ask(3, Ask::Begin);
    assert_eq!(refusal(&another), Some(&Refusal::TooManyClients(3)));
    let uses = vec![(LockId(0), Mode::tree(X)); 65];
    let long = net.using(2, 1, Mode::tree(X), uses);
    assert!(matches!(refusal(&long), Some(Refusal::TooManyUses(_))));
}

#[test]
fn a_client_waits_with_few_requests_for_a_lock() {
    let mut net = begun(0);
    net.service = Service::new(Limits {
        locks_per_client: 1000,
        ..LIMITS
    });
    (0..2).for_each(|client| drop(net.ask(client, Ask::Begin)));
    net.request(0, 7, Mode::tree(X));
    let out = (0..40).map(|_| net.request(1, 7, Mode::tree(X)));
    let refused: Vec<_> = out.filter_map(|out| refusal(&out).cloned()).collect();
    assert_eq!(refused, vec![Refusal::TooManyRequests(32); 8]);
    // Another lock has a queue of its own.
    assert!(granted(&net.request(1, 8, Mode::tree(X)), 1).is_some());
    net.service.audit().expect("the invariants hold");
}

#[test]
fn a_client_that_does_not_answer_a_revoke_blocks_others_for_one_lease() {
    let mut net = begun(2);
    net.request(0, 7, Mode::tree(X));
    let out = net.request(1, 7, Mode::intent(X));
    assert_eq!(granted(&out, 1), None);
    // It renews its lease, and keeps the lock.
    net.now += LEASE - Duration::from_secs(1);
    net.ask(0, Ask::Renew);
    net.ask(1, Ask::Renew);
    assert_eq!(net.service.tick(net.now), Outgoing::new());
    assert_eq!(net.service.deadline(), Some(LEASE));
    net.now = LEASE;
    let out = net.service.tick(net.now);
    assert!(has_not_released(&out, 0, 7));
    assert!(granted(&out, 1).is_some());
    net.service.audit().expect("the invariants hold");
}

#[test]
fn a_session_does_not_end_while_a_batch_is_applied() {
    let mut net = begun(1);
    let epoch = net.epochs[&ClientId(0)];
    assert!(net.service.pin(ClientId(0), epoch, Duration::ZERO));
    assert_eq!(net.service.tick(LEASE), Outgoing::new());
    net.service.unpin(ClientId(0), epoch, LEASE);
    assert_eq!(net.service.tick(LEASE), Outgoing::new());
    assert_eq!(net.service.tick(2 * LEASE).len(), 1);
    assert!(!net.service.pin(ClientId(0), epoch, 2 * LEASE));
}

/// Whether a client has lost its session for want of a release.
fn has_not_released(out: &Outgoing, client: u64, lock: u64) -> bool {
    let expired = Tell::Expired(End::NotReleased(LockId(lock)));
    out.iter()
        .any(|(to, message)| *to == ClientId(client) && message.tell == expired)
}

#[test]
fn batches_do_not_keep_a_lock_beyond_the_deadline() {
    let mut net = begun(2);
    let (client, epoch) = (ClientId(0), net.epochs[&ClientId(0)]);
    net.request(0, 7, Mode::tree(X));
    net.request(1, 7, Mode::tree(X));
    let second = Duration::from_secs(1);
    while net.now < LEASE {
        assert!(net.service.pin(client, epoch, net.now));
        assert_eq!(net.service.tick(net.now), Outgoing::new());
        net.now += second;
        net.ask(1, Ask::Renew);
        net.service.unpin(client, epoch, net.now);
    }
    assert!(!net.service.pin(client, epoch, net.now));
    let out = net.service.tick(net.now);
    assert!(has_not_released(&out, 0, 7));
    assert!(granted(&out, 1).is_some());
    net.service.audit().expect("the invariants hold");
}

/// A batch longer than the lease, in which another client asks for a lock.
#[test]
fn a_missed_revoke_ends_no_session_while_a_batch_is_applied() {
    let mut net = begun(2);
    let (client, epoch) = (ClientId(0), net.epochs[&ClientId(0)]);
    net.request(0, 7, Mode::tree(X));
    assert!(net.service.pin(client, epoch, net.now));
    net.now += Duration::from_secs(1);
    net.request(1, 7, Mode::tree(X));
    while net.now < 3 * LEASE {
        net.now += Duration::from_secs(1);
        net.ask(1, Ask::Renew);
        assert_eq!(net.service.tick(net.now), Outgoing::new());
        assert_eq!(net.service.held(client, LockId(7)), Mode::tree(X));
    }
}

#[test]
fn a_client_can_answer_a_revoke_after_a_long_batch() {
    let mut net = begun(2);
    let (client, epoch) = (ClientId(0), net.epochs[&ClientId(0)]);
    let (grant, _) = granted(&net.request(0, 7, Mode::tree(X)), 0).expect("it is free");
    assert!(net.service.pin(client, epoch, net.now));
    net.now += Duration::from_secs(1);
    net.request(1, 7, Mode::tree(X));
    net.now = 3 * LEASE;
    net.ask(1, Ask::Begin);
    net.request(1, 7, Mode::tree(X));
    net.service.unpin(client, epoch, net.now);
    net.service.audit().expect("the invariants hold");
    net.now += LEASE - Duration::from_secs(1);
    assert_eq!(net.service.tick(net.now), Outgoing::new());
    assert!(net.service.pin(client, epoch, net.now));
    net.service.unpin(client, epoch, net.now);
    let lock = LockId(7);
    let out = net.ask(0, Ask::Release { lock, grant });
    assert!(granted(&out, 1).is_some());
}

/// Later readers do not pass a writer that waits.
#[test]
fn requests_are_granted_in_order() {
    let mut net = begun(3);
    let read = Mode::explicit(Access::Shared);
    let (grant, _) = granted(&net.request(0, 7, read), 0).expect("it is free");
    assert_eq!(granted(&net.request(1, 7, Mode::explicit(X)), 1), None);
    assert_eq!(granted(&net.request(2, 7, read), 2), None);
    let lock = LockId(7);
    let out = net.ask(0, Ask::Release { lock, grant });
    assert!(granted(&out, 1).is_some());
    assert_eq!(granted(&out, 2), None);
}

#[test]
fn a_deadlock_is_refused_and_named() {
    let mut net = begun(2);
    let mode = Mode::explicit(X);
    net.request(0, 1, mode);
    net.request(1, 2, mode);
    let held = |lock| vec![(LockId(lock), mode)];
    assert_eq!(refusal(&net.using(0, 2, mode, held(1))), None);
    // A thread without locks of its own is not in a cycle.
    assert_eq!(refusal(&net.using(1, 1, mode, Vec::new())), None);
    let out = net.using(1, 1, mode, held(2));
    let cycle = vec![(ClientId(1), LockId(1)), (ClientId(0), LockId(2))];
    assert_eq!(refusal(&out), Some(&Refusal::Deadlock(cycle)));
}

/// The root 0 has 1 and 2; 1 has 3, and 2 has it too if there are two memberships.
struct Tree {
    count: u64,
}

impl Objects for Tree {
    fn is_member(&self, collection: LockId, child: LockId) -> bool {
        let linked = self.count == 2;
        let all = [(0, 1), (0, 2), (1, 3), (3, 4)];
        all.contains(&(collection.0, child.0)) || linked && (collection.0, child.0) == (2, 3)
    }

    fn membership_count(&self, object: LockId) -> u64 {
        match object.0 {
            0 => 0,
            3 => self.count,
            _ => 1,
        }
    }
}

#[test]
fn locks_cover_an_object_only_by_a_proven_path_with_intents() {
    let mut net = begun(1);
    let epoch = net.epochs[&ClientId(0)];
    let path = |ids: &[u64]| ids.iter().copied().map(LockId).collect::<Vec<_>>();
    let explicit = Mode::explicit(X);
    let covers = |net: &Net, ids: &[u64], count| {
        let tree = Tree { count };
        net.service
            .covers(ClientId(0), epoch, &path(ids), explicit, &tree)
    };
    let missing = |result, at| {
        let object = LockId(at);
        matches!(result, Err(Uncovered::NotLocked { object: found, .. }) if found == object)
    };
    net.request(0, 3, explicit);
    assert!(
        missing(covers(&net, &[0, 1, 3], 1), 0),
        "intents are missing"
    );
    net.request(0, 0, Mode::intent(X));
    assert!(missing(covers(&net, &[0, 1, 3], 1), 1));
    net.request(0, 1, Mode::tree(X));
    assert_eq!(covers(&net, &[0, 1, 3], 1), Ok(()));
    // With two memberships what is below needs its own lock, since others come on another path.
    assert_eq!(covers(&net, &[0, 1, 3, 4], 1), Ok(()));
    assert!(missing(covers(&net, &[0, 1, 3, 4], 2), 3));
    assert_eq!(
        covers(&net, &[0, 1, 3], 2),
        Ok(()),
        "it is locked explicitly"
    );
    // Forged paths.
    let not_member = Err(Uncovered::NotMember(LockId(2), LockId(3)));
    assert_eq!(
        covers(&net, &[0, 2, 3], 1),
        Err(Uncovered::NotLocked {
            object: LockId(2),
            held: Mode::NONE,
            needed: Mode::intent(X),
        })
    );
    net.request(0, 2, Mode::intent(X));
    assert_eq!(covers(&net, &[0, 2, 3], 1), not_member);
    assert_eq!(covers(&net, &[1, 3], 1), Err(Uncovered::Start(LockId(1))));
    assert_eq!(covers(&net, &[], 1), Err(Uncovered::Length(0)));
    assert_eq!(covers(&net, &[0; 5000], 1), Err(Uncovered::Length(5000)));
    // Another session.
    net.ask(0, Ask::Begin);
    assert_eq!(covers(&net, &[0, 1, 3], 1), Err(Uncovered::NoSession));
}

/// A hierarchical lock covers a descendant with one membership, and not one with two.
#[test]
fn a_second_membership_ends_implicit_coverage() {
    let mut net = begun(1);
    let epoch = net.epochs[&ClientId(0)];
    net.request(0, 0, Mode::tree(X));
    let path = [LockId(0), LockId(1), LockId(3)];
    for (count, is_covered) in [(1, true), (2, false), (0, false)] {
        let tree = Tree { count };
        let want = Mode::explicit(X);
        let result = net.service.covers(ClientId(0), epoch, &path, want, &tree);
        assert_eq!(result.is_ok(), is_covered, "{count}");
    }
}

fn mode() -> impl Strategy<Value = Mode> {
    let all: Vec<Mode> = Mode::all().collect();
    prop::sample::select(all)
}

/// A message, with numbers that are at times those of the session.
#[derive(Debug, Clone)]
struct Message {
    client: u64,
    wait: Duration,
    epoch_off: u64,
    seq_step: u64,
    ask: Ask,
    is_disconnect: bool,
}

fn message() -> impl Strategy<Value = Message> {
    let lock = || (0u64..3).prop_map(LockId);
    let grant = || (0u64..40).prop_map(GrantNo);
    let age = (0u64..3).prop_map(|s| Age(Duration::from_secs(s), Epoch(s), s));
    let uses = vec((lock(), mode()), 0..2);
    let ask = prop_oneof![
        1 => Just(Ask::Begin),
        1 => Just(Ask::Renew),
        6 => (lock(), mode(), age, uses).prop_map(|(lock, mode, age, uses)| Ask::Request { lock, mode, age, uses }),
        4 => (lock(), grant(), mode()).prop_map(|(lock, grant, mode)| Ask::Convert { lock, grant, mode }),
        4 => (lock(), grant()).prop_map(|(lock, grant)| Ask::Release { lock, grant }),
    ];
    let wait = prop_oneof![9 => Just(0u64), 1 => 0u64..12].prop_map(Duration::from_secs);
    let epoch = prop_oneof![9 => Just(0u64), 1 => 0u64..3];
    let seq = prop_oneof![9 => Just(1u64), 1 => 0u64..3];
    (0u64..4, wait, epoch, seq, ask, prop::bool::weighted(0.02)).prop_map(
        |(client, wait, epoch_off, seq_step, ask, is_disconnect)| Message {
            client,
            wait,
            epoch_off,
            seq_step,
            ask,
            is_disconnect,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every message is answered or takes effect, and the invariants hold after each.
    #[test]
    fn arbitrary_messages_keep_the_invariants(messages in vec(message(), 1..120), renew in any::<bool>()) {
        let mut net = Net::new();
        // The grant that a client holds of a lock, so that releases are not all refused.
        let mut grants: BTreeMap<(ClientId, LockId), GrantNo> = BTreeMap::new();
        for message in messages {
            net.now += message.wait;
            let client = ClientId(message.client);
            let mut out = net.service.tick(net.now);
            if message.is_disconnect {
                out.extend(net.service.disconnect(client, net.now));
            }
            if renew && message.wait < LEASE {
                let ids: Vec<u64> = (0..4).filter(|id| net.service.epoch(ClientId(*id)).is_some()).collect();
                ids.into_iter().for_each(|id| out.extend(net.ask(id, Ask::Renew)));
            }
            let mut ask = message.ask;
            if let Ask::Convert { lock, grant, .. } | Ask::Release { lock, grant } = &mut ask
                && grant.0 % 4 != 0
            {
                *grant = grants.get(&(client, *lock)).copied().unwrap_or(*grant);
            }
            let seq = net.seqs.entry(client).or_default();
            *seq += message.seq_step;
            let epoch = net.epochs.get(&client).copied().unwrap_or_default();
            let epoch = Epoch(epoch.0.wrapping_sub(message.epoch_off));
            let sent = ToService { epoch, seq: *seq, ask };
            out.extend(net.send(client, sent));
            let mut last = 0;
            for (client, ToClient { seq, tell, .. }) in out {
                prop_assert!(seq > last, "the numbers increase");
                last = seq;
                if let Tell::Granted { lock, .. } = tell {
                    grants.insert((client, lock), GrantNo(seq));
                }
            }
        }
        // Without messages all sessions end, and nothing is left.
        net.service.tick(net.now + LEASE);
        prop_assert_eq!(net.service.deadline(), None);
        net.service.audit().expect("the invariants hold");
        for lock in 0..3 {
            for client in 0..4 {
                prop_assert!(net.service.held(ClientId(client), LockId(lock)).is_none());
            }
        }
    }
}
