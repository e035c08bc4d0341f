//! A client as a file system.

use crate::connection::{ConnectError, Connection, Link};
use crate::mapped::{Mapped, Speculation};
use crate::remote::Remote;
use aerie_proto::messages::{Class, Greeting};
use medium::{MapOptions, MappedPmem};
use pxfs::Credentials;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use vfs::sync::Mutex;
use vfs::{Atime, Ctx, Errno, FileSystem, FileSystemLayer, SystemClock};

/// Options of a client.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Changes are shipped after this time at the latest.
    pub period: Duration,
    /// Changes are shipped when they have this size in bytes.
    pub batch_bytes: u64,
    /// For the mapping of the image.
    pub map: MapOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            batch_bytes: 8 << 20,
            map: MapOptions::default(),
        }
    }
}

/// A client of a service: a file system for the threads of a process. It does not work in a child after
/// `fork`.
///
/// After the end of the service or of the session, all calls fail with `ENODEV`. Unshipped
/// changes are lost then, and a new client is needed.
pub struct Client {
    connection: Arc<Connection>,
    class: Class,
    own: Ctx,
    pub(crate) fs: Fs,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) enum Fs {
    Mapped(Arc<Mapped>),
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
            Some(descriptor) => {
                let fs = speculation(&connection, (who, class), descriptor, options)?;
                let Options {
                    period,
                    batch_bytes,
                    ..
                } = *options;
                let (fs, threads) = Mapped::start(fs, period, batch_bytes);
                (Fs::Mapped(fs), threads)
            }
            None => {
                let receiving = Arc::clone(&connection);
                let receive = move || receiving.receive(|_| ());
                let threads = vec![std::thread::spawn(receive)];
                (Fs::Remote(Remote(Arc::clone(&connection))), threads)
            }
        };
        Ok(Self {
            connection,
            class,
            own,
            fs,
            threads: Mutex::new(threads),
        })
    }

    /// The class of the client: the ways in which it reads and writes.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The user of the client, as the caller of its calls.
    pub fn own(&self) -> &Ctx {
        &self.own
    }

    /// Why the connection has ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.connection.ended()
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
            Fs::Remote(fs) => fs,
        }
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

fn speculation(
    connection: &Arc<Connection>,
    (who, class): (Credentials, Class),
    descriptor: OwnedFd,
    options: &Options,
) -> Result<Speculation, ConnectError> {
    let is_trusted = class == Class::Trusted;
    let map = MapOptions {
        read_only: !is_trusted,
        ..options.map
    };
    let memory = MappedPmem::map_descriptor(descriptor, "the image of the service", &map)?;
    let access = match is_trusted {
        true => pxfs::Access::ReadWrite,
        false => pxfs::Access::ReadOnly,
    };
    Ok(Speculation::new(
        Arc::new(memory),
        access,
        (who, is_trusted),
        Arc::new(SystemClock),
        Atime::Never,
        Link(Arc::clone(connection)),
    )?)
}
