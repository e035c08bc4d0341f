//! Records the calls on a mounted file system.

mod output;

pub use output::{OUTPUT_NAME, PassOn, WithOutput};

use crate::{Bytes, Call, Entry, Header, Kind, Node, Place, RunError, Tree, Writer};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use vfs::{
    Attr, Ctx, Errno, Fallocate, FileSystem, FileSystemLayer, Ino, Name, NewNode, OpenFlags,
    Removal, RenameFlags, Result, SetAttr, XattrMode,
};

/// Most processes whose names are kept.
const NAMES_MAX: usize = 4096;

/// A file system whose changes, and requests of durability, are recorded.
///
/// The calls of a recorded file system run serially, and are recorded in that order. Time stamps
/// are not recorded. A run that cannot be written any more fails each later change with `EIO`, so
/// that no recording is incomplete without notice.
pub struct Recorder {
    fs: Arc<dyn FileSystem>,
    inner: Mutex<Inner>,
}

struct Inner {
    writer: Writer,
    header: Header,
    failed: bool,
    nodes: HashMap<Ino, Node>,
    next: u64,
    /// A name of each inode, for texts.
    places: HashMap<Node, Place>,
    /// Files that were written since they were closed.
    dirty: std::collections::HashSet<Node>,
    processes: HashMap<u32, String>,
}

impl Recorder {
    /// Begins a run in a directory. The present tree of `fs` is its setup.
    ///
    /// # Errors
    /// The tree cannot be read, or the run cannot be written.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        mut header: Header,
    ) -> std::result::Result<Self, String> {
        header.recorded_on = Some(fs.guarantees().name);
        let mut nodes = HashMap::from([(Ino::ROOT, Node::ROOT)]);
        let mut next = Node::ROOT.0 + 1;
        let mut tree = Tree::read(&*fs, &mut |attr| {
            nodes.insert(attr.ino, Node(next));
            next += 1;
            Node(next - 1)
        })?;
        tree.forget_lost_found();
        let failed = |e: RunError| e.to_string();
        let mut inner = Inner {
            writer: Writer::new(dir, &header).map_err(failed)?,
            header,
            failed: false,
            nodes,
            next,
            places: HashMap::new(),
            dirty: std::collections::HashSet::new(),
            processes: HashMap::new(),
        };
        inner.setup(&tree).map_err(failed)?;
        Ok(Self {
            fs,
            inner: Mutex::new(inner),
        })
    }

    /// Records what a program writes to its standard output.
    ///
    /// # Errors
    /// The run cannot be written.
    pub fn output(&self, cx: &Ctx, bytes: &[u8]) -> Result<()> {
        self.recorded(
            cx,
            |_| Ok(()),
            |inner, ()| {
                let data = inner.writer.keep(bytes)?;
                let start = &bytes[..bytes.len().min(60)];
                let text = format!("output '{}'", Bytes::from(start));
                inner.push(cx, Call::Output { data }, text)
            },
        )
    }

    /// Writes the run out, so that it can be explored.
    ///
    /// # Errors
    /// It cannot be written, or could not before.
    pub fn end(&self) -> std::result::Result<(), String> {
        let inner = &mut *self.inner.lock();
        if inner.failed {
            return Err("the recording is incomplete: it could not be written".into());
        }
        let ended = inner.writer.end(&inner.header);
        ended.map_err(|e| e.to_string())
    }

    /// Makes a call, and records it if it succeeds.
    fn recorded<T>(
        &self,
        cx: &Ctx,
        call: impl FnOnce(&dyn FileSystem) -> Result<T>,
        record: impl FnOnce(&mut Inner, &T) -> std::result::Result<(), RunError>,
    ) -> Result<T> {
        let mut inner = self.inner.lock();
        if inner.failed {
            return Err(Errno::IO);
        }
        let result = call(&*self.fs)?;
        inner.note_process(cx);
        if record(&mut inner, &result).is_err() {
            inner.failed = true;
            return Err(Errno::IO);
        }
        Ok(result)
    }

    fn synced(&self, cx: &Ctx, ino: Ino, data_only: bool, name: &str) -> Result<()> {
        self.recorded(
            cx,
            |fs| match name {
                "fsyncdir" => fs.fsyncdir(cx, ino, data_only),
                _ => fs.fsync(cx, ino, data_only),
            },
            |inner, ()| {
                let node = inner.node(ino);
                let text = match data_only {
                    true => format!("fdatasync({})", inner.path(node)),
                    false => format!("fsync({})", inner.path(node)),
                };
                let call = Call::Sync {
                    node,
                    data_only,
                    range: None,
                };
                inner.push(cx, call, text)
            },
        )
    }
}

type Written = std::result::Result<(), RunError>;

impl Inner {
    /// Records the calls that make a tree.
    fn setup(&mut self, tree: &Tree) -> Written {
        for (call, data) in tree.calls() {
            let call = match call {
                Call::Write { node, off, .. } => Call::Write {
                    node,
                    off,
                    data: self.writer.keep(&data)?,
                },
                call => call,
            };
            if let Call::Make {
                node, at: Some(at), ..
            } = &call
            {
                self.places.insert(*node, at.clone());
            }
            self.writer.entry(&Entry::new(call, "setup"))?;
        }
        self.header.setup = self.writer.len();
        self.writer.end(&self.header)
    }

