//! [`Grouped`]: a file system with patchgroups.

use crate::by_itself::ByItself;
use crate::processes::Processes;
use crate::table::{Engaged, GroupInfo, Joined, Table};
use crate::threads::Threads;
use pg::protocol;
use std::sync::Arc;
use vfs::{
    Attr, ChangeOrder, Ctx, Errno, Fallocate, FileFlags, FileSystem, FileSystemLayer, FileType,
    Ino, Name, NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr, SetId,
    Timestamp, XattrMode,
};

/// The inode numbers of groups: this, with the group's number.
const GROUPS: u64 = 1 << 62;

/// A file system whose callers can order their changes by patchgroups.
pub struct Grouped<P> {
    below: Arc<dyn FileSystem>,
    /// The order, if `below` keeps one without any calls.
    by_itself: Option<ByItself>,
    table: Table<P>,
    processes: P,
    threads: Threads,
    /// The set of all changes, if requests of durability are barriers for everyone.
    all: Option<SetId>,
}

/// Whether a file system can keep an order between changes, or does so anyway.
pub fn keeps_order(fs: &dyn FileSystem) -> bool {
    fs.change_order().is_some() || ByItself::of(&fs.guarantees()).is_some()
}

impl<P: Processes + Clone> Grouped<P> {
    /// Patchgroups for `below`. With `order`, each request of durability by any process is a
    /// barrier of the whole file system, if that [keeps an order](keeps_order).
    pub fn new(below: Arc<dyn FileSystem>, processes: P, order: bool) -> Self {
        let by_itself = match below.change_order() {
            Some(_) => None,
            None => ByItself::of(&below.guarantees()),
        };
        let mut grouped = Self {
            by_itself,
            table: Table::new(processes.clone()),
            below,
            processes,
            threads: Threads::default(),
            all: None,
        };
        if order {
            grouped.all = grouped.order().ok().map(ChangeOrder::create);
        }
        grouped
    }

    /// The groups that exist now.
    pub fn list(&self) -> Vec<GroupInfo> {
        let list = |order| self.table.list(order);
        self.order().map(list).unwrap_or_default()
    }

    fn order(&self) -> Result<&dyn ChangeOrder> {
        let by_itself = self.by_itself.as_ref().map(|order| order as _);
        let order = self.below.change_order().or(by_itself);
        order.ok_or(Errno::OPNOTSUPP)
    }

    /// The groups of the process that makes a call.
    fn engaged(&self, cx: &Ctx) -> Engaged {
        if self.table.is_empty() {
            return Engaged::default();
        }
        if cx.is_write_back {
            // Any of the processes may have stored to the page.
            return self.table.all();
        }
        match self.threads.process(cx.pid, &self.processes) {
            Ok(process) => self.table.engaged(process),
            // It has ended, or it is of a name space that the server does not see. A process that
            // is not visible cannot engage a group.
            Err(_) => Engaged::default(),
        }
    }

    /// Runs a call that changes something, in the groups of its process.
    fn change<T>(&self, cx: &Ctx, call: impl FnOnce(&Ctx) -> Result<T>) -> Result<T> {
        let engaged = self.engaged(cx);
        let joined = Joined::new(&engaged, cx);
        let sets = joined.sets(self.all);
        match sets.is_empty() {
            true => call(cx),
            false => call(&Ctx { sets, ..cx.clone() }),
        }
    }

    /// Runs a call that makes something durable. If it is a barrier of some group, the file system
    /// below does not get it.
    fn durable(&self, cx: &Ctx, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let engaged = self.engaged(cx);
        let joined = Joined::new(&engaged, cx);
        let orders = joined.orders(self.all);
        if orders.is_empty() {
            return call();
        }
        let order = self.order()?;
        orders.into_iter().try_for_each(|set| order.barrier(set))
    }

    /// The group that an inode number stands for: bit 62 is set, and bit 63 is not.
    fn group(ino: Ino) -> Option<u64> {
        (ino.0 & GROUPS != 0 && ino.0 & 1 << 63 == 0).then_some(ino.0 & !GROUPS)
    }

    /// The attributes of a group's file. It has no name that lasts.
    fn attr(&self, number: u64) -> Result<Attr> {
        let (uid, gid) = self.table.owner(number).ok_or(Errno::STALE)?;
        Ok(Attr {
            ino: Ino(GROUPS | number),
            generation: 0,
            kind: FileType::Regular,
            perm: 0o600,
            nlink: 0,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Timestamp(0),
            mtime: Timestamp(0),
            ctime: Timestamp(0),
            flags: FileFlags::empty(),
        })
    }

    /// Refuses a call on the file of a group.
    fn not_group(ino: Ino) -> Result<()> {
        match Self::group(ino) {
            Some(_) => Err(Errno::PERM),
            None => Ok(()),
        }
    }

