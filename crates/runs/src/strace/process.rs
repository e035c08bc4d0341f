//! The processes of a trace: their descriptors, directories and memory.

use crate::Node;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A file or directory of the run, or a path outside of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    Inside(Node),
    /// An absolute path.
    Outside(Vec<u8>),
}

/// The object of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    At(Location),
    /// The standard output of the program.
    Output,
}

/// The durability that each write has by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    No,
    /// `O_DSYNC`.
    Data,
    /// `O_SYNC`.
    All,
}

/// An open file. Duplicates of a descriptor, and descriptors of child processes, share it.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) target: Target,
    pub(super) offset: Cell<u64>,
    pub(super) append: Cell<bool>,
    pub(super) durable: Durable,
    pub(super) is_writable: bool,
}

impl Description {
    pub(super) fn new(target: Target, is_writable: bool) -> Self {
        Self {
            target,
            offset: Cell::new(0),
            append: Cell::new(false),
            durable: Durable::No,
            is_writable,
        }
    }

    /// The inode, if it is in the run.
    pub(super) fn node(&self) -> Option<Node> {
        match self.target {
            Target::At(Location::Inside(node)) => Some(node),
            _ => None,
        }
    }
}

/// A descriptor.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) open: Rc<Description>,
    pub(super) close_on_exec: bool,
}

/// The descriptors of a process.
pub(super) type Table = BTreeMap<i32, Slot>;

/// The working directory, and the bits that new files do not get.
#[derive(Debug, Clone)]
pub(super) struct Surroundings {
    pub(super) cwd: Location,
    pub(super) umask: u32,
}

/// A shared mapping of a file of the run.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    pub(super) at: u64,
    pub(super) len: u64,
    /// The offset in the file.
    pub(super) off: u64,
    pub(super) node: Node,
}

/// A thread. Threads of one process share all but the name.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) files: Rc<RefCell<Table>>,
    pub(super) fs: Rc<RefCell<Surroundings>>,
    pub(super) maps: Rc<RefCell<Vec<Mapping>>>,
    /// Owner and group of new files.
    pub(super) owner: (u32, u32),
}

/// The parts that a new process shares with its parent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shared {
    pub(super) files: bool,
    pub(super) fs: bool,
    pub(super) memory: bool,
}

/// A copy of a part, or the part itself.
fn part<T: Clone>(of: &Rc<RefCell<T>>, is_shared: bool) -> Rc<RefCell<T>> {
    match is_shared {
        true => Rc::clone(of),
        false => Rc::new(RefCell::new(of.borrow().clone())),
    }
}

impl Process {
    /// The first process: standard input and errors are outside of the run.
    pub(super) fn first(cwd: Location, umask: u32, owner: (u32, u32)) -> Self {
        let slot = |target| Slot {
            open: Rc::new(Description::new(target, true)),
            close_on_exec: false,
        };
        let nowhere = || slot(Target::At(Location::Outside(b"/".to_vec())));
        let table = BTreeMap::from([(0, nowhere()), (1, slot(Target::Output)), (2, nowhere())]);
        Self {
            name: String::new(),
            files: Rc::new(RefCell::new(table)),
            fs: Rc::new(RefCell::new(Surroundings { cwd, umask })),
            maps: Rc::default(),
            owner,
        }
    }

    /// A child.
    pub(super) fn fork(&self, shared: Shared) -> Self {
        Self {
            name: self.name.clone(),
            files: part(&self.files, shared.files),
            fs: part(&self.fs, shared.fs),
            maps: part(&self.maps, shared.memory),
            owner: self.owner,
        }
    }

    /// Gives the process parts of its own.
    pub(super) fn unshare(&mut self, kept: Shared) {
        *self = self.fork(kept);
    }

    /// The open file of a descriptor.
    pub(super) fn open(&self, fd: i32) -> Option<Rc<Description>> {
        let files = self.files.borrow();
        files.get(&fd).map(|slot| Rc::clone(&slot.open))
    }

    pub(super) fn cwd(&self) -> Location {
        self.fs.borrow().cwd.clone()
    }

    pub(super) fn umask(&self) -> u32 {
        self.fs.borrow().umask
    }
}
