//! Calls on names, and on the attributes of inodes.

use super::args::{Args, Fd, Flags};
use super::paths::Spot;
use super::process::Location;
use super::state::{Fault, State};
use crate::{Bytes, Call, Kind, Node, Place};

type Done = Result<(), Fault>;

/// The path of a call: its base, and the index of the argument.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) base: Fd,
    pub(super) path: usize,
}

impl At {
    /// A path that is relative to the working directory.
    pub(super) fn cwd(path: usize) -> Self {
        let base = Fd::Cwd;
        Self { base, path }
    }

    /// A path that is relative to the descriptor in the argument before it.
    pub(super) fn fd(args: &Args<'_>, base: usize) -> Result<Self, Fault> {
        let path = base + 1;
        let base = args.fd(base)?;
        Ok(Self { base, path })
    }

    /// The path of a call with such a descriptor if its name ends with `at`.
    fn either(args: &Args<'_>, has_base: bool, first: usize) -> Result<Self, Fault> {
        match has_base {
            true => Self::fd(args, first),
            false => Ok(Self::cwd(first)),
        }
    }
}

impl State {
    /// Resolves a path of a call. A path relative to a descriptor that is not followed, such as a
    /// directory that another process sent, is outside.
    pub(super) fn spot(&self, args: &Args<'_>, at: At, follow: bool) -> Result<Spot, Fault> {
        let path = args.string(at.path)?;
        let base = match path.starts_with(b"/") {
            true => Some(Location::Outside(Vec::new())),
            false => self.location(at.base),
        };
        let base = base.unwrap_or(Location::Outside(b"/".to_vec()));
        Ok(self.walk(base, &path, follow))
    }

    /// The name at the end of a path; `None` outside of the run.
    fn place(&self, args: &Args<'_>, at: At) -> Result<Option<Place>, Fault> {
        let path = args.string(at.path)?;
        // The last name itself, also if a slash follows.
        let end = path.iter().rposition(|byte| *byte != b'/');
        let path = &path[..end.map_or(0, |end| end + 1)];
        let base = match path.starts_with(b"/") {
            true => Some(Location::Outside(Vec::new())),
            false => self.location(at.base),
        };
        let base = base.unwrap_or(Location::Outside(b"/".to_vec()));
        Ok(self.walk(base, path, false).place)
    }

    pub(super) fn link_call(&mut self, args: &Args<'_>, has_base: bool) -> Done {
        let (from, to) = match has_base {
            true => (At::fd(args, 0)?, At::fd(args, 2)?),
            false => (At::cwd(0), At::cwd(1)),
        };
        let flags = args.flags(4);
        let source = match flags.has("AT_EMPTY_PATH") && args.string(from.path)?.is_empty() {
            true => match self.location(from.base) {
                Some(Location::Inside(node)) => Some(node),
                _ => None,
            },
            false => {
                let spot = self.spot(args, from, flags.has("AT_SYMLINK_FOLLOW"))?;
                self.node_of(&spot)
            }
        };
        match (source, self.place(args, to)?) {
            (Some(node), Some(at)) => {
                let text = format!("link({}, {})", self.path(node), self.path_at(&at));
                self.named(node, at.clone(), false);
                self.push(Call::Link { node, at }, text)
            }
            (None, Some(at)) => self.make_from_outside(&at, "link"),
            (_, None) => Ok(()),
        }
    }

    /// The inode of a path, also of one through `/proc/self/fd`.
    fn node_of(&self, spot: &Spot) -> Option<Node> {
        if let super::paths::Found::Descriptor(fd) = spot.found {
            return self.process()?.open(fd)?.node();
        }
        spot.node()
    }

    /// Makes a file for one that comes from outside of the run. Its contents are not seen.
    fn make_from_outside(&mut self, at: &Place, verb: &str) -> Done {
        let path = self.path_at(at);
        let note =
            format!("the contents of {path}, which {verb} took from outside of the directory");
        self.notes.add(note);
        self.make(Some(at), Kind::File, 0o644, verb).map(drop)
    }

    pub(super) fn rename_call(&mut self, args: &Args<'_>, has_base: bool) -> Done {
        let (from, to) = match has_base {
            true => (At::fd(args, 0)?, At::fd(args, 2)?),
            false => (At::cwd(0), At::cwd(1)),
        };
        let flags = args.flags(4);
        if flags.has("RENAME_WHITEOUT") {
            return Err(Fault::Skip("RENAME_WHITEOUT is not understood".into()));
        }
        let exchange = flags.has("RENAME_EXCHANGE");
        match (self.place(args, from)?, self.place(args, to)?) {
            (Some(from), Some(to)) => self.renamed(from, to, exchange),
            (None, Some(_)) | (Some(_), None) if exchange => {
                Err(Fault::Skip("RENAME_EXCHANGE with a file outside".into()))
            }
            (Some(from), None) => {
                let text = format!("rename({}, to the outside)", self.path_at(&from));
                self.push(Call::Remove { at: from }, text)
            }
            (None, Some(to)) => self.make_from_outside(&to, "rename"),
            (None, None) => Ok(()),
        }
    }

