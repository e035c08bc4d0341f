//! Access control lists (POSIX 1003.1e), as ext2 stores them.
//!
//! On a mount the kernel checks only permission bits, so these bits must not grant more than
//! the list does: see [`Acl::bits`]. A user or group that the list would give more gets only what
//! the bits allow. `chmod` changes a list as in the kernel, and new inodes inherit from their
//! directory. A mount cannot change lists in other ways. A malformed list grants access
//! to the owner only, until `chmod` replaces it.

use vfs::FileType;

/// Whether inodes of this type can have access control lists.
pub(crate) fn has_list(kind: FileType) -> bool {
    kind != FileType::Symlink
}

/// A list of entries, in their stored order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

/// The error for stored bytes that are not a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    /// The number of the user or group, with [`USER`] and [`GROUP`].
    id: Option<u32>,
}

const VERSION: u32 = 1;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

impl Acl {
    /// Reads a list. A header without entries is not a list.
    ///
    /// # Errors
    /// If the version or an entry is unknown, or the owner, the group or all others have no
    /// entry.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let (version, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Malformed);
        }
        if rest.is_empty() {
            return Ok(None);
        }
        Self::parse_entries(rest).map(Some).ok_or(Malformed)
    }

    fn parse_entries(mut rest: &[u8]) -> Option<Self> {
        let mut entries = Vec::new();
        while let Some((tag, behind)) = rest.split_first_chunk() {
            let (perm, behind) = behind.split_first_chunk()?;
            let (tag, perm) = (u16::from_le_bytes(*tag), u16::from_le_bytes(*perm));
            rest = behind;
            let mut id = None;
            match tag {
                USER_OBJ | GROUP_OBJ | MASK | OTHER => {}
                USER | GROUP => {
                    let (who, behind) = rest.split_first_chunk()?;
                    id = Some(u32::from_le_bytes(*who));
                    rest = behind;
                }
                _ => return None,
            }
            entries.push(Entry { tag, perm, id });
        }
        let acl = Self(entries);
        let whole = [USER_OBJ, GROUP_OBJ, OTHER].map(|tag| acl.find(tag).is_some());
        (rest.is_empty() && whole == [true; 3]).then_some(acl)
    }

    /// The list that stands for a malformed one. It grants access to the owner only.
    pub(crate) fn owner_only() -> Self {
        let entry = |(tag, perm)| Entry {
            tag,
            perm,
            id: None,
        };
        Self(
            [(USER_OBJ, 7), (GROUP_OBJ, 0), (OTHER, 0)]
                .map(entry)
                .into(),
        )
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            bytes.extend(entry.id.into_iter().flat_map(u32::to_le_bytes));
        }
        bytes
    }

    fn find(&self, tag: u16) -> Option<u16> {
        let found = self.0.iter().find(|entry| entry.tag == tag);
        found.map(|entry| entry.perm & 7)
    }

    fn set(&mut self, tag: u16, perm: u32) {
        let entries = self.0.iter_mut().filter(|entry| entry.tag == tag);
        entries.for_each(|entry| entry.perm = (perm & 7) as u16);
    }

    /// The entry that the group's bits of a mode stand for.
    fn group_class(&self) -> u16 {
        if self.find(MASK).is_some() {
            MASK
        } else {
            GROUP_OBJ
        }
    }

    /// The permissions that all entries with this tag have in common.
    fn named(&self, tag: u16) -> u32 {
        let mask = self.find(MASK).unwrap_or(7);
        let named = self.0.iter().filter(|entry| entry.tag == tag);
        u32::from(named.fold(7, |all, entry| all & entry.perm & mask))
    }

    /// Permission bits of an inode with the bits `perm`, which grant no more than this list. A
    /// member of the owning group may be named as a user, and all others as a user or as members of
    /// a group.
    pub(crate) fn bits(&self, perm: u32) -> u32 {
        let get = |tag| u32::from(self.find(tag).unwrap_or(0));
        let mask = self.find(MASK).map_or(7, u32::from);
        let (users, groups) = (self.named(USER), self.named(GROUP));
        let group = get(GROUP_OBJ) & mask & users;
        let other = get(OTHER) & users & groups;
        perm & !0o77 | group << 3 | other
    }

    /// Changes the list for the bits `new`, where the bits `perm` are stored. Returns the bits to
    /// store. Only set-id bits change if `new` is the result of [`bits`](Self::bits).
    pub(crate) fn chmod(&mut self, perm: u32, new: u32) -> u32 {
        if (self.bits(perm) ^ new) & 0o777 == 0 {
            return new & !0o777 | perm & 0o777;
        }
        self.set(USER_OBJ, new >> 6);
        self.set(self.group_class(), new >> 3);
        self.set(OTHER, new);
        new
    }

    /// The list of a new inode whose directory has this as the default, and its bits. They allow
    /// what both `perm` and the default allow.
    pub(crate) fn inherit(&self, perm: u32) -> (Self, u32) {
        let mut own = self.clone();
        let mut bits = perm & !0o777;
        for (tag, shift) in [(USER_OBJ, 6), (self.group_class(), 3), (OTHER, 0)] {
            let allowed = u32::from(self.find(tag).unwrap_or(0)) & perm >> shift & 7;
            own.set(tag, allowed);
            bits |= allowed << shift;
        }
        (own, bits)
    }

    /// Whether the bits of a mode express the whole list.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0
            .iter()
            .all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, Option<u32>)]) -> Acl {
        let entry = |&(tag, perm, id)| Entry { tag, perm, id };
        Acl(entries.iter().map(entry).collect())
    }

    /// `u::rw-,u:7:r--,g::rw-,g:8:---,m::rw-,o::r--`
    fn shared() -> Acl {
        acl(&[
            (USER_OBJ, 6, None),
            (USER, 4, Some(7)),
            (GROUP_OBJ, 6, None),
            (GROUP, 0, Some(8)),
            (MASK, 6, None),
            (OTHER, 4, None),
        ])
    }

    #[test]
    fn lists_are_read_as_they_are_written() {
        let bytes = shared().encode();
        assert_eq!(Acl::parse(&bytes), Ok(Some(shared())));
        for len in 0..bytes.len() {
            let expected = if len == 4 { Ok(None) } else { Err(Malformed) };
            assert_eq!(Acl::parse(&bytes[..len]), expected, "{len}");
        }
    }

    #[test]
    fn nobody_gets_more_than_the_list_gives() {
        // User 7 may only read, also as a member of the group; group 8 may nothing.
        assert_eq!(shared().bits(0o664), 0o640);
        let narrow = acl(&[
            (USER_OBJ, 7, None),
            (GROUP_OBJ, 4, None),
            (MASK, 7, None),
            (OTHER, 0, None),
        ]);
        assert_eq!(narrow.bits(0o770), 0o740);
    }

    #[test]
    fn chmod_to_the_bits_that_are_shown_changes_nothing() {
        let mut list = shared();
        assert_eq!(list.chmod(0o664, 0o4640), 0o4664);
        assert_eq!(list, shared());
        assert_eq!(list.chmod(0o4664, 0o600), 0o600);
        assert_eq!((list.find(MASK), list.find(OTHER)), (Some(0), Some(0)));
        assert_eq!(list.find(GROUP_OBJ), Some(6));
    }

    #[test]
    fn new_inodes_inherit_what_both_allow() {
        let (list, bits) = shared().inherit(0o750);
        assert_eq!(bits, 0o640);
        assert_eq!((list.find(MASK), list.find(OTHER)), (Some(4), Some(0)));
        assert!(!list.is_minimal());
    }
}
