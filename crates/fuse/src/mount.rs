//! Mounting, serving, unmounting.

use crate::Error;
use crate::fact::Facts;
use crate::ops::Ops;
use crate::options::MountOptions;
use crate::transport::dev_fuse::DevFuse;
use crate::transport::dropped::Dropped;
use crate::transport::late::Late;
use fuser::{Config, INodeNo, MountOption, Notifier, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::{fs, io, thread};
use vfs::{FileSystem, Ino};

/// The type that mounts have in `/proc/mounts`, after `fuse.`.
const SUBTYPE: &str = "selvedge";

/// A mount whose file system may not be open yet. If it is dropped without
/// [`serve`](Mount::serve), the mount answers no request.
pub struct Mount {
    session: Session<DevFuse>,
    served: Late,
    notifier: Notifier,
    unmounter: Unmounter,
}

impl Mount {
    /// Mounts on the directory `dir`. Requests wait until [`serve`](Mount::serve) answers
    /// them, so that a file system can be opened, and changed by that, after everything that
    /// can refuse the mount.
    ///
    /// The super-user mounts directly, others through `fusermount3`.
    ///
    /// # Errors
    /// [`Error`] if `dir` is not a directory, `/dev/fuse` cannot be opened or the kernel
    /// refuses.
    pub fn new(dir: &Path, o: &MountOptions) -> Result<Self, Error> {
        let dir = mount_point(dir)?;
        let (served, notifier) = (Late::default(), Arc::new(OnceLock::new()));
        let dropped = Arc::new(Dropped::default());
        let server = DevFuse::new(
            o,
            served.clone(),
            Arc::clone(&notifier),
            Arc::clone(&dropped),
        );
        let session = if rustix::process::geteuid().is_root() {
            mount_directly(server, &dir, o)?
        } else {
            mount_by_helper(server, &dir, o)?
        };
        // A fresh cell: nothing else fills it.
        let _ = notifier.set(session.notifier());
        if let Ok(device) = session.as_fd().try_clone_to_owned() {
            dropped.set_device(device);
        }
        Ok(Self {
            notifier: session.notifier(),
            session,
            served,
            unmounter: Unmounter { dir },
        })
    }

    /// A handle that unmounts this, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// A handle that drops entries of the kernel's caches, from any thread that serves no requests.
    pub fn invalidator(&self) -> Invalidator {
        Invalidator(self.notifier.clone())
    }

    /// Answers requests from `fs` until any process unmounts it. The caller makes the last
    /// [`sync`](FileSystem::sync).
    ///
    /// # Errors
    /// [`Error::Connection`] if requests cannot be read any more.
    pub fn serve(self, fs: Arc<dyn FileSystem>, facts: Facts) -> Result<(), Error> {
        let dir = self.unmounter.dir;
        self.served.set(Ops::new(fs, facts));
        self.session
            .run()
            .map_err(|source| Error::Connection { dir, source })
    }
}

/// Drops entries of the kernel's caches of a mounted file system.
#[derive(Debug, Clone)]
pub struct Invalidator(Notifier);

impl Invalidator {
    /// Drops the attributes and the data of an inode. The kernel may not have it: that is
    /// not an error.
    pub fn inode(&self, ino: Ino) {
        let _ = self.0.inval_inode(INodeNo(ino.0), 0, 0);
    }

    /// Drops a name, or its absence. As for [`inode`](Self::inode).
    pub fn entry(&self, dir: Ino, name: &[u8]) {
        let _ = self.0.inval_entry(INodeNo(dir.0), OsStr::from_bytes(name));
    }
}

/// Unmounts one mount.
#[derive(Debug, Clone)]
pub struct Unmounter {
    dir: PathBuf,
}

/// The programs of libfuse 3 and 2 that mount and unmount for users. A machine has one of them at least.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

impl Unmounter {
    /// For whatever FUSE file system is mounted on `dir`, an absolute path.
    pub fn of(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is in use, [`Error::Unmount`] for other refusals.
    pub fn unmount(&self) -> Result<(), Error> {
        self.umount2(UnmountFlags::NOFOLLOW, &["-u"])
    }

    /// Takes the mount out of the tree at once, in use or not; it ends when its last
    /// user leaves or its server exits.
    ///
    /// # Errors
    /// [`Error::Unmount`] if refused.
    pub fn detach(&self) -> Result<(), Error> {
        self.umount2(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"])
    }

    fn umount2(&self, flags: UnmountFlags, helper_args: &[&str]) -> Result<(), Error> {
        let dir = self.dir.clone();
        match rustix::mount::unmount(&self.dir, flags) {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => Err(Error::Busy { dir }),
            Err(Errno::PERM) => self.helper(helper_args),
            Err(e) => Err(Error::Unmount {
                dir,
                source: e.into(),
            }),
        }
    }

    /// The helper of libfuse is set-user-id: it unmounts what the user mounted.
    fn helper(&self, args: &[&str]) -> Result<(), Error> {
        let refused = |source| Error::Unmount {
            dir: self.dir.clone(),
            source,
        };
        let run = |program: &str| {
            Command::new(program)
                .args(args)
                .arg("--")
                .arg(&self.dir)
                .stdin(Stdio::null())
                .output()
        };
        let [new, old] = HELPERS;
        let missing = |e: io::Error| refused(io::Error::new(e.kind(), format!("{new}: {e}")));
        let output = run(new).or_else(|e| run(old).map_err(|_| missing(e)))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if said.contains("busy") {
            return Err(Error::Busy {
                dir: self.dir.clone(),
            });
        }
        Err(refused(io::Error::other(said)))
    }
}

/// The absolute path of a directory that can be mounted on.
fn mount_point(dir: &Path) -> Result<PathBuf, Error> {
    let unusable = |source: io::Error| {
        let dir = dir.to_owned();
        if source.raw_os_error() == Some(libc::ENOTCONN) {
            Error::DeadMount { dir }
        } else {
            Error::MountPoint { dir, source }
        }
    };
    let path = dir.canonicalize().map_err(unusable)?;
    if fs::metadata(&path).map_err(unusable)?.is_dir() {
        Ok(path)
    } else {
        Err(unusable(io::ErrorKind::NotADirectory.into()))
    }
}

fn mount_directly(
    server: DevFuse,
    dir: &Path,
    o: &MountOptions,
) -> Result<Session<DevFuse>, Error> {
    let device = open_device().map_err(Error::Device)?;
    let refused = |source| Error::Mount {
        dir: dir.to_owned(),
        source,
    };
    rustix::mount::mount(
        o.source.as_str(),
        dir,
        format!("fuse.{SUBTYPE}"),
        mount_flags(o),
        Some(data_string(&device, o).as_c_str()),
    )
    .map_err(|e| refused(e.into()))?;
    // The kernel itself enforces `allow_other`; `fuser` need not check again.
    Session::from_fd(server, device.into(), SessionACL::All, config(o)).map_err(|source| {
        // Each access to the mount would hang.
        let _ = Unmounter::of(dir.to_owned()).detach();
        refused(source)
    })
}

fn open_device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse")
}

/// The options that FUSE itself reads.
fn data_string(device: &File, o: &MountOptions) -> std::ffi::CString {
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if o.allow_other {
        data.push_str(",allow_other");
    }
    std::ffi::CString::new(data).unwrap_or_default()
}

fn mount_flags(o: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, o.read_only);
    flags.set(MountFlags::NOSUID, o.nosuid);
    flags.set(MountFlags::NODEV, o.nodev);
    flags.set(MountFlags::NOEXEC, o.noexec);
    flags.set(MountFlags::NOATIME, o.noatime);
    flags
}

fn mount_by_helper(
    server: DevFuse,
    dir: &Path,
    o: &MountOptions,
) -> Result<Session<DevFuse>, Error> {
    // Each serving thread opens it again, so the helper's rights alone do not do.
    open_device().map_err(Error::Device)?;
    let mut config = config(o);
    config.mount_options = vec![
        MountOption::FSName(escaped(&o.source)),
        MountOption::Subtype(SUBTYPE.into()),
        MountOption::DefaultPermissions,
    ];
    let flags = [
        (o.read_only, MountOption::RO),
        (o.noexec, MountOption::NoExec),
        (o.noatime, MountOption::NoAtime),
    ];
    let set = flags.into_iter().filter(|(on, _)| *on).map(|(_, f)| f);
    config.mount_options.extend(set);
    if o.allow_other {
        config.acl = SessionACL::All;
    }
    Session::new(server, dir, &config).map_err(|source| Error::Mount {
        dir: dir.to_owned(),
        source,
    })
}

/// The source as `fusermount3` reads it from its list of options, which commas separate.
fn escaped(source: &str) -> String {
    let escape = |c| [Some('\\').filter(|_| matches!(c, ',' | '\\')), Some(c)];
    source.chars().flat_map(escape).flatten().collect()
}

fn config(o: &MountOptions) -> Config {
    let cpus = || {
        thread::available_parallelism()
            .map_or(1, usize::from)
            .min(8)
    };
    let mut config = Config::default();
    config.n_threads = Some(o.threads.unwrap_or_else(cpus).max(1));
    config.clone_fd = true;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_and_backslashes_are_escaped() {
        assert_eq!(escaped("/a b/c.img"), "/a b/c.img");
        assert_eq!(escaped(r"/a,b\c,"), r"/a\,b\\c\,");
    }
}
