//! Clients on speculations beside the model: the same scripts. Every result and the visible state are
//! the same, whenever batches are shipped. Afterwards the checker finds nothing, and another client sees
//! the same.

use super::{IMAGE, Memory};
use crate::speculation::Sent;
use crate::{Access, Authority, Credentials, Host, MkfsOptions, Pxfs, Session, Speculation, mkfs};
use aerie_objects::{ObjectId, Reserve};
use aerie_proto::ops::Answers;
use medium::{MemoryPmem, Pmem};
use oracle::ModelFs;
use oracle::script::{Script, State, generate, run_op, shrink};
use oracle::snapshot::Snapshot;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use vfs::sync::Mutex;
use vfs::{Atime, Errno, FileSystem, ManualClock, StatFs, Timestamp};

/// The locks of a client that has the whole file system.
pub(super) struct All;

impl Authority for All {
    fn covers(&self, _path: &[ObjectId]) -> Result<(), String> {
        Ok(())
    }
}

/// A service in the same process.
pub(super) struct Link {
    pub(super) service: Arc<Pxfs<Memory>>,
    session: Mutex<Option<Session>>,
    /// Most pages and headers that the service reserves in all.
    most: usize,
    /// Number of requests for more.
    requests: AtomicUsize,
    /// Bytes of the longest batch.
    longest: AtomicUsize,
}

impl Link {
    fn with<T>(&self, run: impl FnOnce(&mut Session) -> T) -> vfs::Result<T> {
        self.session.lock().as_mut().map(run).ok_or(Errno::IO)
    }
}

impl Link {
    /// Has the service run any batch.
    pub(super) fn apply(&self, batch: &[u8]) -> Answers {
        self.ship(batch).unwrap()
    }
}

impl Host for Link {
    fn reserve(&self, pages: usize, headers: usize) -> vfs::Result<Reserve> {
        self.requests.fetch_add(1, Relaxed);
        self.with(|session| {
            let (has_pages, has_headers) = session.reserved();
            let most = |wanted: usize, has| self.most.saturating_sub(has).min(wanted).min(40);
            let (pages, headers) = (most(pages, has_pages), most(headers, has_headers));
            self.service.grant(session, pages, headers)
        })
    }

    fn ship(&self, batch: &[u8]) -> vfs::Result<Answers> {
        self.longest.fetch_max(batch.len(), Relaxed);
        self.with(|session| self.service.apply(session, &All, batch).unwrap())
    }

    fn statfs(&self) -> vfs::Result<StatFs> {
        self.service.statfs()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let session = self.session.lock().take();
        session
            .into_iter()
            .for_each(|session| self.service.end(session));
    }
}

pub(super) type Client = Speculation<Memory, Link>;

/// A client of the super-user, which stores contents itself if it is trusted.
pub(super) fn client(service: &Arc<Pxfs<Memory>>, is_trusted: bool) -> Client {
    client_of(service, 0, is_trusted)
}

/// A client of a user and of the group with the same number.
pub(super) fn client_of(service: &Arc<Pxfs<Memory>>, user: u32, is_trusted: bool) -> Client {
    let memory = service.store.memory().clone();
    client_on(memory, service, user, is_trusted)
}

/// The same, whose memory has a layer of its own.
pub(super) fn client_on<P: Pmem>(
    memory: P,
    service: &Arc<Pxfs<Memory>>,
    user: u32,
    is_trusted: bool,
) -> Speculation<P, Link> {
    let who = Credentials {
        uid: user,
        gid: user,
        groups: Vec::new(),
    };
    let session = service.begin(who.clone(), is_trusted);
    let link = Link {
        service: service.clone(),
        session: Mutex::new(Some(session)),
        most: 1000,
        requests: AtomicUsize::new(0),
        longest: AtomicUsize::new(0),
    };
    let access = [Access::ReadOnly, Access::ReadWrite][usize::from(is_trusted)];
    let clock = service.clock.clone();
    Speculation::new(memory, access, (who, is_trusted), clock, Atime::Never, link).unwrap()
}

/// A service whose clock moves by `step` nanoseconds at each reading.
pub(super) fn service(step: i64) -> Arc<Pxfs<Memory>> {
    let memory = Arc::new(MemoryPmem::new(IMAGE));
    let options = MkfsOptions {
        logs: Some(4),
        ..MkfsOptions::default()
    };
    mkfs(&memory, &options).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), step));
    Arc::new(Pxfs::open(memory, clock, Atime::Never).unwrap())
}

/// A ship beside calls.
struct Flight {
    sent: Sent,
    /// Those of the service, once it has run what was sent.
    answers: Option<vfs::Result<Answers>>,
}

