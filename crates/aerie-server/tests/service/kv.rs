//! Keys and values, of one client and of two at a time.

use crate::bounds::bound;
use crate::world::{OWN, Role, SHORT, World, contents, make, take_turns};
use aerie_client::{Client, Kv, SharedBytes};
use aerie_server::Limits;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use vfs::{Ctx, Errno, FileSystem, FileType, Ino, NewNode, OpenFlags};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("keys_and_values_agree_with_a_map", agrees_with_a_map),
    ("values_are_files", values_are_files),
    ("keys_that_are_not_names_are_refused", refused_keys),
    ("values_are_whole_beside_puts_of_two_clients", whole_values),
    ("compare_and_put_loses_no_update", no_lost_update),
    (
        "processes_see_each_others_values_at_once",
        between_processes,
    ),
    ("a_killed_client_leaves_whole_values", killed),
    ("a_borrowed_value_waits_for_its_reader", borrowed),
    ("a_borrowed_value_is_not_copied", in_place),
    ("a_borrow_longer_than_the_lease_fails", borrowed_too_long),
];
pub(crate) const CLIENTS: &[(&str, Role)] = &[("puts", puts), ("puts and dies", dies)];

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A key, sometimes one of the greatest length.
fn key(rng: &mut fastrand::Rng) -> Vec<u8> {
    match rng.usize(..12) {
        0 => vec![0xff; 255],
        n => format!("key {n}").into_bytes(),
    }
}

fn value(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = [0, 1, 9, 4095, 4096, 4097, 20_000][rng.usize(..7)];
    (0..len).map(|_| rng.u8(..)).collect()
}

/// The values of all keys that are listed.
fn all(kv: &Kv<&Client>) -> Model {
    let mut all = Model::new();
    kv.list(|key| {
        let value = kv.get(key).unwrap();
        assert!(all.insert(key.to_vec(), value.unwrap()).is_none());
        true
    })
    .unwrap();
    all
}

/// A random call on both.
fn step(kv: &Kv<&Client>, model: &mut Model, rng: &mut fastrand::Rng) {
    let (key, new) = (key(rng), value(rng));
    let has = model.get(&key);
    match rng.usize(..8) {
        0..3 => {
            kv.put(&key, &new).unwrap();
            model.insert(key, new);
        }
        3 => {
            let old = match rng.usize(..3) {
                0 => None,
                1 => has.cloned(),
                _ => Some(value(rng)),
            };
            let is_put = kv.compare_and_put(&key, old.as_deref(), &new).unwrap();
            assert_eq!(is_put, has == old.as_ref());
            if is_put {
                model.insert(key, new);
            }
        }
        4 => assert_eq!(kv.erase(&key), Ok(model.remove(&key).is_some())),
        5 => {
            let mut buf = [0x55; 4096];
            assert_eq!(kv.get_into(&key, &mut buf), Ok(has.map(Vec::len)));
            let copied = has.map_or(0, |value| value.len().min(buf.len()));
            assert_eq!(
                &buf[..copied],
                &has.map_or(&[][..], |value| value)[..copied]
            );
            assert!(buf[copied..].iter().all(|byte| *byte == 0x55));
        }
        6 => assert_eq!(
            kv.borrow(&key, |value| value.to_vec()).unwrap().as_ref(),
            has
        ),
        _ => kv.sync().unwrap(),
    }
    assert_eq!(
        kv.get(&key_of(rng)).unwrap().as_ref(),
        model.get(&key_of(rng))
    );
}

fn key_of(rng: &mut fastrand::Rng) -> Vec<u8> {
    key(&mut rng.clone())
}

fn agrees_with_a_map() {
    for seed in 0..bound(4, 100) {
        let world = World::new();
        let service = world.serve(Limits::default());
        let clients = [world.lazy_client(), world.lazy_client()];
        let kvs = clients
            .each_ref()
            .map(|client| Kv::create(client, b"/some/where"));
        let kvs = kvs.map(Result::unwrap);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model = Model::new();
        for _ in 0..200 {
            let n = if seed % 2 == 0 { 0 } else { rng.usize(..2) };
            step(&kvs[n], &mut model, &mut rng);
        }
        kvs.iter().for_each(|kv| assert_eq!(all(kv), model));
        drop(kvs);
        drop(clients);
        service.stop();
        world.check();
        let service = world.serve(Limits::default());
        let client = world.client();
        assert_eq!(all(&Kv::open(&client, b"some/where").unwrap()), model);
        drop(client);
        service.stop();
    }
}

