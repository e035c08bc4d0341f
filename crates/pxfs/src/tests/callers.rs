//! For whom a hostile client acts, and what it claims to have open.

use super::clients::All;
use super::hostile::{OTHER, USER, World, at, refused};
use aerie_proto::ops::{Call, Caller, Op, Read, Reply};
use std::sync::Arc;
use vfs::{
    Attr, Cookie, Ctx, FileSystem, Ino, OpenFlags, Removal, RenameFlags, SetAttr, SetTime,
    Timestamp,
};

/// A client acts for its own user.
pub(super) fn callers_are_checked() -> Result<(), String> {
    let mut world = World::new();
    for cx in [Ctx::root(), Ctx::user(OTHER, OTHER), Ctx::user(USER, OTHER)] {
        let op = Op::Remove {
            at: at(world.shared, "foreign"),
            which: Removal::Unlink,
            holds: false,
        };
        let mut operation = world.operation(op);
        operation.caller = Some(Caller::from(&cx));
        refused(world.run(&operation, &All), "another user")?;
    }
    let (file, foreign, own, shared) = (world.file, world.foreign, world.own, world.shared);
    let set = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    refused(world.op(Op::SetAttr { ino: foreign, set }), "not permitted")?;
    let flags = OpenFlags::WRITE;
    refused(
        world.op(Op::Open {
            ino: foreign,
            flags,
        }),
        "denied",
    )?;
    let which = Removal::Unlink;
    let holds = false;
    let remove = |name| Op::Remove {
        at: name,
        which,
        holds,
    };
    refused(world.op(remove(at(shared, "foreign"))), "not permitted")?;
    let rename = |from, to| Op::Rename {
        from,
        to,
        flags: RenameFlags::empty(),
        holds,
    };
    let (mine, theirs) = (at(own, "file"), at(shared, "foreign"));
    refused(world.op(rename(theirs, mine)), "not permitted")?;
    refused(world.op(rename(mine, theirs)), "not permitted")?;
    let root = at(Ino::ROOT, "link");
    refused(
        world.op(Op::Link {
            ino: file,
            at: root,
        }),
        "denied",
    )
}

/// A client claims that open files permit calls. It gets what the owner or the opener of a file may do.
pub(super) fn claims_of_open_files_are_checked() -> Result<(), String> {
    let mut world = World::new();
    let (file, foreign, shared) = (world.file, world.foreign, world.shared);
    let claim = |world: &mut World, op| {
        let mut operation = world.operation(op);
        operation.caller = Some(Caller {
            checked: true,
            ..Caller::from(&Ctx::user(USER, USER))
        });
        world.run(&operation, &All)
    };
    let attr = |ino, set| Op::SetAttr { ino, set };
    let mode = |perm| SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let flags = OpenFlags::WRITE;
    let open = |ino| Op::Open { ino, flags };
    refused(claim(&mut world, open(foreign)), "denied")?;
    refused(
        claim(&mut world, attr(foreign, mode(0o777))),
        "not permitted",
    )?;
    refused(claim(&mut world, attr(foreign, size(0))), "denied")?;
    let times = SetAttr {
        mtime: Some(SetTime::At(Timestamp(1))),
        ..size(0)
    };
    refused(claim(&mut world, attr(foreign, times)), "denied")?;
    let theirs = Op::Remove {
        at: at(shared, "foreign"),
        which: Removal::Unlink,
        holds: false,
    };
    refused(claim(&mut world, theirs), "not permitted")?;
    let new = world.reserved();
    let hidden = world.make(world.open, "new", new);
    refused(claim(&mut world, hidden), "denied")?;
    // The user's own file, whatever its mode says; without the claim it counts.
    world.op(attr(file, mode(0)))?;
    refused(world.op(open(file)), "denied")?;
    claim(&mut world, open(file))?;
    refused(world.op(attr(file, size(7))), "denied")?;
    claim(&mut world, attr(file, size(7)))?;
    // A cut of a foreign file that the user has open changes its mode as a write does, and in no other way.
    let set = |perm| SetAttr {
        perm: Some(perm),
        ..size(3)
    };
    let (owner, theirs) = (Ctx::user(OTHER, OTHER), mode(0o4606));
    world.service.setattr(&owner, foreign, &theirs).unwrap();
    world.op(open(foreign))?;
    for perm in [0o4777, 0o4606, 0o666] {
        let chmod = attr(foreign, set(perm));
        refused(claim(&mut world, chmod), "not permitted")?;
    }
    claim(&mut world, attr(foreign, set(0o606)))?;
    // Also if the client does not ask for it.
    world.service.setattr(&owner, foreign, &theirs).unwrap();
    claim(&mut world, attr(foreign, size(2)))?;
    let perm = world.service.getattr(&owner, foreign).unwrap().perm;
    match perm {
        0o606 => Ok(()),
        _ => Err(format!("a claim that a file is open left mode {perm:o}")),
    }
}