    /// Refuses names that stand for new groups.
    fn not_reserved(name: &[u8]) -> Result<()> {
        match name.starts_with(protocol::NAME.as_bytes()) {
            true => Err(Errno::PERM),
            false => Ok(()),
        }
    }

    fn request(&self, cx: &Ctx, group: u64, command: u32, input: &[u8]) -> Result<()> {
        let order = self.order()?;
        match command {
            protocol::DEPEND => {
                let before = input.try_into().map_err(|_| Errno::INVAL)?;
                let before = Self::group(Ino(u64::from_ne_bytes(before))).ok_or(Errno::BADF)?;
                self.table.depend(cx, (group, before), order)
            }
            protocol::ENGAGE => self.table.engage(cx, group),
            protocol::DISENGAGE => self.table.disengage(cx, group),
            protocol::SYNC => self.table.sync(cx, group, order),
            protocol::BARRIER => self.table.barrier(cx, group, order),
            protocol::ORDER => self.table.order(cx, group),
            _ => Err(Errno::NOTTY),
        }
    }
}

impl<P: Processes + Clone> FileSystemLayer for Grouped<P> {
    fn below(&self) -> &dyn FileSystem {
        &*self.below
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        match name.starts_with(protocol::NAME.as_bytes()) {
            true => self.attr(self.table.create(cx, self.order()?)?),
            false => self.below.lookup(cx, dir, name),
        }
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        Self::not_group(ino)?;
        self.below.by_number(ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        match (Self::group(ino), self.order()) {
            (Some(group), Ok(order)) => self.table.remove(group, order),
            (Some(_), Err(_)) => {}
            (None, _) => self.below.forget(ino, count),
        }
    }

    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr> {
        match Self::group(ino) {
            Some(group) => self.attr(group),
            None => self.below.getattr(cx, ino),
        }
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        match Self::group(ino) {
            // `open` with O_TRUNC.
            Some(group) if set.size == Some(0) => self.attr(group),
            Some(_) => Err(Errno::PERM),
            None => self.change(cx, |cx| self.below.setattr(cx, ino, set)),
        }
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        Self::not_reserved(at.name)?;
        self.change(cx, |cx| self.below.make(cx, at, new))
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        Self::not_group(ino)?;
        Self::not_reserved(name)?;
        self.change(cx, |cx| self.below.link(cx, ino, dir, name))
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        self.change(cx, |cx| self.below.remove(cx, at, which))
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        Self::not_reserved(to.name)?;
        self.change(cx, |cx| self.below.rename(cx, from, to, flags))
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        self.change(cx, |cx| self.below.tmpfile(cx, dir, mode))
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        match Self::group(ino) {
            Some(_) => Ok(()),
            None => self.change(cx, |cx| self.below.open(cx, ino, flags)),
        }
    }

    fn release(&self, ino: Ino) {
        if Self::group(ino).is_none() {
            self.below.release(ino);
        }
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        match Self::group(ino) {
            Some(_) => Ok(0),
            None => self.below.read(cx, ino, off, buf),
        }
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        Self::not_group(ino)?;
        self.change(cx, |cx| self.below.write(cx, ino, off, data))
    }

    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        Self::not_group(ino)?;
        self.change(cx, |cx| self.below.append(cx, ino, data))
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        Self::not_group(ino)?;
        self.change(cx, |cx| self.below.fallocate(cx, ino, kind, off, len))
    }

    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        match Self::group(ino) {
            // Any offset is past the end of an empty file.
            Some(_) => Err(Errno::NXIO),
            None => self.below.seek(cx, ino, off, kind),
        }
    }

    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        match Self::group(ino) {
            Some(group) => self.table.sync(cx, group, self.order()?),
            None => self.durable(cx, || self.below.fsync(cx, ino, data_only)),
        }
    }

    fn fsyncdir(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        self.durable(cx, || self.below.fsyncdir(cx, ino, data_only))
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        match Self::group(ino) {
            Some(_) => Err(vfs::absent_xattr(name)),
            None => self.below.getxattr(cx, ino, name),
        }
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        Self::not_group(ino)?;
        self.change(cx, |cx| self.below.setxattr(cx, ino, name, value, mode))
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        match Self::group(ino) {
            Some(_) => Ok(Vec::new()),
            None => self.below.listxattr(cx, ino),
        }
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        Self::not_group(ino)?;
        self.change(cx, |cx| self.below.removexattr(cx, ino, name))
    }

    fn control(&self, cx: &Ctx, ino: Ino, command: u32, input: &[u8]) -> Result<Vec<u8>> {
        match Self::group(ino) {
            Some(group) => {
                self.request(cx, group, command, input)?;
                Ok(Vec::new())
            }
            None => self.below.control(cx, ino, command, input),
        }
    }
}
