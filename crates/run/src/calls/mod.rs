//! The system calls on files, in terms of [`FileSystem`].
//!
//! Each call reads its arguments as the kernel does, resolves its paths, and returns what Linux returns.

pub(crate) mod attrs;
pub(crate) mod backed;
pub(crate) mod copies;
pub(crate) mod data;
pub(crate) mod descriptors;
pub(crate) mod directories;
pub(crate) mod locks;
pub(crate) mod mapped;
pub(crate) mod maps;
pub(crate) mod names;
pub(crate) mod opens;
pub(crate) mod xattrs;

use crate::kernel::{self, Result};
use crate::memory::{self, Text};
use crate::own::is_own;
use crate::process::{Caller, File, Process, Working};
use crate::raw;
use crate::shared::Reason;
use crate::walk::{Found, Place, Walk, path_of};
use std::ffi::CString;
use vfs::{Attr, Ctx, Errno, FileSystem, FileType, Ino, Name};

/// `fchmodat2`, which the crate `libc` lacks.
pub(crate) const SYS_FCHMODAT2: i64 = 452;

/// The end of a call without a result of its own.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It fails.
    Errno(Errno),
    /// The kernel executes it as it stands.
    Kernel,
    /// The kernel executes it with these arguments, of which the program sees later what a call may change.
    With([u64; 6]),
    /// The kernel executes it, and may wait. No lock is held meanwhile.
    Waits(Wait),
    /// A signal arrived while it waited: it is made again after the handler.
    Again,
}

/// The arguments of a call that may wait, and their memory.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) args: [u64; 6],
    _path: CString,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The end of a call.
pub(crate) type Answer = std::result::Result<u64, Stop>;

/// A system call of the program.
pub(crate) struct Call {
    pub(crate) process: &'static Process,
    pub(crate) number: i64,
    pub(crate) args: [u64; 6],
}

/// The places of a directory and a path among the arguments of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) dir: Option<usize>,
    pub(crate) path: usize,
}

impl At {
    /// A path that is relative to the working directory.
    pub(crate) const fn path(path: usize) -> Self {
        Self { dir: None, path }
    }

    /// A directory, and a path after it.
    pub(crate) const fn dir(dir: usize) -> Self {
        Self {
            dir: Some(dir),
            path: dir + 1,
        }
    }
}

/// Where a path starts.
enum Start {
    /// At an absolute path below the mount point.
    Root,
    /// In the working directory, in the store.
    Cwd(File),
    /// At a descriptor of the store.
    Dir(File),
    /// At an open file, which a path of `/proc` names by the number of a descriptor.
    Named(File),
}

/// A connection with the caller's credentials, for the time of a call.
pub(crate) struct Session {
    pub(crate) process: &'static Process,
    pub(crate) fs: &'static dyn FileSystem,
    pub(crate) cx: Caller,
}

/// Where a path of a call ends.
#[allow(clippy::large_enum_variant)] // it stays on the stack, and most are of the large variant
pub(crate) enum Resolved<'s> {
    /// In the store. A file keeps the directory at which the path started.
    Inside(Found<'s>, Option<File>),
    /// In the kernel's files, by this path.
    Outside(CString),
    /// In the kernel's files, as the arguments say.
    Foreign,
}

impl Call {
    /// An argument that is an `int`.
    pub(crate) fn int(&self, n: usize) -> i32 {
        self.args[n] as i32
    }

    /// The kernel executes the call now.
    pub(crate) fn pass(&self) -> Result<u64> {
        self.with(self.args)
    }

    /// The kernel executes the call with other arguments.
    pub(crate) fn with(&self, args: [u64; 6]) -> Result<u64> {
        // SAFETY: the call and its memory are the program's, or arguments of the same meaning.
        kernel::result(unsafe { raw::syscall(self.number, args) })
    }

    /// The kernel executes the call with other arguments, and may wait: a signal ends that.
    pub(crate) fn waiting(&self, args: [u64; 6]) -> Answer {
        // SAFETY: as in `with`.
        match unsafe { raw::syscall_unless_signal(self.number, args) } {
            Some(done) => Ok(kernel::result(done)?),
            None => Err(Stop::Again),
        }
    }

    /// Leaves the call to the kernel, with another path.
    pub(crate) fn elsewhere(&self, at: At, path: CString) -> Answer {
        Err(Stop::Waits(Wait {
            args: self.moved(at, &path),
            _path: path,
        }))
    }

