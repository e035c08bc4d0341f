//! Ships beside calls: two clients, each of which changes a directory of its own, and looks at both.

use super::clients::{Client, Flying, client, service};
use crate::seeded::{Bug, arm};
use aerie_objects::seeded as objects;
use aerie_proto::ops::Condition;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use vfs::{Ctx, Errno, FileSystem, Ino, Name, SetAttr};

/// A directory with this number of files, or a file with these contents.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Directory(usize),
    File(Vec<u8>),
}

/// A client with its directory.
struct Own<'a> {
    ships: Flying<'a>,
    dir: Ino,
    names: BTreeMap<String, Entry>,
}

const NAMES: usize = 24;
const LONGEST: usize = 9000;

fn cx() -> Ctx {
    Ctx::root()
}

fn inode(fs: &dyn FileSystem, dir: Ino, name: &str) -> vfs::Result<Ino> {
    let found = fs.lookup(&cx(), dir, name.as_bytes())?.ino;
    fs.forget(found, 1);
    Ok(found)
}

fn count(fs: &dyn FileSystem, dir: Ino) -> vfs::Result<usize> {
    let mut count = 0;
    fs.readdir(&cx(), dir, vfs::Cookie(0), &mut |entry| {
        count += usize::from(!matches!(entry.name, b"." | b".."));
        true
    })?;
    Ok(count)
}

fn entry(fs: &dyn FileSystem, dir: Ino, name: &str, expected: &Entry) -> vfs::Result<Entry> {
    let ino = inode(fs, dir, name)?;
    Ok(match expected {
        Entry::Directory(_) => Entry::Directory(count(fs, ino)?),
        Entry::File(_) => {
            let mut contents = vec![1; LONGEST * 2];
            let len = fs.read(&cx(), ino, 0, &mut contents)?;
            contents.truncate(len);
            Entry::File(contents)
        }
    })
}

/// The difference between a directory and what is expected of it.
fn difference(fs: &dyn FileSystem, dir: Ino, names: &BTreeMap<String, Entry>) -> Option<String> {
    let mut found = String::new();
    if count(fs, dir) != Ok(names.len()) {
        write!(found, "{:?} names of {}", count(fs, dir), names.len()).unwrap();
    }
    for (name, expected) in names {
        let seen = entry(fs, dir, name, expected);
        if seen.as_ref() != Ok(expected) {
            let kind = seen.map(|seen| matches!(seen, Entry::File(_)));
            write!(found, "{name}: a file: {kind:?}, other contents").unwrap();
        }
    }
    (!found.is_empty()).then_some(found)
}

impl Own<'_> {
    fn client(&self) -> &Client {
        self.ships.client
    }

    fn put(&mut self, name: &str, value: Vec<u8>, condition: Condition<'_>) -> vfs::Result<()> {
        let (fs, at) = (self.ships.client, Name::new(self.dir, name.as_bytes()));
        fs.put(&cx(), at, 0o644, &value, condition)?;
        self.names.insert(name.to_owned(), Entry::File(value));
        Ok(())
    }

    /// A random change.
    fn change(&mut self, rng: &mut fastrand::Rng) -> vfs::Result<()> {
        let (fs, dir, cx) = (self.ships.client, self.dir, cx());
        let name = format!("a name that is not short {}", rng.usize(..NAMES));
        match self.names.get(&name) {
            None if rng.u32(..4) == 0 => {
                let made = fs.mkdir(&cx, dir, name.as_bytes(), 0o755)?.ino;
                let files = rng.usize(..20);
                for n in 0..files {
                    let name = format!("a file in a directory {n}");
                    let made = fs.symlink(&cx, made, name.as_bytes(), b"target")?;
                    fs.forget(made.ino, 1);
                }
                fs.forget(made, 1);
                self.names.insert(name, Entry::Directory(files));
            }
            None if rng.bool() => {
                let contents = vec![rng.u8(1..); rng.usize(..LONGEST)];
                self.put(&name, contents, Condition::Absent)?;
            }
            None => {
                let made = fs.create(&cx, dir, name.as_bytes(), 0o644)?.ino;
                let contents = vec![rng.u8(1..); rng.usize(..LONGEST)];
                fs.write(&cx, made, 0, &contents)?;
                fs.forget(made, 1);
                self.names.insert(name, Entry::File(contents));
            }
            Some(Entry::Directory(files)) => {
                let ino = inode(fs, dir, &name)?;
                for n in 0..*files {
                    let name = format!("a file in a directory {n}");
                    fs.unlink(&cx, ino, name.as_bytes())?;
                }
                fs.rmdir(&cx, dir, name.as_bytes())?;
                self.names.remove(&name);
            }
            Some(Entry::File(old)) if rng.u32(..3) == 0 => {
                let new = vec![rng.u8(1..); rng.usize(..LONGEST)];
                let other = [&**old, b"other"].concat();
                let refused = self.put(&name, new.clone(), Condition::Is(&other));
                assert_eq!(refused, Err(Errno::CANCELED));
                self.put(&name, new, Condition::Always)?;
            }
            Some(Entry::File(contents)) if rng.bool() => {
                let mut contents = contents.clone();
                let ino = inode(fs, dir, &name)?;
                let size = rng.usize(..LONGEST);
                let set = SetAttr {
                    size: Some(size as u64),
                    ..SetAttr::default()
                };
                fs.setattr(&cx, ino, &set)?;
                contents.resize(size, 0);
                let (at, more) = (rng.usize(..LONGEST / 2), [rng.u8(1..); 700]);
                fs.write(&cx, ino, at as u64, &more)?;
                contents.resize(size.max(at + more.len()), 0);
                contents[at..at + more.len()].copy_from_slice(&more);
                self.names.insert(name, Entry::File(contents));
            }
            Some(Entry::File(_)) => {
                let ino = inode(fs, dir, &name)?;
                fs.unlink(&cx, dir, name.as_bytes())?;
                assert_eq!(fs.getattr(&cx, ino), Err(Errno::STALE));
                self.names.remove(&name);
            }
        }
        Ok(())
    }
}