/// A client, and its ship beside calls.
pub(super) struct Flying<'a> {
    pub(super) client: &'a Client,
    flight: Option<Flight>,
}

impl<'a> Flying<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        let flight = None;
        Self { client, flight }
    }

    /// Takes the next step of the ship, or begins one.
    pub(super) fn step(&mut self) {
        self.flight = match self.flight.take() {
            None => self.client.send().map(|sent| Flight {
                sent,
                answers: None,
            }),
            Some(mut flight) => match flight.answers.take() {
                None => Some(Flight {
                    answers: Some(self.client.run_sent(&mut flight.sent)),
                    ..flight
                }),
                Some(answers) => {
                    self.client.receive(&flight.sent, answers).unwrap();
                    self.client.stock_up(&flight.sent).unwrap();
                    self.client.end_beside();
                    None
                }
            },
        };
    }

    pub(super) fn is_flying(&self) -> bool {
        self.flight.is_some()
    }

    /// Ends the ship, if there is one.
    pub(super) fn land(&mut self) {
        while self.flight.is_some() {
            self.step();
        }
    }
}

/// A comparison with the model.
struct Compared<'a> {
    clients: Vec<Flying<'a>>,
    model: ModelFs,
    rng: fastrand::Rng,
}

impl Compared<'_> {
    /// Compares what a client sees.
    fn differs(&self, fs: &dyn FileSystem) -> Option<String> {
        let seen = match Snapshot::take(fs) {
            Ok(snapshot) => snapshot,
            Err(error) => return Some(error.to_string()),
        };
        let expected = Snapshot::take(&self.model).unwrap();
        let is_same = seen.is_same_except_times(&expected);
        (!is_same).then(|| format!("{:#?}", seen.diff(&expected)))
    }

    /// Ships, and compares what the service has made of it.
    fn settle(&mut self, turn: usize, holds: bool) -> Option<String> {
        self.clients[turn].land();
        let client = self.clients[turn].client;
        let before = Snapshot::take(client).unwrap();
        if let Err(errno) = client.ship(holds) {
            return Some(errno.to_string());
        }
        if let Some(refused) = client.take_refusal() {
            return Some(format!("refused: {refused:?}"));
        }
        let service = &client.host().service;
        let report = aerie_objects::check(service.store.memory());
        if !report.is_clean() {
            return Some(format!("{:#?}", report.findings));
        }
        let after = Snapshot::take(client).unwrap();
        if !after.is_same_except_times(&before) || !after.has_same_times(&before) {
            return Some(format!(
                "the service has done otherwise: {:#?}",
                after.diff(&before)
            ));
        }
        // Look-ups of the snapshot are recorded, too.
        client.ship(holds).unwrap();
        self.differs(&self::client(service, true))
    }
}

/// Runs a script on clients in turn, beside the model. Returns the first difference.
fn difference(script: &Script, kinds: &[bool], seed: u64) -> Option<String> {
    // In one moment, writes in place change contents only.
    let service = service([0, 1_000][(seed % 2) as usize]);
    let clients: Vec<Client> = kinds.iter().map(|kind| client(&service, *kind)).collect();
    let mut compared = Compared {
        clients: clients.iter().map(Flying::new).collect(),
        model: ModelFs::new(oracle::ModelOptions::default()),
        rng: fastrand::Rng::with_seed(seed),
    };
    let mut states: Vec<_> = kinds.iter().map(|_| <[State; 2]>::default()).collect();
    let mut turn = 0;
    for (at, op) in script.ops.iter().enumerate() {
        if clients.len() > 1 && compared.rng.u32(..4) == 0 {
            if let Some(what) = compared.settle(turn, true) {
                return Some(format!("before op {at} ({op}): {what}"));
            }
            turn = compared.rng.usize(..clients.len());
        }
        let client = &clients[turn];
        let [here, there] = &mut states[turn];
        if compared.rng.bool() {
            compared.clients[turn].step();
        }
        if op.synced().is_some() {
            // It waits for the end of a ship.
            compared.clients[turn].land();
        }
        let got = run_op(client, here, op);
        let want = run_op(&compared.model, there, op);
        if got != want {
            let why = client.take_refusal();
            return Some(format!(
                "op {at} ({op}): {got:?}, the model {want:?} {why:?}"
            ));
        }
        if let Some(what) = compared.differs(client) {
            let refused = client.take_refusal();
            return Some(format!(
                "after op {at} ({op}): {what}, refused: {refused:?}"
            ));
        }
        if compared.rng.u32(..6) == 0 {
            let holds = compared.rng.bool();
            if let Some(what) = compared.settle(turn, holds) {
                return Some(format!("shipped after op {at} ({op}): {what}"));
            }
        }
    }
    compared.clients[turn].land();
    clients[turn].ship(true).unwrap();
    for (client, [mut here, _]) in clients.iter().zip(states) {
        here.close_all(client);
        client.ship(false).unwrap();
        if let Some(refused) = client.take_refusal() {
            return Some(format!("closing: {refused:?}"));
        }
    }
    drop(compared);
    drop(clients);
    let findings = service.audit();
    (!findings.is_empty()).then(|| format!("at the end: {findings:#?}"))
}

