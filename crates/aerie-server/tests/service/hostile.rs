//! Hostile peers. Meanwhile and afterwards a good client works, and the image is consistent.

use crate::become_user;
use crate::classes::STRANGER;
use crate::peer::Peer;
use crate::world::{World, contents, make};
use aerie_objects::ObjectId;
use aerie_proto::locks::{Access, Age, Ask, Epoch, LockId, Mode, Tell};
use aerie_proto::messages::{Bytes, Down, Request, Up, encode};
use aerie_proto::ops::{Batch, Op, Operation};
use aerie_server::Limits;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vfs::{Ctx, Errno, FileSystem, Ino, Name, NewNode, Timestamp};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("any_bytes_end_a_connection_at_most", any_bytes),
    ("a_flood_without_readers_ends_its_connection", floods),
    ("connections_without_readers_share_memory", unread),
    ("torn_messages_end_after_a_lease", torn),
    ("a_batch_needs_locks_and_its_own_session", batches),
    ("a_request_is_served_once", repeated),
    ("connections_of_other_users_are_limited", connections),
    ("reserves_are_limited", reserves),
    ("half_sent_messages_hold_up_their_user_only", half_sent),
];

/// Runs an attack beside a good client.
fn beside_a_client(limits: Limits, attack: impl FnOnce(&World)) {
    let world = World::new();
    let service = world.serve(limits);
    let client = world.client();
    make(&client, Ino::ROOT, "before", b"before");
    attack(&world);
    assert_eq!(contents(&client, Ino::ROOT, "before").unwrap(), b"before");
    make(&client, Ino::ROOT, "after", b"after");
    client.sync().unwrap();
    assert!(service.is_running());
    client.close().unwrap();
    let client = world.client();
    assert_eq!(contents(&client, Ino::ROOT, "after").unwrap(), b"after");
    drop(client);
    service.stop();
    world.check();
}

fn operation(op: Op<'_>) -> Operation<'_> {
    Operation {
        caller: None,
        time: Timestamp(0),
        op,
    }
}

fn mkdir(name: &[u8]) -> Op<'_> {
    Op::Make {
        at: Name::new(Ino::ROOT, name).into(),
        node: (&NewNode::directory(0o755)).into(),
        object: None,
    }
}

/// A repeated request, and an older one, are refused.
fn repeated() {
    beside_a_client(Limits::default(), |world| {
        let mut peer = Peer::begin(&world.socket());
        for (number, is_new) in [(5, true), (5, false), (3, false), (5, false), (6, true)] {
            let (pages, headers) = (1, 1);
            let reply = peer.ask_as(number, Request::Reserve { pages, headers });
            assert_eq!(reply.is_ok(), is_new, "number {number}: {reply:?}");
        }
    });
}

fn any_bytes() {
    beside_a_client(Limits::default(), |world| {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut peer = Peer::begin(&world.socket());
        for _ in 0..300 {
            let mut bytes: Vec<u8> = (0..rng.usize(..60)).map(|_| rng.u8(..)).collect();
            if rng.bool() {
                bytes = damaged(&mut rng, &peer);
            }
            let _ = peer.socket.write_all(&bytes);
            if rng.u8(..) < 30 || peer.socket.write_all(&[]).is_err() {
                drop(peer);
                peer = Peer::begin(&world.socket());
            }
        }
    });
}

/// A message with some bytes changed, and with its own length.
fn damaged(rng: &mut fastrand::Rng, peer: &Peer) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.push(&operation(mkdir(b"hostile")));
    let bytes = Bytes::new(batch.bytes());
    let epoch = peer.epoch;
    let request = Request::Batch { epoch, bytes };
    let mut frame = encode(&Up::Ask { number: 1, request }).unwrap();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(4..frame.len());
        frame[at] = rng.u8(..);
    }
    frame
}