/// Two clients make random changes, with ships beside them. Returns the first difference.
fn run(kinds: [bool; 2], seed: u64) -> Option<String> {
    let service = service(1_000);
    let mut rng = fastrand::Rng::with_seed(seed);
    let clients = kinds.map(|kind| client(&service, kind));
    let mut owners = [0, 1].map(|n| {
        let name = format!("{n}");
        let made = service.mkdir(&cx(), Ino::ROOT, name.as_bytes(), 0o755);
        let dir = made.unwrap().ino;
        service.forget(dir, 1);
        inode(&clients[n], Ino::ROOT, &name).unwrap();
        Own {
            ships: Flying::new(&clients[n]),
            dir,
            names: BTreeMap::new(),
        }
    });
    let mut found = None;
    for step in 0..300 {
        let n = rng.usize(..2);
        if rng.bool() {
            owners[n].ships.step();
        }
        if let Err(errno) = owners[n].change(&mut rng) {
            found = Some(format!("step {step}: {errno}"));
            break;
        }
        let [own, other] = [&owners[n], &owners[1 - n]];
        let mut what = difference(own.client(), own.dir, &own.names);
        if !other.ships.is_flying() && other.client().pending_bytes()[0] == 0 {
            // All changes of the other client are at the service.
            let found = difference(own.client(), other.dir, &other.names);
            what = what.or(found.map(|found| format!("in the directory of the other: {found}")));
        }
        if let Some(what) = what {
            found = Some(format!("step {step}, client {n}: {what}"));
            break;
        }
        if rng.u32(..12) == 0 {
            owners[n].ships.land();
            owners[n].client().ship(rng.bool()).unwrap();
        }
        if let Some(refused) = owners[n].client().take_refusal() {
            found = Some(format!("step {step}, client {n}: {refused:?}"));
            break;
        }
    }
    for owner in &mut owners {
        owner.ships.land();
        owner.client().ship(true).unwrap();
        if found.is_none() {
            assert!(
                owner.client().has_all_reserved(),
                "pages of the reserve are lost"
            );
            let refusal = owner.client().take_refusal();
            found = refusal.map(|refused| format!("at the end: {refused:?}"));
            found = found.or(difference(&*service, owner.dir, &owner.names));
        }
    }
    drop(owners);
    drop(clients);
    let findings = service.audit();
    found.or((!findings.is_empty()).then(|| format!("at the end: {findings:#?}")))
}

const KINDS: [[bool; 2]; 3] = [[true, true], [true, false], [false, false]];

#[test]
fn clients_see_what_they_have_changed_while_it_is_shipped() {
    for seed in 0..90 {
        let kinds = KINDS[seed as usize % KINDS.len()];
        assert_eq!(run(kinds, seed), None, "clients {kinds:?}, seed {seed}");
    }
}

