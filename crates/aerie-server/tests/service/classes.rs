//! Clients of other users.

use crate::protected::client_of;
use crate::world::{Role, World, contents, make, take_turns};
use aerie_client::{Client, Kv};
use aerie_proto::messages::Class;
use aerie_server::Limits;
use std::fs::{File, OpenOptions};
use vfs::{Ctx, Errno, FileSystem, Ino, OpenFlags, SetAttr};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_user_who_may_read_the_image_maps_it_for_reading", readers),
    ("other_users_call_the_service", remotes),
    ("values_that_other_users_get_are_whole", whole_values),
];
pub(crate) const CLIENTS: &[(&str, Role)] = &[("reader", reader), ("remote", remote)];

pub(crate) const STRANGER: u32 = 40_003;

/// The image has this mode.
fn with_strangers(mode: u32, role: &str) {
    if !rustix::process::geteuid().is_root() {
        return skip::test("needs root, for clients of other users");
    }
    let world = World::new();
    world.set_mode(mode);
    let service = world.serve(Limits::default());
    beside(&world, role);
    service.stop();
    world.check();
}

/// A client of the super-user, and one of a stranger in a process.
pub(crate) fn beside(world: &World, role: &str) {
    let client = world.client();
    let cx = &Ctx::root();
    let open = client.mkdir(cx, Ino::ROOT, b"open", 0o777).unwrap();
    let own = client.mkdir(cx, Ino::ROOT, b"own", 0o700).unwrap();
    make(&client, own.ino, "secret", b"secret");
    make(&client, Ino::ROOT, "read me", b"contents");
    let mut stranger = world.process(role, &STRANGER.to_string());
    stranger.wait();
    assert_eq!(
        contents(&client, open.ino, "theirs").unwrap(),
        b"of a stranger"
    );
    let found = client.lookup(cx, open.ino, b"theirs").unwrap();
    assert_eq!((found.uid, found.gid), (STRANGER, STRANGER));
    assert_eq!(client.lookup(cx, Ino::ROOT, b"mine"), Err(Errno::NOENT));
    make(&client, open.ino, "reply", b"reply");
    stranger.go_on();
    stranger.end();
    let kv = Kv::open(&client, b"open").unwrap();
    assert_eq!(kv.get(b"key").unwrap().unwrap(), b"new");
    drop(kv);
    client.close().unwrap();
}

fn readers() {
    with_strangers(0o644, "reader");
}

fn remotes() {
    with_strangers(0o600, "remote");
}

/// A stranger gets a value in several requests. Meanwhile the super-user puts other ones.
fn whole_values() {
    if !rustix::process::geteuid().is_root() {
        return skip::test("needs root, for clients of other users");
    }
    let world = World::new();
    let service = world.serve(Limits::default());
    let client = world.client();
    let kv = Kv::create(&client, b"kv").unwrap();
    let put = |n: u8| {
        kv.put(b"key", &vec![n; 5 << 19]).unwrap();
        kv.sync().unwrap();
    };
    put(0);
    let stranger = client_of(&world, STRANGER);
    assert_eq!(stranger.class(), Class::Remote);
    let theirs = Kv::open(&stranger, b"kv").unwrap();
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| (1..30).for_each(put));
        loop {
            let is_last = putting.is_finished();
            let value = theirs.get(b"key").unwrap().unwrap();
            assert_eq!(value.len(), 5 << 19);
            assert!(value.iter().all(|byte| *byte == value[0]), "a mixture");
            if is_last {
                assert_eq!(value[0], 29);
                break;
            }
        }
    });
    drop(theirs);
    drop(stranger);
    drop(kv);
    client.close().unwrap();
    service.stop();
    world.check();
}

fn reader(world: &World) {
    act(world, Class::Reader);
}

fn remote(world: &World) {
    act(world, Class::Remote);
}