fn must_agree(script: &Script, kinds: &[bool], seed: u64) {
    if let Some(what) = difference(script, kinds, seed) {
        let small = shrink(script, &mut |s| difference(s, kinds, seed).is_some());
        let why = difference(&small, kinds, seed).unwrap_or(what);
        panic!("{why}\nclients {kinds:?}, seed {seed}, script:\n{small}");
    }
}

#[test]
fn pairs_of_operations_of_a_client_agree_with_the_model() {
    for (n, index) in (0..generate::count(2)).step_by(7).enumerate() {
        let script = generate::setup().then(&generate::sequence(2, index));
        must_agree(&script, &[n % 2 == 0], index / 2);
    }
}

#[test]
fn long_random_scripts_of_a_client_agree_with_the_model() {
    for seed in 0..48 {
        let script = generate::setup().then(&generate::random(seed, 150));
        must_agree(&script, &[seed % 4 < 2], seed);
    }
}

/// A client ships before another one has its turn. Files that one has open lose their names by the
/// other.
#[test]
fn clients_in_turn_agree_with_the_model() {
    for seed in 100..148 {
        let script = generate::setup().then(&generate::random(seed, 150));
        must_agree(&script, &[true, false, true], seed);
    }
}

/// Two clients that do not take turns: one of two files with the same name is refused.
#[test]
fn a_refusal_is_reported_once() {
    let service = service(1_000);
    let clients = [client(&service, true), client(&service, false)];
    let cx = vfs::Ctx::root();
    let name = b"name";
    let made = clients.each_ref().map(|client| {
        let attr = client.create(&cx, vfs::Ino::ROOT, name, 0o600).unwrap();
        client.write(&cx, attr.ino, 0, b"contents").unwrap();
        attr.ino
    });
    assert_eq!(clients[0].fsync(&cx, made[0], false), Ok(()));
    assert_eq!(clients[1].fsync(&cx, made[1], false), Err(Errno::EXIST));
    assert_eq!(clients[1].sync(), Ok(()));
    let found = clients[1].lookup(&cx, vfs::Ino::ROOT, name).unwrap();
    assert_eq!(found.ino, made[0]);
    assert_eq!(clients[1].getattr(&cx, made[1]), Err(Errno::STALE));
    let mut contents = [0; 20];
    assert_eq!(clients[1].read(&cx, made[0], 0, &mut contents), Ok(8));
    assert_eq!(&contents[..8], b"contents");
    // Programs and the kernel may still name the refused file by its number.
    let other = clients[1].create(&cx, vfs::Ino::ROOT, b"other", 0o600);
    assert_ne!(other.unwrap().ino, made[1]);
    assert_eq!(clients[1].sync(), Ok(()));
    assert_eq!(clients[1].getattr(&cx, made[1]), Err(Errno::STALE));
}

/// The service does not run what follows many refusals. The client undoes it.
#[test]
fn what_follows_many_refusals_is_undone() {
    let service = service(1_000);
    let client = client(&service, true);
    let (cx, root) = (vfs::Ctx::root(), vfs::Ino::ROOT);
    let file = client.create(&cx, root, b"file", 0o600).unwrap().ino;
    client.sync().unwrap();
    let set = vfs::SetAttr {
        perm: Some(0o644),
        ..vfs::SetAttr::default()
    };
    for _ in 0..2000 {
        client.setattr(&cx, file, &set).unwrap();
    }
    let last = client.create(&cx, root, b"last", 0o600).unwrap().ino;
    service.unlink(&cx, root, b"file").unwrap();
    assert_eq!(client.sync(), Err(Errno::STALE));
    assert_eq!(client.sync(), Ok(()));
    assert_eq!(client.lookup(&cx, root, b"last"), Err(Errno::NOENT));
    let again = client.create(&cx, root, b"last", 0o600).unwrap().ino;
    assert_ne!(again, last);
    assert_eq!(client.sync(), Ok(()));
    assert_eq!(service.lookup(&cx, root, b"last").unwrap().ino, again);
}

