//! Two clients at a time.

use crate::bounds::bound;
use crate::world::{OWN, Role, World, contents, make, take_turns};
use aerie_client::Client;
use aerie_proto::messages::Class;
use aerie_server::Limits;
use oracle::script::{Op, Script, State, generate, run_op};
use oracle::{ModelFs, Snapshot};
use std::sync::Barrier;
use vfs::{Clock, Ctx, Errno, FileSystem, Ino, SystemClock};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("clients_see_each_others_changes_at_once", at_once),
    (
        "processes_see_each_others_changes_at_once",
        between_processes,
    ),
    ("contents_are_overwritten_beside_readers", beside_readers),
    ("a_long_write_takes_more_than_a_reserve", long_write),
    ("calls_in_turns_have_the_results_of_one_client", in_turns),
    ("calls_at_a_time_have_the_results_of_some_order", some_order),
    (
        "clients_change_their_own_directories_at_a_time",
        own_directories,
    ),
    ("appends_of_two_clients_overwrite_nothing", appends),
];
pub(crate) const CLIENTS: &[(&str, Role)] = &[("other", other)];

fn at_once() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.lazy_client(), world.lazy_client()];
    assert_eq!(clients[0].class(), Class::Trusted);
    for n in 0..10 {
        let (one, two) = (&clients[n % 2], &clients[1 - n % 2]);
        let name = format!("file {n}");
        make(one, Ino::ROOT, &name, name.as_bytes());
        assert_eq!(contents(two, Ino::ROOT, &name).unwrap(), name.as_bytes());
        make(two, Ino::ROOT, &format!("other {n}"), b"x");
        let cx = &Ctx::root();
        one.unlink(cx, Ino::ROOT, format!("other {n}").as_bytes())
            .unwrap();
        assert_eq!(
            contents(two, Ino::ROOT, &format!("other {n}")),
            Err(Errno::NOENT)
        );
    }
    drop(clients);
    service.stop();
    world.check();
}

/// A write needs more pages than the service reserves for one client. One that does not fit is cut.
fn long_write() {
    let world = World::new();
    let service = world.serve(Limits {
        reserve: 700,
        ..Limits::default()
    });
    let (client, cx) = (world.client(), &Ctx::root());
    let file = make(&client, Ino::ROOT, "file", b"").ino;
    let long: Vec<u8> = (0..11_u32 << 18).flat_map(u32::to_le_bytes).collect();
    assert_eq!(client.write(cx, file, 0, &long), Ok(long.len()));
    let end = long.len() as u64;
    let more = client.write(cx, file, end, &long).unwrap();
    assert!(more > 0 && more < long.len(), "{more}");
    client.sync().unwrap();
    let full = client.write(cx, file, end + more as u64, &long);
    assert!(matches!(full, Err(Errno::NOSPC)), "{full:?}");
    let mut read = vec![0; 2 * long.len()];
    let all = long.len() + more;
    assert_eq!(client.read(cx, file, 0, &mut read), Ok(all));
    assert!(read[..all] == [&long[..], &long[..more]].concat());
    client.close().unwrap();
    service.stop();
    world.check();
}

/// Both clients have the file for reading, and overwrite it in turns. Contents and times are those of the
/// last write that has returned.
fn beside_readers() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.lazy_client(), world.lazy_client()];
    let (cx, clock) = (&Ctx::root(), SystemClock);
    make(&clients[0], Ino::ROOT, "file", &[0; 5000]);
    let found = |client: &Client| client.lookup(cx, Ino::ROOT, b"file").unwrap();
    let file = found(&clients[0]).ino;
    found(&clients[1]);
    for n in 0..200 {
        let (writer, reader) = (&clients[n / 10 % 2], &clients[1 - n / 10 % 2]);
        let (contents, before) = ([n as u8; 5000], clock.now());
        assert_eq!(writer.write(cx, file, 0, &contents), Ok(contents.len()));
        for client in [reader, writer] {
            let mut read = [0; 5000];
            client.read(cx, file, 0, &mut read).unwrap();
            assert_eq!(read, contents);
            let times = client.getattr(cx, file).unwrap();
            assert!(before <= times.mtime && times.mtime <= clock.now());
            assert_eq!(times.mtime, times.ctime);
        }
    }
    drop(clients);
    service.stop();
    world.check();
}

