//! Paths that clients rely on: while a cache says that a path leads to a directory, its names do.

use super::clients::{Client, client, client_of, service};
use crate::seeded::{Bug, arm};
use oracle::script::{State, generate, run_op};
use oracle::snapshot::Snapshot;
use std::collections::BTreeSet;
use vfs::{
    Ctx, Errno, FileSystem, FileSystemLayer, FileType, Ino, Name, NewNode, OpenFlags, Paths,
    Removal, Result, SetAttr,
};

/// A client, with what two users know of its paths.
struct Walker {
    client: Client,
    state: State,
    known: [(Ctx, Paths); 2],
}

impl Walker {
    fn new(client: Client) -> Self {
        let users = [Ctx::root(), Ctx::user(1000, 1000)];
        Self {
            client,
            state: State::default(),
            known: users.map(|user| (user, Paths::default())),
        }
    }

    /// Compares where known paths lead with where their names do, and learns.
    fn differs(&self, paths: &BTreeSet<Vec<u8>>) -> Option<String> {
        for (cx, known) in &self.known {
            for path in paths {
                let version = self.client.paths_version();
                let walked = walk(&self.client, cx, path);
                let relied = known.get(version, cx, (Ino::ROOT, path));
                if relied.is_some_and(|dir| walked != Ok(dir)) {
                    let path = String::from_utf8_lossy(path);
                    return Some(format!(
                        "user {}: {path} leads to {walked:?}, and not to {relied:?}",
                        cx.uid
                    ));
                }
                if let Ok(dir) = walked {
                    known.put(version, cx, (Ino::ROOT, path), dir);
                }
            }
        }
        None
    }
}

/// Looks up each name of a path from the root.
fn walk(client: &Client, cx: &Ctx, path: &[u8]) -> Result<Ino> {
    let mut at = Ino::ROOT;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        let found = client.lookup(cx, at, name);
        client.forget(at, u64::from(at != Ino::ROOT));
        at = found?.ino;
    }
    let searched = client.lookup(cx, at, b"no such name");
    client.forget(at, u64::from(at != Ino::ROOT));
    match searched {
        Err(Errno::NOENT) => Ok(at),
        Err(errno) => Err(errno),
        Ok(_) => unreachable!("nobody makes this name"),
    }
}

/// Runs a random script on two clients in turn. Returns the first path that is relied on and leads elsewhere.
fn difference(seed: u64) -> Option<String> {
    let service = service(1_000);
    let mut walkers = [true, false].map(|is_trusted| Walker::new(client(&service, is_trusted)));
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut turn, mut paths) = (0, BTreeSet::new());
    for op in generate::setup().then(&generate::random(seed, 120)).ops {
        if rng.u32(..5) == 0 {
            walkers[turn].client.ship(true).unwrap();
            turn = 1 - turn;
        }
        let walker = &mut walkers[turn];
        run_op(&walker.client, &mut walker.state, &op).ok();
        let seen = Snapshot::take(&walker.client).unwrap();
        let dirs = seen
            .iter()
            .filter(|(_, node, _)| node.kind == FileType::Directory);
        paths.extend(dirs.map(|(path, ..)| path.to_vec()));
        if let Some(what) = walker.differs(&paths) {
            return Some(format!("after {op}: {what}"));
        }
    }
    None
}

#[test]
fn known_paths_lead_where_their_names_do() {
    for seed in 0..10 {
        assert_eq!(difference(seed), None, "seed {seed}");
    }
    arm(Some(Bug::PathsKept));
    let found = (0..10).find_map(difference);
    arm(None);
    assert!(found.is_some(), "the bug is not found");
}