/// A lost session undoes what was not shipped, and says so.
#[test]
fn a_lost_session_undoes_what_was_not_shipped() {
    let service = service(1_000);
    let client = client(&service, true);
    let cx = vfs::Ctx::root();
    client.mkdir(&cx, vfs::Ino::ROOT, b"kept", 0o700).unwrap();
    client.sync().unwrap();
    client.mkdir(&cx, vfs::Ino::ROOT, b"lost", 0o700).unwrap();
    let session = client.host().session.lock().take().unwrap();
    service.end(session);
    assert_eq!(client.sync(), Err(Errno::IO));
    assert_eq!(client.sync(), Ok(()));
    assert!(client.lookup(&cx, vfs::Ino::ROOT, b"kept").is_ok());
    let lost = client.lookup(&cx, vfs::Ino::ROOT, b"lost");
    assert_eq!(lost, Err(Errno::NOENT));
    let refused = client.mkdir(&cx, vfs::Ino::ROOT, b"more", 0o700);
    assert_eq!(refused, Err(Errno::IO));
    assert!(service.audit().is_empty());
}

/// A client that fills the store gets `ENOSPC` from a call, and its accepted calls are not refused later.
#[test]
fn a_full_store_fails_the_call_itself() {
    let cx = vfs::Ctx::root();
    for is_trusted in [true, false] {
        let service = service(1_000);
        let client = client(&service, is_trusted);
        let file = client.create(&cx, vfs::Ino::ROOT, b"file", 0o600).unwrap();
        let mut written = 0;
        let write = |n: u64| client.write(&cx, file.ino, n * 70_000, &[n as u8; 70_000]);
        let mut names = 0..;
        let mut name = || {
            let name = format!("a name of some length {}", names.next().unwrap());
            client.symlink(&cx, vfs::Ino::ROOT, name.as_bytes(), &[b't'; 3000])
        };
        while write(written).is_ok() {
            written += 1;
            for _ in 0..5 {
                let _ = name();
            }
        }
        assert_eq!(write(written), Err(Errno::NOSPC));
        while name().is_ok() {}
        assert!(written > 5);
        assert_eq!(name(), Err(Errno::NOSPC));
        assert_eq!(client.sync(), Ok(()), "trusted: {is_trusted}");
        let mut contents = vec![0; 70_000];
        for n in 0..written {
            client
                .read(&cx, file.ino, n * 70_000, &mut contents)
                .unwrap();
            assert!(contents.iter().all(|byte| *byte == n as u8));
        }
        client.forget(file.ino, 1);
        drop(client);
        assert!(service.audit().is_empty());
    }
}

/// Files that come and go need requests for room now and then, also when all of it is reserved that the service
/// gives one client: the client ships then.
#[test]
fn files_that_come_and_go_need_few_requests() {
    let service = service(1_000);
    let client = client(&service, true);
    let (cx, dir) = (vfs::Ctx::root(), vfs::Ino::ROOT);
    let mut ships = 0;
    let mut shipping = |call: &dyn Fn() -> vfs::Result<()>| {
        call().or_else(|errno| {
            assert_eq!(errno, Errno::NOSPC);
            ships += 1;
            client.ship(false)?;
            call()
        })
    };
    for n in 0..1000 {
        let name = format!("file {n}");
        let write = || {
            let file = client.create(&cx, dir, name.as_bytes(), 0o600)?;
            let written = client.write(&cx, file.ino, 0, &[1; 16 << 10]);
            client.forget(file.ino, 1);
            written.map(drop)
        };
        shipping(&|| {
            write().or_else(|errno| match errno {
                Errno::EXIST => Ok(()),
                errno => Err(errno),
            })
        })
        .unwrap();
        shipping(&|| client.unlink(&cx, dir, name.as_bytes())).unwrap();
    }
    let requests = client.host().requests.load(Relaxed);
    assert!(ships > 0, "the service gives all that is asked for");
    assert!(requests < 300, "{requests} requests and {ships} batches");
}

/// A client with many references reports them in several batches.
#[test]
fn references_are_reported_in_pieces() {
    let service = service(1_000);
    let client = client(&service, true);
    let cx = vfs::Ctx::root();
    let files: Vec<_> = (0..300)
        .map(|n| {
            let name = format!("{n}");
            client.create(&cx, vfs::Ino::ROOT, name.as_bytes(), 0o600)
        })
        .collect();
    client.sync().unwrap();
    client.host().longest.store(0, Relaxed);
    client.ship(true).unwrap();
    let longest = client.host().longest.load(Relaxed);
    assert!(longest < 1100, "{longest} bytes");
    for file in files {
        let object = client.object_of(&file.unwrap()).unwrap();
        assert!(service.is_referenced(object));
    }
}
