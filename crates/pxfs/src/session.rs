//! Sessions: the service's side of its clients.

use crate::fs::Pxfs;
use crate::seeded::{Bug, hit};
use aerie_objects::{ObjectId, Readers, Reserve};
use hashbrown::{HashMap, HashSet};
use medium::Pmem;
use vfs::{Ctx, OpenFlags, Timestamp};

/// The rights of a client, by its locks.
pub trait Authority {
    /// Checks that the locks of the client cover a change of the object `path[0]`. The next ones are the
    /// collections above it, up to the root, as they were before the operation. The path ends early
    /// where it is unknown: above a file that has or had several names, and above a removed object.
    ///
    /// # Errors
    /// The reason, as the client gets it.
    fn covers(&self, path: &[ObjectId]) -> Result<(), String>;
}

/// A user, as the kernel reports the peer of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// The caller of calls for this user.
    pub(crate) fn ctx(&self) -> Ctx {
        Ctx {
            groups: self.groups.clone(),
            ..Ctx::somewhere(self.uid, self.gid)
        }
    }
}

/// The state of a client at the service.
pub struct Session {
    pub(crate) who: Credentials,
    /// The client may act for other users, and stores contents itself.
    pub(crate) is_trusted: bool,
    /// Memory for its new objects and pages.
    pub(crate) reserve: Reserve,
    /// Objects that live until it releases them, as often as it holds them.
    pub(crate) holds: HashMap<ObjectId, u64>,
    /// Those that it holds only since it has listed a directory that its user may not search.
    pub(crate) listed: HashSet<ObjectId>,
    /// The access for which it has opened objects that it holds.
    pub(crate) opened: HashMap<ObjectId, OpenFlags>,
    /// The time of its last operation.
    pub(crate) last: Timestamp,
}

impl Session {
    /// The user.
    pub fn who(&self) -> &Credentials {
        &self.who
    }

    /// Numbers of pages and of headers that are reserved for the client.
    pub fn reserved(&self) -> (usize, usize) {
        (self.reserve.page_count(), self.reserve.header_count())
    }

    /// Whether the client holds an object, not only since it has listed a directory.
    pub(crate) fn has_reached(&self, object: ObjectId) -> bool {
        let is_listed = self.listed.contains(&object) && !hit(Bug::ListedReached);
        self.holds.contains_key(&object) && !is_listed
    }

    /// Whether the client may act for other users.
    pub fn is_trusted(&self) -> bool {
        self.is_trusted
    }
}

impl<P: Pmem> Pxfs<P> {
    /// Begins a session.
    pub fn begin(&self, who: Credentials, is_trusted: bool) -> Session {
        Session {
            who,
            is_trusted,
            reserve: Reserve::default(),
            holds: HashMap::new(),
            listed: HashSet::new(),
            opened: HashMap::new(),
            last: self.clock.now(),
        }
    }

    /// Reserves more for a client, as far as there is space. Returns what is new.
    pub fn grant(&self, session: &mut Session, pages: usize, headers: usize) -> Reserve {
        let readers = Readers::user(session.who.uid);
        let granted = self.store.reserve_for(readers, pages, headers);
        session.reserve.append(granted.clone());
        granted
    }

    /// Ends a session: its reserve is free, and nothing is held for it.
    pub fn end(&self, session: Session) {
        let _alone = self.alone();
        self.store.release(session.reserve);
        for (object, count) in session.holds {
            let is_last = self.unrefer(object, count);
            if is_last && let Err(fault) = self.bury_nameless(object) {
                tracing::error!("{object} is not removed: {}", fault.errno());
            }
        }
    }

    /// Pages that are freed from now on stay unused, until [`give_kept`](Self::give_kept): a client whose session ends may
    /// still store to them.
    pub fn keep_freed(&self) {
        self.store.keep_freed();
    }

    /// Undoes one [`keep_freed`](Self::keep_freed).
    pub fn give_kept(&self) {
        self.store.give_kept();
    }

    /// Deletes an object without references, if it has no name.
    fn bury_nameless(&self, object: ObjectId) -> crate::error::Res<()> {
        match self.load(self.store.memory(), object)?.attr.nlink {
            0 => self.change(|tx| self.bury(tx, object)),
            _ => Ok(()),
        }
    }
}