fn values_are_files() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let (here, there) = (world.lazy_client(), world.lazy_client());
    let cx = &Ctx::root();
    let kv = Kv::create(&here, b"kv").unwrap().with_mode(0o600);
    let dir = there.lookup(cx, Ino::ROOT, b"kv").unwrap().ino;
    kv.put(b"key", &[1; 5000]).unwrap();
    assert_eq!(contents(&there, dir, "key").unwrap(), [1; 5000]);
    let file = there.lookup(cx, dir, b"key").unwrap();
    assert_eq!(
        (file.kind, file.perm, file.nlink),
        (FileType::Regular, 0o600, 1)
    );
    // It is the same file after a put, with its other names and attributes.
    there.link(cx, file.ino, Ino::ROOT, b"link").unwrap();
    there.open(cx, file.ino, OpenFlags::READ).unwrap();
    kv.put(b"key", b"short").unwrap();
    let mut buf = [0; 9];
    assert_eq!(there.read(cx, file.ino, 0, &mut buf), Ok(5));
    assert_eq!(&buf[..5], b"short");
    let after = there.getattr(cx, file.ino).unwrap();
    assert_eq!((after.size, after.nlink, after.perm), (5, 2, 0o600));
    assert!(after.mtime >= file.mtime && after.ctime == after.mtime);
    // Writes of files are seen as values, those of a hole too.
    make(&there, dir, "new", b"contents");
    assert_eq!(kv.get(b"new").unwrap().unwrap(), b"contents");
    there.write(cx, file.ino, 8190, b"end").unwrap();
    let value = kv.borrow(b"key", |value| value.to_vec()).unwrap().unwrap();
    assert_eq!(
        (value.len(), &value[..6], &value[8190..]),
        (8193, &b"short\0"[..], &b"end"[..])
    );
    // A larger file than any value is not read.
    make(&there, dir, "large", b"contents");
    let large = there.lookup(cx, dir, b"large").unwrap().ino;
    let set = vfs::SetAttr {
        size: Some(1 << 40),
        ..vfs::SetAttr::default()
    };
    there.setattr(cx, large, &set).unwrap();
    assert_eq!(kv.get(b"large"), Err(Errno::FBIG));
    assert_eq!(kv.get_into(b"large", &mut buf), Err(Errno::FBIG));
    assert_eq!(kv.borrow(b"large", |_| ()), Err(Errno::FBIG));
    // A file that is open lives on after an erase.
    assert_eq!(kv.erase(b"key"), Ok(true));
    assert_eq!(there.read(cx, file.ino, 0, &mut buf), Ok(9));
    assert_eq!(contents(&there, dir, "key"), Err(Errno::NOENT));
    assert_eq!(contents(&there, Ino::ROOT, "link").unwrap(), value);
    drop(kv);
    drop((here, there));
    service.stop();
    world.check();
}

fn refused_keys() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let client = world.client();
    let kv = Kv::create(&client, b"kv").unwrap();
    for (key, errno) in [
        (&b""[..], Errno::INVAL),
        (b".", Errno::INVAL),
        (b"..", Errno::INVAL),
        (b"a/b", Errno::INVAL),
        (b"a\0b", Errno::INVAL),
        (&[b'k'; 256], Errno::NAMETOOLONG),
    ] {
        assert_eq!(kv.put(key, b"value"), Err(errno));
        assert_eq!(kv.get(key), Err(errno));
        assert_eq!(kv.erase(key), Err(errno));
        assert_eq!(kv.compare_and_put(key, None, b"value"), Err(errno));
        assert_eq!(kv.borrow(key, |_| ()), Err(errno));
    }
    let cx = &Ctx::root();
    let dir = client.lookup(cx, Ino::ROOT, b"kv").unwrap().ino;
    client.mkdir(cx, dir, b"directory", 0o755).unwrap();
    let link = NewNode::symlink(b"key").unwrap();
    client
        .make(cx, vfs::Name::new(dir, b"link"), &link)
        .unwrap();
    for (key, errno) in [(&b"directory"[..], Errno::ISDIR), (b"link", Errno::INVAL)] {
        assert_eq!(kv.put(key, b"value"), Err(errno));
        assert_eq!(kv.get(key), Err(errno));
    }
    assert!(all(&kv).is_empty());
    let large = vec![7; Kv::<&Client>::VALUE_MAX as usize + 1];
    assert_eq!(kv.put(b"key", &large), Err(Errno::FBIG));
    // The store has less than 16 MiB.
    assert_eq!(kv.put(b"key", &large[1..]), Err(Errno::NOSPC));
    assert_eq!(kv.get(b"key"), Ok(None));
    let part = &large[..4 << 20];
    kv.put(b"key", part).unwrap();
    assert_eq!(kv.borrow(b"key", |value| value == part), Ok(Some(true)));
    assert_eq!(kv.erase(b"key"), Ok(true));
    assert_eq!(Kv::open(&client, b"nothing").err(), Some(Errno::NOENT));
    assert_eq!(Kv::open(&client, b"kv/link").err(), Some(Errno::NOTDIR));
    drop(kv);
    drop(client);
    service.stop();
    world.check();
}

