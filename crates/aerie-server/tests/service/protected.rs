//! A protected store: clients of several users have the results of the model, and a hostile one finds no secret
//! in anything that it can map.

use crate::bounds::bound;
use crate::classes::{STRANGER, act, beside};
use crate::peer::Peer;
use crate::world::{Role, World, contents, make, take_turns};
use crate::{become_member, become_user, world::Talk};
use aerie_client::{Client, Options};
use aerie_objects::PAGE;
use aerie_proto::messages::{Class, PARTITION};
use aerie_server::{Limits, Protected, Serving, serve_protected};
use medium::{MapOptions, MappedPmem, Pmem};
use oracle::script::{State, generate, run_op};
use oracle::{ModelFs, Snapshot};
use pxfs::{MkfsOptions, Pxfs};
use scm::{Identity, files::Part};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::{
    Atime, Ctx, Errno, Fallocate, FileSystem, Ino, Name, OpenFlags, RenameFlags, SetAttr,
    SystemClock,
};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("users_map_their_part_of_a_protected_store", strangers),
    ("users_in_turns_have_the_results_of_the_model", in_turns),
    ("a_hostile_reader_finds_no_secret", hostile),
    ("public_files_are_read_without_the_service", directly),
    (
        "members_of_a_supplementary_group_read_its_files_without_the_service",
        members,
    ),
    (
        "open_files_stay_readable_after_a_change_of_modes",
        open_files,
    ),
    (
        "the_connection_to_the_manager_ends_with_its_client",
        manager_ends,
    ),
];
pub(crate) const CLIENTS: &[(&str, Role)] = &[
    ("protected", |world| act(world, Class::Reader)),
    ("thief", thief),
];

const BYTES: u64 = 16 << 20;
const SECRET: [u8; 8] = *b"A SECRET";

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip::test("needs root, for clients of other users");
    }
    is_root
}

/// A world with an empty protected store.
fn new_world() -> World {
    let world = World::empty();
    let store = Protected::create(&world.store(), BYTES, &MapOptions::default()).unwrap();
    pxfs::mkfs(&store.memory(), &MkfsOptions::default()).unwrap();
    world
}

fn serve(world: &World) -> Serving {
    let store = Protected::open(&world.store(), &MapOptions::default()).unwrap();
    let store = Arc::new(store);
    let (memory, clock) = (store.memory(), Arc::new(SystemClock));
    let fs = Pxfs::open_protected(memory, store.clone(), clock, Atime::Never).unwrap();
    serve_protected(fs, &store, &world.socket(), Limits::default()).unwrap()
}

/// Checks the store, which nobody serves.
fn check(world: &World) {
    let store = Protected::open(&world.store(), &MapOptions::default()).unwrap();
    let report = pxfs::check(&store.memory());
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// A client of a user, which ships only when it must.
pub(crate) fn client_of(world: &World, user: u32) -> Client {
    client_as(world, move || {
        if user != 0 {
            become_user(user);
        }
    })
}

/// A client of the user that the thread becomes.
fn client_as(world: &World, become_it: impl FnOnce() + Send + 'static) -> Client {
    let socket = world.socket();
    let connect = move || {
        become_it();
        let options = Options {
            period: Duration::from_secs(3600),
            ..Options::default()
        };
        Client::connect(&socket, &options).unwrap()
    };
    std::thread::spawn(connect).join().unwrap()
}

fn strangers() {
    if !is_root() {
        return;
    }
    let world = new_world();
    let service = serve(&world);
    beside(&world, "protected");
    service.stop();
    check(&world);
}

fn set_mode(fs: &dyn FileSystem, ino: Ino, mode: u32) {
    let set = SetAttr {
        perm: Some(mode),
        ..SetAttr::default()
    };
    fs.setattr(&Ctx::root(), ino, &set).unwrap();
}

/// Opens files for writing where a script does not.
struct Opening<'a>(&'a dyn FileSystem);

impl vfs::FileSystemLayer for Opening<'_> {
    fn below(&self) -> &dyn FileSystem {
        self.0
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> vfs::Result<usize> {
        self.0.open(cx, ino, OpenFlags::WRITE)?;
        let written = self.0.write(cx, ino, off, data);
        self.0.release(ino);
        written
    }

    fn fallocate(
        &self,
        cx: &Ctx,
        ino: Ino,
        kind: Fallocate,
        off: u64,
        len: u64,
    ) -> vfs::Result<()> {
        self.0.open(cx, ino, OpenFlags::WRITE)?;
        let done = self.0.fallocate(cx, ino, kind, off, len);
        self.0.release(ino);
        done
    }
}

