//! A store in a directory of classes, of which each user maps what the user may read.
//!
//! The classes are sets of readers. Each set has a group of the manager of storage-class memory, whose access list
//! names its members. So the manager makes the kernel enforce what [`Readers`] say.
//!
//! Guarantees:
//!
//! 1. All pages have a class, from the making of the store on.
//! 2. No list changes, once it exists. So a class has the same readers for ever, also for a client that maps it.
//! 3. Without room for another list, pages for its readers are of the class that nobody reads. Clients then
//!    call the service.

use aerie_objects::{Contents, Error, Guard, PAGE, Readers, Result};
use aerie_proto::messages::PARTITION;
use medium::{EffectiveDurability, MapOptions, Pmem, Rule};
use parking_lot::RwLock;
use scm::{
    AccessList, Credentials, Directory, Entry, Geometry, Identity, Joined, Partition, Rights, Run,
    ScmError, Server, Store, Subject,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Slots for the lists of classes, and for the partition.
const SLOTS: u64 = 4096;
/// The groups of the classes that every store has.
const NOBODY: u32 = 1;
const EVERYONE: u32 = 2;
/// The most bytes of zeros that are stored at once.
const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// A store in a directory of classes.
pub struct Protected {
    store: Arc<Store<Directory>>,
    durability: EffectiveDurability,
    pages: Partition<Directory>,
    memory: Arc<Joined>,
    classes: RwLock<Classes>,
}

/// The readers of each group, and back.
#[derive(Default)]
struct Classes {
    readers: HashMap<u32, Readers>,
    groups: HashMap<Readers, u32>,
}

impl Classes {
    fn add(&mut self, group: u32, readers: Readers) {
        self.readers.insert(group, readers);
        self.groups.insert(readers, group);
    }
}

/// The list of a class.
fn list(readers: Readers) -> AccessList {
    let entry = |subject| Entry {
        subject,
        rights: Rights::READ,
    };
    let entries = match readers {
        Readers::Everyone => vec![entry(Subject::Everyone)],
        Readers::These { user, group } => {
            let user = user.map(|user| entry(Subject::User(user)));
            let group = group.map(|group| entry(Subject::Group(group)));
            user.into_iter().chain(group).collect()
        }
    };
    AccessList::new(entries).unwrap_or_default()
}

/// The readers of a list that [`list`] has made.
fn readers(list: &AccessList) -> Option<Readers> {
    let subjects: Vec<_> = list.entries().iter().map(|entry| entry.subject).collect();
    let found = match subjects[..] {
        [] => Readers::NOBODY,
        [Subject::Everyone] => Readers::Everyone,
        [Subject::User(user)] => Readers::user(user),
        [Subject::Group(group)] => Readers::These {
            user: None,
            group: Some(group),
        },
        [Subject::User(user), Subject::Group(group)] => Readers::user_and_group(user, group),
        _ => return None,
    };
    (self::list(found) == *list).then_some(found)
}

fn identity(group: u32) -> Option<Identity> {
    let rights = match group {
        NOBODY => Rights::NONE,
        _ => Rights::READ,
    };
    Identity::new(group, rights)
}

impl Protected {
    /// Makes a store of `bytes` bytes in a directory that is new or empty. Nobody but the service reads it; a
    /// file system must be made in its [memory](Self::memory).
    ///
    /// # Errors
    /// [`ScmError`].
    pub fn create(
        path: &Path,
        bytes: u64,
        options: &MapOptions,
    ) -> std::result::Result<Self, ScmError> {
        let pages = bytes / PAGE;
        let geometry = Geometry {
            pages,
            slots: SLOTS,
            only: None,
        };
        let files = Directory::create(path, &geometry, options)?;
        let durability = files.durability();
        let store = Store::open(files)?;
        store.set_list(NOBODY, list(Readers::NOBODY))?;
        store.set_list(EVERYONE, list(Readers::Everyone))?;
        let own = Credentials::own();
        store.create_partition(PARTITION, pages, own.uid, EVERYONE)?;
        let partition = store.partition(PARTITION, &own)?;
        if let Some(nobody) = identity(NOBODY) {
            partition.create_extent(Run { first: 0, pages }, nobody)?;
        }
        Self::of(store, durability, options)
    }

    /// Opens a store.
    ///
    /// # Errors
    /// [`ScmError`].
    pub fn open(path: &Path, options: &MapOptions) -> std::result::Result<Self, ScmError> {
        let files = Directory::open(path, options)?;
        let durability = files.durability();
        Self::of(Store::open(files)?, durability, options)
    }

    fn of(
        store: Arc<Store<Directory>>,
        durability: EffectiveDurability,
        options: &MapOptions,
    ) -> std::result::Result<Self, ScmError> {
        let pages = store.partition(PARTITION, &Credentials::own())?;
        let bytes = pages.record()?.pages * PAGE;
        let source = store.partition(PARTITION, &Credentials::own())?;
        let memory = Arc::new(Joined::new(Box::new(source), bytes, options)?);
        let mut classes = Classes::default();
        for group in 1..=SLOTS as u32 {
            if let Some(readers) = store.list(group).as_ref().and_then(readers) {
                classes.add(group, readers);
            }
        }
        let classes = RwLock::new(classes);
        Ok(Self {
            store,
            durability,
            pages,
            memory,
            classes,
        })
    }

    /// The durability of the store in force.
    pub fn durability(&self) -> EffectiveDurability {
        self.durability
    }

    /// Whether a directory has a store.
    pub fn is_at(path: &Path) -> bool {
        Directory::is_at(path)
    }

    /// The memory of the store.
    pub fn memory(&self) -> Arc<Joined> {
        self.memory.clone()
    }

    /// A server of descriptors of the classes.
    pub(crate) fn server(&self) -> std::result::Result<Server, ScmError> {
        Server::without_socket(self.store.clone())
    }

    /// The group of a class, which is made if it does not exist.
    fn group(&self, readers: Readers) -> std::result::Result<u32, ScmError> {
        if let Some(group) = self.classes.read().groups.get(&readers) {
            return Ok(*group);
        }
        let mut classes = self.classes.write();
        if let Some(group) = classes.groups.get(&readers) {
            return Ok(*group);
        }
        let mut groups = 1..=SLOTS as u32;
        let group = groups.find(|group| !classes.readers.contains_key(group));
        let group = group.ok_or(ScmError::TableFull)?;
        match self.store.set_list(group, list(readers)) {
            Ok(()) => {
                classes.add(group, readers);
                Ok(group)
            }
            Err(ScmError::TableFull) => Ok(NOBODY),
            Err(error) => Err(error),
        }
    }
}

fn protection(error: ScmError) -> Error {
    match error {
        ScmError::NoRoom { .. } => Error::Full,
        error => Error::Protection(error.to_string()),
    }
}

impl Guard for Protected {
    fn readers(&self, page: u64) -> Result<Readers> {
        let identity = self.memory.identity(page)?;
        let found = self.classes.read().readers.get(&identity.group()).copied();
        found.ok_or_else(|| {
            Error::Protection(format!(
                "page {page:#x} has {identity}, which is not a class"
            ))
        })
    }

    /// Pages without contents are zeros before they get other readers: so no crash leaves them in no class.
    fn protect(&self, page: u64, pages: u64, readers: Readers, contents: Contents) -> Result<()> {
        if contents == Contents::Dropped {
            let all = (page..page + pages * PAGE).step_by(PAGE as usize);
            all.for_each(|page| self.memory.store_nt(page, &ZEROS));
            self.memory.fence(Rule::NullifyBeforeReuse)?;
        }
        let run = Run {
            first: page / PAGE,
            pages,
        };
        let group = self.group(readers).map_err(protection)?;
        let identity = identity(group).ok_or(Error::Full)?;
        self.pages.protect(run, identity).map_err(protection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_survive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = MapOptions::default();
        let store = Protected::create(&path, 64 * PAGE, &options).unwrap();
        let sets = [
            Readers::NOBODY,
            Readers::Everyone,
            Readers::user(7),
            Readers::user_and_group(7, 8),
            Readers::These {
                user: None,
                group: Some(7),
            },
        ];
        assert_eq!(store.readers(63 * PAGE).unwrap(), Readers::NOBODY);
        let memory = store.memory();
        for (readers, page) in sets.into_iter().zip((0..).step_by(2 * PAGE as usize)) {
            memory.store_word(page, page + 1);
            memory.store_word(page + PAGE, page + 1);
            store.protect(page, 2, readers, Contents::Kept).unwrap();
            assert_eq!(memory.load(page + PAGE), Ok(page + 1));
        }
        store
            .protect(PAGE, 1, Readers::user(9), Contents::Dropped)
            .unwrap();
        assert_eq!((memory.load(0), memory.load(PAGE)), (Ok(1), Ok(0)));
        drop((memory, store));
        let store = Protected::open(&path, &options).unwrap();
        assert_eq!(store.readers(PAGE).unwrap(), Readers::user(9));
        for (readers, page) in sets.into_iter().zip((0..).step_by(2 * PAGE as usize)) {
            assert_eq!(store.readers(page).unwrap(), readers);
            assert_eq!(store.memory().load(page), Ok(page + 1));
        }
        assert!(store.readers(64 * PAGE).is_err());
    }
}