    fn renamed(&mut self, from: Place, to: Place, exchange: bool) -> Done {
        let text = format!("rename({}, {})", self.path_at(&from), self.path_at(&to));
        let (moved, replaced) = (self.tree.lookup(&from), self.tree.lookup(&to));
        let call = Call::Rename {
            from: from.clone(),
            to: to.clone(),
            exchange,
        };
        self.push(call, text)?;
        for (node, at) in [(moved, to), (replaced.filter(|_| exchange), from)] {
            if let Some(node) = node {
                let is_directory = self.kind(node) == Some(&Kind::Directory);
                self.named(node, at, is_directory);
            }
        }
        Ok(())
    }

    pub(super) fn remove_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        let at = At::either(args, name == "unlinkat", 0)?;
        let Some(at) = self.place(args, at)? else {
            return Ok(());
        };
        if self.tree.lookup(&at).is_none() {
            let path = self.path_at(&at);
            return Err(Fault::Skip(format!("{name} of {path}, which is not there")));
        }
        let is_directory = name == "rmdir" || args.flags(2).has("AT_REMOVEDIR");
        let verb = if is_directory { "rmdir" } else { "unlink" };
        let text = format!("{verb}({})", self.path_at(&at));
        self.push(Call::Remove { at }, text)
    }

    /// `mkdir` and `mknod`.
    pub(super) fn make_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        let has_base = name.ends_with("at");
        let place = self.place(args, At::either(args, has_base, 0)?)?;
        let Some(at) = place else { return Ok(()) };
        let mode = 1 + usize::from(has_base);
        let kind = match name.starts_with("mkdir") {
            true => Kind::Directory,
            false => kind_of(args, mode)?,
        };
        let perm = args.mode(mode)? & !self.umask();
        let verb = name.strip_suffix("at").unwrap_or(name);
        self.make(Some(&at), kind, perm, verb).map(drop)
    }

    fn umask(&self) -> u32 {
        self.process().map_or(0o022, |process| process.umask())
    }

    pub(super) fn symlink_call(&mut self, args: &Args<'_>, has_base: bool) -> Done {
        let target = args.string(0)?;
        if target.len() > super::paths::TARGET_MAX {
            return Err(Fault::Skip("the target is too long".into()));
        }
        let place = self.place(args, At::either(args, has_base, 1)?)?;
        let Some(at) = place else { return Ok(()) };
        let kind = Kind::Symlink(Bytes(target));
        self.make(Some(&at), kind, 0o777, "symlink").map(drop)
    }

    /// The socket that `bind` makes.
    pub(super) fn bind_call(&mut self, args: &Args<'_>) -> Done {
        let Some(path) = args.field(1, "sun_path") else {
            return Ok(());
        };
        let Some(path) = super::args::string(path) else {
            return Ok(()); // an abstract name
        };
        let cwd = self.location(Fd::Cwd);
        let cwd = cwd.unwrap_or(Location::Outside(b"/".to_vec()));
        let Some(at) = self.walk(cwd, &path?, false).place else {
            return Ok(());
        };
        let perm = 0o777 & !self.umask();
        self.make(Some(&at), Kind::Socket, perm, "bind").map(drop)
    }

    /// The inode of the first argument: a descriptor, or a path by the rules of the call `name`.
    fn subject(
        &self,
        args: &Args<'_>,
        name: &str,
        flags: Flags<'_>,
    ) -> Result<Option<Node>, Fault> {
        let at = match name {
            _ if name.ends_with("at") || name.ends_with("at2") => At::fd(args, 0)?,
            _ if name.starts_with('f') => {
                return Ok(match self.location(args.fd(0)?) {
                    Some(Location::Inside(node)) => Some(node),
                    _ => None,
                });
            }
            _ => At::cwd(0),
        };
        if flags.has("AT_EMPTY_PATH") && args.string(at.path)?.is_empty() {
            return Ok(match self.location(at.base) {
                Some(Location::Inside(node)) => Some(node),
                _ => None,
            });
        }
        let follow = !name.starts_with('l') && !flags.has("AT_SYMLINK_NOFOLLOW");
        let spot = self.spot(args, at, follow)?;
        Ok(self.node_of(&spot))
    }

    pub(super) fn chmod_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        let has_base = name.starts_with("fchmodat");
        let flags = args.flags(if name == "fchmodat2" { 3 } else { usize::MAX });
        let Some(node) = self.subject(args, name, flags)? else {
            return Ok(());
        };
        let perm = args.mode(1 + usize::from(has_base))? & 0o7777;
        let text = format!("chmod({}, {perm:o})", self.path(node));
        let call = Call::SetAttr {
            node,
            perm: Some(perm),
            uid: None,
            gid: None,
        };
        self.push(call, text)
    }

    pub(super) fn chown_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        let has_base = name == "fchownat";
        let flags = args.flags(if has_base { 4 } else { usize::MAX });
        let Some(node) = self.subject(args, name, flags)? else {
            return Ok(());
        };
        let first = 1 + usize::from(has_base);
        let id = |n| -> Result<Option<u32>, Fault> { Ok(u32::try_from(args.number(n)?).ok()) };
        let unset = |id: &u32| *id != u32::MAX;
        let (uid, gid) = (id(first)?.filter(unset), id(first + 1)?.filter(unset));
        // A new owner clears the set-id bits of files.
        let inode = self
            .tree
            .get(node)
            .filter(|inode| inode.kind != Kind::Directory);
        let perm = inode.map(|inode| match inode.perm & 0o010 {
            0 => inode.perm & !0o4000,
            _ => inode.perm & !0o6000,
        });
        let text = format!("chown({})", self.path(node));
        let call = Call::SetAttr {
            node,
            perm,
            uid,
            gid,
        };
        self.push(call, text)
    }

    pub(super) fn xattr_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        let Some(node) = self.subject(args, name, args.flags(usize::MAX))? else {
            return Ok(());
        };
        let attribute = args.string(1)?;
        let is_removed = name.ends_with("removexattr");
        let value = match is_removed {
            true => None,
            false if args.text(2) == b"NULL" => Some(Bytes::default()),
            false => Some(Bytes(args.string(2)?)),
        };
        let verb = if is_removed {
            "removexattr"
        } else {
            "setxattr"
        };
        let text = format!("{verb}({}, {})", self.path(node), Self::shown(&attribute));
        if let (b"system.posix_acl_access", Some(list)) = (&attribute[..], &value) {
            let (class_bits, is_mode) = bits_of_acl(&list.0)?;
            let old = self.tree.get(node).map_or(0, |inode| inode.perm);
            let call = Call::SetAttr {
                node,
                perm: Some(old & !0o777 | class_bits),
                uid: None,
                gid: None,
            };
            self.push(call, text.clone())?;
            if is_mode {
                return Ok(());
            }
        }
        let name = Bytes(attribute);
        self.push(Call::SetXattr { node, name, value }, text)
    }

    /// `chdir` and `fchdir`.
    pub(super) fn chdir_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        let location = match name {
            "fchdir" => self.location(args.fd(0)?),
            _ => match self.spot(args, At::cwd(0), true)?.found {
                super::paths::Found::At(location) => Some(location),
                super::paths::Found::Descriptor(fd) => self.location(Fd::Number(fd)),
                _ => None,
            },
        };
        let location = location.ok_or_else(|| Fault::Skip("the directory is not known".into()))?;
        if let Some(process) = self.process() {
            process.fs.borrow_mut().cwd = location;
        }
        Ok(())
    }
}

