//! Processes that exist only in a table, and a file system that records the sets of each change.

use groups::{GroupInfo, Grouped, Process, Processes};
use oracle::ModelFs;
use parking_lot::Mutex;
use pg::protocol;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::{
    Attr, ChangeOrder, Ctx, Errno, FileSystem, FileSystemLayer, Ino, Name, NewNode, Removal,
    RenameFlags, Result, SetAttr, SetId,
};

/// The first process. No process of the machine has such an id.
pub const INIT: u32 = 5_000_000;

#[derive(Debug, Clone, Copy)]
struct Life {
    start: u64,
    parent: Option<Process>,
}

/// The processes of a test.
#[derive(Debug, Clone)]
pub struct World(Arc<Mutex<Machine>>);

#[derive(Debug)]
struct Machine {
    lives: BTreeMap<u32, Life>,
    last: u32,
    starts: u64,
}

impl World {
    fn new() -> Self {
        let start = 0;
        let init = Life {
            start,
            parent: None,
        };
        Self(Arc::new(Mutex::new(Machine {
            lives: BTreeMap::from([(INIT, init)]),
            last: INIT,
            starts: 0,
        })))
    }

    /// A new process.
    pub fn fork(&self, parent: u32) -> u32 {
        let mut machine = self.0.lock();
        machine.last += 1;
        let pid = machine.last;
        machine.start(pid, parent);
        pid
    }

    /// A new process whose id another one had.
    pub fn fork_as(&self, pid: u32, parent: u32) {
        self.0.lock().start(pid, parent);
    }

    /// Ends a process. `heir` becomes the parent of its children.
    pub fn exit(&self, pid: u32, heir: u32) {
        let mut machine = self.0.lock();
        machine.lives.remove(&pid);
        let heir = machine.process(heir).ok();
        for life in machine.lives.values_mut() {
            if life.parent.is_some_and(|parent| parent.pid == pid) {
                life.parent = heir;
            }
        }
    }
}

impl Machine {
    fn start(&mut self, pid: u32, parent: u32) {
        self.starts += 1;
        let life = Life {
            start: self.starts,
            parent: self.process(parent).ok(),
        };
        assert!(self.lives.insert(pid, life).is_none(), "it is in use");
    }

    fn process(&self, pid: u32) -> Result<Process> {
        let life = self.lives.get(&pid).ok_or(Errno::SRCH)?;
        let start = life.start;
        Ok(Process { pid, start })
    }
}

impl Processes for World {
    fn of_thread(&self, tid: u32) -> Result<Process> {
        self.0.lock().process(tid)
    }

    fn parent(&self, process: Process) -> Result<Option<Process>> {
        let machine = self.0.lock();
        machine.process(process.pid)?;
        Ok(machine.lives[&process.pid].parent)
    }

    fn children(&self, process: Process) -> Result<Vec<Process>> {
        let machine = self.0.lock();
        let is_child = |life: &&Life| life.parent == Some(process);
        let lives = machine.lives.iter().filter(|(_, life)| is_child(life));
        lives.map(|(pid, _)| machine.process(*pid)).collect()
    }

    fn is_alive(&self, process: Process) -> bool {
        self.of_thread(process.pid) == Ok(process)
    }
}

/// A call that reached the file system below, or its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    Changed(Vec<u64>),
    Synced,
    Depend(u64, u64),
    Barrier(u64),
    SyncSet(u64),
    Removed(u64),
}

/// A file system with an order between sets that only records.
pub struct Recorded {
    model: ModelFs,
    pub seen: Mutex<Vec<Seen>>,
    sets: Mutex<u64>,
    pub fails: AtomicBool,
    keeps_order: bool,
}

impl Recorded {
    fn see(&self, what: Seen) -> Result<()> {
        self.seen.lock().push(what);
        match self.fails.load(SeqCst) {
            true => Err(Errno::IO),
            false => Ok(()),
        }
    }

    fn changed(&self, cx: &Ctx) {
        let sets = cx.sets.numbers().map_or(Vec::new(), |sets| sets.to_vec());
        self.seen.lock().push(Seen::Changed(sets));
    }
}

impl ChangeOrder for Recorded {
    fn create(&self) -> SetId {
        let mut sets = self.sets.lock();
        *sets += 1;
        SetId(*sets)
    }

    fn remove(&self, set: SetId) {
        self.seen.lock().push(Seen::Removed(set.0));
    }

    fn depend(&self, after: SetId, before: SetId) {
        self.seen.lock().push(Seen::Depend(after.0, before.0));
    }

