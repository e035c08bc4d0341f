//! Ends: of clients, of their leases, and of the service.

use crate::bounds::bound;
use crate::peer::Peer;
use crate::world::{OWN, Role, SHORT, World, contents, make, take_turns};
use aerie_client::ConnectError;
use aerie_proto::locks::{Access, Ask, End, GrantNo, LockId, Mode, Tell};
use aerie_proto::messages::{Bytes, Class, Down, Request};
use aerie_proto::ops::{self, Answers, Batch, Op, Operation};
use aerie_server::Limits;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use vfs::{Clock, Ctx, Errno, FileSystem, Ino, Name, NewNode, OpenFlags, SystemClock, Timestamp};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_killed_client_leaves_nothing_behind", killed),
    ("open_files_live_until_their_last_client_ends", open_files),
    ("clients_of_a_killed_service_get_an_error", service_killed),
    ("a_sync_that_returns_survives_a_kill_of_the_service", synced),
    ("a_stopped_service_says_so_to_its_clients", stopped),
    ("a_socket_has_one_service", one_service),
    ("a_silent_client_loses_its_locks", silent),
    (
        "a_silent_client_gives_back_what_it_reserved",
        silent_reserve,
    ),
    ("a_client_that_keeps_a_lock_loses_its_session", keeps_a_lock),
    ("a_lease_is_renewed_beside_a_batch", beside_a_batch),
    ("locks_are_given_up_after_the_batches_before", after_a_batch),
    ("a_long_batch_does_not_end_the_session", long_batch),
];
pub(crate) const CLIENTS: &[(&str, Role)] = &[("dies", dies), ("holds", holds), ("serves", serves)];

/// Makes the pages of the collections, which stay. Returns the free ones.
fn used_before(world: &World) -> u64 {
    let service = world.serve(Limits::default());
    let (client, cx) = (world.client(), &Ctx::root());
    let made = make(&client, Ino::ROOT, "file", b"contents");
    client.open(cx, made.ino, OpenFlags::READ).unwrap();
    client.unlink(cx, Ino::ROOT, b"file").unwrap();
    client.close().unwrap();
    service.stop();
    world.check()
}

fn killed() {
    let world = World::new();
    let before = used_before(&world);
    let service = world.serve(Limits::default());
    let mut dying = world.process("dies", OWN);
    dying.wait();
    dying.kill();
    let client = world.client();
    let cx = &Ctx::root();
    // Shipped changes are there as a whole, the others are gone.
    assert_eq!(
        contents(&client, Ino::ROOT, "shipped").unwrap(),
        [5; 10_000]
    );
    assert_eq!(
        contents(&client, Ino::ROOT, "not shipped"),
        Err(Errno::NOENT)
    );
    assert_eq!(contents(&client, Ino::ROOT, "open"), Err(Errno::NOENT));
    client.unlink(cx, Ino::ROOT, b"shipped").unwrap();
    client.close().unwrap();
    service.stop();
    assert_eq!(world.check(), before, "free pages");
}

/// Dies with locks, a file without a name, and changes that are not shipped.
fn dies(world: &World) {
    let client = world.lazy_client();
    let cx = &Ctx::root();
    make(&client, Ino::ROOT, "shipped", &[5; 10_000]);
    let open = make(&client, Ino::ROOT, "open", &[6; 20_000]);
    client.open(cx, open.ino, OpenFlags::READ).unwrap();
    client.sync().unwrap();
    client.unlink(cx, Ino::ROOT, b"open").unwrap();
    client.sync().unwrap();
    make(&client, Ino::ROOT, "not shipped", &[7; 30_000]);
    take_turns();
}

fn open_files() {
    let world = World::new();
    let before = used_before(&world);
    let service = world.serve(Limits::default());
    let client = world.client();
    let cx = &Ctx::root();
    make(&client, Ino::ROOT, "open", b"contents");
    let mut holding = world.process("holds", OWN);
    holding.wait();
    client.unlink(cx, Ino::ROOT, b"open").unwrap();
    client.sync().unwrap();
    holding.go_on();
    holding.wait();
    assert!(client.statfs().unwrap().blocks_free < before);
    holding.kill();
    client.close().unwrap();
    service.stop();
    assert_eq!(world.check(), before, "free pages");
}

fn holds(world: &World) {
    let client = world.lazy_client();
    let cx = &Ctx::root();
    let file = client.lookup(cx, Ino::ROOT, b"open").unwrap();
    client.open(cx, file.ino, OpenFlags::READ).unwrap();
    take_turns();
    assert_eq!(contents(&client, Ino::ROOT, "open"), Err(Errno::NOENT));
    let mut buf = [0; 8];
    assert_eq!(client.read(cx, file.ino, 0, &mut buf), Ok(8));
    assert_eq!(&buf, b"contents");
    take_turns();
}

