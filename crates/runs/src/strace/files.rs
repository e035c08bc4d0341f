//! Calls on descriptors, and on the data of files.

use super::args::{Args, Fd, Flags};
use super::names::At;
use super::paths::Found;
use super::process::{Description, Durable, Location, Mapping, Slot, Target};
use super::state::{Fault, State};
use crate::{Call, Kind, Node};
use std::rc::Rc;

type Done = Result<(), Fault>;

impl State {
    /// The calls that open a file; `fd` is the result.
    pub(super) fn open_call(&mut self, args: &Args<'_>, name: &str, fd: i64) -> Done {
        let at = match name {
            "open" | "creat" => At::cwd(0),
            _ => At::fd(args, 0)?,
        };
        let (flags, mode) = match name {
            "open" => (args.flags(1), args.text(2)),
            "creat" => (
                Args::new(b"O_WRONLY|O_CREAT|O_TRUNC").flags(0),
                args.text(1),
            ),
            "openat" => (args.flags(2), args.text(3)),
            _ => (
                args.struct_flags(2, "flags"),
                args.field(2, "mode").unwrap_or_default(),
            ),
        };
        let perm = match mode {
            b"" => 0,
            mode => super::args::mode(mode).unwrap_or(0o644),
        };
        let fd = i32::try_from(fd).map_err(|_| Fault::Skip("not a descriptor".into()))?;
        self.opened(args, at, flags, perm, fd)
    }

    fn opened(&mut self, args: &Args<'_>, at: At, flags: Flags<'_>, perm: u32, fd: i32) -> Done {
        let creates = flags.has("O_CREAT");
        let follow = !(flags.has("O_NOFOLLOW") || creates && flags.has("O_EXCL"));
        let spot = self.spot(args, at, follow)?;
        let perm = perm & !self.process().map_or(0, |process| process.umask());
        let target = match spot.found {
            Found::At(Location::Inside(_)) if flags.has("O_TMPFILE") => {
                let node = self.make(None, Kind::File, perm, "open(O_TMPFILE)")?;
                Target::At(Location::Inside(node))
            }
            Found::At(location) => Target::At(location),
            Found::Free(place) => {
                if !creates {
                    let path = self.path_at(&place);
                    self.note_line(&format!("{path} was opened, but nothing has made it"));
                }
                let perm = if creates { perm } else { 0o644 };
                let node = self.make(Some(&place), Kind::File, perm, "create")?;
                Target::At(Location::Inside(node))
            }
            Found::Descriptor(other) => match self.process().and_then(|p| p.open(other)) {
                Some(open) => open.target.clone(),
                None => return Ok(()),
            },
            Found::Lost => Target::At(Location::Outside(b"/".to_vec())),
        };
        let is_writable = flags.has("O_WRONLY") || flags.has("O_RDWR");
        let mut open = Description::new(target, is_writable && !flags.has("O_PATH"));
        open.append.set(flags.has("O_APPEND"));
        open.durable = match (flags.has("O_SYNC"), flags.has("O_DSYNC")) {
            (true, _) => Durable::All,
            (false, true) => Durable::Data,
            (false, false) => Durable::No,
        };
        let node = open.node();
        let slot = Slot {
            open: Rc::new(open),
            close_on_exec: flags.has("O_CLOEXEC"),
        };
        self.install(fd, slot);
        match node {
            Some(node) if flags.has("O_TRUNC") => self.set_size(node, 0),
            _ => Ok(()),
        }
    }

    /// `dup` and its variants; `fd` is the result.
    pub(super) fn dup_call(&mut self, args: &Args<'_>, fd: i64, close_on_exec: bool) -> Done {
        let old = args.fd_number(0)?;
        let fd = i32::try_from(fd).map_err(|_| Fault::Skip("not a descriptor".into()))?;
        if old == fd {
            return Ok(());
        }
        match self.process().and_then(|process| process.open(old)) {
            Some(open) => self.install(
                fd,
                Slot {
                    open,
                    close_on_exec,
                },
            ),
            None => self.close(fd), // one that is not followed takes its number
        }
        Ok(())
    }

    pub(super) fn fcntl_call(&mut self, args: &Args<'_>, value: i64) -> Done {
        let command = args.text(1);
        match command {
            b"F_DUPFD" => return self.dup_call(args, value, false),
            b"F_DUPFD_CLOEXEC" => return self.dup_call(args, value, true),
            b"F_SETFD" | b"F_SETFL" => {}
            _ => return Ok(()),
        }
        let fd = args.fd_number(0)?;
        let flags = args.flags(2);
        let Some(process) = self.process() else {
            return Ok(());
        };
        if let Some(slot) = process.files.borrow_mut().get_mut(&fd) {
            match command {
                b"F_SETFD" => slot.close_on_exec = flags.has("FD_CLOEXEC"),
                _ => slot.open.append.set(flags.has("O_APPEND")),
            }
        }
        Ok(())
    }