fn between_processes() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let client = world.lazy_client();
    let mut other = world.process("other", OWN);
    make(&client, Ino::ROOT, "here", b"from here");
    other.wait();
    assert_eq!(
        contents(&client, Ino::ROOT, "there").unwrap(),
        b"from there"
    );
    client.unlink(&Ctx::root(), Ino::ROOT, b"there").unwrap();
    other.go_on();
    other.end();
    drop(client);
    service.stop();
    world.check();
}

fn other(world: &World) {
    let client = world.lazy_client();
    let here = || contents(&client, Ino::ROOT, "here").unwrap_or_default();
    while here() != b"from here" {
        std::thread::yield_now();
    }
    make(&client, Ino::ROOT, "there", b"from there");
    take_turns();
    assert_eq!(contents(&client, Ino::ROOT, "there"), Err(Errno::NOENT));
}

/// One call at a time, each of a client that is drawn.
fn in_turns() {
    for seed in 0..bound(10, 400) {
        let world = World::new();
        let service = world.serve(Limits::default());
        let clients = [world.lazy_client(), world.lazy_client()];
        let model = ModelFs::default();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut states = [(); 2].map(|()| (State::default(), State::default()));
        let script = generate::random(seed, 60);
        for (at, op) in script.ops.iter().enumerate() {
            let n = rng.usize(..2);
            let (here, there) = &mut states[n];
            let (got, want) = (run_op(&clients[n], here, op), run_op(&model, there, op));
            assert_eq!(got, want, "seed {seed}, call {at} ({op}) of client {n}");
        }
        for (client, (here, there)) in clients.iter().zip(&mut states) {
            here.close_all(client);
            there.close_all(&model);
        }
        for client in &clients {
            client.sync().unwrap();
            compare(client, &model, seed);
        }
        drop(clients);
        service.stop();
        world.check();
        compare(&world.open(), &model, seed);
    }
}

fn compare(fs: &dyn FileSystem, model: &ModelFs, seed: u64) {
    let (found, wanted) = (Snapshot::take(fs).unwrap(), Snapshot::take(model).unwrap());
    assert!(
        found.is_same_except_times(&wanted),
        "seed {seed}: {:#?}",
        found.diff(&wanted)
    );
}

/// The calls of each client.
type Scripts = [Vec<Op>; 2];
type Results = [Vec<vfs::Result<()>>; 2];

/// Calls of two threads at a time, in the same directories. All orders are tried on the model.
fn some_order() {
    const CALLS: usize = 4;
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.lazy_client(), world.lazy_client()];
    let model = ModelFs::default();
    for op in &generate::setup().ops {
        run_op(&clients[0], &mut State::default(), op).unwrap();
        run_op(&model, &mut State::default(), op).unwrap();
    }
    let mut model = model;
    for seed in 0..bound(40, 2000) {
        let script = |n: u64| by_path(&generate::random(seed * 2 + n, 40), CALLS);
        let scripts: Scripts = [0, 1].map(script);
        let results = at_a_time(&clients, &scripts);
        let found = Snapshot::take(&clients[(seed % 2) as usize]).unwrap();
        let order = orders(CALLS).find_map(|order| {
            let fork = model.fork();
            let is_it = replay(&fork, &scripts, &order) == results
                && Snapshot::take(&fork).unwrap().is_same_except_times(&found);
            is_it.then_some(fork)
        });
        model = order.unwrap_or_else(|| panic!("seed {seed}: {scripts:#?} gave {results:?}"));
    }
    drop(clients);
    service.stop();
    world.check();
}