    fn barrier(&self, set: SetId) -> Result<()> {
        self.see(Seen::Barrier(set.0))
    }

    fn sync(&self, set: SetId) -> Result<()> {
        self.see(Seen::SyncSet(set.0))
    }

    fn pending(&self, _set: SetId) -> usize {
        7
    }
}

impl FileSystemLayer for Recorded {
    fn below(&self) -> &dyn FileSystem {
        &self.model
    }

    fn change_order(&self) -> Option<&dyn ChangeOrder> {
        self.keeps_order.then_some(self)
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.changed(cx);
        self.model.setattr(cx, ino, set)
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        self.changed(cx);
        self.model.make(cx, at, new)
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.changed(cx);
        self.model.link(cx, ino, dir, name)
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        self.changed(cx);
        self.model.remove(cx, at, which)
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        self.changed(cx);
        self.model.rename(cx, from, to, flags)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.changed(cx);
        self.model.write(cx, ino, off, data)
    }

    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        vfs::append_by_write(self, cx, ino, data)
    }

    fn fsync(&self, _cx: &Ctx, _ino: Ino, _data_only: bool) -> Result<()> {
        self.see(Seen::Synced)
    }

    fn fsyncdir(&self, _cx: &Ctx, _ino: Ino, _data_only: bool) -> Result<()> {
        self.see(Seen::Synced)
    }
}

/// A caller that the kernel has checked.
pub fn by(pid: u32, uid: u32) -> Ctx {
    Ctx {
        pid,
        checked: true,
        ..Ctx::user(uid, uid + 100)
    }
}

/// A file system with patchgroups, a file in it, and the processes that use it.
pub struct Bench {
    pub fs: Arc<dyn FileSystem>,
    groups: Arc<Grouped<World>>,
    pub below: Arc<Recorded>,
    pub world: World,
    pub file: Ino,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(true, false).unwrap()
    }

    /// `keeps_order`: whether the file system below does; `order`: the option of the mount.
    pub fn with(keeps_order: bool, order: bool) -> Result<Self> {
        let below = Arc::new(Recorded {
            model: ModelFs::default(),
            seen: Mutex::default(),
            sets: Mutex::default(),
            fails: AtomicBool::new(false),
            keeps_order,
        });
        let world = World::new();
        let groups = Arc::new(Grouped::new(below.clone(), world.clone(), order));
        let name = Name::new(Ino::ROOT, b"file");
        let file = below
            .model
            .make(&Ctx::root(), name, &NewNode::file(0o666))?;
        Ok(Self {
            fs: groups.clone(),
            groups,
            below,
            world,
            file: file.ino,
        })
    }

    pub fn list(&self) -> Vec<GroupInfo> {
        self.groups.list()
    }

    /// A new group, by the inode number of its file.
    pub fn group(&self, cx: &Ctx) -> Ino {
        self.try_group(cx).unwrap()
    }

    pub fn try_group(&self, cx: &Ctx) -> Result<Ino> {
        let name = format!("{}.1", protocol::NAME);
        Ok(self.fs.lookup(cx, Ino::ROOT, name.as_bytes())?.ino)
    }

    /// A request without input.
    pub fn call(&self, cx: &Ctx, group: Ino, command: u32) -> Result<()> {
        assert!(self.fs.control(cx, group, command, &[])?.is_empty());
        Ok(())
    }

    pub fn engage(&self, cx: &Ctx, group: Ino) -> Result<()> {
        self.call(cx, group, protocol::ENGAGE)
    }

    pub fn disengage(&self, cx: &Ctx, group: Ino) -> Result<()> {
        self.call(cx, group, protocol::DISENGAGE)
    }

    pub fn depend(&self, cx: &Ctx, after: Ino, before: Ino) -> Result<()> {
        let before = before.0.to_ne_bytes();
        self.fs.control(cx, after, protocol::DEPEND, &before)?;
        Ok(())
    }

    /// Writes to the file, and returns the groups that the write joined.
    pub fn write(&self, cx: &Ctx) -> Vec<u64> {
        self.fs.write(cx, self.file, 0, b"text").unwrap();
        match self.below.seen.lock().last() {
            Some(Seen::Changed(sets)) => sets.clone(),
            other => panic!("the write is not there: {other:?}"),
        }
    }

    /// The calls that have reached the file system below since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.below.seen.lock())
    }
}

/// The number of a group; its set has the same one, without `-o order`.
pub fn number(group: Ino) -> u64 {
    group.0 & !(1 << 62)
}
