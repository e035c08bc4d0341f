//! A store in a directory, used by its own process.

mod home;
mod killed;

use home::{Home, PAGE, identity, new_store, partition, run, window};
use medium::{MapOptions, Pmem, Rule};
use scm::files::Part;
use scm::{AccessList, Credentials, Directory, Identity, Rights, ScmError, Space, Store};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

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

/// A load from a hole takes memory on tmpfs, so that even a client which may only read can fill one.
#[test]
fn a_scrub_frees_what_loads_of_holes_have_taken() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return skip::test("needs tmpfs on /dev/shm");
    };
    let home = Home { dir };
    let store = home.store();
    let pages = partition(&store);
    pages.create_extent(run(1, 1), identity(1)).unwrap();
    let window = window(&pages, identity(1));
    for page in 2..10 {
        assert_eq!(window.load(page * PAGE), Ok(0));
    }
    assert_eq!(pages.scrub().unwrap().bytes, 8 * PAGE);
    let class = fs::metadata(home.class_file(identity(1))).unwrap();
    assert_eq!(class.blocks() * 512, PAGE);
}

#[test]
fn a_file_that_a_writer_has_cut_is_an_error_until_the_scrub() {
    let home = Home::new();
    let store = home.store();
    let pages = partition(&store);
    pages.create_extent(run(1, 1), identity(1)).unwrap();
    pages.create_extent(run(2, 1), identity(2)).unwrap();
    let source = Box::new(partition(&store));
    let space = Space::new(source, 64 * PAGE, &MapOptions::default()).unwrap();
    let mut found = [0; 8];
    space.read(PAGE, &mut found).unwrap();
    let class = File::options()
        .write(true)
        .open(home.class_file(identity(1)))
        .unwrap();
    class.set_len(0).unwrap();
    let error = space.read(PAGE, &mut found).unwrap_err();
    assert!(matches!(error, ScmError::Memory(_)), "{error}");
    space.read(2 * PAGE, &mut found).unwrap();
    pages.scrub().unwrap();
    space.read(PAGE, &mut found).unwrap();
}

#[test]
fn damaged_identities_are_findings_and_do_not_spread() {
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..20 {
        let home = Home::new();
        drop(home.store());
        let table = home.path().join("identities-00000000");
        let table = File::options().write(true).open(table).unwrap();
        for _ in 0..20 {
            let number = match rng.u8(..3) {
                0 => rng.u32(..),
                _ => rng.u32(..20),
            };
            let at = rng.u64(..64) * 4;
            table.write_all_at(&number.to_le_bytes(), at).unwrap();
        }
        table.write_all_at(&2u32.to_le_bytes(), 9 * 4).unwrap();
        let before = home.findings();
        assert!(before.contains(&"S7"));
        let store = home.open().unwrap();
        let pages = partition(&store);
        assert!(matches!(pages.free(run(9, 1)), Err(ScmError::Damaged(_))));
        for (found, identity) in pages.runs().unwrap() {
            // Succeeds, or reports the damage.
            let _ = pages.protect(found, scm::Identity::from_raw(identity.raw() ^ 8));
            let _ = pages.free(found);
        }
        pages.scrub().unwrap();
        drop((pages, store));
        assert!(home.findings().iter().all(|one| *one == "S7"));
    }
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