/// As above, for directories: the owner lists a directory that the mode denies the owner, and nobody else.
pub(super) fn claims_of_open_directories_are_checked() -> Result<(), String> {
    let mut world = World::new();
    let (own, shared) = (world.own, world.shared);
    let mode = |perm| SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    let list = |world: &mut World, dir, checked: bool| {
        let caller = checked.then(|| Caller {
            checked,
            ..Caller::from(&Ctx::user(USER, USER))
        });
        let read = Read::List {
            dir,
            after: Cookie(0),
            bytes: 100,
            with_attributes: false,
        };
        let call = Call::Read { caller, read };
        let listed = world.service.call(&mut world.session, &call);
        listed.map(drop).map_err(|errno| errno.to_string())
    };
    let set = mode(0o300);
    world.op(Op::SetAttr { ino: own, set })?;
    refused(list(&mut world, own, false), "denied")?;
    list(&mut world, own, true)?;
    let (root, set) = (Ctx::root(), mode(0o311));
    world.service.setattr(&root, shared, &set).unwrap();
    refused(list(&mut world, shared, true), "denied")
}

/// A directory that the user may list, and not search, shows names only.
pub(super) fn listed_inodes_are_not_reached() -> Result<(), String> {
    let mut world = World::new();
    let root = Ctx::root();
    let fs = Arc::clone(&world.service);
    let hidden = fs
        .mkdir(&root, Ino::ROOT, b"names-only", 0o744)
        .unwrap()
        .ino;
    let below = fs.create(&root, hidden, b"below", 0o666).unwrap().ino;
    let inner = fs.mkdir(&root, hidden, b"inner", 0o777).unwrap().ino;
    fs.write(&root, below, 0, b"secret").unwrap();
    let read = |world: &mut World, read| {
        let call = Call::Read { caller: None, read };
        let done = world.service.call(&mut world.session, &call);
        done.map_err(|errno| errno.to_string())
    };
    for with_attributes in [true, false] {
        let list = Read::List {
            dir: hidden,
            after: Cookie(0),
            bytes: 4000,
            with_attributes,
        };
        let Reply::Entries(entries) = read(&mut world, list)? else {
            return Err("it has no entries".into());
        };
        let names: Vec<_> = entries.iter().map(|entry| &entry.name[..]).collect();
        if !names.contains(&&b"below"[..]) {
            return Err("a name is missing".into());
        }
        let shows = |attr: &Attr| attr.size != 0 || attr.perm != 0 || attr.mtime.0 != 0;
        if entries
            .iter()
            .any(|entry| entry.attr.as_ref().is_some_and(shows))
        {
            return Err("attributes are shown".into());
        }
        for flags in [OpenFlags::READ, OpenFlags::WRITE] {
            refused(world.op(Op::Open { ino: below, flags }), "denied")?;
        }
        refused(read(&mut world, Read::GetAttr(below)).map(drop), "denied")?;
        refused(world.op(Op::Hold { ino: below }), "denied")?;
        let new = world.reserved();
        refused(world.op(world.make(inner, "new", new)), "denied")?;
    }
    // The client can give back, once, all that it has got by the list.
    let release = || Op::Release {
        ino: below,
        count: 1,
    };
    world.op(release())?;
    refused(world.op(release()), "not held")?;
    // With the right to search, it is reached.
    let mode = SetAttr {
        perm: Some(0o755),
        ..SetAttr::default()
    };
    fs.setattr(&root, hidden, &mode).unwrap();
    let flags = OpenFlags::READ;
    world.op(Op::Open { ino: below, flags })?;
    Ok(())
}