/// Two clients put values of one byte each, and see no mixture.
fn whole_values() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.lazy_client(), world.lazy_client()];
    let start = Barrier::new(4);
    let work = |n: usize| {
        let kv = Kv::create(&clients[n % 2], b"kv").unwrap();
        let mut rng = fastrand::Rng::with_seed(n as u64);
        start.wait();
        for round in 0..bound(100, 3000) {
            let key = [b"one", b"two"][rng.usize(..2)];
            let len = [1000, 5000][rng.usize(..2)];
            match round % 3 {
                0 => kv
                    .put(key, &vec![n as u8 * 16 + rng.u8(..16); len])
                    .unwrap(),
                n => {
                    let see = |value: SharedBytes<'_>| {
                        assert!(matches!(value.len(), 1000 | 5000));
                        assert!(value.iter().all(|byte| Some(byte) == value.get(0)));
                    };
                    match n {
                        1 => drop(kv.borrow(key, see).unwrap()),
                        _ => drop(kv.get(key).unwrap().map(|value| see(value[..].into()))),
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || work(n));
        }
    });
    drop(clients);
    service.stop();
    world.check();
}

fn no_lost_update() {
    let rounds = bound(30, 500);
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.lazy_client(), world.lazy_client()];
    let work = |n: usize| {
        let kv = Kv::create(&clients[n % 2], b"kv").unwrap();
        let mut done = 0;
        while done < rounds {
            let old = kv.get(b"count").unwrap();
            let count = old
                .as_ref()
                .map_or(0, |old| String::from_utf8_lossy(old).parse().unwrap());
            let new = u64::to_string(&(count + 1)).into_bytes();
            done += u64::from(kv.compare_and_put(b"count", old.as_deref(), &new).unwrap());
        }
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || work(n));
        }
    });
    let kv = Kv::open(&clients[0], b"kv").unwrap();
    let count = kv.get(b"count").unwrap().unwrap();
    assert_eq!(String::from_utf8(count).unwrap(), (4 * rounds).to_string());
    drop(kv);
    drop(clients);
    service.stop();
    world.check();
}

fn between_processes() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let client = world.lazy_client();
    let mut other = world.process("puts", OWN);
    let kv = Kv::create(&client, b"kv").unwrap();
    kv.put(b"here", b"from here").unwrap();
    other.wait();
    assert_eq!(kv.get(b"there").unwrap().unwrap(), b"from there");
    assert_eq!(kv.erase(b"there"), Ok(true));
    assert_eq!(
        kv.compare_and_put(b"here", Some(b"from here"), b"again"),
        Ok(true)
    );
    other.go_on();
    other.end();
    drop(kv);
    drop(client);
    service.stop();
    world.check();
}

fn puts(world: &World) {
    let client = world.lazy_client();
    let kv = Kv::create(&client, b"kv").unwrap();
    while kv.get(b"here").unwrap().is_none() {
        std::thread::yield_now();
    }
    kv.put(b"there", b"from there").unwrap();
    take_turns();
    assert_eq!(kv.get(b"there"), Ok(None));
    assert_eq!(kv.get(b"here").unwrap().unwrap(), b"again");
}

fn killed() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let mut dying = world.process("puts and dies", OWN);
    dying.wait();
    dying.kill();
    let client = world.client();
    let kv = Kv::open(&client, b"kv").unwrap();
    let value = kv.get(b"key").unwrap().unwrap();
    // A part of what was put after the sync may have been shipped, in order.
    assert!(value.len() == 9000 && value.iter().all(|byte| *byte == value[0]));
    assert_eq!(kv.get(b"synced").unwrap().unwrap(), b"value");
    let count = all(&kv).len();
    assert!((2..1000).contains(&count), "{count} keys");
    drop(kv);
    drop(client);
    service.stop();
    world.check();
}

fn dies(world: &World) {
    let client = world.lazy_client();
    let kv = Kv::create(&client, b"kv").unwrap();
    kv.put(b"key", &[1; 9000]).unwrap();
    kv.put(b"synced", b"value").unwrap();
    kv.sync().unwrap();
    for n in 0..20 {
        kv.put(b"key", &[n; 9000]).unwrap();
        kv.put(format!("key {n}").as_bytes(), b"value").unwrap();
    }
    take_turns();
}

/// Another client that puts the value waits for the closure, and so does one that overwrites the file, alone or
/// together. Its own client puts other values meanwhile.
fn borrowed() {
    for (puts, writes) in [(true, true), (true, false), (false, true)] {
        borrowed_beside(puts, writes);
    }
}