    /// The file of a descriptor of the store; any other call is the kernel's.
    pub(crate) fn file(&self, n: usize) -> std::result::Result<File, Stop> {
        match self.process.file(self.args[n]) {
            Some(file) => {
                self.process.count(Reason::Answered);
                Ok(file)
            }
            None if is_own(self.args[n]) => Err(Errno::BADF.into()),
            None => Err(Stop::Kernel),
        }
    }

    pub(crate) fn session(&self) -> Result<Session> {
        let process = self.process;
        Ok(Session {
            process,
            fs: process.fs()?,
            cx: process.cx()?,
        })
    }

    /// The path of the call and where it starts, unless it cannot be in the store.
    fn start(&self, at: At) -> Result<Option<(Start, Text)>> {
        if self.process.leaves_paths_to_mount() {
            return Ok(None);
        }
        let path = memory::path(self.args[at.path])?;
        let dir = at.dir.map_or(libc::AT_FDCWD, |dir| self.int(dir));
        let mount = &self.process.at;
        if path.first() == Some(&b'/') {
            if strip_names(&path, mount).is_some() {
                return Ok(Some((Start::Root, path)));
            }
            let named = self.process.named_by_number(&path);
            return Ok(named.map(|(file, rest)| match rest {
                b"" => (Start::Named(file), Text::new()),
                rest => (Start::Dir(file), [b".", rest].concat().into()),
            }));
        }
        if dir != libc::AT_FDCWD {
            let file = self.process.file(dir as u64);
            return Ok(file.map(|file| (Start::Dir(file), path)));
        }
        let mut working = self.process.working();
        if let Working::Unknown = working {
            let _ = adopt_directory(self.process); // otherwise it is the kernel's
            working = self.process.working();
        }
        Ok(match working {
            Working::Inside(cwd) => Some((Start::Cwd(cwd), path)),
            Working::Above(rest) => strip_names(without_dots(&path), rest)
                .map(|below| (Start::Root, [mount, below].concat().into())),
            Working::Unknown | Working::Elsewhere => None,
        })
    }

    /// Whether the path starts in the working directory, which is in the store.
    pub(crate) fn is_relative_to_it(&self, at: At) -> Result<bool> {
        Ok(matches!(self.start(at)?, Some((Start::Cwd(_), _))))
    }

    /// Whether a path can be in the store.
    pub(crate) fn is_ours(&self, at: At) -> Result<bool> {
        Ok(self.start(at)?.is_some())
    }

    /// Resolves the path of a call with one, and runs it. A path that ends elsewhere is the kernel's.
    pub(crate) fn at(
        &self,
        at: At,
        follow: bool,
        run: impl FnOnce(&Session, Found<'_>) -> Answer,
    ) -> Answer {
        let Some(start) = self.start(at)? else {
            return Err(Stop::Kernel);
        };
        let session = self.session()?;
        self.from(&session, start, at, follow, |found| run(&session, found))
    }

    /// Shows the attributes of the inode to which the path of a call leads.
    pub(crate) fn show_at(
        &self,
        at: At,
        follow: bool,
        show: impl FnOnce(&Attr) -> Answer,
    ) -> Answer {
        let Some(start) = self.start(at)? else {
            return Err(Stop::Kernel);
        };
        let session = self.session()?;
        let found = session.known(&start).and_then(|(name, version)| {
            let found = session.fs.attributes(&session.cx, name).transpose()?;
            (session.fs.paths_version() == version).then_some(found)
        });
        let found = found.transpose()?;
        let is_end = |attr: &Attr| !follow || attr.kind != FileType::Symlink;
        match found.filter(is_end) {
            Some(attr) => {
                self.process.count(Reason::Answered);
                show(&attr)
            }
            None => self.from(&session, start, at, follow, |found| show(&found.attr()?)),
        }
    }

    /// Resolves the path of a call from where it starts, and runs the call.
    fn from<'s>(
        &self,
        session: &'s Session,
        start: (Start, Text),
        at: At,
        follow: bool,
        run: impl FnOnce(Found<'s>) -> Answer,
    ) -> Answer {
        match session.resolve_from(start, follow, &session.cx)? {
            Resolved::Inside(found, _dir) => {
                self.process.count(Reason::Answered);
                run(found)
            }
            Resolved::Outside(path) => self.elsewhere(at, path),
            Resolved::Foreign => Err(Stop::Kernel),
        }
    }

    /// The arguments with another path.
    fn moved(&self, at: At, path: &CString) -> [u64; 6] {
        let mut args = self.args;
        args[at.path] = path.as_ptr() as u64;
        if let Some(dir) = at.dir {
            args[dir] = libc::AT_FDCWD as u64;
        }
        args
    }

    /// The kernel's path of the call's path, if that is in the store.
    pub(crate) fn kernel_path(&self, at: At) -> Result<Option<CString>> {
        let Some((start, path)) = self.start(at)? else {
            return Ok(None);
        };
        let dir = match &start {
            Start::Root => return as_path(path.into_vec()).map(Some),
            Start::Cwd(file) | Start::Dir(file) => file.ino(),
            Start::Named(_) => return Ok(None),
        };
        let below = path_of(self.process, self.process.fs()?, dir)?;
        as_path([&self.process.at[..], &below, b"/", &path].concat()).map(Some)
    }
}

/// Finds the kernel's working directory, which is in the mount, in the store.
fn adopt_directory(process: &Process) -> Result<()> {
    let _moving = process.moves();
    let Working::Unknown = process.working() else {
        return Ok(()); // another thread was here
    };
    let (path, fs, cx) = (kernel::directory()?, process.fs()?, process.permitted()?);
    let walk = Walk {
        process,
        fs,
        cx: &cx,
        follow: false,
    };
    if let Place::Inside(found) = walk.resolve(Ino::ROOT, &path)? {
        let attr = found.attr()?;
        process.work_in((attr.ino, attr.generation))?;
    }
    Ok(())
}

/// The rest of a path after its first names: nothing, or a slash and more.
fn strip_names<'p>(path: &'p [u8], first: &[u8]) -> Option<&'p [u8]> {
    let below = path.strip_prefix(first)?;
    (below.is_empty() || below[0] == b'/').then_some(below)
}

