//! Clients of a class from which an extent was moved.

use crate::world::{Manager, OWNER, PAGE, Role, World, identity, run, take_turns, writable};
use medium::{MapOptions, Pmem};
use scm::files::Part;
use scm::{Run, ScmError};

pub(crate) const TESTS: &[(&str, fn())] = &[(
    "a_former_writer_reaches_nothing",
    a_former_writer_reaches_nothing,
)];

pub(crate) const CLIENTS: &[(&str, Role)] = &[("former-writer", former_writer)];

fn a_former_writer_reaches_nothing() {
    let Some(manager) = Manager::as_root() else {
        return;
    };
    let pages = &manager.pages;
    let mut client = manager.client("former-writer", &[OWNER, OWNER]);
    client.wait();
    let moved = Run { first: 8, pages: 2 };
    pages.protect(moved, identity(3)).unwrap();
    let new = pages.share(Part::Class(identity(3))).unwrap();
    let new = writable(new.descriptor).unwrap();
    assert_eq!(new.load(8 * PAGE), Ok(11));
    client.go_on();
    client.wait();
    // The client has stored to its old mapping, and to pages that were never in the class.
    assert_eq!(new.load(8 * PAGE), Ok(11));
    assert_eq!(new.load(9 * PAGE), Ok(0));
    let mut found = [0; 8];
    let space = manager
        .world
        .connect()
        .open("p", &MapOptions::default())
        .unwrap();
    space.read(8 * PAGE, &mut found).unwrap();
    assert_eq!(u64::from_ne_bytes(found), 11);
    let scrubbed = pages.scrub().unwrap();
    assert!(scrubbed.bytes >= 3 * PAGE, "{scrubbed:?}");
    client.go_on();
    client.wait();
    // A page that the client has stored to in advance is zeros in a new extent.
    pages.create_extent(run(40, 1), identity(1)).unwrap();
    space.read(40 * PAGE, &mut found).unwrap();
    assert_eq!(u64::from_ne_bytes(found), 0);
    client.go_on();
    client.end();
}

fn former_writer(world: &World) {
    let (class, is_writable) = world.class(identity(1)).unwrap();
    assert!(is_writable);
    let window = writable(class.descriptor).unwrap();
    window.store_word(8 * PAGE, 11);
    window.store_word(10 * PAGE, 12);
    take_turns();
    assert_eq!(window.load(8 * PAGE), Ok(0));
    for page in [8, 9, 50] {
        window.store_word(page * PAGE, 13);
        assert_eq!(window.load(page * PAGE), Ok(13));
    }
    // The rest of the extent is still the client's.
    assert_eq!(window.load(10 * PAGE), Ok(12));
    take_turns();
    for page in [8, 9, 50] {
        assert_eq!(window.load(page * PAGE), Ok(0), "scrubbed");
    }
    assert_eq!(window.load(10 * PAGE), Ok(12));
    let refused = world.class(identity(3));
    assert!(matches!(refused, Err(ScmError::Denied(_))), "{refused:?}");
    window.store_word(40 * PAGE, 14);
    take_turns();
}