/// Operations that are one call but for the look-up of their paths, whose directories stay. Those on open
/// files are left out, since these belong to a client.
fn by_path(script: &Script, count: usize) -> Vec<Op> {
    let is_directory = |path: &str| matches!(path.rsplit('/').next(), Some("A" | "B"));
    let is_plain = |op: &&Op| {
        let text = op.to_string();
        let left_out = ["append", "rmdir", "open", "close", "tmpfile"];
        let moves =
            matches!(op, Op::Rename { from, to, .. } if is_directory(from) || is_directory(to));
        !moves && !text.contains('@') && !left_out.iter().any(|word| text.starts_with(word))
    };
    let plain = script.ops.iter().filter(is_plain);
    plain.take(count).cloned().collect()
}

fn at_a_time(clients: &[Client; 2], scripts: &Scripts) -> Results {
    let start = Barrier::new(2);
    let run = |n: usize| {
        start.wait();
        let mut state = State::default();
        let run = |op| run_op(&clients[n], &mut state, op);
        scripts[n].iter().map(run).collect()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        [run(0), other.join().unwrap()]
    })
}

/// All orders of the calls of two clients, as the client of each call.
fn orders(calls: usize) -> impl Iterator<Item = Vec<usize>> {
    let all = 0u32..1 << (2 * calls);
    let fair = all.filter(move |bits| bits.count_ones() as usize == calls);
    fair.map(move |bits| (0..2 * calls).map(|at| (bits >> at & 1) as usize).collect())
}

fn replay(model: &ModelFs, scripts: &Scripts, order: &[usize]) -> Results {
    let mut results: Results = Default::default();
    let mut states = [(); 2].map(|()| State::default());
    for n in order.iter().copied() {
        if let Some(op) = scripts[n].get(results[n].len()) {
            results[n].push(run_op(model, &mut states[n], op));
        }
    }
    results
}

fn appends() {
    const COUNT: usize = 200;
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.lazy_client(), world.lazy_client()];
    let cx = &Ctx::root();
    let file = make(&clients[0], Ino::ROOT, "file", b"").ino;
    clients[1].lookup(cx, Ino::ROOT, b"file").unwrap();
    let start = Barrier::new(2);
    let work = |n: usize| {
        start.wait();
        let record = [n as u8 + 1; 7];
        let appended = (0..COUNT).map(|_| clients[n].append(cx, file, &record).unwrap());
        appended.map(|(off, len)| (off, len, record[0])).collect()
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        let own: Vec<_> = work(0);
        [own, other.join().unwrap()].concat()
    });
    all.sort_unstable();
    let found = contents(&clients[0], Ino::ROOT, "file").unwrap();
    assert_eq!(found.len(), 2 * COUNT * 7);
    for (n, (off, len, byte)) in all.into_iter().enumerate() {
        assert_eq!((off, len), (n as u64 * 7, 7));
        assert_eq!(found[n * 7..][..7], [byte; 7]);
    }
    drop(clients);
    service.stop();
    world.check();
}

fn own_directories() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.client(), world.client()];
    let cx = &Ctx::root();
    let work = |n: usize| {
        let client = &clients[n];
        let dir = client.mkdir(cx, Ino::ROOT, format!("{n}").as_bytes(), 0o755);
        let dir = dir.unwrap().ino;
        for k in 0..200 {
            make(client, dir, &format!("file {k}"), b"contents");
            if k % 3 == 0 {
                client
                    .unlink(cx, dir, format!("file {k}").as_bytes())
                    .unwrap();
            }
        }
        client.sync().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(1));
        work(0);
    });
    let names = |client: &Client, n: usize| {
        let dir = client
            .lookup(cx, Ino::ROOT, format!("{n}").as_bytes())
            .unwrap();
        let mut count = 0;
        let mut sink = |_: &vfs::DirEntry<'_>| {
            count += 1;
            true
        };
        client
            .readdir(cx, dir.ino, vfs::Cookie(0), &mut sink)
            .unwrap();
        count
    };
    for (client, n) in [(0, 1), (1, 0)] {
        assert_eq!(names(&clients[client], n), 2 + 200 - 67);
    }
    drop(clients);
    service.stop();
    world.check();
}
