//! Runs scripts.

use super::groups::Table;
use super::{Op, Script};
use std::collections::BTreeMap;
use vfs::{
    Attr, Ctx, Errno, FileSystem, FileType, Ino, Name, NewNode, OpenFlags, Removal, RenameFlags,
    Result, SetAttr, SetId, SetTime, Sets,
};

/// The state of a running script: its caller, its open handles, and its groups.
#[derive(Debug, Clone)]
pub struct State {
    /// The caller.
    pub cx: Ctx,
    handles: BTreeMap<u32, Ino>,
    groups: Table,
    /// The sets of the groups, where the file system has them.
    sets: BTreeMap<String, SetId>,
}

impl Default for State {
    /// A state of the super-user with no handle open.
    fn default() -> Self {
        Self::new(Ctx::root())
    }
}

impl State {
    /// A state with no handle open.
    pub fn new(cx: Ctx) -> Self {
        Self {
            cx,
            handles: BTreeMap::new(),
            groups: Table::default(),
            sets: BTreeMap::new(),
        }
    }

    /// The inode that a handle has open.
    pub fn handle(&self, handle: u32) -> Option<Ino> {
        self.handles.get(&handle).copied()
    }

    /// The open inodes, each as often as it is open.
    pub fn open_inodes(&self) -> impl Iterator<Item = Ino> {
        self.handles.values().copied()
    }

    /// Closes all handles, as the end of a process does. A state that is dropped after
    /// a crash needs no closing.
    pub fn close_all(&mut self, fs: &dyn FileSystem) {
        for ino in std::mem::take(&mut self.handles).into_values() {
            fs.release(ino);
        }
    }

    fn open(&mut self, fs: &dyn FileSystem, handle: u32, attr: &Attr) -> Result<()> {
        if self.handles.contains_key(&handle) {
            return Err(Errno::BUSY);
        }
        let flags = match attr.kind {
            FileType::Regular => OpenFlags::READ | OpenFlags::WRITE,
            FileType::Directory => OpenFlags::READ,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharDevice
            | FileType::BlockDevice
            | FileType::Symlink => OpenFlags::empty(),
        };
        fs.open(&self.cx, attr.ino, flags)?;
        self.handles.insert(handle, attr.ino);
        Ok(())
    }

    /// Opens a file without a name, made in the directory at `dir`.
    fn open_new(&mut self, fs: &dyn FileSystem, handle: u32, dir: &str, mode: u32) -> Result<()> {
        let paths = Paths { fs, state: self };
        let dir = paths.resolve(dir)?;
        let attr = fs.tmpfile(&self.cx, dir.attr.ino, mode)?;
        let file = Held { fs, attr, refs: 1 };
        self.open(fs, handle, &file.attr)
    }

    /// Runs a call on a group. Without an order between sets each call is in order anyway, or the
    /// file system keeps none.
    fn on_group(&mut self, fs: &dyn FileSystem, op: &Op) -> Result<()> {
        self.groups.apply(op)?;
        let Some(order) = fs.change_order() else {
            return Ok(());
        };
        let set = |name: &String| self.sets.get(name).copied().ok_or(Errno::BADF);
        match op {
            Op::Group { name } => drop(self.sets.insert(name.clone(), order.create())),
            Op::Depend { later, earlier } => order.depend(set(later)?, set(earlier)?),
            Op::SyncGroup { name } => order.sync(set(name)?)?,
            Op::CloseGroup { name } => {
                order.remove(set(name)?);
                self.sets.remove(name);
            }
            _ => {}
        }
        let engaged = self.groups.engaged();
        self.cx.sets = Sets::new(engaged.filter_map(|name| self.sets.get(name).copied()));
        Ok(())
    }

    fn close(&mut self, fs: &dyn FileSystem, handle: u32) -> Result<()> {
        let ino = self.handles.remove(&handle).ok_or(Errno::BADF)?;
        fs.release(ino);
        Ok(())
    }
}

/// The pattern of which every KiB begins as a block of a JBD2 log does, with this number.
pub const LOG_MAGIC: u32 = 0xc03b_3998;

/// Fills `buf` with the bytes of pattern `seed` for the offsets from `off` on. No byte is zero.
/// Bytes of different offsets or patterns are nearly always different, so that torn, shifted or
/// stale data is detected.
pub fn fill(seed: u32, off: u64, buf: &mut [u8]) {
    let (mut pos, mut rest) = (off, buf);
    while !rest.is_empty() {
        let skip = (pos % 8) as usize;
        let (part, more) = rest.split_at_mut(rest.len().min(8 - skip));
        let mut word = (pattern_word(seed, pos / 8) | 0x0101_0101_0101_0101).to_le_bytes();
        if seed == LOG_MAGIC && (pos / 8).is_multiple_of(128) {
            word[..4].copy_from_slice(&LOG_MAGIC.to_be_bytes());
        }
        part.copy_from_slice(&word[skip..skip + part.len()]);
        pos = pos.wrapping_add(part.len() as u64);
        rest = more;
    }
}

