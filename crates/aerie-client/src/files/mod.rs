//! Files by their paths, and open files with offsets, for programs in Rust and C.
//!
//! # Guarantees
//! - The calls are those of POSIX, with its results and errors, for the user of the client. Paths start at the
//!   root of the store. There is no current directory and no umask.
//! - Any number of threads use a client and a file. Each call sees what calls of all clients have done that
//!   have returned.
//! - Changes are durable after [`Files::sync`] or [`File::sync`], and at the latest after the period of the
//!   client. The changes of metadata become durable in their order.

mod file;
mod walk;

use crate::client::Client;
pub use file::File;
pub use rustix::fs::OFlags;
use std::borrow::Borrow;
use vfs::{
    Attr, Cookie, DirEntry, Errno, FileSystem, FileType, Name, NewNode, OpenFlags, Removal,
    RenameFlags, Result, SetAttr,
};
use walk::{Found, Node, known, walk, walk_quickly};

/// Attempts of an open to find or make a file that others make and remove meanwhile.
const ATTEMPTS: usize = 100;
/// Entries that are listed at a time.
const LIST_PART: usize = 256;

/// The files of a store. `C` is a client, or a reference to one, such as `&Client` or `Arc<Client>`.
///
/// ```no_run
/// use aerie_client::{Client, Files, OFlags};
///
/// let client = Client::connect("store.socket".as_ref(), &Default::default())?;
/// let files = Files::new(&client);
/// files.make_directory(b"letters", 0o755)?;
/// let letter = files.open(b"letters/first", OFlags::CREATE | OFlags::WRONLY, 0o644)?;
/// letter.write(b"Dear reader")?;
/// letter.sync()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Files<C: Borrow<Client>> {
    client: C,
}

impl<C: Borrow<Client>> Files<C> {
    /// The files of the store of a client.
    pub fn new(client: C) -> Self {
        Self { client }
    }

    fn client(&self) -> &Client {
        self.client.borrow()
    }

