//! The run that is built from a trace, and the processes in it.

use super::process::{Location, Mapping, Process, Shared, Slot, Target};
use super::text::Event;
use crate::{Bytes, Call, Entry, Kind, Node, Place, Run, Tree};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Most notes that are kept in full.
const NOTES_MAX: usize = 200;

/// Most descriptors that are copied for child processes.
const COPIES_MAX: usize = 1 << 22;

/// Most bytes that are copied within the run by calls whose data are not in the trace.
const COPIED_MAX: u64 = 256 << 20;

/// Most names in a path that is shown, and most bytes of it before the last name.
const PARTS_MAX: usize = 64;
const SHOWN_MAX: usize = 1024;

/// Most shared mappings of a process that are followed.
const MAPS_MAX: usize = 1024;

/// The reason why a call is not in the run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The call is left out, with a note.
    Skip(String),
    /// The trace cannot be used.
    Fatal(String),
}

impl Fault {
    pub(super) fn cut() -> Self {
        Self::Fatal("strace has cut off a string; trace again with -s 1073741823".into())
    }
}

/// Facts that the run does not contain.
#[derive(Debug, Default)]
pub(super) struct Notes {
    seen: HashSet<String>,
    list: Vec<String>,
    more: usize,
}

impl Notes {
    pub(super) fn add(&mut self, note: String) {
        if self.list.len() >= NOTES_MAX {
            self.more += 1;
        } else if self.seen.insert(note.clone()) {
            self.list.push(note);
        }
    }

    pub(super) fn into_list(mut self) -> Vec<String> {
        if self.more > 0 {
            self.list
                .push(format!("{} more that are not listed", self.more));
        }
        self.list
    }
}

/// A run under construction.
#[derive(Debug)]
pub(super) struct State {
    pub(super) run: Run,
    /// The tree after the calls so far.
    pub(super) tree: Tree,
    next: u64,
    /// The absolute path of the root directory.
    pub(super) root: Vec<u8>,
    /// A name of each inode, for texts.
    places: HashMap<Node, Place>,
    /// The directory above each directory.
    pub(super) parents: HashMap<Node, Node>,
    pub(super) notes: Notes,
    pub(super) processes: HashMap<u32, Process>,
    /// Files that were changed since they were closed.
    dirty: BTreeSet<Node>,
    /// Number of open files through which a file can be written.
    writers: HashMap<Node, usize>,
    /// The thread of the present event, and its line.
    pub(super) pid: u32,
    pub(super) line: usize,
    /// Number of entries at the begin of each call that is not complete.
    pub(super) begun: HashMap<u32, usize>,
    /// The position of a request of durability that is complete now.
    pub(super) begin: Option<usize>,
    copies: usize,
    copied: u64,
}

impl State {
    pub(super) fn new(run: Run, tree: &Tree, root: Vec<u8>) -> Self {
        let mut state = Self {
            run,
            tree: tree.clone(),
            next: Node::ROOT.0 + 1,
            root,
            places: HashMap::new(),
            parents: HashMap::new(),
            notes: Notes::default(),
            processes: HashMap::new(),
            dirty: BTreeSet::new(),
            writers: HashMap::new(),
            pid: 0,
            line: 0,
            begun: HashMap::new(),
            begin: None,
            copies: 0,
            copied: 0,
        };
        state.setup(tree);
        state
    }

    /// The calls that make the tree before the program.
    fn setup(&mut self, tree: &Tree) {
        for (mut call, bytes) in tree.calls() {
            match &mut call {
                Call::Write { data, .. } => *data = self.run.keep(&bytes),
                Call::Make {
                    node,
                    at: Some(at),
                    kind,
                    ..
                } => {
                    self.named(*node, at.clone(), *kind == Kind::Directory);
                    self.next = self.next.max(node.0 + 1);
                }
                _ => {}
            }
            self.run.entries.push(Entry::new(call, "setup"));
        }
        self.run.header.setup = self.run.entries.len();
    }

    /// Notes a name of an inode.
    pub(super) fn named(&mut self, node: Node, at: Place, is_directory: bool) {
        if is_directory {
            self.parents.insert(node, at.dir);
        }
        self.places.insert(node, at);
    }

    pub(super) fn at(&mut self, event: &Event<'_>) {
        (self.pid, self.line, self.begin) = (event.pid, event.line, None);
    }