fn service_killed() {
    let world = World::new();
    let mut serving = world.process("serves", OWN);
    serving.wait();
    let client = world.lazy_client();
    make(&client, Ino::ROOT, "shipped", b"old");
    client.sync().unwrap();
    make(&client, Ino::ROOT, "not shipped", b"new");
    serving.kill();
    let cx = &Ctx::root();
    assert_eq!(client.sync(), Err(Errno::IO), "a change is lost");
    assert_eq!(client.sync(), Err(Errno::NODEV), "nothing more is");
    assert_eq!(client.lookup(cx, Ino::ROOT, b"shipped"), Err(Errno::NODEV));
    assert!(client.ended().unwrap().contains("closed the connection"));
    // The socket is still there, and stale.
    assert!(matches!(
        aerie_client::Client::connect(&world.socket(), &Default::default()),
        Err(ConnectError::NoService(..))
    ));
    let service = world.serve(Limits::default());
    assert_eq!(client.close(), Err(Errno::NODEV));
    let client = world.client();
    assert_eq!(contents(&client, Ino::ROOT, "shipped").unwrap(), b"old");
    assert_eq!(
        contents(&client, Ino::ROOT, "not shipped"),
        Err(Errno::NOENT)
    );
    drop(client);
    service.stop();
    world.check();
}

fn serves(world: &World) {
    let _service = world.serve(Limits::default());
    take_turns();
}

/// Threads of a client make files and sync, until the service is killed.
fn synced() {
    for _ in 0..bound(12, 400) {
        let world = World::new();
        let mut serving = world.process("serves", OWN);
        serving.wait();
        let client = world.lazy_client();
        let synced = Mutex::new(Vec::new());
        let work = &|thread: usize| {
            for n in 0.. {
                let name = format!("{thread} {n}");
                let made = client.create(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o600);
                if made.and_then(|_| client.sync()).is_err() {
                    break;
                }
                synced.lock().unwrap().push(name);
            }
        };
        std::thread::scope(|scope| {
            (0..6).for_each(|thread| drop(scope.spawn(move || work(thread))));
            while synced.lock().unwrap().len() < 60 {
                std::thread::yield_now();
            }
            serving.kill();
        });
        drop(client);
        let files = world.open();
        for name in synced.into_inner().unwrap() {
            let found = files.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes());
            assert!(found.is_ok(), "{name} is lost");
        }
        drop(files);
        world.check();
    }
}

fn stopped() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let client = world.client();
    make(&client, Ino::ROOT, "file", b"contents");
    client.sync().unwrap();
    service.stop();
    assert!(!world.socket().exists());
    assert_eq!(client.statfs(), Err(Errno::NODEV));
    assert_eq!(client.getattr(&Ctx::root(), Ino::ROOT), Err(Errno::NODEV));
    assert_eq!(client.ended().unwrap(), "the service was stopped");
    world.check();
}

fn one_service() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let other = World::new();
    let refused = other
        .serve_at(&world.socket(), Limits::default())
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("another service is there"), "{refused}");
    let refused = other
        .serve_at(&other.image(), Limits::default())
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("not a socket"), "{refused}");
    assert_eq!(service.description().lease_seconds, 10.0);
    let client = world.client();
    assert_eq!(client.class(), Class::Trusted);
}

fn short() -> Limits {
    Limits {
        lease: SHORT,
        ..Limits::default()
    }
}

fn silent() {
    let world = World::new();
    let root = world.root;
    let service = world.serve(short());
    let mut peer = Peer::begin(&world.socket());
    peer.request(root, Mode::tree(Access::Exclusive));
    // It neither answers a revoke nor renews its lease.
    let client = world.client();
    make(&client, Ino::ROOT, "file", b"contents");
    let end = loop {
        if let Tell::Expired(end) = peer.told().tell {
            break end;
        }
    };
    assert!(matches!(end, End::NotRenewed | End::NotReleased(_)));
    let refused = peer.ship(peer.epoch, &[]).unwrap_err();
    assert!(refused.contains("the session has ended"), "{refused}");
    drop(client);
    service.stop();
    world.check();
}

