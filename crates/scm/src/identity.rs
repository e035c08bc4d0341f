//! Protection identities, the access lists that they name, and the credentials of clients.
//!
//! Guarantees: an [`Identity`] that a client sends is any 32-bit number, and has a meaning. A right
//! that a list does not grant is refused.

use std::fmt;

/// The right to read, and to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rights {
    /// May read.
    pub read: bool,
    /// May write.
    pub write: bool,
}

impl Rights {
    /// No right.
    pub const NONE: Self = Self::new(false, false);
    /// The right to read.
    pub const READ: Self = Self::new(true, false);
    /// Both rights.
    pub const BOTH: Self = Self::new(true, true);

    const fn new(read: bool, write: bool) -> Self {
        Self { read, write }
    }

    /// The rights in the two lowest bits: 1 to read, 2 to write.
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self::new(bits & 1 != 0, bits & 2 != 0)
    }

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.write) << 1 | u32::from(self.read)
    }

    /// The rights that both grant.
    pub fn and(self, other: Self) -> Self {
        Self::new(self.read && other.read, self.write && other.write)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.read, self.write) {
            (false, false) => "none",
            (true, false) => "read",
            (false, true) => "write",
            (true, true) => "read and write",
        })
    }
}

/// The protection of an extent: the group whose access list applies, and the rights that the
/// extent grants to its members. All pages with one identity are in one file, so it is a *class*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(u32);

impl Identity {
    /// A page that is in no extent.
    pub const FREE: Self = Self(0);
    /// The highest number of a group: it has 30 bits.
    pub const LAST_GROUP: u32 = (1 << 30) - 1;

    /// The identity with this group, from 1 to [`LAST_GROUP`](Self::LAST_GROUP), and these rights.
    pub fn new(group: u32, rights: Rights) -> Option<Self> {
        let is_group = (1..=Self::LAST_GROUP).contains(&group);
        is_group.then(|| Self(group << 2 | rights.bits()))
    }

    /// The identity as the number of the identity table.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// The identity with this number.
    pub fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The group whose access list applies.
    pub fn group(self) -> u32 {
        self.0 >> 2
    }

    /// The rights that its extents grant to the members of the group.
    pub fn rights(self) -> Rights {
        Rights::from_bits(self.0)
    }

    /// Whether an extent can have it.
    pub fn is_valid(self) -> bool {
        self.group() != 0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}, rights {}", self.group(), self.rights())
    }
}

/// The clients to which an entry of an access list applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Those with this user id.
    User(u32),
    /// Those with this group id, as the primary or a supplementary group.
    Group(u32),
    /// All.
    Everyone,
}

/// An entry of an access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The clients to which it applies.
    pub subject: Subject,
    /// The rights that it grants, and no others.
    pub rights: Rights,
}

/// A list of entries. The first entry that applies to a client decides, so that a list can express
/// the mode of a file: its owner, its group, everyone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessList(Vec<Entry>);

impl AccessList {
    /// Most entries of a list.
    pub const MOST: usize = 28;

    /// The list with these entries, if they are at most [`MOST`](Self::MOST).
    pub fn new(entries: Vec<Entry>) -> Option<Self> {
        (entries.len() <= Self::MOST).then_some(Self(entries))
    }

    /// The list of a file's owner, group and permission bits, as `stat(2)` has them.
    pub fn of_mode(uid: u32, gid: u32, mode: u32) -> Self {
        let entry = |subject, shift: u32| {
            let (read, write) = (mode >> shift & 4 != 0, mode >> shift & 2 != 0);
            let rights = Rights { read, write };
            Entry { subject, rights }
        };
        Self(vec![
            entry(Subject::User(uid), 6),
            entry(Subject::Group(gid), 3),
            entry(Subject::Everyone, 0),
        ])
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The rights that the list grants to a client. The super-user has both.
    pub fn rights(&self, who: &Credentials) -> Rights {
        if who.uid == 0 {
            return Rights::BOTH;
        }
        let applies = |entry: &&Entry| match entry.subject {
            Subject::User(uid) => uid == who.uid,
            Subject::Group(gid) => gid == who.gid || who.groups.contains(&gid),
            Subject::Everyone => true,
        };
        let first = self.0.iter().find(applies);
        first.map_or(Rights::NONE, |entry| entry.rights)
    }
}

/// The identity of a process: its effective user and group, and its supplementary groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Those of this process.
    pub fn own() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        let groups = groups.to_vec();
        Credentials { uid, gid, groups }
    }

    #[test]
    fn an_identity_is_a_group_and_two_bits() {
        let identity = Identity::new(5, Rights::READ).unwrap();
        assert_eq!(identity.raw(), 5 << 2 | 1);
        let both = Identity::new(Identity::LAST_GROUP, Rights::BOTH).unwrap();
        assert_eq!(both.raw(), u32::MAX);
        assert_eq!(both.group(), Identity::LAST_GROUP);
        assert_eq!(both.rights(), Rights::BOTH);
        assert_eq!(Identity::new(0, Rights::BOTH), None);
        assert_eq!(Identity::new(Identity::LAST_GROUP + 1, Rights::NONE), None);
        assert!(!Identity::FREE.is_valid());
    }

    #[test]
    fn the_first_entry_that_applies_decides() {
        // A mode that denies the owner and the group what all others may do.
        let list = AccessList::of_mode(10, 20, 0o046);
        assert_eq!(list.rights(&who(10, 20, &[])), Rights::NONE);
        assert_eq!(list.rights(&who(11, 20, &[])), Rights::READ);
        assert_eq!(list.rights(&who(11, 21, &[3, 20])), Rights::READ);
        assert_eq!(list.rights(&who(11, 21, &[3])), Rights::BOTH);
        assert_eq!(list.rights(&who(0, 21, &[])), Rights::BOTH);
        assert_eq!(AccessList::default().rights(&who(1, 1, &[])), Rights::NONE);
    }
}