    fn node(&mut self, ino: Ino) -> Node {
        *self.nodes.entry(ino).or_insert_with(|| {
            // Unreachable for callers that look an inode up first, as the kernel does.
            self.next += 1;
            Node(self.next - 1)
        })
    }

    fn place(&mut self, dir: Ino, name: &[u8]) -> Place {
        Place::new(self.node(dir), name)
    }

    /// A path for texts, in quotes.
    fn path(&self, node: Node) -> String {
        if node == Node::ROOT {
            return "'.'".into();
        }
        match self.places.get(&node) {
            Some(place) => self.path_at(place),
            None => format!("<{node}>"),
        }
    }

    fn path_at(&self, place: &Place) -> String {
        let mut parts = vec![place.name.to_string()];
        let mut dir = place.dir;
        while let Some(above) = self.places.get(&dir).filter(|_| parts.len() < 64) {
            parts.push(above.name.to_string());
            dir = above.dir;
        }
        parts.reverse();
        format!("'{}'", parts.join("/"))
    }

    fn note_process(&mut self, cx: &Ctx) {
        if cx.pid == 0 || self.processes.contains_key(&cx.pid) {
            return;
        }
        if self.processes.len() >= NAMES_MAX {
            self.processes.clear();
        }
        let name = std::fs::read_to_string(format!("/proc/{}/comm", cx.pid));
        let name = name.unwrap_or_default();
        self.processes
            .insert(cx.pid, format!("{}[{}]", name.trim_end(), cx.pid));
    }

    fn push(&mut self, cx: &Ctx, call: Call, text: String) -> Written {
        let by = self.processes.get(&cx.pid).cloned().unwrap_or_default();
        self.writer.entry(&Entry {
            call,
            text,
            by: if cx.is_write_back { String::new() } else { by },
            is_write_back: cx.is_write_back,
        })
    }

    fn made(&mut self, cx: &Ctx, at: Option<Place>, kind: Kind, attr: &Attr) -> Written {
        let node = Node(self.next);
        self.next += 1;
        self.nodes.insert(attr.ino, node);
        let verb = match &kind {
            Kind::File => "create",
            Kind::Directory => "mkdir",
            Kind::Symlink(_) => "symlink",
            Kind::Fifo | Kind::Socket | Kind::CharDevice(_) | Kind::BlockDevice(_) => "mknod",
        };
        if let Some(at) = &at {
            self.places.insert(node, at.clone());
        }
        let path = at.as_ref().map(|at| self.path_at(at));
        let text = match path {
            Some(path) => format!("{verb}({path})"),
            None => format!("open(O_TMPFILE) of {node}"),
        };
        let call = Call::Make {
            node,
            at,
            kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
        };
        self.push(cx, call, text)
    }

    fn set_size(&mut self, cx: &Ctx, node: Node, size: u64) -> Written {
        let text = format!("truncate({}, {size})", self.path(node));
        self.dirty.insert(node);
        self.push(cx, Call::SetSize { node, size }, text)
    }

    fn set_xattr(&mut self, cx: &Ctx, ino: Ino, name: &[u8], value: Option<&[u8]>) -> Written {
        let node = self.node(ino);
        let verb = value.map_or("removexattr", |_| "setxattr");
        let name = Bytes::from(name);
        let text = format!("{verb}({}, {name})", self.path(node));
        let value = value.map(Bytes::from);
        self.push(cx, Call::SetXattr { node, name, value }, text)
    }
}