fn borrowed_beside(puts: bool, writes: bool) {
    let world = World::new();
    let service = world.serve(Limits::default());
    let clients = [world.lazy_client(), world.lazy_client()];
    let kvs = clients
        .each_ref()
        .map(|client| Kv::create(client, b"kv").unwrap());
    kvs[0].put(b"key", &[1; 6000]).unwrap();
    let cx = &Ctx::root();
    let dir = clients[1].lookup(cx, Ino::ROOT, b"kv").unwrap().ino;
    let file = clients[1].lookup(cx, dir, b"key").unwrap().ino;
    // Writes beside readers are in place.
    for _ in 0..3 {
        assert_eq!(clients[1].write(cx, file, 0, &[1; 6000]), Ok(6000));
        assert_eq!(kvs[0].get(b"key").unwrap().unwrap(), [1; 6000]);
    }
    let all = usize::from(puts) + usize::from(writes);
    let (changes, is_reading) = (AtomicUsize::new(0), Barrier::new(2 + all));
    let put = || {
        is_reading.wait();
        kvs[1].put(b"key", &[2; 6000]).unwrap();
        changes.fetch_add(1, SeqCst);
    };
    let write = || {
        is_reading.wait();
        assert_eq!(clients[1].write(cx, file, 0, &[2; 6000]), Ok(6000));
        changes.fetch_add(1, SeqCst);
    };
    std::thread::scope(|scope| {
        if puts {
            scope.spawn(put);
        }
        if writes {
            scope.spawn(write);
        }
        let beside = scope.spawn(|| {
            is_reading.wait();
            kvs[0].put(b"other", b"value").unwrap();
        });
        kvs[0]
            .borrow(b"key", |value| {
                is_reading.wait();
                assert_eq!(kvs[0].get(b"other"), Err(Errno::DEADLK));
                beside.join().unwrap();
                // Long enough for a change that does not wait.
                for _ in 0..50 {
                    assert!(value == [1; 6000] && changes.load(SeqCst) == 0);
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
            .unwrap()
            .unwrap();
    });
    assert_eq!(changes.into_inner(), all);
    assert_eq!(kvs[0].get(b"key").unwrap().unwrap(), [2; 6000]);
    drop(kvs);
    drop(clients);
    service.stop();
    world.check();
}

/// A value is read where it is: at the same address each time, until a put.
fn in_place() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let client = world.lazy_client();
    let kv = Kv::create(&client, b"kv").unwrap();
    kv.put(b"key", &[1; 6000]).unwrap();
    let address = || {
        let read = kv.borrow(b"key", |value| (value.as_ptr() as usize, value.get(0)));
        read.unwrap().unwrap()
    };
    // Not shipped yet: it is a copy.
    assert_eq!(address().1, Some(1));
    kv.sync().unwrap();
    let (first, _) = address();
    // A copy would have been here.
    let kept = std::hint::black_box(vec![0u8; 6000]);
    assert_eq!(address(), (first, Some(1)));
    assert_ne!(kept.as_ptr() as usize, first);
    kv.put(b"other", &[3; 6000]).unwrap();
    kv.sync().unwrap();
    assert_eq!(address(), (first, Some(1)));
    kv.put(b"key", &[2; 6000]).unwrap();
    kv.sync().unwrap();
    let (second, byte) = address();
    assert!(second != first && byte == Some(2));
    drop(kv);
    drop(client);
    service.stop();
    world.check();
}

fn borrowed_too_long() {
    let world = World::new();
    let service = world.serve(Limits {
        lease: SHORT,
        ..Limits::default()
    });
    let clients = [world.lazy_client(), world.lazy_client()];
    let kvs = clients
        .each_ref()
        .map(|client| Kv::create(client, b"kv").unwrap());
    kvs[0].put(b"key", &[1; 6000]).unwrap();
    kvs[0].sync().unwrap();
    let is_reading = Barrier::new(2);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| {
            is_reading.wait();
            kvs[1].put(b"key", &[2; 6000]).unwrap();
        });
        let read = kvs[0].borrow(b"key", |value| {
            is_reading.wait();
            put.join().unwrap();
            // The bytes may be those of any file by now, but they are readable.
            assert_eq!(value.iter().count(), 6000);
        });
        assert_eq!(read, Err(Errno::NODEV));
    });
    assert_eq!(kvs[0].get(b"key"), Err(Errno::NODEV));
    assert_eq!(kvs[1].get(b"key").unwrap().unwrap(), [2; 6000]);
    drop(kvs);
    drop(clients);
    service.stop();
    world.check();
}