/// SplitMix64 of a pattern and a word's number.
fn pattern_word(seed: u32, word: u64) -> u64 {
    let mut z = ((u64::from(seed) << 40) ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn pattern(seed: u32, off: u64, len: u32) -> Vec<u8> {
    let mut data = vec![0; len as usize];
    fill(seed, off, &mut data);
    data
}

/// Runs all operations, whether or not some fail.
pub fn run(fs: &dyn FileSystem, state: &mut State, script: &Script) -> Vec<Result<()>> {
    let ops = script.ops.iter();
    ops.map(|op| run_op(fs, state, op)).collect()
}

/// Runs one operation. All references but those of handles are given back.
///
/// # Errors
/// The errors of the calls. Also `EBADF` for a handle that is not open, `EBUSY` for one that is
/// open already, and `EINVAL` for a path that names nothing. Calls on groups have the errors of
/// patchgroups: `EINVAL` for a sealed group, `EBUSY` for one that is engaged or was engaged, and
/// `EBADF` for a name without a group.
pub fn run_op(fs: &dyn FileSystem, state: &mut State, op: &Op) -> Result<()> {
    if op.is_of_groups() {
        return state.on_group(fs, op);
    }
    let paths = Paths { fs, state };
    let cx = &state.cx;
    let unset = SetAttr::default();
    match op {
        Op::Create { path, mode } => paths.make(path, Ok(NewNode::file(*mode))),
        Op::Mkdir { path, mode } => paths.make(path, Ok(NewNode::directory(*mode))),
        Op::Mknod {
            path,
            kind,
            mode,
            rdev,
        } => paths.make(path, NewNode::special(*kind, *mode, *rdev)),
        Op::Symlink { target, path } => paths.make(path, NewNode::symlink(target.as_bytes())),
        Op::Link { from, to } => paths.link(from, to),
        Op::Unlink { path } => paths.remove(path, Removal::Unlink),
        Op::Rmdir { path } => paths.remove(path, Removal::Rmdir),
        Op::Rename { from, to, flags } => paths.rename(from, to, *flags),
        Op::Write {
            path,
            off,
            len,
            seed,
        } => paths.write(path, |_| *off, *len, *seed),
        Op::Append { path, len, seed } => paths.write(path, |attr| attr.size, *len, *seed),
        Op::Truncate { path, size } => paths.on(path, |ino| fs.truncate(cx, ino, *size)),
        Op::Fallocate {
            path,
            kind,
            off,
            len,
        } => paths.on(path, |ino| fs.fallocate(cx, ino, *kind, *off, *len)),
        Op::SetXattr {
            path,
            name,
            len,
            seed,
            mode,
        } => paths.on(path, |ino| {
            let value = pattern(*seed, 0, *len);
            fs.setxattr(cx, ino, name.as_bytes(), &value, *mode)
        }),
        Op::RemoveXattr { path, name } => {
            paths.on(path, |ino| fs.removexattr(cx, ino, name.as_bytes()))
        }
        Op::Chmod { path, mode } => {
            let perm = Some(*mode);
            paths.set(path, SetAttr { perm, ..unset })
        }
        &Op::Chown { ref path, uid, gid } => paths.set(path, SetAttr { uid, gid, ..unset }),
        Op::Utimens { path, atime, mtime } => paths.set(path, times(*atime, *mtime)),
        Op::Fsync { path, data_only } => paths.on(path, |ino| fs.fsync(cx, ino, *data_only)),
        Op::Fsyncdir { path } => paths.on(path, |ino| fs.fsyncdir(cx, ino, false)),
        Op::Sync => fs.sync(),
        Op::Barrier => barrier(fs, cx),
        Op::Tmpfile { handle, dir, mode } => state.open_new(fs, *handle, dir, *mode),
        Op::Open { handle, path } => {
            let file = paths.resolve(path)?;
            state.open(fs, *handle, &file.attr)
        }
        Op::Close { handle } => state.close(fs, *handle),
        // `is_of_groups`
        Op::Group { .. }
        | Op::Depend { .. }
        | Op::Engage { .. }
        | Op::Disengage { .. }
        | Op::SyncGroup { .. }
        | Op::CloseGroup { .. } => Ok(()),
    }
}

/// Orders the changes in the sets of the caller. Without sets each call is in order anyway.
fn barrier(fs: &dyn FileSystem, cx: &Ctx) -> Result<()> {
    let sets = cx.sets.numbers().into_iter().flat_map(|sets| sets.iter());
    let order = fs.change_order();
    sets.into_iter().try_for_each(|set| {
        let order = order.ok_or(Errno::OPNOTSUPP)?;
        order.barrier(SetId(*set))
    })
}

fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> SetAttr {
    SetAttr {
        atime,
        mtime,
        ..SetAttr::default()
    }
}

/// Turns a short write, which the trait forbids, into an error.
fn written(result: Result<usize>, len: u32) -> Result<()> {
    match result? {
        count if count == len as usize => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// An inode, held while it is in use.
struct Held<'a> {
    fs: &'a dyn FileSystem,
    attr: Attr,
    refs: u64,
}

impl Held<'_> {
    /// The name `name` in this directory.
    fn name<'n>(&self, name: &'n [u8]) -> Name<'n> {
        Name::new(self.attr.ino, name)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.refs > 0 {
            self.fs.forget(self.attr.ino, self.refs);
        }
    }
}

