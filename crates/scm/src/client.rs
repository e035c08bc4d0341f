//! A client of the manager.
//!
//! Guarantees: a call waits for the manager, and reconnects once if the manager was started again and has a
//! socket of its own.
//! The client trusts the manager; the directory of the socket must not be writable by others.

use crate::error::ScmError;
use crate::files::{Part, Share};
use crate::joined::Joined;
use crate::protocol::{Operation, Reply, Request, Status};
use crate::server::socket;
use crate::space::{Source, Space};
use medium::MapOptions;
use parking_lot::Mutex;
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, connect,
    recvmsg, send,
};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A connection to the manager.
pub struct Client {
    /// `None` if another process has passed the connection.
    path: Option<PathBuf>,
    socket: Mutex<OwnedFd>,
}

/// A partition that the client may map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its number in the store.
    pub number: u32,
    /// Its size in bytes.
    pub bytes: u64,
}

fn connected(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Client {
    /// Connects to the manager at the socket `path`.
    ///
    /// # Errors
    /// [`ScmError::System`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Arc<Self>, ScmError> {
        let path = path.as_ref().to_owned();
        let socket = connected(&path);
        let socket =
            socket.map_err(|e| ScmError::system("connect to", path.display().to_string(), e))?;
        let socket = Mutex::new(socket);
        let path = Some(path);
        Ok(Arc::new(Self { path, socket }))
    }

    /// A client with a [connection](crate::Server::connection) that another process has passed.
    pub fn of(connection: OwnedFd) -> Arc<Self> {
        let (path, socket) = (None, Mutex::new(connection));
        Arc::new(Self { path, socket })
    }

    /// The partitions that the client may map.
    ///
    /// # Errors
    /// [`ScmError::Refused`]; errors of the connection.
    pub fn partitions(&self) -> Result<Vec<Listed>, ScmError> {
        let mut found = Vec::new();
        let mut from = Some(0);
        while let Some(number) = from {
            let (status, reply, _) = self.call(Operation::Next(number))?;
            if status != Status::Done {
                break;
            }
            let number = reply.partition.get();
            found.push(Listed {
                name: reply.text(),
                number,
                bytes: reply.bytes.get(),
            });
            from = number.checked_add(1);
        }
        Ok(found)
    }

    /// Maps the partition with this name. `options` apply to its windows.
    ///
    /// # Errors
    /// [`ScmError::NoPartition`] also if the client may not map it.
    pub fn open(self: &Arc<Self>, name: &str, options: &MapOptions) -> Result<Space, ScmError> {
        let (source, bytes) = self.source(name)?;
        Space::new(source, bytes, options)
    }

    /// Maps the partition with this name as one memory. `options` apply to its windows.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn join(self: &Arc<Self>, name: &str, options: &MapOptions) -> Result<Joined, ScmError> {
        let (source, bytes) = self.source(name)?;
        Joined::new(source, bytes, options)
    }

    /// The source of a partition's parts, and the bytes of the partition.
    fn source(self: &Arc<Self>, name: &str) -> Result<(Box<dyn Source>, u64), ScmError> {
        let mut listed = self.partitions()?.into_iter();
        let listed = listed.find(|one| one.name == name);
        let listed = listed.ok_or_else(|| ScmError::NoPartition(name.to_owned()))?;
        let source = Remote {
            client: self.clone(),
            partition: listed.number,
        };
        Ok((Box::new(source), listed.bytes))
    }

    /// Opens a part of a partition. Returns whether it is open for writing, too.
    ///
    /// # Errors
    /// [`ScmError::Denied`], [`ScmError::Refused`]; errors of the connection.
    pub fn share(&self, partition: u32, part: Part) -> Result<(Share, bool), ScmError> {
        let (_, reply, descriptor) = self.call(Operation::Open(partition, part))?;
        let none = || ScmError::Refused("the reply has no descriptor".to_owned());
        let share = Share {
            descriptor: descriptor.ok_or_else(none)?,
            base: reply.base.get(),
            bytes: reply.bytes.get(),
        };
        Ok((share, reply.is_writable()))
    }

    fn call(&self, operation: Operation) -> Result<(Status, Reply, Option<OwnedFd>), ScmError> {
        let name = self
            .path
            .as_deref()
            .map_or("the manager".into(), Path::to_string_lossy);
        let failed = |e| ScmError::system("call", name, e);
        let mut socket = self.socket.lock();
        let replied = match (exchange(&socket, operation), &self.path) {
            (Err(Errno::PIPE | Errno::CONNRESET), Some(path)) => match connected(path) {
                Ok(new) => {
                    *socket = new;
                    exchange(&socket, operation)
                }
                Err(e) => Err(e),
            },
            (replied, _) => replied,
        };
        let (packet, descriptor) = replied.map_err(failed)?;
        let parsed = Reply::parse(&packet);
        let (status, reply) =
            parsed.ok_or_else(|| ScmError::Refused("a reply of another version".to_owned()))?;
        match status {
            Status::Done | Status::End => Ok((status, reply, descriptor)),
            Status::Refused => Err(ScmError::Refused(reply.text())),
            Status::Denied => Err(ScmError::Denied(reply.text())),
        }
    }
}

/// Sends a request and waits for the reply.
fn exchange(socket: &OwnedFd, operation: Operation) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let request = Request::new(operation);
    let sent = send(socket, request.as_bytes(), SendFlags::NOSIGNAL);
    // A server that refuses the connection has sent the reason.
    let refused = match sent {
        Err(Errno::PIPE) => Some(Errno::PIPE),
        sent => sent.map(|_| None)?,
    };
    let mut packet = vec![0; size_of::<Reply>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut packet)];
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(refused.unwrap_or(Errno::CONNRESET));
    }
    packet.truncate(received.bytes);
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((packet, descriptors.last()))
}

struct Remote {
    client: Arc<Client>,
    partition: u32,
}

impl Source for Remote {
    fn share(&self, part: Part) -> Result<(Share, bool), ScmError> {
        self.client.share(self.partition, part)
    }
}
