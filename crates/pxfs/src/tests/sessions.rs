//! Sessions: remote calls, holds, and the end.

use super::IMAGE;
use super::clients::{All, Client, client, service};
use super::hostile::{World, at, node, user};
use crate::seeded::{Bug, arm};
use crate::{MkfsOptions, Pxfs, Session, mkfs};
use aerie_proto::ops::{Batch, Call, Data, Op, Operation, REPLY_MAX, Read, Reply, encode};
use medium::MemoryPmem;
use std::sync::Arc;
use vfs::{
    Atime, Clock, Cookie, Ctx, Errno, FileSystem, FileType, Ino, ManualClock, Name, OpenFlags,
    Removal, RenameFlags, Timestamp,
};

/// A client without memory: what it reads and changes by calls.
#[test]
fn remote_calls_need_a_path_and_an_open() {
    let mut world = World::new();
    let (own, file, open) = (world.own, world.file, world.open);
    let fs = world.service.clone();
    let read = |session: &mut Session, read| {
        let caller = None;
        fs.call(session, &Call::Read { caller, read })
    };
    let session = &mut world.session;
    let bytes = |ino| Read::Read {
        ino,
        off: 0,
        len: 10,
    };
    assert_eq!(read(session, bytes(file)), Err(Errno::BADF));
    assert_eq!(read(session, Read::GetAttr(open)), Err(Errno::ACCESS));
    assert_eq!(read(session, Read::ByNumber(open)), Err(Errno::ACCESS));
    let lookup = Read::Lookup(at(Ino::ROOT, "own"));
    assert!(matches!(read(session, lookup), Ok(Reply::Attr(attr)) if attr.ino == own));
    let list = Read::List {
        dir: own,
        after: vfs::Cookie(0),
        bytes: 1,
        with_attributes: true,
    };
    assert!(matches!(read(session, list), Ok(Reply::Entries(entries)) if entries.len() == 1));
    let change = |session: &mut Session, op| {
        let time = fs.clock.now();
        let caller = None;
        fs.call(session, &Call::Change(Operation { caller, time, op }))
    };
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    change(session, Op::Open { ino: file, flags }).unwrap();
    let data = Data::Bytes(b"contents");
    change(
        session,
        Op::Write {
            ino: file,
            off: 0,
            data,
        },
    )
    .unwrap();
    assert_eq!(
        read(session, bytes(file)),
        Ok(Reply::Bytes(b"contents".to_vec()))
    );
    // The file is held, and lives on without a name.
    let (which, holds) = (Removal::Unlink, false);
    let remove = Op::Remove {
        at: at(own, "file"),
        which,
        holds,
    };
    assert_eq!(change(session, remove), Ok(Reply::Done));
    assert_eq!(
        read(session, bytes(file)),
        Ok(Reply::Bytes(b"contents".to_vec()))
    );
    // One reference is of the test itself.
    fs.forget(file, 1);
    change(
        session,
        Op::Release {
            ino: file,
            count: 1,
        },
    )
    .unwrap();
    assert_eq!(read(session, Read::GetAttr(file)), Err(Errno::STALE));
}

/// The end of a session frees what it had.
#[test]
fn the_end_of_a_session_frees_what_it_had() {
    let service = service(1_000);
    let free = service.statfs().unwrap().blocks_free;
    let mut session = service.begin(user(0), true);
    service.grant(&mut session, 20, 50);
    let mut batch = Batch::default();
    for n in 0..3u8 {
        let (caller, time) = (None, service.clock.now());
        let (dir, mode, object) = (Ino::ROOT, 0o600, None);
        let op = match n {
            0 => Op::Tmpfile { dir, mode, object },
            1 => world_file(),
            _ => Op::Remove {
                at: at(dir, "file"),
                which: Removal::Unlink,
                holds: true,
            },
        };
        batch.push(&Operation { caller, time, op });
    }
    let answers = service.apply(&mut session, &All, batch.bytes()).unwrap();
    assert_eq!(answers.refused, []);
    assert_eq!(service.nameless().len(), 2);
    service.end(session);
    assert_eq!(service.nameless(), []);
    assert!(service.audit().is_empty());
    // The root has a page now, and so have the nameless objects.
    assert!(free - service.statfs().unwrap().blocks_free <= 2);
}