/// Files come and go, and change, without an effect on what is known.
#[test]
fn changes_of_files_leave_paths_known() {
    let service = service(1_000);
    let client = client(&service, true);
    let (cx, known) = (Ctx::root(), Paths::default());
    let dir = client.mkdir(&cx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    known.put(client.paths_version(), &cx, (Ino::ROOT, b"dir"), dir);
    let file = client.create(&cx, dir, b"file", 0o644).unwrap().ino;
    client.write(&cx, file, 0, b"contents").unwrap();
    client.truncate(&cx, file, 0).unwrap();
    let (from, to) = (vfs::Name::new(dir, b"file"), vfs::Name::new(dir, b"other"));
    client
        .rename(&cx, from, to, vfs::RenameFlags::empty())
        .unwrap();
    client.unlink(&cx, dir, b"other").unwrap();
    client.forget(file, 1);
    client.sync().unwrap();
    assert_eq!(
        known.get(client.paths_version(), &cx, (Ino::ROOT, b"dir")),
        Some(dir)
    );
    assert_eq!(known.get(client.paths_version(), &cx, (dir, b"dir")), None);
    assert_eq!(
        known.get(
            client.paths_version(),
            &Ctx::user(1, 1),
            (Ino::ROOT, b"dir")
        ),
        None
    );
    client.rmdir(&cx, Ino::ROOT, b"dir").unwrap();
    assert_eq!(
        known.get(client.paths_version(), &cx, (Ino::ROOT, b"dir")),
        None
    );
}

/// A file takes the place of a directory, whichever of them the exchange names first.
#[test]
fn a_directory_that_was_exchanged_is_not_known_any_more() {
    let service = service(1_000);
    let (client, cx) = (client(&service, true), Ctx::root());
    let dir = client.mkdir(&cx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    client.create(&cx, Ino::ROOT, b"file", 0o644).unwrap();
    let names = [&b"dir"[..], b"file"].map(|name| Name::new(Ino::ROOT, name));
    for (from, to) in [(0, 1), (0, 1), (1, 0), (1, 0)] {
        let known = Paths::default();
        let version = client.paths_version();
        for name in names {
            known.put(version, &cx, (Ino::ROOT, name.name), dir);
        }
        let exchange = vfs::RenameFlags::EXCHANGE;
        let exchanged = client.rename(&cx, names[from], names[to], exchange);
        exchanged.unwrap();
        for name in names {
            let found = known.get(client.paths_version(), &cx, (Ino::ROOT, name.name));
            assert_eq!(found, None, "from {from} to {to}");
        }
    }
}

/// The service refuses one of two directories with the same name, which is undone.
#[test]
fn a_refused_directory_is_not_known_any_more() {
    let service = service(1_000);
    let clients = [client(&service, true), client(&service, false)];
    let cx = Ctx::root();
    let known = clients.each_ref().map(|client| {
        let known = Paths::default();
        let dir = client.mkdir(&cx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
        known.put(client.paths_version(), &cx, (Ino::ROOT, b"dir"), dir);
        known
    });
    assert_eq!(
        clients.each_ref().map(|client| client.sync()),
        [Ok(()), Err(Errno::EXIST)]
    );
    let is_known = |n: usize| {
        let version = clients[n].paths_version();
        known[n].get(version, &cx, (Ino::ROOT, b"dir")).is_some()
    };
    assert!(is_known(0) && !is_known(1));
}

fn set_mode(fs: &dyn FileSystem, cx: &Ctx, ino: Ino, mode: u32) {
    let set = SetAttr {
        perm: Some(mode),
        ..SetAttr::default()
    };
    fs.setattr(cx, ino, &set).unwrap();
}

/// A program works in a directory, and its user takes the rights to a directory above.
#[test]
fn a_directory_stays_usable_after_a_chmod_above() {
    const USER: u32 = 1000;
    let (service, cx) = (service(1_000), Ctx::user(USER, USER));
    set_mode(&*service, &Ctx::root(), Ino::ROOT, 0o777);
    let client = client_of(&service, USER, false);
    let above = client.mkdir(&cx, Ino::ROOT, b"above", 0o700).unwrap().ino;
    let dir = client.mkdir(&cx, above, b"directory", 0o700).unwrap().ino;
    client.sync().unwrap();
    set_mode(&client, &cx, above, 0);
    let file = client.create(&cx, dir, b"file", 0o600).unwrap().ino;
    client.write(&cx, file, 0, b"contents").unwrap();
    assert_eq!(client.sync(), Ok(()));
    let found = service.lookup(&Ctx::root(), dir, b"file").unwrap();
    assert_eq!((found.ino, found.size), (file, 8));
}

/// Compares the calls in one step with those that they stand for, for a name. Returns the first difference.
fn steps_differ(client: &Client, cx: &Ctx, at: Name<'_>) -> Option<String> {
    let found = client.lookup(cx, at.dir, at.name);
    let opened = found.and_then(|attr| client.open(cx, attr.ino, OpenFlags::READ).map(|()| attr));
    if let Ok(attr) = &found {
        client.forget(attr.ino, 1);
    }
    if let Ok(attr) = &opened {
        client.release(attr.ino);
    }
    let shown = client.attributes(cx, at);
    if shown != found.map(Some) {
        return Some(format!("attributes: {shown:?}, and not {found:?}"));
    }
    let is_file = found.is_ok_and(|attr| attr.kind == FileType::Regular);
    let at_once = client.open_file(cx, at, OpenFlags::READ);
    if let Ok(Some(attr)) = &at_once {
        client.release(attr.ino);
    }
    let wanted = match found {
        Ok(_) if !is_file => Ok(None),
        _ => opened.map(Some),
    };
    (at_once != wanted).then(|| format!("open: {at_once:?}, and not {wanted:?}"))
}

#[test]
fn calls_in_one_step_are_those_that_they_stand_for() {
    for seed in 0..6 {
        let service = service(1_000);
        let client = client(&service, seed % 2 == 0);
        let users = [Ctx::root(), Ctx::user(1000, 1000)];
        let mut state = State::default();
        for op in generate::setup().then(&generate::random(seed, 80)).ops {
            run_op(&client, &mut state, &op).ok();
            let seen = Snapshot::take(&client).unwrap();
            for path in seen.iter().map(|(path, ..)| path.to_vec()) {
                let end = path.iter().rposition(|byte| *byte == b'/');
                let (above, name) = path.split_at(end.map_or(0, |end| end + 1));
                let Ok(dir) = walk(&client, &Ctx::root(), above) else {
                    continue;
                };
                for name in [name, b"no such name"]
                    .into_iter()
                    .filter(|name| !name.is_empty())
                {
                    for cx in &users {
                        let differs = steps_differ(&client, cx, Name::new(dir, name));
                        assert_eq!(differs, None, "seed {seed}, after {op}: {path:?}");
                    }
                }
            }
        }
    }
}

/// A file that was opened in one step stays without its name.
#[test]
fn a_file_that_is_opened_in_one_step_has_a_reference() {
    for is_trusted in [true, false] {
        let service = service(1_000);
        let (client, cx) = (client(&service, is_trusted), Ctx::root());
        let at = Name::new(Ino::ROOT, b"file");
        let made = client.make(&cx, at, &NewNode::file(0o600)).unwrap();
        client.write(&cx, made.ino, 0, b"contents").unwrap();
        client.forget(made.ino, 1);
        client.sync().unwrap();
        let opened = client.open_file(&cx, at, OpenFlags::READ).unwrap().unwrap();
        client.remove(&cx, at, Removal::Unlink).unwrap();
        for _ in 0..2 {
            let mut found = [0; 8];
            assert_eq!(client.read(&cx, opened.ino, 0, &mut found), Ok(8));
            assert_eq!(&found, b"contents");
            client.sync().unwrap();
        }
        client.release(opened.ino);
        assert_eq!(client.getattr(&cx, opened.ino), Err(Errno::STALE));
    }
}

/// A directory without a reference may have lost its number to another one since its path was resolved.
#[test]
fn changes_in_a_known_directory_are_refused_at_another_version() {
    let service = service(1_000);
    let (client, cx) = (client(&service, true), Ctx::root());
    let dir = client.mkdir(&cx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let at = Name::new(dir, b"name");
    let known = (at, client.paths_version());
    client.make_at(&cx, known, &NewNode::file(0o644)).unwrap();
    client.remove_at(&cx, known, Removal::Unlink).unwrap();
    client.make_at(&cx, known, &NewNode::file(0o644)).unwrap();
    client.mkdir(&cx, Ino::ROOT, b"other", 0o755).unwrap();
    client.rmdir(&cx, Ino::ROOT, b"other").unwrap();
    assert_ne!(client.paths_version(), known.1);
    let removed = client.remove_at(&cx, known, Removal::Unlink);
    assert_eq!(removed, Err(Errno::STALE));
    assert!(client.lookup(&cx, dir, b"name").is_ok());
    let known = (Name::new(dir, b"more"), known.1);
    let made = client.make_at(&cx, known, &NewNode::file(0o644));
    assert_eq!(made, Err(Errno::STALE));
    assert_eq!(client.lookup(&cx, dir, b"more"), Err(Errno::NOENT));
}

/// Another directory is removed before the reference is taken.
struct Removing<'c> {
    client: &'c Client,
    name: &'static [u8],
}

impl FileSystemLayer for Removing<'_> {
    fn below(&self) -> &dyn FileSystem {
        self.client
    }

    fn by_number(&self, ino: Ino) -> Result<vfs::Attr> {
        self.client
            .rmdir(&Ctx::root(), Ino::ROOT, self.name)
            .unwrap();
        self.client.by_number(ino)
    }
}

#[test]
fn a_known_directory_is_not_held_at_another_version() {
    let service = service(1_000);
    let (client, cx) = (client(&service, true), Ctx::root());
    let (known, place) = (Paths::default(), (Ino::ROOT, &b"dir"[..]));
    let dir = client.mkdir(&cx, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    client.forget(dir, 1);
    client.mkdir(&cx, Ino::ROOT, b"other", 0o755).unwrap();
    let version = client.paths_version();
    known.put(version, &cx, place, dir);

    assert_eq!(known.hold(&client, version, &cx, place), Some(dir));
    client.forget(dir, 1);
    let removing = Removing {
        client: &client,
        name: b"other",
    };
    assert_eq!(known.hold(&removing, version, &cx, place), None);

    // No reference is left.
    client.rmdir(&cx, Ino::ROOT, b"dir").unwrap();
    assert_eq!(client.by_number(dir), Err(Errno::STALE));
}
