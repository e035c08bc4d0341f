//! Calls on names.

use crate::error::Res;
use crate::fs::{By, Pxfs};
use crate::inode::Inode;
use aerie_objects::{Kind, Load, NewObject, ObjectId, Transaction, entries, is_inside};
use medium::Pmem;
use vfs::{
    Attr, Ctx, Errno, Ino, Name, NewNode, Removal, RenameFlags, Timestamp, check_name,
    check_replaced, perm,
};

/// Most names of a file.
const LINKS_MAX: u32 = u32::MAX - 1;

/// The effects of a rename.
#[derive(Default)]
pub(crate) struct Renamed {
    /// The node that has lost its name to another one.
    pub(crate) replaced: Option<ObjectId>,
    /// Whether a directory has moved, or was replaced.
    pub(crate) moves_directories: bool,
}

/// The inodes and names of a rename.
struct Moved<'a> {
    dirs: [Inode; 2],
    names: [&'a [u8]; 2],
    source: Inode,
    target: Option<Inode>,
}

impl<P: Pmem> Pxfs<P> {
    pub(crate) fn look_up<M: Load>(&self, memory: &M, cx: &Ctx, at: Name<'_>) -> Res<Inode> {
        check_name(at.name)?;
        let dir = self.inode(memory, at.dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &dir.attr)?;
        let object = self.find(memory, &dir, at.name)?.ok_or(Errno::NOENT)?;
        self.load(memory, object)
    }

    /// Checks that a name can be made.
    fn may_make(&self, tx: &Transaction<'_, P>, cx: &Ctx, dir: &Inode, name: &[u8]) -> Res<()> {
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &dir.attr)?;
        if self.find(tx, dir, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if dir.attr.nlink == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        Ok(perm::may_create(cx, &dir.attr)?)
    }

    pub(crate) fn make_node(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        at: Name<'_>,
        new: &NewNode<'_>,
        chosen: Option<NewObject>,
    ) -> Res<Attr> {
        check_name(at.name)?;
        let mut dir = self.inode(tx, at.dir)?;
        self.may_make(tx, by.cx, &dir, at.name)?;
        perm::may_mknod(by.cx, new.kind())?;
        let attr = new_attr(by, &dir, new);
        let made = Self::new_object(tx, Some(&dir), attr, chosen)?;
        tx.add(dir.object, at.name, made)?;
        if !new.target().is_empty() {
            let page = tx.add_page(made, 0)?;
            tx.store_contents(page, new.target());
            tx.set_size(made, new.target().len() as u64)?;
        }
        dir.attr.nlink += u32::from(new.is_directory());
        touch(tx, &mut dir, by.now())?;
        Ok(self.load(tx, made)?.attr)
    }

    /// Makes an object with these attributes, which the caller adds to the directory.
    fn new_object(
        tx: &mut Transaction<'_, P>,
        dir: Option<&Inode>,
        attr: Attr,
        chosen: Option<NewObject>,
    ) -> Res<ObjectId> {
        let kind = match attr.kind {
            vfs::FileType::Directory => Kind::Collection,
            _ => Kind::MFile,
        };
        let object = match (chosen, dir) {
            (Some(new), _) => tx.create_at(new)?,
            (None, Some(dir)) => tx.create_for(dir.object, kind)?,
            (None, None) => tx.create(kind)?,
        };
        Inode {
            object,
            attr,
            has_xattrs: false,
            is_nameable: attr.nlink == 0,
        }
        .store(tx)?;
        Ok(object)
    }