/// One call at a time, each of a user who is drawn. The super-user also changes modes and owners.
fn in_turns() {
    if !is_root() {
        return;
    }
    const USERS: [u32; 3] = [0, 7, STRANGER];
    for seed in 0..bound(6, 300) {
        let world = new_world();
        let service = serve(&world);
        let clients = USERS.map(|user| client_of(&world, user));
        let model = ModelFs::default();
        set_mode(&clients[0], Ino::ROOT, 0o777);
        set_mode(&model, Ino::ROOT, 0o777);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut states = USERS.map(|user| {
            let cx = match user {
                0 => Ctx::root(),
                user => Ctx::user(user, user),
            };
            (State::new(cx.clone()), State::new(cx))
        });
        let script = generate::random(seed, 80);
        for (at, op) in script.ops.iter().enumerate() {
            let n = rng.usize(..USERS.len());
            let (here, there) = &mut states[n];
            let (client, model) = (Opening(&clients[n]), Opening(&model));
            let (got, want) = (run_op(&client, here, op), run_op(&model, there, op));
            assert_eq!(got, want, "seed {seed}, call {at} ({op}) of client {n}");
        }
        for (client, (here, there)) in clients.iter().zip(&mut states) {
            here.close_all(client);
            there.close_all(&model);
        }
        clients.iter().for_each(|client| client.sync().unwrap());
        let (found, wanted) = (Snapshot::take(&clients[0]), Snapshot::take(&model));
        let (found, wanted) = (found.unwrap(), wanted.unwrap());
        let is_same = found.is_same_except_times(&wanted);
        assert!(is_same, "seed {seed}: {:#?}", found.diff(&wanted));
        drop(clients);
        service.stop();
        check(&world);
    }
}

/// The thief looks after each turn of the test.
struct Watched {
    client: Client,
    thief: Talk,
}

impl Watched {
    fn look(&mut self) {
        self.client.sync().unwrap();
        self.thief.go_on();
        self.thief.wait();
    }

    fn write(&mut self, ino: Ino, words: [u8; 8]) {
        let cx = &Ctx::root();
        let bytes = words.repeat(3 * PAGE as usize / 8);
        assert_eq!(self.client.write(cx, ino, 0, &bytes), Ok(bytes.len()));
        self.look();
    }

    fn make(&mut self, dir: Ino, name: &str, mode: u32) -> Ino {
        let cx = &Ctx::root();
        let made = self.client.create(cx, dir, name.as_bytes(), mode);
        self.look();
        made.unwrap().ino
    }
}

fn hostile() {
    if !is_root() {
        return;
    }
    let world = new_world();
    let service = serve(&world);
    let client = client_of(&world, 0);
    let cx = &Ctx::root();
    let home = client.mkdir(cx, Ino::ROOT, b"home", 0o700).unwrap().ino;
    let first = make(&client, Ino::ROOT, "first", b"public").ino;
    client.sync().unwrap();
    let mut thief = world.process("thief", &STRANGER.to_string());
    thief.wait();
    let mut watched = Watched { client, thief };
    let secret = watched.make(Ino::ROOT, "secret", 0o600);
    watched.write(secret, SECRET);
    let below = watched.make(home, "A SECRET", 0o644);
    watched.write(below, SECRET);
    // Files that the thief has mapped already.
    set_mode(&watched.client, first, 0o600);
    watched.write(first, SECRET);
    let moved = watched.make(Ino::ROOT, "moved", 0o644);
    watched.write(moved, *b"public  ");
    let (from, to) = (Name::new(Ino::ROOT, b"moved"), Name::new(home, b"moved"));
    let none = RenameFlags::empty();
    watched.client.rename(cx, from, to, none).unwrap();
    watched.write(moved, SECRET);
    let given = watched.make(Ino::ROOT, "given", 0o640);
    let owner = SetAttr {
        uid: Some(7),
        gid: Some(8),
        ..SetAttr::default()
    };
    watched.client.setattr(cx, given, &owner).unwrap();
    watched.write(given, SECRET);
    // Freed pages of secrets become public, and freed public pages become secret.
    watched.client.unlink(cx, Ino::ROOT, b"secret").unwrap();
    for n in 0..6 {
        let mode = [0o644, 0o600][n % 2];
        let file = watched.make(Ino::ROOT, &format!("new {n}"), mode);
        watched.write(file, [*b"public  ", SECRET][n % 2]);
        let name = format!("new {}", n / 2);
        let _ = watched.client.unlink(cx, Ino::ROOT, name.as_bytes());
        watched.look();
    }
    // Another start changes nothing.
    watched.thief.go_on();
    let Watched { client, thief } = watched;
    client.close().unwrap();
    service.stop();
    let service = serve(&world);
    let client = client_of(&world, 0);
    assert!(
        contents(&client, Ino::ROOT, "given")
            .unwrap()
            .starts_with(&SECRET)
    );
    thief.kill();
    let mut thief = world.process("thief", &STRANGER.to_string());
    thief.wait();
    thief.kill();
    drop(client);
    service.stop();
    check(&world);
}

