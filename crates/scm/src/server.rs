//! The manager's socket, at which clients get descriptors.
//!
//! A client connects to a Unix socket of packets. The kernel reports its credentials at that time;
//! they decide for the whole connection. A service with connections of its own passes a connected socket
//! to a client instead ([`Server::connection`]). Each request is one packet of 16 bytes, and so is each
//! reply, of 256 bytes, with a descriptor or a reason in words.
//!
//! Guarantees against hostile clients:
//!
//! 1. The number of connections is limited, and that of each user. Others get a reason and are
//!    closed. The memory for a connection is constant.
//! 2. The server never waits for a client. A client that does not read its replies, or that sends
//!    anything but requests, is closed.
//! 3. Each client has at most one request served before all others with a request are served.
//! 4. Descriptors that a client sends are closed by the kernel, unseen.

use crate::error::ScmError;
use crate::files::Files;
use crate::format::PAGE_BYTES;
use crate::identity::Credentials;
use crate::protocol::{Operation, Reply, Request, Status};
use crate::store::Store;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, Mode, OFlags, chmod, fstat, lstat, open, unlink};
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recv, sendmsg,
    shutdown, socket_with, socketpair,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use zerocopy::IntoBytes;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;
/// Bytes of replies that wait for a client; the kernel raises it to a few packets. It bounds the
/// descriptors in flight.
const SEND_BUFFER_BYTES: usize = 4096;
/// The time without new connections after the process had no descriptor for one.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Limits of the connections of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most connections.
    pub clients: usize,
    /// Most connections of one user.
    pub per_user: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 128,
            per_user: 16,
        }
    }
}

/// A server that runs in a thread of its own, until it is dropped.
pub struct Server {
    /// Wakes the thread.
    wake: Arc<OwnedFd>,
    requests: Arc<Mutex<Requests>>,
    thread: Option<JoinHandle<()>>,
    /// The socket that clients connect to, if there is one.
    path: Option<PathBuf>,
}

/// Requests of the process itself.
#[derive(Default)]
struct Requests {
    stops: bool,
    new: Vec<Connection>,
}

impl Server {
    /// Starts to serve clients at the socket `path`, which every user may connect to.
    ///
    /// # Errors
    /// [`ScmError::System`], for example if another process serves there.
    pub fn start<F: Files + 'static>(
        store: Arc<Store<F>>,
        path: impl AsRef<Path>,
        limits: Limits,
    ) -> Result<Self, ScmError> {
        let path = path.as_ref().to_owned();
        let failed = |e: Errno| ScmError::system("listen at", path.display().to_string(), e);
        let listener = listener(&path).map_err(failed)?;
        Self::run(store, Some((listener, path)), limits)
    }

    /// Starts to serve clients that get a [connection](Self::connection) of this process.
    ///
    /// # Errors
    /// [`ScmError::System`].
    pub fn without_socket<F: Files + 'static>(store: Arc<Store<F>>) -> Result<Self, ScmError> {
        Self::run(store, None, Limits::default())
    }

    fn run<F: Files + 'static>(
        store: Arc<Store<F>>,
        listener: Option<(OwnedFd, PathBuf)>,
        limits: Limits,
    ) -> Result<Self, ScmError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|e| ScmError::system("make", "an event", e))?;
        let wake = Arc::new(wake);
        let requests = Arc::new(Mutex::new(Requests::default()));
        let (listener, path) = listener.unzip();
        let serving = Serving {
            store,
            listener,
            wake: wake.clone(),
            requests: requests.clone(),
            limits,
            clients: Vec::new(),
            is_paused: false,
        };
        let thread = std::thread::Builder::new().name("scm-server".to_owned());
        let thread = thread.spawn(move || serving.run());
        let thread = thread.map_err(|e| ScmError::system("start a thread for", "a server", e))?;
        Ok(Self {
            wake,
            requests,
            thread: Some(thread),
            path,
        })
    }

    /// The path of the socket. A server without a socket has an empty path.
    pub fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// A connected socket for a client with these credentials, which the caller vouches for. The limits of
    /// connections do not apply. The server ends the connection when the caller drops the second value.
    ///
    /// # Errors
    /// [`ScmError::System`].
    pub fn connection(&self, who: Credentials) -> Result<(OwnedFd, Passed), ScmError> {
        let failed = |e: Errno| ScmError::system("make", "a connection", e);
        let (unix, packets) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = socketpair(unix, packets, SocketFlags::CLOEXEC, None);
        let (socket, other) = pair.map_err(failed)?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed)?;
        set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES).map_err(failed)?;
        let socket = Arc::new(socket);
        let passed = Passed(Arc::downgrade(&socket));
        self.requests.lock().new.push(Connection { socket, who });
        self.wake();
        Ok((other, passed))
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = unlink(path);
        }
        self.requests.lock().stops = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The server's end of a connection that was passed to a client. The connection ends when this is dropped.
pub struct Passed(Weak<OwnedFd>);

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(socket) = self.0.upgrade() {
            // The thread finds the end, and closes the socket.
            let _ = shutdown(&socket, Shutdown::Both);
        }
    }
}