/// A relative path without `./` at its start.
fn without_dots(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_prefix(b"./") {
        let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
        path = &rest[slashes..];
    }
    path
}

fn as_path(path: Vec<u8>) -> Result<CString> {
    CString::new(path).map_err(|_| Errno::INVAL)
}

impl Session {
    /// The name at the end of a path, if its directory is known, and the version at which it is. The directory may have
    /// no reference: at another version its number may be that of another one.
    fn known<'p>(&self, (start, path): &'p (Start, Text)) -> Option<(Name<'p>, Option<u64>)> {
        let dir = match start {
            Start::Root => Ino::ROOT,
            Start::Cwd(file) | Start::Dir(file) => file.fs().is_ok().then(|| file.ino())?,
            Start::Named(_) => return None,
        };
        let version = self.fs.paths_version();
        let name = self.process.paths.name(version, &self.cx, (dir, path))?;
        Some((name, version))
    }

    /// Resolves a path.
    pub(crate) fn resolve(&self, call: &Call, at: At, follow: bool) -> Result<Resolved<'_>> {
        self.resolve_as(call, at, follow, &self.cx)
    }

    /// Resolves a path with the rights of `cx`.
    pub(crate) fn resolve_as<'s>(
        &'s self,
        call: &Call,
        at: At,
        follow: bool,
        cx: &'s Ctx,
    ) -> Result<Resolved<'s>> {
        match call.start(at)? {
            Some(start) => self.resolve_from(start, follow, cx),
            None => Ok(Resolved::Foreign),
        }
    }

    /// Resolves a path from where it starts.
    fn resolve_from<'s>(
        &'s self,
        (start, path): (Start, Text),
        follow: bool,
        cx: &'s Ctx,
    ) -> Result<Resolved<'s>> {
        let walk = Walk {
            process: self.process,
            fs: self.fs,
            cx,
            follow,
        };
        let (ino, file) = match start {
            Start::Root => (Ino::ROOT, None),
            Start::Cwd(file) | Start::Dir(file) => {
                file.fs()?;
                (file.ino(), Some(file))
            }
            // The symbolic link itself is the kernel's.
            Start::Named(_) if !follow => return Ok(Resolved::Foreign),
            Start::Named(file) => {
                let found = Found::open(self.fs, cx, file.ino())?;
                return Ok(Resolved::Inside(found, Some(file)));
            }
        };
        Ok(match walk.resolve(ino, &path)? {
            Place::Inside(found) => Resolved::Inside(found, file),
            Place::Outside(path) => Resolved::Outside(path),
        })
    }
}

/// Leaves a call with one path to the mount of the store.
pub(crate) fn through_mount(call: &Call) -> Answer {
    let at = match call.number {
        libc::SYS_inotify_add_watch => At::path(1),
        _ => At::dir(0),
    };
    match call.kernel_path(at)? {
        None => Err(Stop::Kernel),
        Some(path) => {
            call.process.count(Reason::Other);
            Ok(call.with(call.moved(at, &path))?)
        }
    }
}