    pub(crate) fn make_nameless(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        dir: Ino,
        mode: u32,
        chosen: Option<NewObject>,
    ) -> Res<Attr> {
        let dir = self.inode(tx, dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_create(by.cx, &dir.attr)?;
        let attr = Attr {
            nlink: 0,
            ..new_attr(by, &dir, &NewNode::file(mode))
        };
        let made = Self::new_object(tx, None, attr, chosen)?;
        self.enlist(tx, made)?;
        Ok(self.load(tx, made)?.attr)
    }

    pub(crate) fn link_node(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        ino: Ino,
        at: Name<'_>,
    ) -> Res<Attr> {
        check_name(at.name)?;
        let (mut dir, mut node) = (self.inode(tx, at.dir)?, self.inode(tx, ino)?);
        self.may_make(tx, by.cx, &dir, at.name)?;
        perm::may_link(&node.attr)?;
        let is_nameless = node.attr.nlink == 0;
        if is_nameless && !node.is_nameable {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        if node.attr.nlink >= LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        if is_nameless {
            self.strike(tx, node.object)?;
        }
        tx.add(dir.object, at.name, node.object)?;
        node.attr.nlink += 1;
        node.attr.ctime = by.now();
        node.is_nameable = false;
        node.store(tx)?;
        touch(tx, &mut dir, by.now())?;
        Ok(self.load(tx, node.object)?.attr)
    }

    /// `is_held`: whether the removed node has references that this file system does not count.
    /// Returns the node.
    pub(crate) fn remove_name(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        at: Name<'_>,
        which: Removal,
        is_held: bool,
    ) -> Res<ObjectId> {
        check_name(at.name)?;
        let mut dir = self.inode(tx, at.dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(by.cx, &dir.attr)?;
        let node = self.find(tx, &dir, at.name)?.ok_or(Errno::NOENT)?;
        let node = self.load(tx, node)?;
        perm::may_delete(by.cx, &dir.attr, &node.attr)?;
        which.check(node.is_dir())?;
        must_be_empty(tx, &node)?;
        tx.remove(dir.object, at.name)?;
        let links = u32::from(node.is_dir());
        self.lose_name(tx, node, by.now(), is_held)?;
        dir.attr.nlink = dir.attr.nlink.saturating_sub(links);
        touch(tx, &mut dir, by.now())?;
        Ok(node.object)
    }

    /// Counts a name less of an object that has lost an entry, and deletes it with the last one, unless
    /// it is referenced.
    fn lose_name(
        &self,
        tx: &mut Transaction<'_, P>,
        mut node: Inode,
        now: Timestamp,
        is_held: bool,
    ) -> Res<()> {
        node.attr.nlink = match node.is_dir() {
            true => 0,
            false => node.attr.nlink.saturating_sub(1),
        };
        node.attr.ctime = now;
        match node.attr.nlink {
            0 if !is_held && !self.is_referenced(node.object) => {
                return self.delete(tx, node.object);
            }
            0 => self.enlist(tx, node.object)?,
            _ => {}
        }
        node.store(tx)
    }

    /// `is_held`: as in [`remove_name`](Self::remove_name), for a replaced node.
    pub(crate) fn rename_node(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        [from, to]: [Name<'_>; 2],
        flags: RenameFlags,
        is_held: bool,
    ) -> Res<Renamed> {
        check_name(from.name)?;
        check_name(to.name)?;
        flags.check()?;
        let dirs = [self.inode(tx, from.dir)?, self.inode(tx, to.dir)?];
        if !dirs.iter().all(Inode::is_dir) {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(by.cx, &dirs[0].attr)?;
        perm::may_search(by.cx, &dirs[1].attr)?;
        let source = self.find(tx, &dirs[0], from.name)?.ok_or(Errno::NOENT)?;
        let target = self.find(tx, &dirs[1], to.name)?;
        flags.check_target(target.is_some())?;
        must_stay_a_tree(tx, &dirs, source, target, flags)?;
        if target == Some(source) {
            return Ok(Renamed::default());
        }
        let source = self.load(tx, source)?;
        let target = target.map(|target| self.load(tx, target)).transpose()?;
        may_rename(tx, by.cx, &dirs, &source, target.as_ref(), flags)?;
        let moved = Moved {
            dirs,
            names: [from.name, to.name],
            source,
            target,
        };
        self.move_names(tx, by.now(), moved, flags.is_exchange(), is_held)?;
        let replaced = target.filter(|_| !flags.is_exchange());
        Ok(Renamed {
            replaced: replaced.map(|target| target.object),
            moves_directories: source.is_dir() || target.is_some_and(|target| target.is_dir()),
        })
    }

    fn move_names(
        &self,
        tx: &mut Transaction<'_, P>,
        now: Timestamp,
        moved: Moved<'_>,
        is_exchange: bool,
        is_held: bool,
    ) -> Res<()> {
        let Moved {
            dirs: [mut from, mut to],
            names: [old, new],
            mut source,
            target,
        } = moved;
        // First the removals: a directory has one entry at a time.
        tx.remove(from.object, old)?;
        if target.is_some() {
            tx.remove(to.object, new)?;
        }
        tx.add(to.object, new, source.object)?;
        source.attr.ctime = now;
        source.store(tx)?;
        // Changes of the link counts: each directory in a directory is a link of it.
        let moved = i32::from(source.is_dir());
        let (mut from_links, mut to_links) = (-moved, moved);
        if let Some(mut target) = target {
            let links = i32::from(target.is_dir());
            to_links -= links;
            if is_exchange {
                from_links += links;
                tx.add(from.object, old, target.object)?;
                target.attr.ctime = now;
                target.store(tx)?;
            } else {
                self.lose_name(tx, target, now, is_held)?;
            }
        }
        if from.object == to.object {
            from_links += to_links;
        } else {
            to.attr.nlink = to.attr.nlink.saturating_add_signed(to_links);
            touch(tx, &mut to, now)?;
        }
        from.attr.nlink = from.attr.nlink.saturating_add_signed(from_links);
        touch(tx, &mut from, now)
    }
}

/// Refuses to move a directory below itself.
fn must_stay_a_tree<M: Load>(
    memory: &M,
    [from, to]: &[Inode; 2],
    source: ObjectId,
    target: Option<ObjectId>,
    flags: RenameFlags,
) -> Res<()> {
    if source.kind() == Kind::Collection && is_inside(memory, to.object, source)? {
        return Err(Errno::INVAL.into());
    }
    match target {
        Some(target)
            if target.kind() == Kind::Collection && is_inside(memory, from.object, target)? =>
        {
            Err(match flags.is_exchange() {
                true => Errno::INVAL.into(),
                false => Errno::NOTEMPTY.into(),
            })
        }
        _ => Ok(()),
    }
}

/// Checks the inodes, in the order of Linux.
fn may_rename<M: Load>(
    memory: &M,
    cx: &Ctx,
    [from, to]: &[Inode; 2],
    source: &Inode,
    target: Option<&Inode>,
    flags: RenameFlags,
) -> Res<()> {
    if to.attr.nlink == 0 {
        return Err(Errno::NOENT.into()); // removed, and still referenced
    }
    let gone = target.map(|target| &target.attr);
    let is_exchange = flags.is_exchange();
    perm::may_rename(cx, &from.attr, &source.attr, &to.attr, gone, is_exchange)?;
    match target.filter(|_| !is_exchange) {
        Some(target) => {
            check_replaced(source.is_dir(), target.is_dir())?;
            must_be_empty(memory, target)
        }
        None => Ok(()),
    }
}

fn must_be_empty<M: Load>(memory: &M, node: &Inode) -> Res<()> {
    if node.is_dir() && entries(memory, node.object)? > 0 {
        return Err(Errno::NOTEMPTY.into());
    }
    Ok(())
}

/// Attributes of a new inode.
fn new_attr(by: By<'_>, dir: &Inode, new: &NewNode<'_>) -> Attr {
    let owner = perm::new_owner(by.cx, &dir.attr, new);
    Attr {
        kind: new.kind(),
        perm: owner.perm,
        uid: owner.uid,
        gid: owner.gid,
        nlink: if new.is_directory() { 2 } else { 1 },
        rdev: new.rdev(),
        atime: by.now(),
        mtime: by.now(),
        ctime: by.now(),
        ..dir.attr
    }
}

/// Stores the attributes of a directory or file whose contents have changed.
pub(crate) fn touch<P: Pmem>(
    tx: &mut Transaction<'_, P>,
    inode: &mut Inode,
    now: Timestamp,
) -> Res<()> {
    (inode.attr.mtime, inode.attr.ctime) = (now, now);
    inode.store(tx)
}