    fn walk(&self, path: &[u8], follow: bool) -> Result<Found<'_>> {
        walk(self.client(), path, follow)
    }

    /// Opens a file or a directory. The flags are the access, `CREATE`, `EXCL`, `TRUNC`, `APPEND`,
    /// `DIRECTORY` and `NOFOLLOW`; others have no effect. `mode`: permission bits of a new file.
    ///
    /// # Errors
    /// Those of `open`; `ENXIO` for a node that is neither a file nor a directory. Unlike with `open`, `EACCES` for
    /// a new file whose mode does not permit the access.
    pub fn open(&self, path: &[u8], flags: OFlags, mode: u32) -> Result<File<C>>
    where
        C: Clone,
    {
        let is_new = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let follow = !flags.contains(OFlags::NOFOLLOW) && !is_new;
        if let Some(opened) = self.open_quickly(path, flags, mode) {
            return Ok(File::new(self.client.clone(), opened?, flags));
        }
        for _ in 0..ATTEMPTS {
            let found = match flags.contains(OFlags::CREATE) {
                true => self.walk(path, follow)?,
                false => walk_quickly(self.client(), path, follow)?,
            };
            let opened = match found.attr() {
                Ok(_) if is_new => return Err(Errno::EXIST),
                Ok(attr) => self.open_found(&attr, flags).map(|()| attr),
                Err(_) if flags.contains(OFlags::CREATE) => {
                    let at = found.new_name(false)?;
                    self.open_new(flags, |client| {
                        client.make(client.own(), at, &NewNode::file(mode))
                    })
                }
                Err(errno) => return Err(errno),
            };
            match opened {
                // Others have made or removed it meanwhile.
                Err(Errno::EXIST) if !is_new => {}
                Err(Errno::STALE) => {}
                opened => return Ok(File::new(self.client.clone(), opened?.ino, flags)),
            }
        }
        Err(Errno::STALE)
    }

    /// Opens a file whose directory is known. `None`: all that another way finds better.
    fn open_quickly(&self, path: &[u8], flags: OFlags, mode: u32) -> Option<Result<vfs::Ino>> {
        if flags.intersects(OFlags::TRUNC | OFlags::DIRECTORY) {
            return None;
        }
        let client = self.client();
        let known = known(client, path)?;
        let is_made = flags.contains(OFlags::CREATE);
        if !(is_made && flags.contains(OFlags::EXCL)) {
            match client.open_file(client.own(), known.0, access(flags)) {
                Ok(Some(attr)) if client.paths_version() != known.1 => {
                    client.release(attr.ino);
                    return None;
                }
                Ok(Some(attr)) => return Some(Ok(attr.ino)),
                Err(Errno::NOENT) if is_made => {}
                Err(errno) if client.paths_version() == known.1 => return Some(Err(errno)),
                Ok(None) | Err(_) => return None,
            }
        }
        match self.open_new(flags, |client| client.make_at(known, &NewNode::file(mode))) {
            Err(Errno::EXIST | Errno::STALE) => None,
            opened => Some(opened.map(|attr| attr.ino)),
        }
    }

    fn open_found(&self, attr: &Attr, flags: OFlags) -> Result<()> {
        match attr.kind {
            FileType::Directory if flags.contains(OFlags::CREATE) => return Err(Errno::ISDIR),
            FileType::Directory => {}
            _ if flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR),
            FileType::Regular => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::NXIO),
        }
        let mut access = access(flags);
        access.set(OpenFlags::TRUNCATE, flags.contains(OFlags::TRUNC));
        self.client().open(self.client().own(), attr.ino, access)
    }

    /// Makes a file, and opens it.
    fn open_new(&self, flags: OFlags, make: impl FnOnce(&Client) -> Result<Attr>) -> Result<Attr> {
        let client = self.client();
        let made = Node::counted(client, make(client)?);
        client.open(client.own(), made.attr.ino, access(flags))?;
        Ok(made.attr)
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// Those of `stat`.
    pub fn attributes(&self, path: &[u8]) -> Result<Attr> {
        self.attributes_of(path, true)
    }

    /// As [`attributes`](Self::attributes), but does not follow a symbolic link at the end.
    ///
    /// # Errors
    /// Those of `lstat`.
    pub fn link_attributes(&self, path: &[u8]) -> Result<Attr> {
        self.attributes_of(path, false)
    }

    fn attributes_of(&self, path: &[u8], follow: bool) -> Result<Attr> {
        let client = self.client();
        let found = known(client, path).and_then(|(at, version)| {
            let found = client.attributes(client.own(), at).transpose()?;
            (client.paths_version() == version).then_some(found)
        });
        let found = found.transpose()?;
        let is_end = |attr: &Attr| !follow || attr.kind != FileType::Symlink;
        match found.filter(is_end) {
            Some(attr) => Ok(attr),
            None => walk_quickly(client, path, follow)?.attr(),
        }
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Those of `chmod`, `chown`, `truncate` and `utimensat`.
    pub fn set_attributes(&self, path: &[u8], set: &SetAttr) -> Result<()> {
        let client = self.client();
        let node = walk_quickly(client, path, true)?.into_node()?;
        client.setattr(client.own(), node.attr.ino, set).map(drop)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// Those of `mkdir`.
    pub fn make_directory(&self, path: &[u8], mode: u32) -> Result<()> {
        self.make(path, &NewNode::directory(mode))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// Those of `symlink`.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.make(path, &NewNode::symlink(target)?)
    }

    fn make(&self, path: &[u8], new: &NewNode<'_>) -> Result<()> {
        let client = self.client();
        let made = match known(client, path).map(|known| client.make_at(known, new)) {
            None | Some(Err(Errno::STALE)) => {
                let found = self.walk(path, false)?;
                client.make(client.own(), found.new_name(new.is_directory())?, new)
            }
            Some(made) => made,
        }?;
        drop(Node::counted(client, made));
        Ok(())
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// Those of `readlink`.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let client = self.client();
        let found = walk_quickly(client, path, false)?;
        client.readlink(client.own(), found.attr()?.ino)
    }

    /// Removes the name of a file.
    ///
    /// # Errors
    /// Those of `unlink`.
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        let client = self.client();
        let unlink = |known| client.remove_at(known, Removal::Unlink);
        match known(client, path).map(unlink) {
            None | Some(Err(Errno::STALE)) => {}
            Some(removed) => return removed,
        }
        let found = self.walk(path, false)?;
        let is_directory = found.attr()?.kind == FileType::Directory;
        let at = found.name().map_err(|_| Errno::ISDIR)?;
        match is_directory {
            true => Err(Errno::ISDIR),
            false => self.remove(at, Removal::Unlink),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of `rmdir`.
    pub fn remove_directory(&self, path: &[u8]) -> Result<()> {
        let found = self.walk(path, false)?;
        found.attr()?;
        self.remove(found.name()?, Removal::Rmdir)
    }

    fn remove(&self, at: Name<'_>, which: Removal) -> Result<()> {
        self.client().remove(self.client().own(), at, which)
    }

    /// Moves a name, in place of any at the new one.
    ///
    /// # Errors
    /// Those of `rename`.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (self.walk(from, false)?, self.walk(to, false)?);
        if to.ends_with_slash() && from.attr()?.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        from.attr()?;
        let (client, none) = (self.client(), RenameFlags::empty());
        client.rename(client.own(), from.name()?, to.name()?, none)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// Those of `link`.
    pub fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let (old, new) = (self.walk(old, false)?, self.walk(new, false)?);
        let (at, ino) = (new.new_name(false)?, old.attr()?.ino);
        let client = self.client();
        let linked = client.link(client.own(), ino, at.dir, at.name)?;
        drop(Node::counted(client, linked));
        Ok(())
    }

    /// Calls `sink` for each entry of a directory, `.` and `..` too, until it returns false. Entries that are
    /// added or removed meanwhile may be left out. `sink` can use the client.
    ///
    /// # Errors
    /// Those of `open` for a directory.
    pub fn list(&self, path: &[u8], mut sink: impl FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let (client, mut after) = (self.client(), Cookie(0));
        let dir = walk_quickly(client, path, true)?.into_node()?;
        loop {
            let mut part: Vec<(vfs::Ino, FileType, Vec<u8>, Cookie)> = Vec::new();
            client.readdir(client.own(), dir.attr.ino, after, &mut |entry| {
                let is_accepted = part.len() < LIST_PART;
                if is_accepted {
                    part.push((entry.ino, entry.kind, entry.name.to_vec(), entry.cookie));
                }
                is_accepted
            })?;
            let Some(last) = part.last() else {
                return Ok(());
            };
            after = last.3;
            for (ino, kind, name, cookie) in &part {
                let entry = DirEntry {
                    ino: *ino,
                    kind: *kind,
                    name,
                    cookie: *cookie,
                };
                if !sink(&entry) {
                    return Ok(());
                }
            }
        }
    }

    /// Waits until all changes that have returned are durable.
    ///
    /// # Errors
    /// That of the first change that the service has refused since the last call of this kind.
    pub fn sync(&self) -> Result<()> {
        self.client().sync()
    }
}

/// The access of an open.
fn access(flags: OFlags) -> OpenFlags {
    let access = flags & OFlags::ACCMODE;
    if access == OFlags::WRONLY {
        OpenFlags::WRITE
    } else if access == OFlags::RDWR {
        OpenFlags::READ | OpenFlags::WRITE
    } else {
        OpenFlags::READ
    }
}