    pub(super) fn close_range_call(&mut self, args: &Args<'_>) -> Done {
        let to_fd = |number: i128| number.clamp(0, i32::MAX.into()) as i32;
        let (first, last) = (to_fd(args.number(0)?), to_fd(args.number(1)?));
        let flags = args.flags(2);
        if flags.has("CLOSE_RANGE_UNSHARE") {
            self.unshare(false, true);
        }
        let Some(process) = self.process().filter(|_| first <= last) else {
            return Ok(());
        };
        let mut found = Vec::new();
        for (fd, slot) in process.files.borrow_mut().range_mut(first..=last) {
            match flags.has("CLOSE_RANGE_CLOEXEC") {
                true => slot.close_on_exec = true,
                false => found.push(*fd),
            }
        }
        found.into_iter().for_each(|fd| self.close(fd));
        Ok(())
    }

    /// `read` and its variants at the offset of the open file.
    pub(super) fn read_call(&mut self, args: &Args<'_>, name: &str, len: i64) -> Done {
        let is_at_end = name == "preadv2" && args.number(3)? != -1;
        let fd = args.fd_number(0)?;
        if let Some(open) = self.process().and_then(|process| process.open(fd))
            && !is_at_end
        {
            move_on(&open, len.max(0) as u64);
        }
        Ok(())
    }

    pub(super) fn lseek_call(&mut self, args: &Args<'_>, off: i64) -> Done {
        let fd = args.fd_number(0)?;
        if let Some(open) = self.process().and_then(|process| process.open(fd)) {
            open.offset.set(off.max(0) as u64);
        }
        Ok(())
    }

    /// `write` and its variants; `len` is the result.
    pub(super) fn write_call(&mut self, args: &Args<'_>, name: &str, len: i64) -> Done {
        let fd = args.fd_number(0)?;
        let Some(open) = self.process().and_then(|process| process.open(fd)) else {
            return Ok(());
        };
        if matches!(open.target, Target::At(Location::Outside(_))) {
            return Ok(());
        }
        let mut data = match name {
            "write" | "pwrite64" => args.string(1)?,
            _ => args.vectors(1)?,
        };
        let len = usize::try_from(len).unwrap_or(0);
        if data.len() < len {
            return Err(Fault::Fatal(format!(
                "{name} has written {len} bytes, and the trace has {}",
                data.len()
            )));
        }
        data.truncate(len);
        let no_flags = args.flags(usize::MAX);
        let (given, flags) = match name {
            "pwrite64" | "pwritev" => (Some(args.offset(3)?), no_flags),
            "pwritev2" if args.number(3)? != -1 => (Some(args.offset(3)?), args.flags(4)),
            "pwritev2" => (None, args.flags(4)),
            _ => (None, no_flags),
        };
        self.written(&open, &data, given, flags)
    }

