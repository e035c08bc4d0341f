//! Applies the events of a trace, in order.

use super::args::Args;
use super::process::{Location, Process, Shared};
use super::state::{Fault, State};
use super::text::{Event, Returned, Syscall, What};
use std::collections::{HashMap, VecDeque};

/// The calls that a trace must have. A `?` is for calls that some machines do not have.
pub const CALLS: &[&str] = &[
    "?open",
    "openat",
    "?openat2",
    "?creat",
    "close",
    "?close_range",
    "dup",
    "?dup2",
    "dup3",
    "fcntl",
    "?fcntl64",
    "?fork",
    "?vfork",
    "clone",
    "?clone3",
    "execve",
    "?execveat",
    "unshare",
    "chdir",
    "fchdir",
    "chroot",
    "umask",
    "setuid",
    "setgid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setfsuid",
    "setfsgid",
    "read",
    "readv",
    "?preadv2",
    "lseek",
    "?_llseek",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "?pwritev2",
    "sendfile",
    "?sendfile64",
    "?copy_file_range",
    "splice",
    "ioctl",
    "truncate",
    "ftruncate",
    "?truncate64",
    "?ftruncate64",
    "fallocate",
    "?rename",
    "?renameat",
    "renameat2",
    "?link",
    "linkat",
    "?symlink",
    "symlinkat",
    "?unlink",
    "unlinkat",
    "?rmdir",
    "?mkdir",
    "mkdirat",
    "?mknod",
    "mknodat",
    "bind",
    "?chmod",
    "fchmod",
    "fchmodat",
    "?fchmodat2",
    "?chown",
    "fchown",
    "?lchown",
    "fchownat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "fsync",
    "fdatasync",
    "sync",
    "syncfs",
    "msync",
    "mmap",
    "?mmap2",
    "?io_uring_setup",
    "io_submit",
    "?open_by_handle_at",
];

/// The events at which a child begins and at which its parent's call returns.
#[derive(Debug, Clone, Copy)]
struct Birth {
    parent: u32,
    begin: usize,
    end: usize,
    shared: Shared,
}

type Births = HashMap<u32, VecDeque<Birth>>;