pub(crate) fn act(world: &World, class: Class) {
    let client = world.client();
    assert_eq!(client.class(), class);
    let fs: &dyn FileSystem = &client;
    let cx = &Ctx::user(STRANGER, STRANGER);
    let look = |name: &[u8]| fs.lookup(cx, Ino::ROOT, name).unwrap();
    let found = look(b"read me");
    fs.open(cx, found.ino, OpenFlags::READ).unwrap();
    let mut buf = [0; 20];
    assert_eq!(fs.read(cx, found.ino, 0, &mut buf), Ok(8));
    assert_eq!(&buf[..8], b"contents");
    fs.release(found.ino);
    assert_eq!(fs.open(cx, found.ino, OpenFlags::WRITE), Err(Errno::ACCESS));
    let set = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    assert_eq!(fs.setattr(cx, found.ino, &set), Err(Errno::PERM));
    let own = look(b"own");
    assert_eq!(fs.lookup(cx, own.ino, b"secret"), Err(Errno::ACCESS));
    assert_eq!(fs.create(cx, Ino::ROOT, b"mine", 0o644), Err(Errno::ACCESS));
    let open = look(b"open");
    let made = fs.create(cx, open.ino, b"theirs", 0o644).unwrap();
    fs.open(cx, made.ino, OpenFlags::WRITE).unwrap();
    assert_eq!(fs.write(cx, made.ino, 0, b"of a"), Ok(4));
    assert_eq!(fs.append(cx, made.ino, b" stranger"), Ok((4, 9)));
    assert_eq!(fs.append(cx, made.ino, b""), Ok((13, 0)));
    fs.release(made.ino);
    fs.sync().unwrap();
    refused_descriptors();
    take_turns();
    let reply = fs.lookup(cx, open.ino, b"reply").unwrap();
    assert_eq!(reply.size, 5);
    let mut names = Vec::new();
    let mut sink = |entry: &vfs::DirEntry<'_>, attr: Option<&vfs::Attr>| {
        assert!(attr.is_some());
        names.push(entry.name.to_vec());
        true
    };
    fs.readdirplus(cx, open.ino, vfs::Cookie(0), &mut sink)
        .unwrap();
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"reply", b"theirs"]);
    fs.unlink(cx, open.ino, b"reply").unwrap();
    values(&client);
    client.close().unwrap();
}

/// Values, as far as the permissions of their files allow.
fn values(client: &Client) {
    let own = Kv::open(client, b"own").unwrap();
    assert_eq!(own.get(b"secret"), Err(Errno::ACCESS));
    assert_eq!(own.put(b"secret", b"value"), Err(Errno::ACCESS));
    let root = Kv::open(client, b"/").unwrap();
    assert_eq!(root.get(b"read me").unwrap().unwrap(), b"contents");
    assert_eq!(root.put(b"read me", b"value"), Err(Errno::ACCESS));
    assert_eq!(root.put(b"mine", b"value"), Err(Errno::ACCESS));
    assert_eq!(root.erase(b"read me"), Err(Errno::ACCESS));
    let kv = Kv::open(client, b"open").unwrap();
    // A read of such a value takes several requests, if the client makes some.
    let large: Vec<u8> = (0..3_000_000).map(|n: u32| (n % 251) as u8).collect();
    for value in [&b""[..], b"value", &large, b"last"] {
        kv.put(b"key", value).unwrap();
        assert_eq!(kv.get(b"key").unwrap().unwrap(), value);
        let is_same = kv.borrow(b"key", |borrowed| borrowed == value);
        assert_eq!(is_same, Ok(Some(true)));
    }
    let mut buf = [0; 3];
    assert_eq!(kv.get_into(b"key", &mut buf), Ok(Some(4)));
    assert_eq!(&buf, b"las");
    let compare = |old: Option<&[u8]>, new| kv.compare_and_put(b"key", old, new);
    assert_eq!(compare(None, b"new"), Ok(false));
    assert_eq!(compare(Some(b"other"), b"new"), Ok(false));
    assert_eq!(compare(Some(b"last"), b"new"), Ok(true));
    let mut keys = Vec::new();
    kv.list(|key| {
        keys.push(key.to_vec());
        true
    })
    .unwrap();
    keys.sort();
    assert_eq!(keys, [&b"key"[..], b"theirs"]);
    assert_eq!(kv.erase(b"theirs"), Ok(true));
    assert_eq!(kv.get(b"theirs"), Ok(None));
    kv.sync().unwrap();
}

/// No descriptor of this process leads to the image for writing.
fn refused_descriptors() {
    let mut images = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let is_image = |target: std::path::PathBuf| target.ends_with("image");
        if std::fs::read_link(&path).is_ok_and(is_image) {
            images += 1;
            File::open(&path).unwrap();
            let refused = OpenOptions::new().write(true).open(&path).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        }
    }
    assert!(images <= 1);
}