    /// The present process.
    pub(super) fn process(&self) -> Option<&Process> {
        self.processes.get(&self.pid)
    }

    /// A note with the line.
    pub(super) fn note_line(&mut self, what: &str) {
        let line = self.line;
        self.notes.add(format!("line {line} of the trace: {what}"));
    }

    /// A number for a new inode.
    pub(super) fn new_node(&mut self) -> Node {
        self.next += 1;
        Node(self.next - 1)
    }

    /// Applies a call and records it.
    pub(super) fn push(&mut self, call: Call, text: String) -> Result<(), Fault> {
        self.tree
            .apply(&call, &self.run.data)
            .map_err(Fault::Skip)?;
        if let Call::Write { node, .. } | Call::SetSize { node, .. } | Call::Zero { node, .. } =
            call
        {
            self.dirty.insert(node);
        }
        let entry = Entry {
            by: self.by(),
            ..Entry::new(call, text)
        };
        self.run.entries.push(entry);
        Ok(())
    }

    /// Records a request of durability. It covers the calls that were complete when it began.
    pub(super) fn push_sync(&mut self, call: Call, text: String) {
        let entry = Entry {
            by: self.by(),
            ..Entry::new(call, text)
        };
        let entries = &mut self.run.entries;
        let at = self.begin.unwrap_or(entries.len()).min(entries.len());
        entries.insert(at, entry);
        for begun in self.begun.values_mut().filter(|begun| **begun > at) {
            *begun += 1;
        }
    }

    fn by(&self) -> String {
        match self.process() {
            Some(process) if !process.name.is_empty() => format!("{}[{}]", process.name, self.pid),
            _ => format!("[{}]", self.pid),
        }
    }

    /// A path for texts, in quotes.
    pub(super) fn path(&self, node: Node) -> String {
        if node == Node::ROOT {
            return "'.'".into();
        }
        match self.places.get(&node) {
            Some(place) => self.path_at(place),
            None => format!("<{node}>"),
        }
    }

    /// The path of a name, in quotes.
    pub(super) fn path_at(&self, place: &Place) -> String {
        let mut parts = vec![place.name.to_string()];
        let (mut dir, mut len) = (place.dir, 0);
        while parts.len() < PARTS_MAX
            && len < SHOWN_MAX
            && let Some(above) = self.places.get(&dir)
        {
            len += above.name.0.len();
            parts.push(above.name.to_string());
            dir = above.dir;
        }
        parts.reverse();
        format!("'{}'", parts.join("/"))
    }

    /// The type of an inode.
    pub(super) fn kind(&self, node: Node) -> Option<&Kind> {
        self.tree.get(node).map(|inode| &inode.kind)
    }

    pub(super) fn is_file(&self, node: Node) -> bool {
        self.kind(node) == Some(&Kind::File)
    }

    /// Length of a file in bytes.
    pub(super) fn size(&self, node: Node) -> u64 {
        let inode = self.tree.get(node);
        inode.map_or(0, |inode| inode.contents.size())
    }

    /// Makes an inode. `perm` without the bits of the umask.
    pub(super) fn make(
        &mut self,
        at: Option<&Place>,
        kind: Kind,
        perm: u32,
        verb: &str,
    ) -> Result<Node, Fault> {
        let (uid, mut gid) = self.process().map_or((0, 0), |process| process.owner);
        let mut perm = perm & 0o7777;
        let dir = at.and_then(|at| self.tree.get(at.dir));
        if let Some(dir) = dir.filter(|dir| dir.perm & 0o2000 != 0) {
            gid = dir.gid;
            if kind == Kind::Directory {
                perm |= 0o2000;
            }
        }
        let node = self.new_node();
        let is_directory = kind == Kind::Directory;
        let text = match at {
            Some(at) => format!("{verb}({})", self.path_at(at)),
            None => format!("{verb} of {node}"),
        };
        let call = Call::Make {
            node,
            at: at.cloned(),
            kind,
            perm,
            uid,
            gid,
        };
        self.push(call, text)?;
        if let Some(at) = at {
            self.named(node, at.clone(), is_directory);
        }
        Ok(node)
    }