#[test]
fn bugs_of_ships_beside_calls_are_found() {
    let finds = |arm: &dyn Fn(), disarm: &dyn Fn()| {
        (0..200).any(|seed| {
            arm();
            let kinds = KINDS[seed as usize % KINDS.len()];
            let found = std::panic::catch_unwind(|| run(kinds, seed));
            disarm();
            !matches!(found, Ok(None))
        })
    };
    let dropped = || arm(Some(Bug::DroppedBeside));
    assert!(finds(&dropped, &|| arm(None)), "DroppedBeside");
    for bug in [
        objects::Bug::FreedKept,
        objects::Bug::NotBuried,
        objects::Bug::ChangedDropped,
    ] {
        let kept = || objects::arm(Some(bug));
        assert!(finds(&kept, &|| objects::arm(None)), "{bug:?}");
    }
}

/// Two clients make the same name. The one whose ship is refused has gone on meanwhile.
fn refused_beside(bug: Option<Bug>) -> Result<(), String> {
    let service = service(1_000);
    let clients = [client(&service, true), client(&service, true)];
    let (name, root) = (b"name", Ino::ROOT);
    let [first, second] = clients.each_ref();
    let made = first.create(&cx(), root, name, 0o600).unwrap();
    first.sync().unwrap();
    let refused = second.setattr(&cx(), made.ino, &SetAttr::default());
    refused.unwrap();
    // The second one has looked before the first one has shipped.
    let dir = second.mkdir(&cx(), root, b"directory", 0o700).unwrap().ino;
    let mut ships = Flying::new(second);
    ships.step();
    ships.step();
    first.unlink(&cx(), root, name).unwrap();
    first.forget(made.ino, 1);
    let file = second.create(&cx(), dir, b"file", 0o600).unwrap().ino;
    second.write(&cx(), file, 0, b"contents").unwrap();
    second.create(&cx(), root, b"other", 0o600).unwrap();
    first.create(&cx(), root, b"other", 0o600).unwrap();
    first.sync().unwrap();
    ships.land();
    arm(bug);
    ships.step();
    let more = second.create(&cx(), dir, b"more", 0o600).unwrap().ino;
    ships.land();
    let settled = second.pending_bytes()[0] == 0;
    arm(None);
    let found = inode(second, root, "other");
    let expected = inode(&*service, root, "other");
    if found != expected || !settled {
        return Err(format!("it sees {found:?}, the service has {expected:?}"));
    }
    assert_eq!(second.sync(), Err(Errno::EXIST));
    assert_eq!(second.sync(), Ok(()));
    let mut contents = [0; 9];
    assert_eq!(second.read(&cx(), file, 0, &mut contents), Ok(8));
    assert_eq!(inode(&*service, dir, "more"), Ok(more));
    Ok(())
}

#[test]
fn a_refusal_ends_what_a_client_saw() {
    refused_beside(None).unwrap();
    assert!(refused_beside(Some(Bug::RefusalKept)).is_err());
}

/// The session ends while a batch is shipped.
#[test]
fn a_lost_session_undoes_a_ship_and_what_came_after_it() {
    let service = service(1_000);
    let client = client(&service, true);
    client.mkdir(&cx(), Ino::ROOT, b"lost", 0o700).unwrap();
    let sent = client.send();
    client.mkdir(&cx(), Ino::ROOT, b"later", 0o700).unwrap();
    client
        .receive(&sent.unwrap(), Err(Errno::NODEV))
        .unwrap_err();
    client.end_beside();
    assert_eq!(client.sync(), Err(Errno::IO));
    assert_eq!(client.sync(), Ok(()));
    for name in ["lost", "later"] {
        assert_eq!(inode(&client, Ino::ROOT, name), Err(Errno::NOENT));
    }
    // A reset comes first.
    client.mkdir(&cx(), Ino::ROOT, b"lost", 0o700).unwrap();
    let mut sent = client.send().unwrap();
    let answers = client.run_sent(&mut sent);
    client.mkdir(&cx(), Ino::ROOT, b"later", 0o700).unwrap();
    client.reset();
    assert_eq!(client.receive(&sent, answers), Ok(()));
    client.end_beside();
    assert_eq!(client.sync(), Err(Errno::IO));
    assert!(inode(&client, Ino::ROOT, "lost").is_ok());
    assert_eq!(inode(&client, Ino::ROOT, "later"), Err(Errno::NOENT));
}