/// Maps all classes that it gets, keeps the mappings, and looks for a secret in them at each turn.
fn thief(world: &World) {
    let peer = Peer::new(&world.socket()).unwrap();
    let manager = scm::Client::of(peer.descriptor.unwrap());
    let mut windows = HashMap::new();
    let table = manager.share(0, Part::Identities).unwrap().0;
    let map = |descriptor| {
        let read_only = MapOptions {
            read_only: true,
            ..MapOptions::default()
        };
        MappedPmem::map_descriptor(descriptor, "a class", &read_only).unwrap()
    };
    let table = map(table.descriptor);
    let everyone = manager.join(PARTITION, &MapOptions::default()).unwrap();
    let mut is_public_found = false;
    loop {
        for raw in 0..64 {
            let part = Part::Class(Identity::from_raw(raw));
            if windows.contains_key(&raw) {
                continue;
            }
            if let Ok((share, is_writable)) = manager.share(0, part) {
                assert!(!is_writable);
                windows.insert(raw, map(share.descriptor));
            }
        }
        for page in 0..BYTES / PAGE {
            for (raw, window) in &windows {
                let is_of = table.load(page / 2 * 8).unwrap() >> (page % 2 * 32) as u32;
                // Pages of other classes are holes, which a look would fill.
                if is_of as u32 == *raw {
                    let mut bytes = vec![0; PAGE as usize];
                    window.read(page * PAGE, &mut bytes).unwrap();
                    let has = |word: &[u8; 8]| bytes.as_chunks().0.contains(word);
                    assert!(!has(&SECRET), "page {page} of class {raw}");
                    is_public_found |= has(b"public\0\0") || has(b"public  ");
                }
            }
        }
        assert!(is_public_found && everyone.load(0).is_ok());
        take_turns();
    }
}

/// Reads a file as a stranger.
fn read(client: &Client, dir: Ino, name: &[u8]) -> vfs::Result<Vec<u8>> {
    read_as(&Ctx::user(STRANGER, STRANGER), client, dir, name)
}

fn read_as(cx: &Ctx, client: &Client, dir: Ino, name: &[u8]) -> vfs::Result<Vec<u8>> {
    let found = client.lookup(cx, dir, name)?;
    let opened = client.open(cx, found.ino, OpenFlags::READ);
    let mut buf = vec![0; found.size as usize];
    let done = opened.and_then(|()| client.read(cx, found.ino, 0, &mut buf));
    if opened.is_ok() {
        client.release(found.ino);
    }
    client.forget(found.ino, 1);
    done.map(|_| buf)
}

/// Public files are read from the pages, and files that can be found and not listed by calls.
fn directly() {
    if !is_root() {
        return;
    }
    let world = new_world();
    let service = serve(&world);
    let root = client_of(&world, 0);
    let dir = root
        .mkdir(&Ctx::root(), Ino::ROOT, b"dir", 0o755)
        .unwrap()
        .ino;
    make(&root, dir, "public", b"contents");
    root.sync().unwrap();
    let stranger = client_of(&world, STRANGER);
    let contents = || read(&stranger, dir, b"public");
    for _ in 0..10 {
        assert_eq!(contents().unwrap(), b"contents");
    }
    assert_eq!(stranger.calls(), 0, "it reads the pages");
    set_mode(&root, dir, 0o700);
    assert_eq!(contents(), Err(Errno::ACCESS));
    set_mode(&root, dir, 0o711);
    assert_eq!(contents().unwrap(), b"contents");
    assert!(stranger.calls() > 0);
    let cx = &Ctx::user(STRANGER, STRANGER);
    let listed = stranger.readdir(cx, dir, vfs::Cookie(0), &mut |_| true);
    assert_eq!(listed, Err(Errno::ACCESS));
    // The pages are there after a call has taken the locks.
    set_mode(&root, dir, 0o755);
    assert_eq!(contents().unwrap(), b"contents");
    let calls = stranger.calls();
    assert_eq!(contents().unwrap(), b"contents");
    assert_eq!(stranger.calls(), calls, "it reads the pages again");
    drop((root, stranger));
    service.stop();
    check(&world);
}

