//! A client as a file system.

use crate::connection::{ConnectError, Connection, Link};
use crate::mapped::{Mapped, Speculation};
use crate::memory::Memory;
use crate::remote::Remote;
use aerie_proto::messages::{Class, Greeting, PARTITION};
use aerie_proto::ops::Caller;
use medium::{EffectiveDurability, Guarding, MapOptions, MappedPmem};
use pxfs::Credentials;
use scm::Joined;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use vfs::sync::Mutex;
use vfs::{
    Atime, Attr, Ctx, Errno, FileSystem, FileSystemLayer, Name, NewNode, OpenFlags, Paths, Removal,
    SystemClock,
};

/// Options of a client.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Changes are shipped after this time at the latest.
    pub period: Duration,
    /// Changes are shipped when they have this size in bytes.
    pub batch_bytes: u64,
    /// For the mapping of the image. A client that stores contents itself takes the durability of the service in place of
    /// this one. By default it has a [guard](MapOptions::guarded) against stray stores of the
    /// program.
    pub map: MapOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            batch_bytes: 8 << 20,
            map: MapOptions {
                guarded: true,
                ..MapOptions::default()
            },
        }
    }
}

impl Options {
    /// The defaults, for a program whose user can turn off the guard of the mapping ([`Guarding`]).
    pub fn of_environment() -> Self {
        let options = Self::default();
        let map = MapOptions {
            guarded: Guarding::of_environment() != Guarding::Off,
            ..options.map
        };
        Self { map, ..options }
    }
}

/// A client of a service: a file system for the threads of a process. It does not work in a child after
/// `fork`.
///
/// After the end of the service or of the session, all calls fail with `ENODEV`. Unshipped
/// changes are lost then, which `sync` reports once with `EIO`, and a new client is needed.
pub struct Client {
    connection: Arc<Connection>,
    class: Class,
    durability: EffectiveDurability,
    own: Ctx,
    pub(crate) fs: Fs,
    /// Where paths have led.
    pub(crate) paths: Paths,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) enum Fs {
    Mapped(Arc<Mapped<Arc<MappedPmem>>>),
    Protected(Arc<Mapped<Arc<Joined>>>),
    Remote(Remote),
}

impl Client {
    /// Connects to the service at a socket, and maps its image if the service permits it.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(socket: &Path, options: &Options) -> Result<Self, ConnectError> {
        let (connection, greeting, descriptor) = Connection::new(socket)?;
        let connection = Arc::new(connection);
        let class = greeting.class;
        let who = credentials(&greeting);
        let own = Ctx {
            groups: who.groups.clone(),
            ..Ctx::user(who.uid, who.gid)
        };
        let (fs, threads) = match descriptor {
            Some(descriptor) if greeting.is_protected => {
                let memory = protected(descriptor, options)?;
                let access = match class {
                    Class::Trusted => pxfs::Access::ReadOnly,
                    _ => pxfs::Access::Partial,
                };
                let fs = speculation(&connection, (who, class), (memory, access))?;
                let (fs, threads) = Mapped::start(fs, options.period, options.batch_bytes);
                (Fs::Protected(fs), threads)
            }
            Some(descriptor) => {
                let mapped = image(descriptor, &greeting, options)?;
                let fs = speculation(&connection, (who, class), mapped)?;
                let (fs, threads) = Mapped::start(fs, options.period, options.batch_bytes);
                (Fs::Mapped(fs), threads)
            }
            None => {
                let receiving = Arc::clone(&connection);
                let receive = move || {
                    receiving.receive(|_| ());
                    receiving.close();
                };
                let threads = vec![std::thread::spawn(receive)];
                let permitted = Caller::from(&Ctx {
                    checked: true,
                    ..own.clone()
                });
                let remote = Remote {
                    connection: Arc::clone(&connection),
                    caller: None,
                    permitted: Some(permitted),
                };
                (Fs::Remote(remote), threads)
            }
        };
        Ok(Self {
            connection,
            class,
            durability: greeting.durability.into(),
            own,
            fs,
            paths: Paths::default(),
            threads: Mutex::new(threads),
        })
    }

    /// The class of the client: the ways in which it reads and writes.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Whether a stray store of the program into the store kills the program: the client cannot write to the
    /// memory of the store, or the mapping has a guard.
    pub fn is_guarded(&self) -> bool {
        match &self.fs {
            Fs::Mapped(fs) => self.class != Class::Trusted || fs.fs().memory().base().is_guarded(),
            Fs::Protected(_) | Fs::Remote(_) => true,
        }
    }

    /// The durability of the store: which crashes shipped changes survive, with their contents.
    pub fn durability(&self) -> EffectiveDurability {
        self.durability
    }

    /// The user of the client, as the caller of its calls.
    pub fn own(&self) -> &Ctx {
        &self.own
    }

    /// The number of calls that the service has run for this client, since it could not run them itself.
    pub fn calls(&self) -> u64 {
        self.connection.calls()
    }

    /// Why the connection has ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.connection.ended()
    }

    /// Makes a node in a directory to which a path led at a version.
    ///
    /// # Errors
    /// As `make`; `ESTALE` at another version.
    pub(crate) fn make_at(
        &self,
        known: (Name<'_>, Option<u64>),
        new: &NewNode<'_>,
    ) -> vfs::Result<Attr> {
        match &self.fs {
            Fs::Mapped(fs) => fs.make_at(&self.own, known, new),
            Fs::Protected(fs) => fs.make_at(&self.own, known, new),
            Fs::Remote(_) => Err(Errno::STALE), // it has no cache of paths
        }
    }

    /// Removes a name, in the same way.
    ///
    /// # Errors
    /// As `remove`; `ESTALE` at another version.
    pub(crate) fn remove_at(
        &self,
        known: (Name<'_>, Option<u64>),
        which: Removal,
    ) -> vfs::Result<()> {
        match &self.fs {
            Fs::Mapped(fs) => fs.remove_at(&self.own, known, which),
            Fs::Protected(fs) => fs.remove_at(&self.own, known, which),
            Fs::Remote(_) => Err(Errno::STALE),
        }
    }

    /// Ships what is left, and ends the session.
    ///
    /// # Errors
    /// That of `sync`.
    pub fn close(self) -> vfs::Result<()> {
        self.stop()
    }

    fn stop(&self) -> vfs::Result<()> {
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            return Ok(());
        }
        let result = match &self.fs {
            Fs::Mapped(fs) => fs.stop(),
            Fs::Protected(fs) => fs.stop(),
            Fs::Remote(_) => {
                let ended = self.connection.ended();
                self.connection.end("the client was closed");
                ended.map_or(Ok(()), |_| Err(Errno::NODEV))
            }
        };
        for thread in threads {
            let _ = thread.join();
        }
        result
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Err(errno) = self.stop()
            && errno != Errno::NODEV
        {
            tracing::error!("the last changes of a client are lost: {errno}");
        }
    }
}

