//! A directory with a store.

use medium::{MapOptions, MappedPmem};
use scm::check::check;
use scm::files::Part;
use scm::{
    AccessList, Credentials, Directory, Geometry, Identity, Partition, Rights, Run, ScmError, Store,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const GEOMETRY: Geometry = Geometry {
    pages: 100,
    slots: 16,
    only: None,
};
pub(crate) const READ_ONLY: fn() -> MapOptions = || MapOptions {
    read_only: true,
    ..MapOptions::default()
};
pub(crate) const PAGE: u64 = scm::PAGE_BYTES;

pub(crate) struct Home {
    pub(crate) dir: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A new store with two access lists and a partition.
    pub(crate) fn store(&self) -> Arc<Store<Directory>> {
        new_store(&self.path())
    }

    pub(crate) fn open(&self) -> Result<Arc<Store<Directory>>, ScmError> {
        Store::open(Directory::open(self.path(), &MapOptions::default())?)
    }

    pub(crate) fn class_file(&self, identity: Identity) -> PathBuf {
        let name = format!("class-00000000-{:08x}", identity.raw());
        self.path().join(name)
    }

    pub(crate) fn findings(&self) -> Vec<&'static str> {
        let files = Directory::open(self.path(), &READ_ONLY()).unwrap();
        let findings = check(&files).unwrap();
        findings.into_iter().map(|one| one.invariant).collect()
    }
}

pub(crate) fn new_store(path: &Path) -> Arc<Store<Directory>> {
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

pub(crate) fn partition(store: &Arc<Store<Directory>>) -> Partition<Directory> {
    store.partition("p", &Credentials::own()).unwrap()
}

pub(crate) fn identity(group: u32) -> Identity {
    Identity::new(group, Rights::BOTH).unwrap()
}

pub(crate) fn run(first: u64, pages: u64) -> Run {
    Run { first, pages }
}

pub(crate) fn window(partition: &Partition<Directory>, identity: Identity) -> MappedPmem {
    let share = partition.share(Part::Class(identity)).unwrap();
    MappedPmem::map_descriptor(share.descriptor, "class", &MapOptions::default()).unwrap()
}