/// The groups of the service itself count for nobody.
fn members() {
    if !is_root() {
        return;
    }
    const GROUPS: [u32; 2] = [7_001, 7_002];
    let world = new_world();
    let service = serve(&world);
    let root = client_of(&world, 0);
    for group in GROUPS {
        let name = group.to_string();
        let file = make(&root, Ino::ROOT, &name, b"contents").ino;
        let set = SetAttr {
            perm: Some(0o640),
            gid: Some(group),
            ..SetAttr::default()
        };
        root.setattr(&Ctx::root(), file, &set).unwrap();
    }
    root.sync().unwrap();
    let [own, other] = GROUPS;
    let member = client_as(&world, move || become_member(STRANGER, &[own]));
    let cx = &Ctx {
        groups: vec![own],
        ..Ctx::user(STRANGER, STRANGER)
    };
    let contents = |group: u32| read_as(cx, &member, Ino::ROOT, group.to_string().as_bytes());
    assert_eq!(contents(own).unwrap(), b"contents");
    assert_eq!(member.calls(), 0, "it reads the pages");
    assert_eq!(contents(other), Err(Errno::ACCESS));
    drop((root, member));
    service.stop();
    check(&world);
}

/// Files that were opened are read through the service, after they may not be mapped any more: by a change of
/// their own mode, and of that of a directory above.
fn open_files() {
    if !is_root() {
        return;
    }
    let world = new_world();
    let service = serve(&world);
    let root = client_of(&world, 0);
    let dir = root.mkdir(&Ctx::root(), Ino::ROOT, b"dir", 0o755);
    let dir = dir.unwrap().ino;
    let files = [Ino::ROOT, dir].map(|dir| make(&root, dir, "file", b"contents").ino);
    let stranger = client_of(&world, STRANGER);
    let cx = &Ctx::user(STRANGER, STRANGER);
    stranger.lookup(cx, Ino::ROOT, b"dir").unwrap();
    for (dir, file) in [Ino::ROOT, dir].into_iter().zip(files) {
        let found = stranger.lookup(cx, dir, b"file").unwrap();
        assert_eq!(found.ino, file);
        stranger.open(cx, file, OpenFlags::READ).unwrap();
    }
    set_mode(&root, files[0], 0o600);
    set_mode(&root, dir, 0o700);
    root.sync().unwrap();
    let read_both = || {
        for file in files {
            let mut buf = [0; 8];
            assert_eq!(stranger.read(cx, file, 0, &mut buf), Ok(8));
            assert_eq!(&buf, b"contents");
        }
    };
    read_both();
    let opened = stranger.open(cx, files[0], OpenFlags::READ);
    assert_eq!(opened, Err(Errno::ACCESS));
    assert_eq!(read(&stranger, dir, b"file"), Err(Errno::ACCESS));
    for dir in [Ino::ROOT, dir] {
        root.unlink(&Ctx::root(), dir, b"file").unwrap();
    }
    root.sync().unwrap();
    read_both();
    for file in files {
        stranger.release(file);
        stranger.forget(file, 1);
    }
    assert_eq!(stranger.sync(), Ok(()));
    drop((root, stranger));
    service.stop();
    check(&world);
}

/// A client closes its connection, and keeps the one to the manager.
fn manager_ends() {
    let world = new_world();
    let service = serve(&world);
    let peer = Peer::begin(&world.socket());
    let manager = scm::Client::of(peer.descriptor.unwrap());
    assert!(manager.partitions().is_ok());
    drop(peer.socket);
    let limit = Instant::now() + Duration::from_secs(20);
    while manager.partitions().is_ok() {
        assert!(Instant::now() < limit, "the connection stays");
        std::thread::yield_now();
    }
    service.stop();
    check(&world);
}