impl FileSystemLayer for Recorder {
    fn below(&self) -> &dyn FileSystem {
        &*self.fs
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.recorded(
            cx,
            |fs| fs.setattr(cx, ino, set),
            |inner, attr| {
                let node = inner.node(ino);
                if set.perm.is_some() || set.uid.is_some() || set.gid.is_some() {
                    let text = format!("setattr({})", inner.path(node));
                    // A change of the owner can clear the set-id bits.
                    let call = Call::SetAttr {
                        node,
                        perm: Some(attr.perm),
                        uid: set.uid,
                        gid: set.gid,
                    };
                    inner.push(cx, call, text)?;
                }
                let size = set.size;
                size.map_or(Ok(()), |size| inner.set_size(cx, node, size))
            },
        )
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        self.recorded(
            cx,
            |fs| {
                let attr = fs.make(cx, at, new)?;
                let target = match attr.kind {
                    vfs::FileType::Symlink => fs.readlink(cx, attr.ino).unwrap_or_default(),
                    _ => Vec::new(),
                };
                Ok((attr, target))
            },
            |inner, (attr, target)| {
                let place = inner.place(at.dir, at.name);
                let kind = Kind::of(attr.kind, target, attr.rdev);
                inner.made(cx, Some(place), kind, attr)
            },
        )
        .map(|(attr, _)| attr)
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        self.recorded(
            cx,
            |fs| fs.tmpfile(cx, dir, mode),
            |inner, attr| inner.made(cx, None, Kind::File, attr),
        )
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.recorded(
            cx,
            |fs| fs.link(cx, ino, dir, name),
            |inner, _| {
                let (node, at) = (inner.node(ino), inner.place(dir, name));
                let text = format!("link({}, {})", inner.path(node), inner.path_at(&at));
                inner.places.entry(node).or_insert_with(|| at.clone());
                inner.push(cx, Call::Link { node, at }, text)
            },
        )
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        self.recorded(
            cx,
            |fs| fs.remove(cx, at, which),
            |inner, ()| {
                let at = inner.place(at.dir, at.name);
                let verb = match which {
                    Removal::Unlink => "unlink",
                    Removal::Rmdir => "rmdir",
                };
                let text = format!("{verb}({})", inner.path_at(&at));
                inner.push(cx, Call::Remove { at }, text)
            },
        )
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        // The inodes that move, for later texts.
        let inode = |at: Name<'_>| {
            let attr = self.fs.lookup(cx, at.dir, at.name).ok()?;
            self.fs.forget(attr.ino, 1);
            Some(attr.ino)
        };
        self.recorded(
            cx,
            |fs| {
                let moved = (inode(from), inode(to));
                fs.rename(cx, from, to, flags)?;
                Ok(moved)
            },
            |inner, (moved, replaced)| {
                let old = inner.place(from.dir, from.name);
                let new = inner.place(to.dir, to.name);
                let text = format!("rename({}, {})", inner.path_at(&old), inner.path_at(&new));
                let exchange = flags.contains(RenameFlags::EXCHANGE);
                for (ino, at) in [(*moved, &new), (replaced.filter(|_| exchange), &old)] {
                    if let Some(ino) = ino {
                        let node = inner.node(ino);
                        inner.places.insert(node, at.clone());
                    }
                }
                let call = Call::Rename {
                    from: old,
                    to: new,
                    exchange,
                };
                inner.push(cx, call, text)
            },
        )
        .map(drop)
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        if !flags.contains(OpenFlags::TRUNCATE) {
            return self.fs.open(cx, ino, flags);
        }
        self.recorded(
            cx,
            |fs| fs.open(cx, ino, flags),
            |inner, ()| {
                let node = inner.node(ino);
                inner.set_size(cx, node, 0)
            },
        )
    }

    fn release(&self, ino: Ino) {
        let cx = Ctx {
            pid: 0,
            ..Ctx::root()
        };
        // A close has no result. After an error the recording is marked as failed.
        let _ = self.recorded(
            &cx,
            |_| Ok(()),
            |inner, ()| {
                let node = inner.node(ino);
                if !inner.dirty.remove(&node) {
                    return Ok(());
                }
                let text = format!("close({})", inner.path(node));
                inner.push(&cx, Call::Close { node }, text)
            },
        );
        self.fs.release(ino);
    }

    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        vfs::append_by_write(self, cx, ino, data)
    }

    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.recorded(
            cx,
            |fs| fs.write(cx, ino, off, data),
            |inner, len| {
                let node = inner.node(ino);
                let blob = inner.writer.keep(&data[..*len])?;
                let text = format!("write({}, {off}, {len} bytes)", inner.path(node));
                inner.dirty.insert(node);
                let call = Call::Write {
                    node,
                    off,
                    data: blob,
                };
                inner.push(cx, call, text)
            },
        )
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        self.recorded(
            cx,
            |fs| {
                fs.fallocate(cx, ino, kind, off, len)?;
                fs.getattr(cx, ino)
            },
            |inner, attr| {
                let node = inner.node(ino);
                let (zeroes, grows) = match kind {
                    Fallocate::Allocate { keep_size } => (false, !keep_size),
                    Fallocate::PunchHole => (true, false),
                    Fallocate::ZeroRange { keep_size } => (true, !keep_size),
                };
                if zeroes {
                    let text = format!("fallocate({}, {off}, {len})", inner.path(node));
                    inner.push(cx, Call::Zero { node, off, len }, text)?;
                }
                match grows && attr.size == off + len {
                    true => inner.set_size(cx, node, attr.size),
                    false => Ok(()),
                }
            },
        )
        .map(drop)
    }

    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        self.synced(cx, ino, data_only, "fsync")
    }

    fn fsyncdir(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        self.synced(cx, ino, data_only, "fsyncdir")
    }

    fn sync(&self) -> Result<()> {
        let cx = Ctx {
            pid: 0,
            ..Ctx::root()
        };
        self.recorded(
            &cx,
            |fs| fs.sync(),
            |inner, ()| inner.push(&cx, Call::SyncAll, "sync()".into()),
        )
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.recorded(
            cx,
            |fs| fs.setxattr(cx, ino, name, value, mode),
            |inner, ()| inner.set_xattr(cx, ino, name, Some(value)),
        )
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        self.recorded(
            cx,
            |fs| fs.removexattr(cx, ino, name),
            |inner, ()| inner.set_xattr(cx, ino, name, None),
        )
    }
}

#[cfg(test)]
mod tests;
