//! The image of the store, as clients get it.
//!
//! A client gets a descriptor that allows no more than the mode of the file allows it: the kernel gives
//! every descriptor a name below `/proc`, which can be opened again with all rights of the mode.

use aerie_proto::messages::Class;
use medium::{EffectiveDurability, Peer};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use vfs::perm::{Access, access};
use vfs::{Attr, Ctx, FileFlags, FileType, Ino, Timestamp};

/// The store.
pub(super) struct Image {
    store: Store,
    durability: EffectiveDurability,
}

enum Store {
    /// An image, open in two ways.
    File {
        /// For reading and writing.
        both: OwnedFd,
        /// For reading.
        reading: OwnedFd,
    },
    /// A protected store, with the server of its classes.
    Protected(scm::Server),
}

impl Image {
    /// Opens the file again. The new descriptors do not share its locks.
    pub(super) fn new(file: &File, durability: EffectiveDurability) -> Result<Self, Errno> {
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = |access| open(&name, access | OFlags::CLOEXEC, Mode::empty());
        let store = Store::File {
            both: again(OFlags::RDWR)?,
            reading: again(OFlags::RDONLY)?,
        };
        Ok(Self { store, durability })
    }

    pub(super) fn protected(server: scm::Server, durability: EffectiveDurability) -> Self {
        let store = Store::Protected(server);
        Self { store, durability }
    }

    pub(super) fn is_protected(&self) -> bool {
        matches!(self.store, Store::Protected(_))
    }

    /// Whether clients of a class store contents in the memory themselves.
    pub(super) fn is_stored_to_by(&self, class: Class) -> bool {
        !self.is_protected() && class == Class::Trusted
    }

    /// The durability that its fences give. A client that maps it for writing must give the same.
    pub(super) fn durability(&self) -> EffectiveDurability {
        self.durability
    }

    /// The class of a client: by the owner and the mode that an image has now. All users map what they may read
    /// of a protected store.
    pub(super) fn class(&self, peer: &Peer) -> Result<Class, Errno> {
        let owner = rustix::process::geteuid().as_raw();
        let trusted = [0, owner].contains(&peer.uid);
        let Store::File { reading, .. } = &self.store else {
            return Ok(if trusted {
                Class::Trusted
            } else {
                Class::Reader
            });
        };
        let found = fstat(reading)?;
        if trusted || peer.uid == found.st_uid {
            return Ok(Class::Trusted);
        }
        let may = |want| access(&caller(peer), &attributes(&found), want).is_ok();
        Ok(match may(Access::READ) && !may(Access::WRITE) {
            true => Class::Reader,
            false => Class::Remote,
        })
    }

    /// The descriptor for a client of a class, and the manager's end, if it is a connection to the manager.
    pub(super) fn descriptor(
        &self,
        class: Class,
        who: &pxfs::Credentials,
    ) -> Result<(Option<OwnedFd>, Option<scm::Passed>), String> {
        let descriptor = match (&self.store, class) {
            (_, Class::Remote) => return Ok((None, None)),
            (Store::File { both, .. }, Class::Trusted) => both.try_clone(),
            (Store::File { reading, .. }, Class::Reader) => reading.try_clone(),
            (Store::Protected(server), _) => {
                // A trusted client reads all, as the super-user does.
                let uid = match class {
                    Class::Trusted => 0,
                    _ => who.uid,
                };
                let (gid, groups) = (who.gid, who.groups.clone());
                let who = scm::Credentials { uid, gid, groups };
                let (connection, end) = server.connection(who).map_err(|e| e.to_string())?;
                return Ok((Some(connection), Some(end)));
            }
        };
        let descriptor = descriptor.map_err(|e| e.to_string())?;
        Ok((Some(descriptor), None))
    }
}

fn caller(peer: &Peer) -> Ctx {
    Ctx {
        groups: peer.groups.clone(),
        ..Ctx::user(peer.uid, peer.gid)
    }
}

fn attributes(found: &rustix::fs::Stat) -> Attr {
    Attr {
        ino: Ino(found.st_ino),
        generation: 0,
        kind: FileType::Regular,
        perm: found.st_mode & 0o7777,
        nlink: 1,
        uid: found.st_uid,
        gid: found.st_gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        flags: FileFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_mode_decides_who_reads_the_image() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let image = Image::new(file.as_file(), EffectiveDurability::Process).unwrap();
        let stranger = Peer {
            uid: 54_321,
            gid: 54_321,
            groups: vec![],
        };
        let class = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            file.as_file().set_permissions(mode).unwrap();
            image.class(&stranger).unwrap()
        };
        assert_eq!(class(0o600), Class::Remote);
        assert_eq!(class(0o604), Class::Reader);
        // It could open the descriptor again for writing.
        assert_eq!(class(0o606), Class::Remote);
        let who = pxfs::Credentials {
            uid: stranger.uid,
            gid: stranger.gid,
            groups: vec![],
        };
        let (descriptor, _) = image.descriptor(Class::Remote, &who).unwrap();
        assert!(descriptor.is_none());
        let owner = Peer {
            uid: rustix::process::geteuid().as_raw(),
            ..stranger
        };
        assert_eq!(image.class(&owner), Ok(Class::Trusted));
    }
}