/// Two sessions hold a file without a name. It lives until both have released it.
#[test]
fn a_release_leaves_a_nameless_file_to_other_sessions() {
    let service = service(1_000);
    let cx = &Ctx::root();
    let file = service.create(cx, Ino::ROOT, b"file", 0o600).unwrap().ino;
    service.write(cx, file, 0, b"contents").unwrap();
    service.forget(file, 1);
    let mut sessions = [(); 2].map(|()| service.begin(user(0), true));
    let run = |session: &mut Session, op| {
        let (caller, time) = (None, service.clock.now());
        let mut batch = Batch::default();
        batch.push(&Operation { caller, time, op });
        let answers = service.apply(session, &All, batch.bytes()).unwrap();
        assert_eq!(answers.refused, []);
    };
    for session in &mut sessions {
        run(session, Op::Hold { ino: file });
    }
    let [first, second] = &mut sessions;
    let (at, which, holds) = (at(Ino::ROOT, "file"), Removal::Unlink, false);
    run(first, Op::Remove { at, which, holds });
    let release = || Op::Release {
        ino: file,
        count: 1,
    };
    run(first, release());
    let mut contents = [0; 8];
    assert_eq!(service.read(cx, file, 0, &mut contents), Ok(8));
    assert_eq!(&contents, b"contents");
    run(second, release());
    assert_eq!(service.getattr(cx, file), Err(Errno::STALE));
    let [first, second] = sessions;
    service.end(first);
    service.end(second);
    assert!(service.audit().is_empty());
}

fn world_file() -> Op<'static> {
    Op::Make {
        at: at(Ino::ROOT, "file"),
        node: node(FileType::Regular),
        object: None,
    }
}

/// A client whose clock is that of the service. Its times are not those of before the clock was set back.
#[test]
fn times_go_on_after_the_clock_was_set_back() {
    const SECOND: i64 = 1_000_000_000;
    let memory = Arc::new(MemoryPmem::new(IMAGE));
    mkfs(&memory, &MkfsOptions::default()).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(10_000 * SECOND), 1_000));
    let service = Pxfs::open(memory, clock.clone(), Atime::Never).unwrap();
    let mut session = service.begin(user(0), true);
    for (name, second) in [("early", 10_000), ("set back", 5_000), ("later", 5_010)] {
        clock.set(Timestamp(second * SECOND));
        let (caller, time) = (None, clock.now());
        let op = Op::Make {
            at: at(Ino::ROOT, name),
            node: node(FileType::Regular),
            object: None,
        };
        let mut batch = Batch::default();
        batch.push(&Operation { caller, time, op });
        let answers = service.apply(&mut session, &All, batch.bytes()).unwrap();
        assert_eq!(answers.refused, []);
        let made = service.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes());
        let late = made.unwrap().mtime.0 - second * SECOND;
        assert!((0..=2 * SECOND).contains(&late), "{name}: {late} ns");
    }
    service.end(session);
}