/// A client that stores itself may still do so: what is freed stays unused while its connection is open.
fn silent_reserve() {
    let world = World::new();
    let service = world.serve(short());
    let free = || Peer::begin(&world.socket()).space().blocks_free;
    let before = free();
    let mut peer = Peer::begin(&world.socket());
    let (pages, headers) = (100, 100);
    peer.ask(Request::Reserve { pages, headers }).unwrap();
    let reserved = free();
    assert!(reserved < before);
    let message = peer.told();
    assert!(matches!(message.tell, Tell::Expired(End::NotRenewed)));
    for _ in 0..20 {
        assert_eq!(free(), reserved);
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(peer);
    let limit = Instant::now() + Duration::from_secs(20);
    while free() < before {
        assert!(Instant::now() < limit, "the pages stay reserved");
        std::thread::yield_now();
    }
    service.stop();
    world.check();
}

fn keeps_a_lock() {
    let world = World::new();
    let root = world.root;
    let service = world.serve(short());
    let mut peer = Peer::begin(&world.socket());
    peer.request(root, Mode::tree(Access::Exclusive));
    let waiting = {
        let world = World::at(world.socket().parent().unwrap());
        std::thread::spawn(move || make(&world.client(), Ino::ROOT, "file", b"contents"))
    };
    // It renews its lease, and does not release.
    while !waiting.is_finished() {
        peer.lock(Ask::Renew);
        std::thread::sleep(Duration::from_millis(50));
    }
    waiting.join().unwrap();
    let end = loop {
        if let Tell::Expired(end) = peer.told().tell {
            break end;
        }
    };
    assert!(
        matches!(end, End::NotReleased(lock) if lock.0 == root),
        "{end}"
    );
    service.stop();
    world.check();
}

/// A clock whose readers wait while it is stopped, so that a batch is not applied.
#[derive(Default)]
struct Stopping {
    is_stopped: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
}

impl Clock for Stopping {
    fn now(&self) -> Timestamp {
        self.waiting.fetch_add(1, SeqCst);
        let is_stopped = self.is_stopped.lock().unwrap();
        let left = self
            .changed
            .wait_while(is_stopped, |is_stopped| *is_stopped);
        drop(left.unwrap());
        self.waiting.fetch_sub(1, SeqCst);
        SystemClock.now()
    }
}

impl Stopping {
    fn stop(&self, is_stopped: bool) {
        *self.is_stopped.lock().unwrap() = is_stopped;
        self.changed.notify_all();
    }

    fn wait_for_reader(&self) {
        while self.waiting.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

/// A service, and two clients, of which the first has the root and a batch that is being applied.
fn with_a_batch(test: impl FnOnce(&World, &Stopping, [Peer; 2], GrantNo)) {
    let (world, clock) = (World::new(), Arc::new(Stopping::default()));
    let service = world.serve_with(Limits::default(), clock.clone());
    let mut peers = [(); 2].map(|()| Peer::begin(&world.socket()));
    let grant = peers[0].request(world.root, Mode::tree(Access::Exclusive));
    let mut batch = Batch::default();
    batch.push(&Operation {
        caller: None,
        time: SystemClock.now(),
        op: Op::Make {
            at: Name::new(Ino::ROOT, b"made").into(),
            node: (&NewNode::directory(0o755)).into(),
            object: None,
        },
    });
    clock.stop(true);
    let (epoch, bytes) = (peers[0].epoch, Bytes::new(batch.bytes()));
    peers[0].send_request(Request::Batch { epoch, bytes });
    clock.wait_for_reader();
    test(&world, &clock, peers, grant);
    service.stop();
    world.check();
}

/// The reply to a batch must have no refusals.
fn accepted(reply: Option<Down>) {
    let Some(Down::Reply { result, .. }) = reply else {
        panic!("{reply:?}");
    };
    let answers: Answers = ops::decode(&result.unwrap()).unwrap();
    assert_eq!(answers.refused, []);
}

fn beside_a_batch() {
    with_a_batch(|_, clock, [mut peer, _other], _| {
        peer.lock(Ask::Renew);
        let told = peer.told().tell;
        assert!(matches!(told, Tell::Renewed { .. }), "{told:?}");
        clock.stop(false);
        accepted(peer.next());
    });
}

fn after_a_batch() {
    given_up_after_a_batch(Access::Exclusive, |lock, grant| Ask::Release {
        lock,
        grant,
    });
    let mode = Mode::tree(Access::Shared);
    given_up_after_a_batch(Access::Shared, |lock, grant| Ask::Convert {
        lock,
        grant,
        mode,
    });
}

/// The other client requests this access.
fn given_up_after_a_batch(access: Access, give_up: impl FnOnce(LockId, GrantNo) -> Ask) {
    with_a_batch(|world, clock, [mut peer, mut other], grant| {
        other.send_lock_request(world.root, Mode::tree(access));
        let told = peer.told().tell;
        assert!(matches!(told, Tell::Revoke { .. }), "{told:?}");
        peer.lock(give_up(LockId(world.root), grant));
        let soon = Duration::from_millis(200);
        other.socket.set_read_timeout(Some(soon)).unwrap();
        let early = other.next();
        other.socket.set_read_timeout(None).unwrap();
        clock.stop(false);
        assert_eq!(early, None, "the lock is given to another client");
        accepted(peer.next());
        let told = other.told().tell;
        assert!(matches!(told, Tell::Granted { .. }), "{told:?}");
    });
}

fn long_batch() {
    let (world, clock) = (World::new(), Arc::new(Stopping::default()));
    let service = world.serve_with(short(), clock.clone());
    let client = world.lazy_client();
    make(&client, Ino::ROOT, "before", b"before");
    client.sync().unwrap();
    make(&client, Ino::ROOT, "after", b"after");
    clock.stop(true);
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| client.sync());
        clock.wait_for_reader();
        std::thread::sleep(2 * SHORT);
        clock.stop(false);
        assert_eq!(synced.join().unwrap(), Ok(()));
    });
    make(&client, Ino::ROOT, "last", b"last");
    client.close().unwrap();
    service.stop();
    world.check();
}
