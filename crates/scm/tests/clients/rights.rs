//! Rights that a client has, and those that it lacks.

use crate::world::{
    GROUP, Manager, PAGE, Role, STRANGER, World, identity, run, take_turns, writable,
};
use medium::{MapOptions, Pmem};
use rustix::io::Errno;
use scm::files::Part;
use scm::{Identity, Rights, ScmError};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_reader_cannot_write", a_reader_cannot_write),
    (
        "a_read_only_descriptor_cannot_be_opened_again_for_writing",
        a_read_only_descriptor_cannot_be_opened_again_for_writing,
    ),
    (
        "nobody_writes_extents_that_grant_reading",
        nobody_writes_extents_that_grant_reading,
    ),
    (
        "a_client_without_a_right_gets_a_reason",
        a_client_without_a_right_gets_a_reason,
    ),
    (
        "a_supplementary_group_gives_its_right",
        a_supplementary_group_gives_its_right,
    ),
];

pub(crate) const CLIENTS: &[(&str, Role)] = &[
    ("reader", reader),
    ("of-writers", of_writers),
    ("open-again", open_again),
    ("stranger", stranger),
    ("member", member),
];

fn a_supplementary_group_gives_its_right() {
    let Some(manager) = Manager::as_root() else {
        return;
    };
    manager.run("member", &[STRANGER, GROUP]);
    manager.run("member", &[STRANGER, STRANGER, 7, GROUP, 8]);
    // More groups than fit the first guess of the look-up.
    let many: Vec<u32> = (50_000..50_300).collect();
    manager.run(
        "member",
        &[&[STRANGER, STRANGER], &many[..], &[GROUP]].concat(),
    );
}

fn member(world: &World) {
    let (share, is_writable) = world.class(identity(3)).unwrap();
    assert!(is_writable);
    let window = writable(share.descriptor).unwrap();
    window.store_word(24 * PAGE, 1);
    assert!(matches!(world.class(identity(2)), Err(ScmError::Denied(_))));
}

/// The access list grants both rights, and the extents one.
fn nobody_writes_extents_that_grant_reading() {
    let Some(manager) = Manager::as_root() else {
        return;
    };
    let readable = readable();
    manager.pages.create_extent(run(40, 2), readable).unwrap();
    manager.run("of-writers", &[STRANGER, GROUP]);
    let (_, is_writable) = manager.world.class(readable).unwrap();
    assert!(!is_writable, "root reads, too");
}

fn readable() -> Identity {
    Identity::new(3, Rights::READ).unwrap()
}

fn of_writers(world: &World) {
    let (_, is_writable) = world.class(identity(3)).unwrap();
    assert!(is_writable);
    let (share, is_writable) = world.class(readable()).unwrap();
    assert!(!is_writable);
    assert!(writable(share.descriptor).is_err());
}

fn a_client_without_a_right_gets_a_reason() {
    let Some(manager) = Manager::as_root() else {
        return;
    };
    manager.run("stranger", &[STRANGER, STRANGER]);
}

fn stranger(world: &World) {
    for group in [2, 3] {
        let denied = world.class(identity(group)).err().unwrap().to_string();
        let expected = format!("no right to read extents of group {group}, rights read and write");
        assert!(denied.contains(&expected), "{denied}");
    }
    // The first entry that applies denies; the extent grants no right to read; no list; no file.
    let write_only = Rights {
        read: false,
        write: true,
    };
    let never = Identity::new(1, Rights::READ);
    for other in [
        Identity::new(1, write_only),
        Identity::new(9, Rights::BOTH),
        never,
    ] {
        let refused = world.class(other.unwrap());
        assert!(matches!(refused, Err(ScmError::Denied(_))), "{refused:?}");
    }
    let refused = world.connect().share(1, Part::Class(identity(1)));
    assert!(matches!(refused, Err(ScmError::Refused(_))), "{refused:?}");
}

fn a_reader_cannot_write() {
    let Some(manager) = Manager::as_root() else {
        return;
    };
    manager.run("reader", &[STRANGER, STRANGER]);
    // The same requests give the owner a writable descriptor.
    let (_, is_writable) = manager.world.class(identity(1)).unwrap();
    assert!(is_writable, "root may write");
}

fn reader(world: &World) {
    let space = world.connect().open("p", &MapOptions::default()).unwrap();
    space.read(8 * PAGE, &mut [0; 100]).unwrap();
    let (identities, is_writable) = world.connect().share(0, Part::Identities).unwrap();
    assert!(!is_writable);
    let (class, is_writable) = world.class(identity(1)).unwrap();
    assert!(!is_writable);
    for descriptor in [identities.descriptor, class.descriptor] {
        // `mprotect` is in the tests of `MappedPmem::map_descriptor`.
        let again = descriptor.try_clone().unwrap();
        let refused = writable(again).err().unwrap().to_string();
        assert!(refused.contains("Permission denied"), "{refused}");
        let file = File::from(descriptor);
        assert!((&file).write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.set_permissions(Permissions::from_mode(0o666)).is_err());
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert_eq!(
            rustix::fs::fallocate(&file, flags, 0, PAGE),
            Err(Errno::BADF)
        );
    }
    let denied = |path: &Path| {
        let error = File::open(path).err().unwrap();
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::PermissionDenied,
            "{}",
            path.display()
        );
    };
    denied(&world.store());
    denied(&world.store().join("table"));
    denied(&world.class_file(identity(1)));
    assert!(fs::read_dir(world.store()).is_err());
    let manager = rustix::process::getppid().unwrap();
    assert!(fs::read_dir(format!("/proc/{}/fd", manager.as_raw_nonzero())).is_err());
}

/// The descriptor itself is read-only, but `/proc` has a name for the file, which can be opened
/// again with the rights of the file's mode.
fn a_read_only_descriptor_cannot_be_opened_again_for_writing() {
    let Some(manager) = Manager::as_root() else {
        return;
    };
    let mut client = manager.client("open-again", &[STRANGER, STRANGER]);
    client.wait();
    // The hole that the mode closes: without it, the client could write.
    let class = manager.world.class_file(identity(1));
    fs::set_permissions(&class, Permissions::from_mode(0o666)).unwrap();
    // A file that others can open is not given to clients at all.
    let refused = manager.world.class(identity(1)).err().unwrap();
    assert!(matches!(refused, ScmError::Refused(_)), "{refused}");
    client.go_on();
    client.end();
}

fn open_again(world: &World) {
    let (class, _) = world.class(identity(1)).unwrap();
    let fd = class.descriptor.as_raw_fd();
    let process = std::process::id();
    let names = [
        format!("/proc/self/fd/{fd}"),
        format!("/proc/{process}/fd/{fd}"),
        format!("/dev/fd/{fd}"),
    ];
    let open = |name: &String, flags| {
        OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(name)
    };
    let truncating = rustix::fs::OFlags::TRUNC.bits() as i32;
    for name in &names {
        for flags in [0, truncating] {
            let error = open(name, flags).expect_err("the client could write");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{name}");
        }
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(name)
            .unwrap_err();
    }
    take_turns();
    // The file has mode 0666 now: the names above do lead to it.
    for name in &names {
        open(name, 0).unwrap();
    }
}
