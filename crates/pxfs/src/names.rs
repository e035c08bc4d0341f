//! Calls on names.

use crate::error::Res;
use crate::fs::{Pxfs, delete, key};
use crate::inode::Inode;
use aerie_objects::{Kind, ObjectId, Transaction, entries, is_inside};
use medium::Pmem;
use vfs::{
    Attr, Ctx, Errno, Ino, Name, NewNode, Removal, RenameFlags, Timestamp, check_name,
    check_replaced, perm,
};

/// Most names of a file.
const LINKS_MAX: u32 = u32::MAX - 1;

impl<P: Pmem> Pxfs<P> {
    pub(crate) fn look_up(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Res<Attr> {
        check_name(name)?;
        let dir = self.inode(dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &dir.attr)?;
        let object = self.find(&dir, name)?.ok_or(Errno::NOENT)?;
        let attr = self.load(object)?.attr;
        self.refer(object);
        Ok(attr)
    }

    /// Checks that a name can be made.
    fn may_make(&self, cx: &Ctx, dir: &Inode, name: &[u8]) -> Res<()> {
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &dir.attr)?;
        if self.find(dir, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if dir.attr.nlink == 0 {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        Ok(perm::may_create(cx, &dir.attr)?)
    }

    pub(crate) fn make_node(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Res<Attr> {
        check_name(at.name)?;
        let mut dir = self.inode(at.dir)?;
        self.may_make(cx, &dir, at.name)?;
        perm::may_mknod(cx, new.kind())?;
        let now = self.clock.now();
        let made = self.change(|tx| {
            let object = self.new_object(tx, self.new_attr(cx, &dir, new, now), new.target())?;
            tx.add(dir.object, at.name, object)?;
            dir.attr.nlink += u32::from(new.is_directory());
            touch(tx, &mut dir, now)?;
            Ok(object)
        })?;
        self.refer(made);
        Ok(self.load(made)?.attr)
    }

    /// Makes an object with these attributes and contents, of a page at most.
    fn new_object(
        &self,
        tx: &mut Transaction<'_, P>,
        attr: Attr,
        contents: &[u8],
    ) -> Res<ObjectId> {
        let kind = match attr.kind {
            vfs::FileType::Directory => Kind::Collection,
            _ => Kind::MFile,
        };
        let object = tx.create(kind)?;
        if !contents.is_empty() {
            let page = tx.add_page(object, 0)?;
            tx.store_contents(page, contents);
            tx.set_size(object, contents.len() as u64)?;
        }
        let has_xattrs = false;
        Inode {
            object,
            attr,
            has_xattrs,
        }
        .store(tx)?;
        Ok(object)
    }

    pub(crate) fn make_nameless(&self, cx: &Ctx, dir: Ino, mode: u32) -> Res<Attr> {
        let dir = self.inode(dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_create(cx, &dir.attr)?;
        let new = NewNode::file(mode);
        let attr = Attr {
            nlink: 0,
            ..self.new_attr(cx, &dir, &new, self.clock.now())
        };
        let made = self.change(|tx| {
            let object = self.new_object(tx, attr, b"")?;
            tx.add(tx.superblock().open, &key(object), object)?;
            Ok(object)
        })?;
        self.refer(made);
        self.nameable.lock().insert(made);
        Ok(self.load(made)?.attr)
    }

    pub(crate) fn link_node(&self, cx: &Ctx, ino: Ino, at: Name<'_>) -> Res<Attr> {
        check_name(at.name)?;
        let (mut dir, mut node) = (self.inode(at.dir)?, self.inode(ino)?);
        self.may_make(cx, &dir, at.name)?;
        perm::may_link(&node.attr)?;
        let is_nameless = node.attr.nlink == 0;
        if is_nameless && !self.nameable.lock().contains(&node.object) {
            return Err(Errno::NOENT.into()); // removed, and still referenced
        }
        if node.attr.nlink >= LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        let now = self.clock.now();
        self.change(|tx| {
            tx.add(dir.object, at.name, node.object)?;
            if is_nameless {
                tx.remove(tx.superblock().open, &key(node.object))?;
            }
            node.attr.nlink += 1;
            node.attr.ctime = now;
            node.store(tx)?;
            touch(tx, &mut dir, now)
        })?;
        self.nameable.lock().remove(&node.object);
        self.refer(node.object);
        Ok(self.load(node.object)?.attr)
    }

    pub(crate) fn remove_name(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Res<()> {
        check_name(at.name)?;
        let mut dir = self.inode(at.dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &dir.attr)?;
        let node = self.find(&dir, at.name)?.ok_or(Errno::NOENT)?;
        let node = self.load(node)?;
        perm::may_delete(cx, &dir.attr, &node.attr)?;
        which.check(node.is_dir())?;
        self.must_be_empty(&node)?;
        let now = self.clock.now();
        self.change(|tx| {
            tx.remove(dir.object, at.name)?;
            let links = u32::from(node.is_dir());
            self.lose_name(tx, node, now)?;
            dir.attr.nlink = dir.attr.nlink.saturating_sub(links);
            touch(tx, &mut dir, now)
        })
    }

    fn must_be_empty(&self, node: &Inode) -> Res<()> {
        if node.is_dir() && entries(self.store.memory(), node.object)? > 0 {
            return Err(Errno::NOTEMPTY.into());
        }
        Ok(())
    }

    /// Counts a name less of an object that has lost an entry, and deletes it with the last one, unless
    /// it is referenced.
    fn lose_name(&self, tx: &mut Transaction<'_, P>, mut node: Inode, now: Timestamp) -> Res<()> {
        node.attr.nlink = match node.is_dir() {
            true => 0,
            false => node.attr.nlink.saturating_sub(1),
        };
        node.attr.ctime = now;
        match node.attr.nlink {
            0 if !self.is_referenced(node.object) => return delete(tx, node.object),
            0 => tx.add(tx.superblock().open, &key(node.object), node.object)?,
            _ => {}
        }
        node.store(tx)
    }

    pub(crate) fn rename_node(
        &self,
        cx: &Ctx,
        from: Name<'_>,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Res<()> {
        check_name(from.name)?;
        check_name(to.name)?;
        flags.check()?;
        let dirs = [self.inode(from.dir)?, self.inode(to.dir)?];
        if !dirs.iter().all(Inode::is_dir) {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(cx, &dirs[0].attr)?;
        perm::may_search(cx, &dirs[1].attr)?;
        let source = self.find(&dirs[0], from.name)?.ok_or(Errno::NOENT)?;
        let target = self.find(&dirs[1], to.name)?;
        flags.check_target(target.is_some())?;
        self.must_stay_a_tree(&dirs, source, target, flags)?;
        if target == Some(source) {
            return Ok(());
        }
        let source = self.load(source)?;
        let target = target.map(|target| self.load(target)).transpose()?;
        self.may_rename(cx, &dirs, &source, target.as_ref(), flags)?;
        let names = [from.name, to.name];
        self.change(|tx| self.move_names(tx, dirs, names, source, target, flags))
    }

    /// Refuses to move a directory below itself.
    fn must_stay_a_tree(
        &self,
        [from, to]: &[Inode; 2],
        source: ObjectId,
        target: Option<ObjectId>,
        flags: RenameFlags,
    ) -> Res<()> {
        let memory = self.store.memory();
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
    fn may_rename(
        &self,
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
                self.must_be_empty(target)
            }
            None => Ok(()),
        }
    }

    fn move_names(
        &self,
        tx: &mut Transaction<'_, P>,
        [mut from, mut to]: [Inode; 2],
        [old, new]: [&[u8]; 2],
        mut source: Inode,
        target: Option<Inode>,
        flags: RenameFlags,
    ) -> Res<()> {
        let now = self.clock.now();
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
            if flags.is_exchange() {
                from_links += links;
                tx.add(from.object, old, target.object)?;
                target.attr.ctime = now;
                target.store(tx)?;
            } else {
                self.lose_name(tx, target, now)?;
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

/// Stores the attributes of a directory or file whose contents have changed.
pub(crate) fn touch<P: Pmem>(
    tx: &mut Transaction<'_, P>,
    inode: &mut Inode,
    now: Timestamp,
) -> Res<()> {
    (inode.attr.mtime, inode.attr.ctime) = (now, now);
    inode.store(tx)
}