/// The permission bits that an access control list sets, and whether it has no other entries.
fn bits_of_acl(list: &[u8]) -> Result<(u32, bool), Fault> {
    let entries = list
        .strip_prefix(&[2, 0, 0, 0])
        .map(|entries| entries.chunks_exact(8));
    let entries = entries.ok_or_else(|| Fault::Skip("not an access control list".into()))?;
    let (mut bits, mut mask, mut is_mode) = (0, None, true);
    for entry in entries {
        let perm = u32::from(entry[2] & 7);
        match u16::from_le_bytes([entry[0], entry[1]]) {
            1 => bits |= perm << 6,
            4 => bits |= perm << 3,
            0x20 => bits |= perm,
            0x10 => mask = Some(perm << 3),
            _ => is_mode = false,
        }
    }
    // The mask of a list takes the place of the group.
    let bits = mask.map_or(bits, |mask| bits & !0o070 | mask);
    Ok((bits, is_mode && mask.is_none()))
}

/// The type in the mode of `mknod`.
fn kind_of(args: &Args<'_>, mode: usize) -> Result<Kind, Fault> {
    let flags = args.flags(mode);
    if flags.has("S_IFIFO") {
        return Ok(Kind::Fifo);
    }
    if flags.has("S_IFSOCK") {
        return Ok(Kind::Socket);
    }
    let is_char = flags.has("S_IFCHR");
    if !is_char && !flags.has("S_IFBLK") {
        return Ok(Kind::File);
    }
    let device = args.text(mode + 1);
    let device = device
        .strip_prefix(b"makedev(")
        .and_then(|text| text.strip_suffix(b")"));
    let numbers = Args::new(device.unwrap_or_default());
    let number = |n| {
        let number = numbers.number(n)?;
        u32::try_from(number).map_err(|_| Fault::Skip("the number of the device".into()))
    };
    let (major, minor) = (number(0)?, number(1)?);
    // As in `st_rdev`, as far as it has 32 bits.
    let device = (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12);
    Ok(match is_char {
        true => Kind::CharDevice(device),
        false => Kind::BlockDevice(device),
    })
}
