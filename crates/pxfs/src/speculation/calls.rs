//! The calls of [`FileSystem`] on a speculation.

use super::{Access, Host, Speculation};
use crate::calls::COOKIES_OF_DOTS;
use crate::error::Fault;
use crate::inode;
use aerie_objects::{Kind, ObjectId, generation};
use aerie_proto::ops::Op;
use medium::Pmem;
use std::sync::atomic::Ordering::Acquire;
use vfs::xattrs::XattrChange;
use vfs::{
    Atomicity, Attr, Cookie, Ctx, DirEntry, Durability, Errno, Fallocate, FileSystem, FileType,
    Guarantees, Ino, Name, NewNode, OpenFlags, Ordering, Removal, RenameFlags, Result, SeekKind,
    SetAttr, StatFs, XattrMode, perm,
};

impl<P: Pmem, H: Host> Speculation<P, H> {
    /// Opens a file at the service. The gate is held for a change.
    pub(super) fn record_open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        self.record(
            cx,
            |tx, by| self.fs.open_node(tx, by, ino, flags),
            |state, object| {
                self.tell_by_operation(state, *object);
                if flags.contains(OpenFlags::WRITE) {
                    state.opened.insert(*object);
                }
                Op::Open { ino, flags }
            },
        )
        .map(drop)
    }

    /// Whether the service must learn of an open.
    fn records_opens(&self, flags: OpenFlags) -> bool {
        flags.contains(OpenFlags::TRUNCATE)
            || self.access == Access::Partial
            || flags.contains(OpenFlags::WRITE) && !self.is_trusted
    }

    /// [`FileSystem::attributes`], if `may_read` permits to read the inode.
    ///
    /// # Errors
    /// As [`FileSystem::attributes`].
    pub fn attributes_if(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        may_read: impl FnOnce(Ino) -> bool,
    ) -> Result<Option<Attr>> {
        self.fs.shared(|| {
            let attr = self.fs.look_up(self.overlay(), cx, at)?.attr;
            Ok(may_read(attr.ino).then_some(attr))
        })
    }

    /// [`FileSystem::open_file`], if `may_read` permits to read the inode.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`].
    pub fn open_file_if(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        flags: OpenFlags,
        may_read: impl FnOnce(Ino) -> bool,
    ) -> Result<Option<Attr>> {
        if cx.checked || self.records_opens(flags) {
            return Ok(None);
        }
        self.fs.shared(|| {
            let found = self.fs.look_up(self.overlay(), cx, at)?;
            if found.attr.kind != FileType::Regular || !may_read(found.attr.ino) {
                return Ok(None);
            }
            perm::may_open(cx, &found.attr, flags)?;
            self.fs.refer(found.object);
            self.tell_path(at, found.attr.ino);
            Ok(Some(found.attr))
        })
    }

    /// [`FileSystem::make`] in a directory to which a path led at `version` of [`FileSystem::paths_version`]. It has no
    /// reference: another one may have got its number since.
    ///
    /// # Errors
    /// As [`FileSystem::make`]; `ESTALE` at another version.
    pub fn make_at(
        &self,
        cx: &Ctx,
        (at, version): (Name<'_>, Option<u64>),
        new: &NewNode<'_>,
    ) -> Result<Attr> {
        let _gate = self.fs.gate.write();
        self.must_lead_as_at(version)?;
        self.make_alone(cx, at, new)
    }

    /// [`FileSystem::remove`], as [`make_at`](Self::make_at).
    ///
    /// # Errors
    /// As [`FileSystem::remove`]; `ESTALE` at another version.
    pub fn remove_at(
        &self,
        cx: &Ctx,
        (at, version): (Name<'_>, Option<u64>),
        which: Removal,
    ) -> Result<()> {
        let _gate = self.fs.gate.write();
        self.must_lead_as_at(version)?;
        self.remove_alone(cx, at, which)
    }

    fn must_lead_as_at(&self, version: Option<u64>) -> Result<()> {
        match self.paths_version() == version {
            true => Ok(()),
            false => Err(Errno::STALE),
        }
    }

    /// Makes a node. The gate is held for a change.
    fn make_alone(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        self.refill([0, 1])?;
        let attr = self.record(
            cx,
            |tx, by| self.fs.make_node(tx, by, at, new, None),
            |_, attr| Op::Make {
                at: at.into(),
                node: new.into(),
                object: self.object_of(attr),
            },
        )?;
        self.fs.refer_number(attr.ino);
        Ok(attr)
    }

    /// Removes a name. The gate is held for a change.
    fn remove_alone(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let removed = self.record(
            cx,
            |tx, by| self.fs.remove_name(tx, by, at, which, false),
            |state, object| {
                let holds = self.is_to_be_held(*object);
                if holds {
                    self.tell_by_operation(state, *object);
                }
                let at = at.into();
                Op::Remove { at, which, holds }
            },
        )?;
        if removed.kind() == Kind::Collection {
            self.paths_change();
        }
        Ok(())
    }

    /// Whether the service is to hold an object that has lost a name.
    fn is_to_be_held(&self, object: ObjectId) -> bool {
        let is_left = generation(self.overlay(), object).is_ok();
        self.told.count(object) == 0 && is_left && self.fs.is_referenced(object)
    }

    /// Ships, and reports a refusal.
    fn settle(&self) -> Result<()> {
        let shipped = self.ship(false);
        let refusal = self.take_refusal();
        shipped?;
        refusal.map_or(Ok(()), |refusal| {
            Err(Errno::from_raw_os_error(refusal.errno))
        })
    }

    pub(crate) fn object_of(&self, attr: &Attr) -> Option<ObjectId> {
        inode::object(self.fs.store.superblock(), attr.ino)
    }

    /// Ends the holds of an object without references, and deletes it if it has no name.
    fn drop_object(&self, ino: Ino, object: ObjectId) -> Result<()> {
        let _gate = self.fs.gate.write();
        if self.fs.is_referenced(object) {
            return Ok(());
        }
        let inode = self.fs.load(self.overlay(), object);
        if inode.is_ok_and(|inode| inode.attr.nlink == 0) {
            let buried = self.fs.change(|tx| self.fs.bury(tx, object));
            buried.map_err(Fault::errno)?;
            self.fs.store.drop_freed();
        }
        let mut state = self.state.lock();
        state.opened.remove(&object);
        let count = self.told.take(object);
        if count > 0 {
            self.push(&mut state, None, Op::Release { ino, count });
        }
        Ok(())
    }
}

impl<P: Pmem, H: Host> FileSystem for Speculation<P, H> {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            name: "pxfs (client)".into(),
            durable: Durability::AtFsync,
            metadata_atomic: Atomicity::Call,
            data_atomic: Atomicity::Word,
            metadata_ordered: Ordering::Global,
            data_ordered: Ordering::None,
            times_atomic: true,
            notes: vec!["A call that the service refuses fails at the next fsync.".into()],
        }
    }

    fn paths_version(&self) -> Option<u64> {
        // Calls that need pages of others run at the service, without locks of this client.
        let is_whole = self.access != Access::Partial;
        is_whole.then(|| self.paths.load(Acquire))
    }

    fn drops_capabilities(&self) -> bool {
        true
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        let at = Name::new(dir, name);
        self.fs.shared(|| {
            let found = self.fs.look_up(self.overlay(), cx, at)?;
            self.fs.refer(found.object);
            self.tell_path(at, found.attr.ino);
            Ok(found.attr)
        })
    }

    fn attributes(&self, cx: &Ctx, at: Name<'_>) -> Result<Option<Attr>> {
        self.attributes_if(cx, at, |_| true)
    }

    fn open_file(&self, cx: &Ctx, at: Name<'_>, flags: OpenFlags) -> Result<Option<Attr>> {
        self.open_file_if(cx, at, flags, |_| true)
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        self.fs.by_number(ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Some(object) = inode::object(self.fs.store.superblock(), ino) else {
            return;
        };
        {
            let _gate = self.fs.gate.read();
            if !self.fs.unrefer(object, count) {
                return;
            }
            let has_name = match self.fs.load(self.overlay(), object) {
                Ok(inode) => inode.attr.nlink > 0,
                Err(_) => true,
            };
            if has_name && self.told.count(object) == 0 {
                return;
            }
        }
        if let Err(errno) = self.drop_object(ino, object) {
            tracing::error!("inode {ino} is not removed: {errno}");
        }
    }

    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr> {
        self.fs.getattr(cx, ino)
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let ctime = set.ctime.filter(|_| self.is_trusted);
        let set = SetAttr { ctime, ..*set };
        let _gate = self.fs.gate.write();
        let object = inode::object(self.fs.store.superblock(), ino);
        let is_directory = object.is_some_and(|object| object.kind() == Kind::Collection);
        if is_directory && set.changes_rights() && !self.is_trusted {
            // Afterwards this user may have no path to the files below. The service then accepts calls only on those
            // that it holds for the client.
            self.tell_all(&mut self.state.lock())?;
        }
        let attr = self.record(
            cx,
            |tx, by| self.fs.set_attr(tx, by, ino, &set),
            |_, _| Op::SetAttr { ino, set },
        )?;
        if attr.kind == FileType::Directory && set.changes_rights() {
            self.paths_change();
        }
        Ok(attr)
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let fs = &self.fs;
        let dir = fs.shared(|| fs.read_dir(cx, dir, after, &mut |entry, _| sink(entry)))?;
        self.accessed(cx, &dir);
        Ok(())
    }

    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let listed = self.fs.shared(|| {
            self.fs.read_dir_plus(cx, dir, after, &mut |entry, attr| {
                let is_accepted = sink(entry, attr);
                if is_accepted && entry.cookie.0 > COOKIES_OF_DOTS {
                    self.tell_path(Name::new(dir, entry.name), entry.ino);
                }
                is_accepted
            })
        })?;
        self.accessed(cx, &listed);
        Ok(())
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let _gate = self.fs.gate.write();
        self.make_alone(cx, at, new)
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let (target, link) = self.fs.shared(|| self.fs.read_target(ino))?;
        self.accessed(cx, &link);
        Ok(target)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _gate = self.fs.gate.write();
        let at = Name::new(dir, name);
        let attr = self.record(
            cx,
            |tx, by| self.fs.link_node(tx, by, ino, at),
            |state, attr| {
                let object = self.object_of(attr).filter(|_| !self.is_trusted);
                object
                    .into_iter()
                    .for_each(|object| self.tell_by_operation(state, object));
                Op::Link { ino, at: at.into() }
            },
        )?;
        self.fs.refer_number(attr.ino);
        Ok(attr)
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let _gate = self.fs.gate.write();
        self.remove_alone(cx, at, which)
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        let _gate = self.fs.gate.write();
        let renamed = self.record(
            cx,
            |tx, by| self.fs.rename_node(tx, by, [from, to], flags, false),
            |state, renamed| {
                let is_held = |object: &ObjectId| self.is_to_be_held(*object);
                let held = renamed.replaced.filter(is_held);
                held.into_iter()
                    .for_each(|object| self.tell_by_operation(state, object));
                Op::Rename {
                    from: from.into(),
                    to: to.into(),
                    flags,
                    holds: held.is_some(),
                }
            },
        )?;
        if renamed.moves_directories {
            self.paths_change();
        }
        Ok(())
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        let _gate = self.fs.gate.write();
        self.refill([0, 1])?;
        let attr = self.record(
            cx,
            |tx, by| self.fs.make_nameless(tx, by, dir, mode, None),
            |state, attr| {
                let object = self.object_of(attr);
                object
                    .into_iter()
                    .for_each(|object| self.tell_by_operation(state, object));
                Op::Tmpfile { dir, mode, object }
            },
        )?;
        self.fs.refer_number(attr.ino);
        Ok(attr)
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        let cx = &self.opener(cx, ino)?;
        if self.records_opens(flags) {
            let _gate = self.fs.gate.write();
            self.record_open(cx, ino, flags)?;
            self.fs.refer_number(ino);
            return Ok(());
        }
        self.fs.shared(|| {
            let inode = self.fs.inode(self.overlay(), ino)?;
            perm::may_open(cx, &inode.attr, flags)?;
            self.fs.refer(inode.object);
            Ok(())
        })
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let (len, file) = self.fs.shared(|| self.fs.read_data(ino, off, buf))?;
        if !buf.is_empty() {
            self.accessed(cx, &file);
        }
        Ok(len)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.write_all(cx, ino, off, data)
    }

    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        Ok((self.append_all(cx, ino, data)?, data.len()))
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        if !self.is_trusted {
            let file = self.fs.shared(|| self.fs.inode(self.overlay(), ino))?;
            self.open_for_writing(cx, &file)?;
        }
        let _gate = self.fs.gate.write();
        self.record(
            cx,
            |tx, by| self.fs.allocate(tx, by, ino, kind, off, len),
            |_, ()| Op::Allocate {
                ino,
                kind,
                off,
                len,
            },
        )
    }

    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        self.fs.seek(cx, ino, off, kind)
    }

    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        self.fs.fsync(cx, ino, data_only)?;
        self.settle()
    }

    fn fsyncdir(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        self.fs.fsyncdir(cx, ino, data_only)?;
        self.settle()
    }

    fn sync(&self) -> Result<()> {
        self.settle()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.host.statfs()
    }

    /// Those that this client refers to.
    fn nameless(&self) -> Vec<Ino> {
        let _gate = self.fs.gate.read();
        let inodes = self.fs.referenced().into_iter();
        let inodes = inodes.filter_map(|object| self.fs.load(self.overlay(), object).ok());
        let nameless = inodes.filter(|inode| inode.attr.nlink == 0);
        nameless.map(|inode| inode.attr.ino).collect()
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(cx, ino, name)
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let change = XattrChange::set(name, value, mode)?;
        let _gate = self.fs.gate.write();
        self.record(
            cx,
            |tx, by| self.fs.change_xattrs(tx, by, ino, &change),
            |_, ()| Op::SetXattr {
                ino,
                name,
                value,
                mode,
            },
        )
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.fs.listxattr(cx, ino)
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let change = XattrChange::Remove { name };
        let _gate = self.fs.gate.write();
        self.record(
            cx,
            |tx, by| self.fs.change_xattrs(tx, by, ino, &change),
            |_, ()| Op::RemoveXattr { ino, name },
        )
    }
}
