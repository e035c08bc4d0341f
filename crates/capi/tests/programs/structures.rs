//! Persistent structures: by themselves, and with a program in Rust.

use crate::workshop::{self, Link, Recipe, Workshop};
use mnemosyne::memory::{Directory, DirectoryOptions, DurableMemory, Options, Tx};
use mnemosyne::tx::{Interrupted, Space, Stop};
use persist::TypedSession;
use persist::structures::{BTree, Bytes, HashMap, Journal, Queue, Vector};
use std::convert::Infallible;

#[test]
fn every_structure_works_with_both_libraries() {
    workshop::try_both_libraries("structures.c");
}

/// A call without room in the heap returns an error, and the program continues.
#[test]
fn a_full_heap_is_reported() {
    let workshop = Workshop::new();
    let program = workshop.compile("structures", &Recipe::new("structures.c"));
    workshop.run(&program, &["full"]);
    workshop.run(&program, &["full"]);
}

/// Each program finds the structures of the other one.
#[test]
fn programs_in_c_and_rust_share_structures() {
    let workshop = Workshop::new();
    let program = workshop.compile("structures", &Recipe::new("structures.c"));
    workshop.run(&program, &["make"]);
    go_on_in_rust(&workshop);
    workshop.run(&program, &["find"]);
}

/// The use of a pointer to memory that is not allocated would end the program.
#[test]
fn a_root_that_names_nothing_is_refused() {
    let workshop = Workshop::new();
    let program = crate::refused::wrong(&workshop, Link::Shared);
    workshop.run(&program, &["nothing"]);
    let options = DirectoryOptions::default();
    let store =
        DurableMemory::open_directory(workshop.memory(), &options, Options::default()).unwrap();
    let named = store
        .session()
        .run(|tx| Ok::<_, Stop<()>>(tx.set_root("nowhere", 8, 1 << 30)?));
    assert!(named.unwrap());
    drop(store);
    let message = workshop.run(&program, &["root"]);
    assert!(message.contains("names 0x200040000000"), "{message}");
}

fn go_on_in_rust(workshop: &Workshop) {
    let directory = Directory::open(workshop.memory(), &DirectoryOptions::default()).unwrap();
    let arena = directory.arena().clone();
    let store = DurableMemory::open(directory, arena, Options::default()).unwrap();
    let mut session = store.session();
    // Called only if a root does not exist.
    fn there<S: Space, T>(_: &mut Tx<'_, S>) -> Result<T, Interrupted> {
        panic!("the root exists")
    }
    let table = session
        .root::<HashMap<Bytes, Bytes>>("table", there)
        .unwrap();
    let tree = session.root::<BTree<Bytes, Bytes>>("tree", there).unwrap();
    let vector = session.root::<Vector<Bytes>>("vector", there).unwrap();
    let queue = session.root::<Queue<Bytes>>("queue", there).unwrap();
    let journal = session.root::<Journal>("journal", there).unwrap();
    let done = session.run(|tx| {
        for before in [
            table.insert(tx, b"made", b"by Rust")?,
            tree.insert(tx, b"made", b"by Rust")?,
        ] {
            assert!(before.unwrap().starts_with(b"by C, as a string"));
        }
        assert_eq!(vector.get(tx, 0)?.as_deref(), Some(b"by C".as_slice()));
        vector.push(tx, b"by Rust")?;
        assert_eq!(queue.pop(tx)?.as_deref(), Some(b"by C".as_slice()));
        queue.push(tx, b"by Rust")?;
        let records = journal.iter(tx, 0).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(records, [(0, b"by C".to_vec())]);
        journal.append(tx, b"by Rust")?;
        Ok::<_, Stop<Infallible>>(())
    });
    done.unwrap();
}