/// A put of a value fails, or the service refuses it, in a ship of which the calls wait or not.
#[test]
fn pages_of_a_put_without_effect_are_reserved_again() {
    for is_beside in [false, true] {
        let service = service(1_000);
        let clients = [client(&service, true), client(&service, true)];
        let [first, second] = clients.each_ref();
        let (at, value) = (Name::new(Ino::ROOT, b"name"), [1; 3 * 4096]);
        let put = |fs: &Client, condition| fs.put(&cx(), at, 0o600, &value, condition);
        assert_eq!(put(second, Condition::Is(b"other")), Err(Errno::CANCELED));
        assert!(second.has_all_reserved());
        put(second, Condition::Absent).unwrap();
        // The last byte counts, too.
        let mut other = value;
        other[value.len() - 1] = 2;
        assert_eq!(put(second, Condition::Is(&other)), Err(Errno::CANCELED));
        put(first, Condition::Absent).unwrap();
        first.sync().unwrap();
        if is_beside {
            let mut ships = Flying::new(second);
            ships.step();
            ships.land();
        }
        assert_eq!(second.sync(), Err(Errno::CANCELED));
        assert!(second.has_all_reserved(), "beside calls: {is_beside}");
        put(second, Condition::Is(&value)).unwrap();
        second.sync().unwrap();
        drop(clients);
        assert_eq!(service.audit(), []);
    }
}

/// A store without space for the value.
#[test]
fn a_put_fails_for_want_of_space_only_if_nothing_else_is_wrong() {
    let service = service(1_000);
    let client = client(&service, true);
    let (fs, root) = (&client, Ino::ROOT);
    let put = |name: &[u8], len, condition| {
        fs.put(
            &cx(),
            Name::new(root, name),
            0o600,
            &vec![1; len],
            condition,
        )
    };
    let made = fs.mkdir(&cx(), root, b"directory", 0o700).unwrap();
    put(b"name", 1, Condition::Always).unwrap();
    let longest = aerie_proto::ops::VALUE_MAX as usize;
    assert_eq!(put(b"name", longest, Condition::Always), Err(Errno::NOSPC));
    assert_eq!(
        put(b"name", longest, Condition::Absent),
        Err(Errno::CANCELED)
    );
    assert_eq!(
        put(b"directory", longest, Condition::Always),
        Err(Errno::ISDIR)
    );
    let user = Ctx::user(7, 7);
    let refused = fs.put(
        &user,
        Name::new(made.ino, b"n"),
        0o600,
        &vec![1; longest],
        Condition::Always,
    );
    assert_eq!(refused, Err(Errno::ACCESS));
    assert!(client.has_all_reserved() || client.pending_bytes()[0] > 0);
    put(b"name", 3 * 4096, Condition::Is(&[1])).unwrap();
    client.sync().unwrap();
    assert!(client.has_all_reserved());
}

/// Pages that a put has taken are not those that recorded calls need.
#[test]
fn a_put_leaves_pages_for_what_was_recorded() {
    let service = service(1_000);
    let client = client(&service, true);
    // Each of these needs a private page.
    for n in 0..20_u32 {
        client
            .symlink(
                &cx(),
                Ino::ROOT,
                &n.to_le_bytes().map(|byte| byte + b'a'),
                &[b'l'; 2000],
            )
            .unwrap();
    }
    let needed = client.needed();
    assert!(needed.0 > 0 && needed.1 >= needed.0, "{needed:?}");
    let sizes = (1..40).map(|pages| pages * 4096);
    for (n, size) in sizes.enumerate() {
        let name = n.to_string();
        let put = client.put(
            &cx(),
            Name::new(Ino::ROOT, name.as_bytes()),
            0o600,
            &vec![1; size],
            Condition::Always,
        );
        let (needs, has) = client.needed();
        assert!(needs <= has, "{n}: {put:?}, {needs} of {has}");
    }
    client.sync().unwrap();
}

/// An append goes to the end of the file also beside a write of another thread that moves it.
#[test]
fn a_thread_appends_beside_one_that_writes() {
    const ROUNDS: usize = 3_000;
    let service = service(1_000);
    let client = client(&service, true);
    let cx = &Ctx::root();
    let file = client.create(cx, Ino::ROOT, b"file", 0o600).unwrap().ino;
    let (appended, written) = std::thread::scope(|scope| {
        let append = || {
            let appended = (0..ROUNDS).map(|_| client.append(cx, file, b"appended").unwrap().0);
            appended.collect::<Vec<_>>()
        };
        let write = || {
            let written = (0..ROUNDS).map(|_| {
                let end = client.getattr(cx, file).unwrap().size;
                client.write(cx, file, end, b"written.").unwrap();
                end
            });
            written.collect::<HashSet<_>>()
        };
        let threads = (scope.spawn(append), scope.spawn(write));
        (threads.0.join().unwrap(), threads.1.join().unwrap())
    });
    // A write to the place of an append came after it: an earlier one would have moved the end.
    for off in appended.into_iter().filter(|off| written.contains(off)) {
        let mut bytes = [0; 8];
        client.read(cx, file, off, &mut bytes).unwrap();
        assert_eq!(bytes.escape_ascii().to_string(), "written.", "at {off}");
    }
}
