//! A store in one file.

use medium::{MapOptions, MappedPmem, Pmem};
use scm::check::check;
use scm::files::Part;
use scm::{
    AccessList, Client, Credentials, Geometry, Identity, Limits, Rights, Run, ScmError, Server,
    SingleFile, Space, Store,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: u64 = scm::PAGE_BYTES;

fn identity(group: u32, rights: Rights) -> Identity {
    Identity::new(group, rights).unwrap()
}

fn geometry(only: Identity) -> Geometry {
    Geometry {
        pages: 64,
        slots: 8,
        only: Some(only),
    }
}

fn open(path: &Path) -> Result<Arc<Store<SingleFile>>, ScmError> {
    Store::open(SingleFile::open(path, &MapOptions::default())?)
}

/// A directory, and a store in it whose one identity everyone may read.
fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let only = identity(1, Rights::READ);
    let files = SingleFile::create(&path, &geometry(only), &MapOptions::default()).unwrap();
    let store = Store::open(files).unwrap();
    store.set_list(1, AccessList::of_mode(0, 0, 0o666)).unwrap();
    store
        .create_partition("p", 32, Credentials::own().uid, 1)
        .unwrap();
    (dir, path)
}

#[test]
fn extents_have_one_identity_and_survive() {
    let (_dir, path) = home();
    let only = identity(1, Rights::READ);
    let store = open(&path).unwrap();
    let pages = store.partition("p", &Credentials::own()).unwrap();
    let run = Run { first: 5, pages: 3 };
    pages.create_extent(run, only).unwrap();
    for other in [identity(1, Rights::NONE), identity(2, Rights::NONE)] {
        let refused = pages.protect(run, other).unwrap_err();
        assert!(matches!(refused, ScmError::OneIdentity { .. }));
        assert!(
            refused.to_string().contains("through the service"),
            "{refused}"
        );
    }
    let share = pages.share(Part::Class(only)).unwrap();
    let window =
        MappedPmem::map_descriptor(share.descriptor, "it", &MapOptions::default()).unwrap();
    window.store_word(share.base + 7 * PAGE, 9);
    drop((pages, store));

    let store = open(&path).unwrap();
    let pages = store.partition("p", &Credentials::own()).unwrap();
    assert_eq!(pages.identity(7).unwrap(), only);
    assert_eq!(window.load(share.base + 7 * PAGE), Ok(9));
    pages.free(run).unwrap();
    pages.create_extent(run, only).unwrap();
    assert_eq!(
        window.load(share.base + 7 * PAGE),
        Ok(0),
        "a new extent is zeros"
    );
    // The partition's pages do not overlap those of the next one, nor do the tables.
    store.create_partition("q", 32, 0, 0).unwrap();
    assert!(matches!(
        store.create_partition("r", 17, 0, 0),
        Err(ScmError::Full { .. })
    ));
    store.remove_partition("q").unwrap();
    assert!(matches!(
        store.create_partition("r", 17, 0, 0),
        Err(ScmError::Invalid(_))
    ));
    assert_eq!(pages.identity(7).unwrap(), only);
    drop((pages, store));
    let read_only = MapOptions {
        read_only: true,
        ..MapOptions::default()
    };
    assert_eq!(
        check(&SingleFile::open(&path, &read_only).unwrap()).unwrap(),
        []
    );
}

#[test]
fn clients_get_read_only_descriptors_of_the_file() {
    let (dir, path) = home();
    let only = identity(1, Rights::READ);
    let store = open(&path).unwrap();
    let pages = store.partition("p", &Credentials::own()).unwrap();
    pages
        .create_extent(
            Run {
                first: 31,
                pages: 1,
            },
            only,
        )
        .unwrap();
    let service = Space::new(Box::new(pages), 32 * PAGE, &MapOptions::default()).unwrap();
    service
        .window(only)
        .unwrap()
        .memory()
        .store(32 * PAGE - 4, b"last");
    let server = Server::start(store, dir.path().join("socket"), Limits::default()).unwrap();
    let client = Client::connect(server.path()).unwrap();
    let space = client.open("p", &MapOptions::default()).unwrap();
    let mut found = [0; 4];
    space.read(32 * PAGE - 4, &mut found).unwrap();
    assert_eq!(&found, b"last");
    assert!(!space.window(only).unwrap().is_writable());
    let (share, _) = client.share(0, Part::Class(only)).unwrap();
    MappedPmem::map_descriptor(share.descriptor, "it", &MapOptions::default())
        .err()
        .unwrap();
}

#[test]
fn an_identity_that_grants_writing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for only in [Some(identity(1, Rights::BOTH)), None] {
        let mut geometry = geometry(identity(1, Rights::READ));
        geometry.only = only;
        let refused = SingleFile::create(&path, &geometry, &MapOptions::default());
        assert!(matches!(refused, Err(ScmError::Invalid(_))));
        assert!(!path.exists());
    }
}

#[test]
fn a_file_that_others_could_open_is_refused() {
    let (_dir, path) = home();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let refused = open(&path).err().unwrap();
    assert!(
        refused.to_string().contains("chmod it to 0600"),
        "{refused}"
    );
}