impl FileSystemLayer for Client {
    fn below(&self) -> &dyn FileSystem {
        match &self.fs {
            Fs::Mapped(fs) => &**fs,
            Fs::Protected(fs) => &**fs,
            Fs::Remote(fs) => fs,
        }
    }

    fn attributes(&self, cx: &Ctx, at: Name<'_>) -> vfs::Result<Option<Attr>> {
        self.below().attributes(cx, at)
    }

    fn open_file(&self, cx: &Ctx, at: Name<'_>, flags: OpenFlags) -> vfs::Result<Option<Attr>> {
        self.below().open_file(cx, at, flags)
    }
}

/// The user for whom the service acts.
fn credentials(greeting: &Greeting) -> Credentials {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Credentials {
        uid: greeting.uid,
        gid: rustix::process::getegid().as_raw(),
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
    }
}

/// Maps an image, for writing if the client is trusted. Its stores are then as durable as those of the service.
fn image(
    descriptor: OwnedFd,
    greeting: &Greeting,
    options: &Options,
) -> Result<(Arc<MappedPmem>, pxfs::Access), ConnectError> {
    let (read_only, access) = match greeting.class {
        Class::Trusted => (false, pxfs::Access::ReadWrite),
        _ => (true, pxfs::Access::ReadOnly),
    };
    let map = MapOptions {
        read_only,
        durability: match read_only {
            true => options.map.durability,
            false => EffectiveDurability::from(greeting.durability).into(),
        },
        ..options.map
    };
    let memory = MappedPmem::map_descriptor(descriptor, "the image of the service", &map)?;
    Ok((Arc::new(memory), access))
}

/// Maps what the client may read of a protected store. The descriptor is that of a connection to its manager.
fn protected(descriptor: OwnedFd, options: &Options) -> Result<Arc<Joined>, ConnectError> {
    let map = MapOptions {
        read_only: true,
        ..options.map
    };
    Ok(Arc::new(scm::Client::of(descriptor).join(PARTITION, &map)?))
}

fn speculation<P: Memory>(
    connection: &Arc<Connection>,
    (who, class): (Credentials, Class),
    (memory, access): (P, pxfs::Access),
) -> Result<Speculation<P>, ConnectError> {
    Ok(Speculation::new(
        memory,
        access,
        (who, class == Class::Trusted),
        Arc::new(SystemClock),
        Atime::Never,
        Link(Arc::clone(connection)),
    )?)
}