fn floods() {
    let limits = Limits {
        answer_bytes: 1 << 20,
        ..Limits::default()
    };
    beside_a_client(limits, |world| {
        let mut peer = Peer::begin(&world.socket());
        let request = Request::Call(Bytes::new(b"nonsense, which needs an answer"));
        let frame = encode(&Up::Ask { number: 0, request }).unwrap();
        let many = frame.repeat(1000);
        // The service ends the connection when too many answers wait.
        let limit = 10_000;
        let ended = (0..limit).find(|_| peer.socket.write_all(&many).is_err() || peer.is_left());
        assert!(ended.is_some(), "{limit} thousand requests were taken");
    });
}

/// Connections of a user that read no answers share the memory for them.
fn unread() {
    if !rustix::process::geteuid().is_root() {
        return skip::test("needs root, for a client of another user");
    }
    let limits = Limits {
        answer_bytes: 1 << 20,
        ..Limits::default()
    };
    beside_a_client(limits, |world| {
        let request = Request::Call(Bytes::new(b"nonsense, which needs an answer"));
        let frame = encode(&Up::Ask { number: 0, request }).unwrap();
        let many = frame.repeat(1000);
        let strangers = || {
            become_user(STRANGER);
            let begin = || Peer::new(&world.socket()).unwrap().socket;
            let mut alone = begin();
            let most = (0..10_000).find(|_| alone.write_all(&many).is_err());
            let most = most.expect("ten million requests were taken");
            let mut both = [begin(), begin()];
            let mut write = |bytes: &[u8]| both.each_mut().map(|peer| peer.write_all(bytes));
            for _ in 0..most * 9 / 10 {
                if write(&many).iter().any(Result::is_err) {
                    return;
                }
            }
            // They may still be served.
            let until = std::time::Instant::now() + Duration::from_secs(10);
            while write(&frame).iter().all(Result::is_ok) {
                assert!(std::time::Instant::now() < until, "both connections go on");
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        std::thread::scope(|scope| scope.spawn(strangers).join().unwrap());
    });
}

fn torn() {
    let limits = Limits {
        lease: Duration::from_millis(500),
        ..Limits::default()
    };
    let world = World::new();
    let service = world.serve(limits);
    for bytes in [&[1][..], &[100, 0, 0, 0, 7]] {
        let mut peer = Peer::new(&world.socket()).unwrap();
        peer.socket.write_all(bytes).unwrap();
        let Some(Down::Bye(why)) = peer.next() else {
            panic!("the connection goes on");
        };
        assert!(why.contains("did not arrive"), "{why}");
        assert_eq!(peer.next(), None);
    }
    // A connection that has sent nothing stays.
    let mut idle = Peer::new(&world.socket()).unwrap();
    std::thread::sleep(2 * limits.lease);
    idle.lock(Ask::Begin);
    assert!(matches!(idle.told().tell, Tell::Begun { .. }));
    let mut long = UnixStream::connect(world.socket()).unwrap();
    long.write_all(&u32::MAX.to_le_bytes()).unwrap();
    assert!(long.read_to_end(&mut Vec::new()).is_ok());
    service.stop();
    world.check();
}

fn batches() {
    beside_a_client(Limits::default(), |world| {
        let root = world.root;
        let mut peer = Peer::begin(&world.socket());
        let all = [operation(mkdir(b"hostile"))];
        let answers = peer.ship(peer.epoch, &all).unwrap();
        assert_eq!(
            (answers.count, answers.refused.len()),
            (1, 1),
            "{answers:?}"
        );
        // An intent, and a lock for reading, are not enough.
        let explicit = Mode::explicit(Access::Exclusive);
        let intent = Mode::intent(Access::Exclusive);
        for mode in [intent, Mode::tree(Access::Shared), explicit] {
            let mut peer = Peer::begin(&world.socket());
            peer.request(root, mode);
            let answers = peer.ship(peer.epoch, &all).unwrap();
            assert_eq!(answers.refused.len(), 1, "{mode}: {answers:?}");
            let why = &answers.refused[0].why;
            assert!(why.contains("locked"), "{why}");
        }
        peer.request(root, explicit.join(intent));
        for epoch in [Epoch(0), Epoch(peer.epoch.0 + 1), Epoch(u64::MAX)] {
            let refused = peer.ship(epoch, &all).unwrap_err();
            assert!(refused.contains("the session has ended"), "{refused}");
        }
        let repeated = peer.ask_as(
            1,
            Request::Reserve {
                pages: 1,
                headers: 0,
            },
        );
        assert!(repeated.unwrap_err().contains("repeats"));
        let foreign = ObjectId::from_bits(root + (1 << 20)).unwrap();
        let at = Name::new(Ino::ROOT, b"foreign").into();
        let node = (&NewNode::directory(0o755)).into();
        let object = Some(foreign);
        let chosen = [operation(Op::Make { at, node, object })];
        assert_eq!(peer.ship(peer.epoch, &chosen).unwrap().refused.len(), 1);
        drop(peer);
        let client = world.client();
        for name in ["hostile", "foreign"] {
            let found = client.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes());
            assert_eq!(found, Err(Errno::NOENT));
        }
    });
}

fn connections() {
    let limits = Limits {
        per_user: 3,
        locks_per_client: 100,
        ..Limits::default()
    };
    beside_a_client(limits, |world| {
        let mut peers: Vec<_> = (0..5).map(|_| Peer::begin(&world.socket())).collect();
        let strangers = || {
            become_user(STRANGER);
            let peers: Vec<_> = (0..4).map(|_| Peer::new(&world.socket())).collect();
            let refused = peers[3].as_ref().err().unwrap();
            assert!(refused.contains("3 connections"), "{refused}");
            assert!(peers[..3].iter().all(Result::is_ok));
        };
        if rustix::process::geteuid().is_root() {
            std::thread::scope(|scope| scope.spawn(strangers).join().unwrap());
        }
        let peer = &mut peers[0];
        for lock in 0..101 {
            peer.lock(Ask::Request {
                lock: LockId(lock),
                mode: Mode::explicit(Access::Shared),
                age: Age::default(),
                uses: Vec::new(),
            });
            let told = peer.told().tell;
            let is_refused = matches!(told, Tell::Refused { .. });
            assert_eq!(is_refused, lock == 100, "{told:?}");
        }
    });
}

fn reserves() {
    let limits = Limits {
        reserve: 50,
        ..Limits::default()
    };
    beside_a_client(limits, |world| {
        let free = |peer: &mut Peer| peer.space().blocks_free;
        let mut good = Peer::begin(&world.socket());
        let before = free(&mut good);
        let mut peer = Peer::begin(&world.socket());
        let mut counts = (0, 0);
        for _ in 0..5 {
            let (pages, headers) = (u32::MAX, u32::MAX);
            let reply = peer.ask(Request::Reserve { pages, headers }).unwrap();
            let reserve: aerie_objects::Reserve = aerie_proto::ops::decode(&reply).unwrap();
            counts.0 += reserve.pages().count();
            counts.1 += reserve.objects(aerie_objects::Kind::MFile).count();
        }
        assert_eq!(counts, (50, 50));
        assert!(free(&mut good) <= before - 50);
        drop(peer);
        while free(&mut good) < before {
            std::thread::yield_now();
        }
    });
}

/// Another user begins messages that would fill the memory for requests.
fn half_sent() {
    if !rustix::process::geteuid().is_root() {
        return skip::test("needs root, for a client of another user");
    }
    beside_a_client(Limits::default(), |world| {
        let begin = || {
            become_user(STRANGER);
            let count = Limits::default().per_user;
            let peers = (0..count).map(|_| Peer::new(&world.socket()).unwrap());
            let head = (Limits::default().request_bytes / count) as u32;
            let head = head.to_le_bytes();
            let begun = peers.map(|mut peer| {
                peer.socket.write_all(&head).unwrap();
                peer
            });
            begun.collect::<Vec<_>>()
        };
        let begun = std::thread::scope(|scope| scope.spawn(begin).join().unwrap());
        std::thread::sleep(Duration::from_millis(300));
        let mut peer = Peer::begin(&world.socket());
        let soon = Duration::from_secs(5);
        peer.socket.set_read_timeout(Some(soon)).unwrap();
        let long = vec![0xff; 200_000];
        let refused = peer.ask(Request::Call(Bytes::new(&long)));
        assert!(refused.is_err());
        drop(begun);
    });
}
