//! Managers that end, in order or killed.

use crate::world::{Manager, OWN, PAGE, Role, Talk, World, identity, run};
use medium::{MapOptions, Pmem};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use scm::{Credentials, Directory, Identity, Limits, Server, Space, Store};

pub(crate) const TESTS: &[(&str, fn())] = &[
    (
        "a_client_survives_a_restart_of_the_manager",
        a_client_survives_a_restart_of_the_manager,
    ),
    (
        "a_killed_manager_leaves_changes_undone_or_done",
        a_killed_manager_leaves_changes_undone_or_done,
    ),
];

pub(crate) const CLIENTS: &[(&str, Role)] = &[("churn", churn)];

fn a_client_survives_a_restart_of_the_manager() {
    let manager = Manager::new(Limits::default());
    let client = manager.world.connect();
    assert_eq!(client.partitions().unwrap().len(), 1);
    let Manager {
        server,
        pages,
        world,
        _dir,
    } = manager;
    drop((server, pages));
    assert!(client.partitions().is_err());
    let files = Directory::open(world.store(), &MapOptions::default()).unwrap();
    let store = Store::open(files).unwrap();
    // As a manager that was killed leaves it.
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(world.socket()).unwrap()).unwrap();
    drop(socket);
    let _server = Server::start(store.clone(), world.socket(), Limits::default()).unwrap();
    assert_eq!(client.partitions().unwrap().len(), 1);
    let second = Server::start(store, world.socket(), Limits::default());
    assert!(second.is_err(), "another manager serves there");
}

/// Pages with contents, which `churn` protects; it creates and frees those that follow.
const KEPT: u64 = 32;

fn a_killed_manager_leaves_changes_undone_or_done() {
    let manager = Manager::new(Limits::default());
    let Manager {
        server,
        pages,
        world,
        _dir,
    } = manager;
    for (run, _) in pages
        .runs()
        .unwrap()
        .into_iter()
        .filter(|(_, one)| *one != Identity::FREE)
    {
        pages.free(run).unwrap();
    }
    pages.create_extent(run(0, KEPT), identity(1)).unwrap();
    let space = Space::new(Box::new(pages), 64 * PAGE, &MapOptions::default()).unwrap();
    let window = space.window(identity(1)).unwrap();
    (0..KEPT).for_each(|page| window.memory().store_word(page * PAGE, page + 1));
    drop((space, window, server));
    for round in 0..10 {
        let mut churn = Talk::start("churn", OWN, &world.0);
        churn.wait();
        std::thread::sleep(std::time::Duration::from_millis(3 + round));
        churn.child.kill().unwrap();
        churn.child.wait().unwrap();
        check_kept(&world);
    }
}

/// Opens the store again, and checks all that a killed manager must have kept.
fn check_kept(world: &World) {
    let files = Directory::open(world.store(), &MapOptions::default()).unwrap();
    let store = Store::open(files).unwrap();
    let pages = store.partition("p", &Credentials::own()).unwrap();
    let space = Space::new(Box::new(pages), 64 * PAGE, &MapOptions::default()).unwrap();
    for page in 0..KEPT {
        let mut found = [0; 8];
        space.read(page * PAGE, &mut found).unwrap();
        assert_eq!(u64::from_ne_bytes(found), page + 1);
    }
    drop((space, store));
    let files = Directory::open(world.store(), &MapOptions::default()).unwrap();
    assert_eq!(scm::check::check(&files).unwrap(), []);
}

fn churn(world: &World) {
    let files = Directory::open(world.store(), &MapOptions::default()).unwrap();
    let store = Store::open(files).unwrap();
    let pages = store.partition("p", &Credentials::own()).unwrap();
    println!("your turn");
    let mut rng = fastrand::Rng::new();
    loop {
        let first = rng.u64(..KEPT);
        let some = run(first, rng.u64(1..=KEPT - first));
        // Fails if the pages have several identities.
        let _ = pages.protect(some, identity(rng.u32(1..=3)));
        let _ = pages.protect(run(first, 1), identity(rng.u32(1..=3)));
        let other = run(KEPT + rng.u64(..30), 2);
        if pages
            .create_extent(other, identity(rng.u32(1..=3)))
            .is_err()
        {
            let _ = pages.free(run(other.first, 1));
        }
    }
}