impl State {
    /// Applies all events.
    pub(super) fn events(&mut self, events: &[Event<'_>], first: &Process) -> Result<(), Fault> {
        let mut births = births(events);
        for (n, event) in events.iter().enumerate() {
            self.at(event);
            if !self.processes.contains_key(&event.pid) {
                self.appear(event, n, &mut births, first)?;
            }
            match &event.what {
                What::Begin { name, args } => self.begin(name, args),
                What::Exit => self.exit(event.pid),
                What::Superseded { by } => self.superseded(*by),
                What::Call(call) => {
                    self.begin = call.begun.and(self.begun.remove(&event.pid));
                    self.call_or_note(call, n, &mut births)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the process of an event whose first one it is.
    fn appear(
        &mut self,
        event: &Event<'_>,
        n: usize,
        births: &mut Births,
        first: &Process,
    ) -> Result<(), Fault> {
        if let Some(birth) = take(births, event.pid, |birth| birth.begin <= n) {
            self.fork(birth.parent, event.pid, birth.shared)?;
        }
        if !self.processes.contains_key(&event.pid) {
            if n > 0 && !matches!(event.what, What::Exit) {
                let pid = event.pid;
                self.note_line(&format!("process {pid} has no parent in the trace"));
            }
            self.processes
                .insert(event.pid, first.fork(Shared::default()));
        }
        Ok(())
    }

    /// The descriptor of a call to `close` is free at its begin: another thread may get it before
    /// the call returns.
    fn begin(&mut self, name: &str, args: &[u8]) {
        let position = self.run.entries.len();
        self.begun.insert(self.pid, position);
        if name == "close"
            && let Ok(fd) = Args::new(args).fd_number(0)
        {
            self.close(fd);
        }
    }

    fn superseded(&mut self, by: u32) {
        if let Some(process) = self.processes.remove(&by) {
            let leader = self.pid;
            self.exit(leader);
            self.processes.insert(leader, process);
        }
    }

    fn call_or_note(
        &mut self,
        call: &Syscall<'_>,
        n: usize,
        births: &mut Births,
    ) -> Result<(), Fault> {
        let value = match call.returned {
            Returned::Value(value) => value,
            Returned::Failed => return Ok(()),
            Returned::Unknown => {
                if !call.name.starts_with("exit") && !call.name.starts_with("read") {
                    self.note_line(&format!("the result of {} is not known", call.name));
                }
                return Ok(());
            }
        };
        let args = Args::new(&call.args);
        let result = match &*call.name {
            "clone" | "clone3" | "fork" | "vfork" => self.cloned(value, n, births),
            name => self.call(&args, name, value, call.begun.is_some()),
        };
        match result {
            Err(Fault::Skip(what)) => {
                self.note_line(&format!("{} is left out: {what}", call.name));
                Ok(())
            }
            result => result,
        }
    }

    fn cloned(&mut self, child: i64, n: usize, births: &mut Births) -> Result<(), Fault> {
        let child = u32::try_from(child).map_err(|_| Fault::Skip("not a process".into()))?;
        // The first event of the child may have come before.
        match take(births, child, |birth| birth.end == n) {
            Some(birth) => self.fork(birth.parent, child, birth.shared),
            None => Ok(()),
        }
    }

    fn call(&mut self, args: &Args<'_>, name: &str, value: i64, begun: bool) -> Result<(), Fault> {
        match name {
            "open" | "openat" | "openat2" | "creat" => self.open_call(args, name, value),
            "close" if begun => Ok(()), // done at its begin
            "close" => {
                let fd = args.fd_number(0)?;
                self.close(fd);
                Ok(())
            }
            "close_range" => self.close_range_call(args),
            "dup" | "dup2" => self.dup_call(args, value, false),
            "dup3" => self.dup_call(args, value, args.flags(2).has("O_CLOEXEC")),
            "fcntl" | "fcntl64" => self.fcntl_call(args, value),
            "read" | "readv" | "preadv2" => self.read_call(args, name, value),
            "lseek" => self.lseek_call(args, value),
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => {
                self.write_call(args, name, value)
            }
            "sendfile" | "sendfile64" | "copy_file_range" | "splice" => {
                self.copy_call(args, name, value)
            }
            "ioctl" => self.ioctl_call(args),
            "truncate" | "truncate64" => self.truncate_call(args, "truncate"),
            "ftruncate" | "ftruncate64" => self.truncate_call(args, "ftruncate"),
            "fallocate" => self.fallocate_call(args),
            "fsync" | "fdatasync" => self.sync_call(args, name == "fdatasync"),
            "sync" | "syncfs" => self.sync_all_call(args, name),
            "msync" => self.msync_call(args),
            "mmap" | "mmap2" => self.mmap_call(args, value),
            _ => self.call_on_names(args, name),
        }
    }

    fn call_on_names(&mut self, args: &Args<'_>, name: &str) -> Result<(), Fault> {
        match name {
            "rename" | "renameat" | "renameat2" => self.rename_call(args, name != "rename"),
            "link" | "linkat" => self.link_call(args, name == "linkat"),
            "symlink" | "symlinkat" => self.symlink_call(args, name == "symlinkat"),
            "unlink" | "unlinkat" | "rmdir" => self.remove_call(args, name),
            "mkdir" | "mkdirat" | "mknod" | "mknodat" => self.make_call(args, name),
            "bind" => self.bind_call(args),
            "chmod" | "fchmod" | "fchmodat" | "fchmodat2" => self.chmod_call(args, name),
            "chown" | "fchown" | "lchown" | "fchownat" => self.chown_call(args, name),
            "setxattr" | "lsetxattr" | "fsetxattr" | "removexattr" | "lremovexattr"
            | "fremovexattr" => self.xattr_call(args, name),
            "chdir" | "fchdir" => self.chdir_call(args, name),
            _ => self.call_of_process(args, name),
        }
    }

    fn call_of_process(&mut self, args: &Args<'_>, name: &str) -> Result<(), Fault> {
        match name {
            "umask" => {
                let umask = args.mode(0)? & 0o777;
                if let Some(process) = self.process() {
                    process.fs.borrow_mut().umask = umask;
                }
            }
            "setuid" | "setgid" | "setfsuid" | "setfsgid" => self.set_owner(args, name, 0)?,
            "setreuid" | "setregid" | "setresuid" | "setresgid" => self.set_owner(args, name, 1)?,
            "execve" => self.executed(&args.string(0)?),
            "execveat" => self.executed(&args.string(1)?),
            "unshare" => {
                let kept = |name| !args.flags(0).has(name);
                self.unshare(kept("CLONE_FILES"), kept("CLONE_FS"));
            }
            "chroot" => self
                .notes
                .add("calls after chroot: their paths are not known".into()),
            "io_uring_setup" => self.notes.add("calls through io_uring".into()),
            "io_submit" => self.notes.add("calls through io_submit".into()),
            "open_by_handle_at" => self.notes.add("files that were opened by a handle".into()),
            _ => {}
        }
        Ok(())
    }

    /// Sets the owner or the group of new files to an argument.
    fn set_owner(&mut self, args: &Args<'_>, name: &str, n: usize) -> Result<(), Fault> {
        let id = u32::try_from(args.number(n)?).ok();
        let id = id.filter(|id| *id != u32::MAX);
        if let (Some(id), Some(process)) = (id, self.processes.get_mut(&self.pid)) {
            match name.ends_with("uid") {
                true => process.owner.0 = id,
                false => process.owner.1 = id,
            }
        }
        Ok(())
    }

    /// Gives the present process a table of descriptors, or a working directory, of its own.
    pub(super) fn unshare(&mut self, keeps_files: bool, keeps_fs: bool) {
        let kept = Shared {
            files: keeps_files,
            fs: keeps_fs,
            memory: true,
        };
        if let Some(process) = self.processes.get_mut(&self.pid) {
            process.unshare(kept);
        }
    }

    /// A new program runs in the process.
    fn executed(&mut self, path: &[u8]) {
        self.unshare(false, false);
        let Some(process) = self.processes.get_mut(&self.pid) else {
            return;
        };
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        process.name = Self::shown(&name[..name.len().min(15)]);
        process.maps = Default::default();
        let files = process.files.borrow();
        let closed = files.iter().filter(|(_, slot)| slot.close_on_exec);
        let closed: Vec<i32> = closed.map(|(fd, _)| *fd).collect();
        drop(files);
        closed.into_iter().for_each(|fd| self.close(fd));
    }
}

fn take(births: &mut Births, child: u32, fits: impl Fn(&Birth) -> bool) -> Option<Birth> {
    let list = births.get_mut(&child)?;
    let first = list.front().copied().filter(fits)?;
    list.pop_front();
    Some(first)
}

/// The children of each call that makes one.
fn births(events: &[Event<'_>]) -> Births {
    let mut births = Births::new();
    for (end, event) in events.iter().enumerate() {
        let What::Call(call) = &event.what else {
            continue;
        };
        let Returned::Value(child) = call.returned else {
            continue;
        };
        let (true, Ok(child)) = (is_clone(&call.name), u32::try_from(child)) else {
            continue;
        };
        let args = Args::new(&call.args);
        let flags = args.named_flags("flags");
        let birth = Birth {
            parent: event.pid,
            begin: call.begun.unwrap_or(end),
            end,
            shared: Shared {
                files: flags.has("CLONE_FILES"),
                fs: flags.has("CLONE_FS"),
                memory: flags.has("CLONE_VM") || call.name == "vfork",
            },
        };
        births.entry(child).or_default().push_back(birth);
    }
    births
}

fn is_clone(name: &str) -> bool {
    matches!(name, "clone" | "clone3" | "fork" | "vfork")
}

/// The place of a directory by its absolute path.
pub(super) fn location(state: &State, path: &[u8]) -> Location {
    match state.walk(Location::Outside(Vec::new()), path, true).found {
        super::paths::Found::At(location) => location,
        _ => Location::Outside(b"/".to_vec()),
    }
}