/// A new socket for packets.
pub(crate) fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Listens at the path. A socket that a killed server left is replaced.
fn listener(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let is_socket = |mode| FileType::from_raw_mode(mode) == FileType::Socket;
    if lstat(path).is_ok_and(|found| is_socket(found.st_mode)) {
        let probe = socket()?;
        rustix::io::ioctl_fionbio(&probe, true)?;
        match connect(&probe, &address) {
            Err(Errno::CONNREFUSED) => unlink(path)?,
            _ => return Err(Errno::ADDRINUSE),
        }
    }
    let listener = socket()?;
    bind(&listener, &address)?;
    // A user who may write to the directory may have put a link into its place.
    let named = open(
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if !is_socket(fstat(&named)?.st_mode) {
        return Err(Errno::ADDRINUSE);
    }
    let same = format!("/proc/self/fd/{}", named.as_raw_fd());
    chmod(same, Mode::from_raw_mode(0o666))?;
    listen(&listener, BACKLOG)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    Ok(listener)
}

struct Connection {
    socket: Arc<OwnedFd>,
    who: Credentials,
}

struct Serving<F: Files> {
    store: Arc<Store<F>>,
    listener: Option<OwnedFd>,
    wake: Arc<OwnedFd>,
    requests: Arc<Mutex<Requests>>,
    limits: Limits,
    clients: Vec<Connection>,
    /// Whether the process has no descriptors left for new clients.
    is_paused: bool,
}

impl<F: Files> Serving<F> {
    fn run(mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => continue,
                Err(e) => return tracing::error!("the server of descriptors stops: {e}"),
            };
            let [is_woken, connects, clients @ ..] = &ready[..] else {
                return;
            };
            let mut ready = clients.iter();
            let store = &self.store;
            self.clients.retain(|client| match ready.next() {
                Some(true) => client.serve(store),
                _ => true,
            });
            self.is_paused = false;
            if *connects {
                self.accept();
            }
            if *is_woken {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                let mut requests = self.requests.lock();
                if requests.stops {
                    return;
                }
                self.clients.append(&mut requests.new);
            }
        }
    }

    /// Waits for events. Returns whether there are some: of this process, to connect, for each client.
    fn wait(&self) -> Result<Vec<bool>, Errno> {
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.push(match &self.listener {
            Some(listener) if !self.is_paused => PollFd::new(listener, PollFlags::IN),
            _ => PollFd::new(&self.wake, PollFlags::empty()),
        });
        let clients = self.clients.iter();
        fds.extend(clients.map(|client| PollFd::new(&client.socket, PollFlags::IN)));
        poll(&mut fds, self.is_paused.then_some(&PAUSE))?;
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(listener, flags) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                self.is_paused = true;
                return;
            }
            Err(_) => return,
        };
        let (Ok(peer), Ok(())) = (
            medium::peer(&socket),
            set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES),
        ) else {
            return;
        };
        let who = Credentials {
            uid: peer.uid,
            gid: peer.gid,
            groups: peer.groups,
        };
        let socket = Arc::new(socket);
        let client = Connection { socket, who };
        let own = self
            .clients
            .iter()
            .filter(|other| other.who.uid == client.who.uid);
        let refused = match () {
            () if own.count() >= self.limits.per_user => "you have too many connections",
            () if self.clients.len() >= self.limits.clients => "there are too many connections",
            () => return self.clients.push(client),
        };
        client.reply(&Reply::new(Status::Refused, 0, refused), None);
    }
}

impl Connection {
    /// Serves one request. Returns whether the connection goes on.
    fn serve<F: Files>(&self, store: &Store<F>) -> bool {
        let mut packet = [0; size_of::<Request>() + 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let bytes = match recv(&self.socket, &mut packet[..], flags) {
            Ok((_, bytes)) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        };
        if bytes == 0 {
            return false;
        }
        match Request::parse(&packet[..bytes.min(packet.len())]) {
            Ok(operation) => self.answer(store, operation),
            Err(reason) => {
                self.reply(&Reply::new(Status::Refused, 0, reason), None);
                false
            }
        }
    }

    fn answer<F: Files>(&self, store: &Store<F>, operation: Operation) -> bool {
        let (partition, part) = match operation {
            Operation::Next(from) => {
                let Some((number, record)) = store.next_mappable(from, &self.who) else {
                    return self.reply(&Reply::new(Status::End, 0, ""), None);
                };
                let mut reply = Reply::new(Status::Done, number, &record.name);
                reply.bytes = (record.pages * PAGE_BYTES).into();
                return self.reply(&reply, None);
            }
            Operation::Open(partition, part) => (partition, part),
        };
        match store.share(partition, part, &self.who) {
            Ok((share, writable)) => {
                let mut reply = Reply::new(Status::Done, partition, "");
                reply.base = share.base.into();
                reply.bytes = share.bytes.into();
                reply.set_writable(writable);
                self.reply(&reply, Some(share.descriptor.as_fd()))
            }
            Err(e) => {
                let (status, reason) = match e {
                    ScmError::Denied(reason) => (Status::Denied, reason),
                    // Paths and errors of the system are not the client's business.
                    ScmError::System { .. } | ScmError::Exposed { .. } => {
                        tracing::warn!("a client got no descriptor: {e}");
                        let reason = "the manager cannot open the file; its log has the reason";
                        (Status::Refused, reason.to_owned())
                    }
                    e => (Status::Refused, e.to_string()),
                };
                self.reply(&Reply::new(status, partition, &reason), None)
            }
        }
    }

    /// Sends a reply without waiting. Returns whether there was room for it.
    fn reply(&self, reply: &Reply, descriptor: Option<BorrowedFd<'_>>) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return false;
        }
        let packet = [IoSlice::new(reply.as_bytes())];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &packet, &mut control, flags).is_ok()
    }
}
