//! A store in a directory, used by its own process.

use medium::{MapOptions, MappedPmem, Pmem, Rule};
use scm::check::check;
use scm::files::Part;
use scm::{AccessList, Credentials, Directory, Geometry, Identity, Rights, Run, ScmError, Store};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const GEOMETRY: Geometry = Geometry {
    pages: 100,
    slots: 16,
    only: None,
};
const READ_ONLY: fn() -> MapOptions = || MapOptions {
    read_only: true,
    ..MapOptions::default()
};
const PAGE: u64 = scm::PAGE_BYTES;

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A new store with two access lists and a partition.
    fn store(&self) -> Arc<Store<Directory>> {
        new_store(&self.path())
    }

    fn open(&self) -> Result<Arc<Store<Directory>>, ScmError> {
        Store::open(Directory::open(self.path(), &MapOptions::default())?)
    }

    fn class_file(&self, identity: Identity) -> PathBuf {
        let name = format!("class-00000000-{:08x}", identity.raw());
        self.path().join(name)
    }

    fn findings(&self) -> Vec<&'static str> {
        let files = Directory::open(self.path(), &READ_ONLY()).unwrap();
        let findings = check(&files).unwrap();
        findings.into_iter().map(|one| one.invariant).collect()
    }
}

fn new_store(path: &Path) -> Arc<Store<Directory>> {
    let files = Directory::create(path, &GEOMETRY, &MapOptions::default()).unwrap();
    let store = Store::open(files).unwrap();
    for group in 1..=2 {
        store
            .set_list(group, AccessList::of_mode(group, group, 0o600))
            .unwrap();
    }
    store
        .create_partition("p", 64, Credentials::own().uid, 0)
        .unwrap();
    store
}

fn partition(store: &Arc<Store<Directory>>) -> scm::Partition<Directory> {
    store.partition("p", &Credentials::own()).unwrap()
}

fn identity(group: u32) -> Identity {
    Identity::new(group, Rights::BOTH).unwrap()
}

fn run(first: u64, pages: u64) -> Run {
    Run { first, pages }
}

fn window(partition: &scm::Partition<Directory>, identity: Identity) -> MappedPmem {
    let share = partition.share(Part::Class(identity)).unwrap();
    MappedPmem::map_descriptor(share.descriptor, "class", &MapOptions::default()).unwrap()
}

#[test]
fn contents_move_with_the_protection_and_the_old_mapping_sees_zeros() {
    let home = Home::new();
    let store = home.store();
    let pages = partition(&store);
    let (old, new) = (identity(1), identity(2));
    pages.create_extent(run(3, 2), old).unwrap();
    let old_window = window(&pages, old);
    old_window.store(4 * PAGE, b"contents");
    pages.protect(run(3, 2), new).unwrap();
    let new_window = window(&pages, new);
    let contents = u64::from_le_bytes(*b"contents");
    assert_eq!(new_window.load(4 * PAGE), Ok(contents));
    assert_eq!(old_window.load(4 * PAGE), Ok(0));
    old_window.store(4 * PAGE, b"too late");
    assert_eq!(new_window.load(4 * PAGE), Ok(contents));
    assert_eq!(pages.identity(4).unwrap(), new);

    drop((old_window, new_window, pages, store));
    assert_eq!(home.findings(), ["S8"]);
    let store = home.open().unwrap();
    let pages = partition(&store);
    assert_eq!(window(&pages, new).load(4 * PAGE), Ok(contents));
    assert!(pages.scrub().unwrap().bytes >= PAGE);
    assert_eq!(window(&pages, old).load(4 * PAGE), Ok(0));
    drop((pages, store));
    assert_eq!(home.findings(), [""; 0]);
}

