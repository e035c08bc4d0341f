//! Clients that read and write extents.

use crate::world::{Manager, PAGE, identity, run};
use medium::{MapOptions, Pmem};
use scm::{AccessList, Credentials, Directory, Geometry, Limits, ScmError, Space, Store};

pub(crate) const TESTS: &[(&str, fn())] = &[
    (
        "a_client_reads_extents_through_windows",
        a_client_reads_extents_through_windows,
    ),
    (
        "a_read_never_sees_the_hole_of_a_moved_extent",
        a_read_never_sees_the_hole_of_a_moved_extent,
    ),
];

fn a_client_reads_extents_through_windows() {
    let manager = Manager::new(Limits::default());
    let client = manager.world.connect();
    let listed = client.partitions().unwrap();
    let listed: Vec<_> = listed.iter().map(|one| (&*one.name, one.bytes)).collect();
    assert_eq!(listed, [("p", 64 * PAGE)]);
    assert!(matches!(
        client.open("q", &MapOptions::default()),
        Err(ScmError::NoPartition(_))
    ));

    let bytes = 64 * PAGE;
    let service = Space::new(Box::new(manager.pages), bytes, &MapOptions::default()).unwrap();
    let window = service.window(identity(1)).unwrap();
    assert!(window.is_writable());
    window.memory().store(12 * PAGE - 4, b"over");
    let mut found = [0; 4];
    let space = client.open("p", &MapOptions::default()).unwrap();
    // The manager's own user is in no access list, unless it is root.
    match space.read(12 * PAGE - 4, &mut found) {
        Ok(()) => assert_eq!(&found, b"over"),
        Err(e) => assert!(matches!(e, ScmError::Denied(_)), "{e}"),
    }
    for off in [12 * PAGE - 3, 0, 64 * PAGE - 2, u64::MAX - 10, u64::MAX] {
        assert!(matches!(
            space.read(off, &mut found),
            Err(ScmError::Invalid(_))
        ));
    }
    assert!(
        service
            .read(8 * PAGE, &mut vec![0; 4 * PAGE as usize])
            .is_ok()
    );
    assert!(
        service
            .read(8 * PAGE, &mut vec![0; 9 * PAGE as usize])
            .is_err()
    );
    // A server that was killed leaves its socket.
    drop(manager.server);
    assert!(!manager.world.socket().exists());
}

fn a_read_never_sees_the_hole_of_a_moved_extent() {
    const PAGES: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let geometry = Geometry {
        pages: PAGES,
        slots: 8,
        only: None,
    };
    let files = Directory::create(dir.path().join("store"), &geometry, &MapOptions::default());
    let store = Store::open(files.unwrap()).unwrap();
    for group in 1..=2 {
        store.set_list(group, AccessList::default()).unwrap();
    }
    let own = Credentials::own();
    store.create_partition("p", PAGES, own.uid, 0).unwrap();
    let pages = store.partition("p", &own).unwrap();
    pages.create_extent(run(0, PAGES), identity(1)).unwrap();
    let reader = store.partition("p", &own).unwrap();
    let bytes = PAGES * PAGE;
    let space = Space::new(Box::new(reader), bytes, &MapOptions::default()).unwrap();
    let contents = vec![7; bytes as usize];
    space
        .window(identity(1))
        .unwrap()
        .memory()
        .store(0, &contents);
    std::thread::scope(|scope| {
        // Pages move away, and back while a read of many pages may be running.
        let mover = scope.spawn(|| {
            for n in 0..150 {
                let page = run(n % 150 * 2, 1);
                pages.protect(page, identity(2)).unwrap();
                pages.protect(page, identity(1)).unwrap();
            }
        });
        let mut found = contents.clone();
        while !mover.is_finished() {
            found.fill(0);
            space.read(0, &mut found).unwrap();
            assert!(found == contents);
        }
    });
}