    /// Records data that an open file got, at a given offset or at its own.
    pub(super) fn written(
        &mut self,
        open: &Description,
        data: &[u8],
        given: Option<u64>,
        flags: Flags<'_>,
    ) -> Done {
        if data.is_empty() {
            return Ok(());
        }
        let len = data.len() as u64;
        if open.target == Target::Output {
            let data = self.run.keep(data);
            return self.push(Call::Output { data }, format!("output of {len} bytes"));
        }
        let Some(node) = open.node().filter(|node| self.is_file(*node)) else {
            return Ok(());
        };
        let off = match given {
            _ if open.append.get() || flags.has("RWF_APPEND") => self.size(node),
            Some(off) => off,
            None => open.offset.get(),
        };
        let end = off.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| Fault::Skip("the file would be too long".into()))?;
        if given.is_none() {
            open.offset.set(end);
        }
        let data = self.run.keep(data);
        let text = format!("write({}, {off}, {len} bytes)", self.path(node));
        self.push(Call::Write { node, off, data }, text)?;
        let all = open.durable == Durable::All || flags.has("RWF_SYNC");
        if all || open.durable == Durable::Data || flags.has("RWF_DSYNC") {
            // It is durable when the call has returned, and others may have called meanwhile.
            let (call, text) = self.sync_of(node, !all, Some((off, len)));
            return self.push(call, text);
        }
        Ok(())
    }

    fn sync_of(&self, node: Node, data_only: bool, range: Option<(u64, u64)>) -> (Call, String) {
        let verb = if data_only { "fdatasync" } else { "fsync" };
        let part = range.map(|(off, len)| format!(", {off}, {len} bytes"));
        let text = format!("{verb}({}{})", self.path(node), part.unwrap_or_default());
        let call = Call::Sync {
            node,
            data_only,
            range,
        };
        (call, text)
    }

    fn synced(&mut self, node: Node, data_only: bool, range: Option<(u64, u64)>) {
        let (call, text) = self.sync_of(node, data_only, range);
        self.push_sync(call, text);
    }

    /// Sets the length of a file, if it is another one.
    pub(super) fn set_size(&mut self, node: Node, size: u64) -> Done {
        if !self.is_file(node) || self.size(node) == size {
            return Ok(());
        }
        let text = format!("truncate({}, {size})", self.path(node));
        self.push(Call::SetSize { node, size }, text)
    }

    /// `truncate` and `ftruncate`.
    pub(super) fn truncate_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        let node = match name {
            "ftruncate" => self.node_of_fd(args, 0)?,
            _ => self.spot(args, At::cwd(0), true)?.node(),
        };
        let size = args.offset(1)?;
        node.map_or(Ok(()), |node| self.set_size(node, size))
    }

    /// The inode of a descriptor, if it is in the run.
    fn node_of_fd(&self, args: &Args<'_>, n: usize) -> Result<Option<Node>, Fault> {
        let fd = args.fd_number(n)?;
        let open = self.process().and_then(|process| process.open(fd));
        Ok(open.and_then(|open| open.node()))
    }

    pub(super) fn fallocate_call(&mut self, args: &Args<'_>) -> Done {
        let node = self.node_of_fd(args, 0)?;
        let Some(node) = node.filter(|node| self.is_file(*node)) else {
            return Ok(());
        };
        let mode = args.flags(1);
        let (off, len) = (args.offset(2)?, args.offset(3)?);
        let end = off.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| Fault::Skip("the file would be too long".into()))?;
        if mode.has("FALLOC_FL_COLLAPSE_RANGE") || mode.has("FALLOC_FL_INSERT_RANGE") {
            let path = self.path(node);
            return Err(Fault::Skip(format!("fallocate moves the data of {path}")));
        }
        let punches = mode.has("FALLOC_FL_PUNCH_HOLE");
        if punches || mode.has("FALLOC_FL_ZERO_RANGE") {
            let text = format!("fallocate({}, {off}, {len})", self.path(node));
            self.push(Call::Zero { node, off, len }, text)?;
        }
        match end > self.size(node) && !punches && !mode.has("FALLOC_FL_KEEP_SIZE") {
            true => self.set_size(node, end),
            false => Ok(()),
        }
    }

    /// `fsync` and `fdatasync`.
    pub(super) fn sync_call(&mut self, args: &Args<'_>, data_only: bool) -> Done {
        if let Some(node) = self.node_of_fd(args, 0)? {
            self.synced(node, data_only, None);
        }
        Ok(())
    }

    /// `sync`, and `syncfs` of a file of the run.
    pub(super) fn sync_all_call(&mut self, args: &Args<'_>, name: &str) -> Done {
        if name == "sync" || self.node_of_fd(args, 0)?.is_some() {
            self.push_sync(Call::SyncAll, format!("{name}()"));
        }
        Ok(())
    }

    pub(super) fn msync_call(&mut self, args: &Args<'_>) -> Done {
        if !args.flags(2).has("MS_SYNC") {
            return Ok(());
        }
        let at = args.number(0)? as u64;
        let node = self.process().and_then(|process| {
            let maps = process.maps.borrow();
            let is_in = |map: &&Mapping| map.at <= at && at - map.at < map.len;
            let map = maps.iter().rev().find(is_in)?;
            let len = (args.number(1).ok()? as u64).min(map.len - (at - map.at));
            Some((map.node, (map.off + (at - map.at), len)))
        });
        if let Some((node, range)) = node {
            self.synced(node, true, Some(range));
        }
        Ok(())
    }

    pub(super) fn mmap_call(&mut self, args: &Args<'_>, at: i64) -> Done {
        let is_shared = args.flags(3).mentions("MAP_SHARED");
        if !is_shared || !args.flags(2).has("PROT_WRITE") {
            return Ok(());
        }
        let Fd::Number(fd) = args.fd(4)? else {
            return Ok(());
        };
        let len = args.number(1)? as u64;
        let open = self.process().and_then(|process| process.open(fd));
        if let Some(node) = open.and_then(|open| open.node()) {
            let at = at as u64;
            let off = args.offset(5)?;
            self.mapped(Mapping { at, len, off, node });
        }
        Ok(())
    }
}

/// Moves the offset of an open file on.
pub(super) fn move_on(open: &Description, len: u64) {
    open.offset.set(open.offset.get().saturating_add(len));
}