#[test]
fn a_part_of_an_extent_can_change_and_a_mixed_run_cannot() {
    let home = Home::new();
    let store = home.store();
    let pages = partition(&store);
    pages.create_extent(run(0, 4), identity(1)).unwrap();
    pages.protect(run(1, 2), identity(2)).unwrap();
    let expected = [
        (run(0, 1), identity(1)),
        (run(1, 2), identity(2)),
        (run(3, 1), identity(1)),
        (run(4, 60), Identity::FREE),
    ];
    assert_eq!(pages.runs().unwrap(), expected);
    for (refused, page) in [
        (pages.create_extent(run(3, 2), identity(1)), 3),
        (pages.protect(run(0, 2), identity(2)), 1),
        (pages.free(run(0, 2)), 1),
    ] {
        let Err(ScmError::WrongIdentity { page: found, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(found, page);
    }
    let impossible = [
        run(63, 2),
        run(64, 1),
        run(u64::MAX, 2),
        run(0, 0),
        run(1, u64::MAX),
    ];
    for run in impossible {
        let refused = pages.protect(run, identity(2));
        assert!(matches!(refused, Err(ScmError::Invalid(_))), "{refused:?}");
    }
    for run in [run(0, 1), run(1, 2), run(3, 1)] {
        pages.free(run).unwrap();
    }
    assert_eq!(pages.runs().unwrap(), [(run(0, 64), Identity::FREE)]);
}

#[test]
fn an_identity_needs_an_access_list() {
    let home = Home::new();
    let store = home.store();
    let pages = partition(&store);
    let refused = pages.create_extent(run(0, 1), identity(9)).unwrap_err();
    assert!(refused.to_string().contains("no access list"), "{refused}");
    assert!(pages.create_extent(run(0, 1), Identity::FREE).is_err());
    // Extents of the service alone need none.
    let private = Identity::new(9, Rights::NONE).unwrap();
    pages.create_extent(run(0, 1), private).unwrap();
    pages.create_extent(run(1, 1), identity(2)).unwrap();
    assert!(store.remove_list(2).is_err());
    pages.free(run(1, 1)).unwrap();
    store.remove_list(2).unwrap();
    assert_eq!(store.list(2), None);
}

#[test]
fn partitions_take_the_first_gap() {
    let home = Home::new();
    let store = home.store();
    store.create_partition("q", 20, 1, 1).unwrap();
    store.create_partition("r", 10, 1, 1).unwrap();
    assert!(matches!(
        store.create_partition("s", 7, 1, 1),
        Err(ScmError::Full { pages: 7 })
    ));
    assert!(matches!(
        store.create_partition("q", 1, 1, 1),
        Err(ScmError::Exists(_))
    ));
    assert!(matches!(
        store.create_partition("", 1, 1, 1),
        Err(ScmError::Invalid(_))
    ));
    assert!(matches!(
        store.create_partition("s", 0, 1, 1),
        Err(ScmError::Full { .. })
    ));
    store.remove_partition("q").unwrap();
    store.create_partition("s", 7, 1, 1).unwrap();
    store.create_partition("t", 13, 1, 1).unwrap();
    let places = |store: &Store<Directory>| {
        let all = store.partitions().into_iter();
        let mut places: Vec<_> = all.map(|one| (one.first_page, one.name)).collect();
        places.sort();
        places
    };
    let expected =
        [(0, "p"), (64, "s"), (71, "t"), (84, "r")].map(|(at, name)| (at, name.to_owned()));
    assert_eq!(places(&store), expected);
    drop(store);
    assert_eq!(places(&home.open().unwrap()), expected);
}

#[test]
fn only_the_owner_and_the_access_list_give_rights_to_a_partition() {
    let home = Home::new();
    let store = home.store();
    let who = |uid| Credentials {
        uid,
        gid: 100,
        groups: vec![50],
    };
    store
        .set_list(1, AccessList::of_mode(11, 50, 0o640))
        .unwrap();
    store.set_access("p", 10, 1).unwrap();
    let rights = |uid| {
        store
            .partition("p", &who(uid))
            .map(|pages| pages.free(run(0, 1)))
    };
    // Page 0 is in no extent.
    assert!(matches!(rights(10), Ok(Err(ScmError::Invalid(_)))));
    assert!(matches!(rights(11), Ok(Err(ScmError::Invalid(_)))));
    assert!(matches!(rights(12), Ok(Err(ScmError::Denied(_)))));
    store
        .set_list(1, AccessList::of_mode(11, 51, 0o640))
        .unwrap();
    assert!(matches!(rights(12), Err(ScmError::NoPartition(_))));
}

#[test]
fn a_removed_partition_takes_its_files_along() {
    let home = Home::new();
    let store = home.store();
    let pages = partition(&store);
    pages.create_extent(run(0, 1), identity(1)).unwrap();
    store.remove_partition("p").unwrap();
    assert!(matches!(
        pages.free(run(0, 1)),
        Err(ScmError::NoPartition(_))
    ));
    let left = fs::read_dir(home.path()).unwrap().count();
    assert_eq!(left, 1, "only the table");
    // A crash may leave files of a partition that the table does not have.
    drop((pages, store));
    let orphan = home.class_file(identity(1));
    fs::write(&orphan, "orphan").unwrap();
    drop(home.open().unwrap());
    assert!(!orphan.exists());
}

#[test]
fn files_that_others_could_open_are_refused() {
    let home = Home::new();
    let store = home.store();
    let pages = partition(&store);
    pages.create_extent(run(0, 1), identity(1)).unwrap();
    assert_eq!(fs::metadata(home.path()).unwrap().mode() & 0o7777, 0o700);
    for file in fs::read_dir(home.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600, "{file:?}");
    }
    let class = home.class_file(identity(1));
    fs::set_permissions(&class, Permissions::from_mode(0o666)).unwrap();
    let refused = pages.share(Part::Class(identity(1)));
    assert!(matches!(
        refused,
        Err(ScmError::Exposed { mode: 0o666, .. })
    ));
    drop((pages, store));
    fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
    let refused = home.open().err().unwrap();
    assert!(
        refused.to_string().contains("chmod it to 0700"),
        "{refused}"
    );
}

#[test]
fn one_process_has_a_store_open() {
    let home = Home::new();
    let _store = home.store();
    let refused = home.open().err().unwrap();
    assert!(refused.to_string().contains("in use"), "{refused}");
}

#[test]
fn a_scrub_restores_what_a_writer_of_a_class_has_changed() {
    let home = Home::new();
    let store = home.store();
    let pages = partition(&store);
    pages.create_extent(run(1, 1), identity(1)).unwrap();
    // As by a client with a descriptor.
    let class = File::options()
        .write(true)
        .open(home.class_file(identity(1)))
        .unwrap();
    class.write_all_at(b"kept", PAGE).unwrap();
    class
        .write_all_at(&[1; 9 * PAGE as usize], 8 * PAGE)
        .unwrap();
    class.write_all_at(&[1; 3], 70 * PAGE).unwrap();
    let scrubbed = pages.scrub().unwrap();
    assert_eq!(scrubbed.classes, 1);
    assert!(scrubbed.bytes >= 9 * PAGE, "{scrubbed:?}");
    let found = class.metadata().unwrap();
    assert_eq!(found.len(), 64 * PAGE);
    assert_eq!(
        window(&pages, identity(1)).load(PAGE).unwrap() as u32,
        u32::from_le_bytes(*b"kept")
    );
    class.set_len(0).unwrap();
    pages.scrub().unwrap();
    let window = window(&pages, identity(1));
    window.store_word(PAGE, 1);
    window.fence(Rule::DurableBeforeReturn).unwrap();
    assert_eq!(class.metadata().unwrap().blocks() * 512, PAGE);
}

/// A file system in memory with a limit.
struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=250k", "none"])
            .arg(dir.path());
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then_some(Self { dir })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
    }
}

#[test]
fn a_full_file_system_is_an_error_and_changes_nothing() {
    let Some(small) = Small::new() else {
        return skip::test("needs root, to mount a small file system");
    };
    let store = new_store(&small.dir.path().join("store"));
    let pages = partition(&store);
    pages.create_extent(run(0, 40), identity(1)).unwrap();
    let window = window(&pages, identity(1));
    window.store_word(39 * PAGE, 7);
    let before = pages.runs().unwrap();
    for refused in [
        pages.create_extent(run(40, 24), identity(1)),
        pages.protect(run(0, 40), identity(2)),
    ] {
        assert!(
            matches!(refused, Err(ScmError::NoRoom { .. })),
            "{refused:?}"
        );
        assert!(refused.unwrap_err().to_string().starts_with("no room for"));
    }
    assert_eq!(pages.runs().unwrap(), before);
    assert_eq!(window.load(39 * PAGE), Ok(7));
    // The failed changes have returned their room.
    pages.protect(run(0, 10), identity(2)).unwrap();
    assert_eq!(window.load(39 * PAGE), Ok(7));
    // All of an extent can be stored to.
    (0..40).for_each(|page| window.store_word(page * PAGE, page));
    window.fence(Rule::DurableBeforeReturn).unwrap();
}