    /// Adds a descriptor. An open file that it replaces is closed.
    pub(super) fn install(&mut self, fd: i32, slot: Slot) {
        if let (true, Some(node)) = (slot.open.is_writable, slot.open.node())
            && Rc::strong_count(&slot.open) == 1
        {
            *self.writers.entry(node).or_default() += 1;
        }
        let Some(process) = self.process() else {
            return;
        };
        let old = process.files.borrow_mut().insert(fd, slot);
        self.closed(old);
    }

    /// Removes a descriptor.
    pub(super) fn close(&mut self, fd: i32) {
        let process = self.process();
        let old = process.and_then(|process| process.files.borrow_mut().remove(&fd));
        self.closed(old);
    }

    /// Records the end of the last descriptor through which a file could be written.
    pub(super) fn closed(&mut self, slot: Option<Slot>) {
        let Some(open) = slot.and_then(|slot| Rc::into_inner(slot.open)) else {
            return;
        };
        let (true, Some(node)) = (open.is_writable, open.node()) else {
            return;
        };
        let writers = self.writers.entry(node).or_default();
        *writers = writers.saturating_sub(1);
        if *writers == 0 && self.dirty.remove(&node) {
            let text = format!("close({})", self.path(node));
            // A close changes nothing: it always applies.
            let _ = self.push(Call::Close { node }, text);
        }
    }

    /// Removes a thread. The last one of a process closes its descriptors.
    pub(super) fn exit(&mut self, pid: u32) {
        let Some(process) = self.processes.get(&pid) else {
            return;
        };
        if Rc::strong_count(&process.files) == 1 {
            let slots = std::mem::take(&mut *process.files.borrow_mut());
            for slot in slots.into_values() {
                self.closed(Some(slot));
            }
        }
        self.processes.remove(&pid);
        self.begun.remove(&pid);
    }

    /// Starts a child.
    pub(super) fn fork(&mut self, parent: u32, child: u32, shared: Shared) -> Result<(), Fault> {
        let Some(process) = self.processes.get(&parent) else {
            return Ok(());
        };
        if !shared.files {
            self.copies += process.files.borrow().len();
        }
        if !shared.memory {
            self.copies += process.maps.borrow().len();
        }
        if self.copies > COPIES_MAX {
            let what = format!("child processes copy more than {COPIES_MAX} descriptors");
            return Err(Fault::Fatal(what));
        }
        let new = process.fork(shared);
        self.exit(child); // an old process with this number
        self.processes.insert(child, new);
        Ok(())
    }

    /// Notes that a file is mapped shared and writable.
    pub(super) fn mapped(&mut self, mapping: Mapping) {
        let path = self.path(mapping.node);
        let note =
            format!("stores through a shared mapping of {path} (their contents are missing)");
        self.notes.add(note);
        if let Some(process) = self.process() {
            let mut maps = process.maps.borrow_mut();
            maps.retain(|old| old.at != mapping.at);
            if maps.len() == MAPS_MAX {
                maps.remove(0);
            }
            maps.push(mapping);
        }
    }

    /// Bytes of a file of the run; `None` if more are copied than are kept.
    pub(super) fn copy(&mut self, node: Node, off: u64, len: u64) -> Option<Vec<u8>> {
        let inode = self.tree.get(node)?;
        let size = inode.contents.size();
        let len = len.min(size.saturating_sub(off));
        self.copied = self.copied.saturating_add(len);
        if self.copied > COPIED_MAX {
            return None;
        }
        let mut bytes = vec![0; len as usize];
        for (at, page) in inode.contents.pages() {
            let (from, to) = (at.max(off), (at + page.len() as u64).min(off + len));
            if from < to {
                let part = &page[(from - at) as usize..(to - at) as usize];
                bytes[(from - off) as usize..(to - off) as usize].copy_from_slice(part);
            }
        }
        Some(bytes)
    }

    /// The place of a descriptor as the base of paths.
    pub(super) fn location(&self, fd: super::args::Fd) -> Option<Location> {
        let process = self.process()?;
        match fd {
            super::args::Fd::Cwd => Some(process.cwd()),
            super::args::Fd::Number(fd) => match &process.open(fd)?.target {
                Target::At(location) => Some(location.clone()),
                Target::Output => None,
            },
        }
    }

    /// The name of an attribute for texts.
    pub(super) fn shown(name: &[u8]) -> String {
        Bytes::from(name).to_string()
    }
}