/// The service refuses the operation that was to have it hold an open file. The client demands it again.
#[test]
fn a_refused_call_holds_nothing() {
    type Call = fn(&Client, Ino) -> vfs::Result<()>;
    let (cx, root) = (&Ctx::root(), Ino::ROOT);
    let calls: [(&str, bool, Call); 3] = [
        ("remove", true, |client, _| {
            client.unlink(&Ctx::root(), Ino::ROOT, b"file")
        }),
        ("rename", true, |client, _| {
            let [from, to] = [b"other", &b"file"[..]].map(|name| Name::new(Ino::ROOT, name));
            client.rename(&Ctx::root(), from, to, RenameFlags::empty())
        }),
        ("link", false, |client, file| {
            client
                .link(&Ctx::root(), file, Ino::ROOT, b"taken")
                .map(drop)
        }),
    ];
    for (what, is_trusted, call) in calls {
        let service = service(1_000);
        let client = client(&service, is_trusted);
        let file = client.create(cx, root, b"file", 0o644).unwrap().ino;
        client.create(cx, root, b"other", 0o644).unwrap();
        client.sync().unwrap();
        call(&client, file).unwrap();
        // Another client is first.
        let [from, to] = [b"file", &b"moved"[..]].map(|name| Name::new(root, name));
        service.rename(cx, from, to, RenameFlags::empty()).unwrap();
        service.unlink(cx, root, b"other").unwrap();
        service.create(cx, root, b"taken", 0o644).unwrap();
        assert!(client.sync().is_err(), "{what}: nothing was refused");
        client.ship(true).unwrap();
        service.unlink(cx, root, b"moved").unwrap();
        let attr = client.getattr(cx, file);
        assert_eq!(attr.map(|attr| attr.nlink), Ok(0), "{what}");
        client.forget(file, 10);
        client.sync().unwrap();
        drop(client);
        assert_eq!(service.audit(), [], "{what}");
    }
}

/// However short the names are.
#[test]
fn the_reply_of_a_listing_is_bounded() {
    let mut world = World::new();
    let (fs, root) = (world.service.clone(), Ctx::root());
    let dir = fs.mkdir(&root, Ino::ROOT, b"large", 0o777).unwrap().ino;
    let file = fs.create(&root, dir, b"file", 0o666).unwrap().ino;
    for n in 0..20_000 {
        fs.link(&root, file, dir, format!("{n:x}").as_bytes())
            .unwrap();
    }
    let (mut after, mut count) = (Cookie(0), 0);
    loop {
        let list = Read::List {
            dir,
            after,
            bytes: u32::MAX,
            with_attributes: true,
        };
        let call = Call::Read {
            caller: None,
            read: list,
        };
        let reply = fs.call(&mut world.session, &call).unwrap();
        assert!(encode(&reply).len() <= REPLY_MAX as usize);
        let Reply::Entries(entries) = reply else {
            panic!("{reply:?}");
        };
        let Some(last) = entries.last() else { break };
        (after, count) = (last.cookie, count + entries.len());
    }
    assert_eq!(count, 20_003, "with `file`, `.` and `..`");
}

/// The size of a file, and its bytes at the service, after a client has cut it, has written after its new end, and is
/// lost.
fn after_a_lost_cut(bug: Option<Bug>) -> (u64, Vec<u8>) {
    let service = service(1_000);
    let (client, cx) = (client(&service, true), Ctx::root());
    let file = client.create(&cx, Ino::ROOT, b"file", 0o644).unwrap().ino;
    client.write(&cx, file, 0, &[b'a'; 4096]).unwrap();
    client.sync().unwrap();
    arm(bug);
    client.truncate(&cx, file, 100).unwrap();
    client.write(&cx, file, 200, b"hello").unwrap();
    arm(None);
    let mut seen = [7; 210];
    assert_eq!(client.read(&cx, file, 0, &mut seen), Ok(205));
    let expected = [&[b'a'; 100][..], &[0; 100], b"hello"].concat();
    assert_eq!(&seen[..205], expected);
    let mut contents = vec![0; 5000];
    let read = service.read(&cx, file, 0, &mut contents).unwrap();
    contents.truncate(read);
    (service.getattr(&cx, file).unwrap().size, contents)
}

#[test]
fn a_cut_that_was_not_shipped_leaves_the_contents() {
    assert_eq!(after_a_lost_cut(None), (4096, vec![b'a'; 4096]));
    let (size, contents) = after_a_lost_cut(Some(Bug::ZerosOverUncut));
    assert_eq!(size, 4096);
    assert_ne!(contents, [b'a'; 4096]);
}