/// Resolves paths for a script.
struct Paths<'f, 's> {
    fs: &'f dyn FileSystem,
    state: &'s State,
}

impl<'f> Paths<'f, '_> {
    /// Runs a call on the inode at `path`.
    fn on<T>(&self, path: &str, call: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        let node = self.resolve(path)?;
        call(node.attr.ino)
    }

    fn set(&self, path: &str, set: SetAttr) -> Result<()> {
        self.on(path, |ino| self.fs.setattr(&self.state.cx, ino, &set))
            .map(drop)
    }

    /// Writes a pattern at the offset that `off` derives from the file's attributes.
    fn write(&self, path: &str, off: impl FnOnce(&Attr) -> u64, len: u32, seed: u32) -> Result<()> {
        let file = self.resolve(path)?;
        let off = off(&file.attr);
        let data = pattern(seed, off, len);
        written(
            self.fs.write(&self.state.cx, file.attr.ino, off, &data),
            len,
        )
    }

    fn make(&self, path: &str, new: Result<NewNode<'_>>) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.made(self.fs.make(&self.state.cx, dir.name(name), &new?))
    }

    fn link(&self, from: &str, to: &str) -> Result<()> {
        let from = self.resolve(from)?;
        let (dir, name) = self.parent(to)?;
        let (ino, dir) = (from.attr.ino, dir.attr.ino);
        self.made(self.fs.link(&self.state.cx, ino, dir, name))
    }

    /// Gives back the reference of a call that made an inode.
    fn made(&self, made: Result<Attr>) -> Result<()> {
        self.fs.forget(made?.ino, 1);
        Ok(())
    }

    fn remove(&self, path: &str, which: Removal) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.remove(&self.state.cx, dir.name(name), which)
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        let (from, name) = self.parent(from)?;
        let (to, new_name) = self.parent(to)?;
        let (from, to) = (from.name(name), to.name(new_name));
        self.fs.rename(&self.state.cx, from, to, flags)
    }

    fn resolve(&self, path: &str) -> Result<Held<'f>> {
        let (start, rest) = self.start(path)?;
        let (fs, cx) = (self.fs, &self.state.cx);
        let mut at = Held {
            fs,
            attr: fs.getattr(cx, start)?,
            refs: 0,
        };
        for name in rest.split('/').filter(|name| !name.is_empty()) {
            let attr = fs.lookup(cx, at.attr.ino, name.as_bytes())?;
            at = Held { fs, attr, refs: 1 };
        }
        Ok(at)
    }

    /// The directory of a path, and the name in it.
    fn parent<'p>(&self, path: &'p str) -> Result<(Held<'f>, &'p [u8])> {
        let path = path.trim_end_matches('/');
        let (dir, name) = match path.rsplit_once('/') {
            Some((dir, name)) => (dir, name),
            None => ("", path),
        };
        if name.is_empty() || (dir.is_empty() && name.starts_with('@')) {
            return Err(Errno::INVAL);
        }
        Ok((self.resolve(dir)?, name.as_bytes()))
    }

    /// The inode at which a path starts, and the rest of the path.
    fn start<'p>(&self, path: &'p str) -> Result<(Ino, &'p str)> {
        let Some(rest) = path.strip_prefix('@') else {
            return Ok((Ino::ROOT, path));
        };
        let (handle, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let handle = handle.parse().map_err(|_| Errno::INVAL)?;
        Ok((self.state.handle(handle).ok_or(Errno::BADF)?, rest))
    }
}
