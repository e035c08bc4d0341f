//! The connection to the service.
//!
//! Any number of threads send; one receives. A request waits for its reply, or for the end of the
//! connection. The client trusts the service.

use aerie_objects::Reserve;
use aerie_proto::locks::{Epoch, Tell, ToClient};
use aerie_proto::messages::{
    BadFrame, Class, Down, Greeting, HEAD_BYTES, Request, Up, VERSION, decode, encode, len_of,
};
use aerie_proto::ops::{self, Answers};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::HashMap;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vfs::sync::{Condvar, Mutex};

/// Why a client has no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No process serves at the socket.
    #[error("cannot connect to the service at {0}: {1}{advice}", advice = advice(.1))]
    NoService(std::path::PathBuf, std::io::Error),
    /// The service has refused the connection.
    #[error("the service refuses the connection: {0}")]
    Refused(String),
    /// The peer is not such a service, or not of this version.
    #[error("the service has another protocol: {0}")]
    Protocol(String),
    /// The image cannot be mapped.
    #[error(transparent)]
    Map(#[from] medium::OpenError),
    /// The manager of a protected store gives no memory.
    #[error("cannot map the protected store of the service: {0}")]
    Protected(#[from] scm::ScmError),
    /// The image is not a store.
    #[error("cannot use the image of the service: {0}")]
    Store(#[from] aerie_objects::Error),
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => " (`selvedge serve` starts one)",
        _ => "",
    }
}

/// A connection.
pub(crate) struct Connection {
    socket: UnixStream,
    /// The number of the last request. Held while a message is sent.
    last: Mutex<u64>,
    replies: Mutex<Replies>,
    changed: Condvar,
    epoch: AtomicU64,
    calls: AtomicU64,
    /// Held by a thread that asks for the space: few requests of a client may wait at the service.
    space: Mutex<()>,
}

#[derive(Default)]
struct Replies {
    /// By the numbers of the requests that wait.
    waiting: HashMap<u64, Option<Result<Vec<u8>, String>>>,
    ended: Option<String>,
}

impl Connection {
    /// Connects, and receives the greeting with the descriptor of the image.
    pub(crate) fn new(path: &Path) -> Result<(Self, Greeting, Option<OwnedFd>), ConnectError> {
        let no_service = |e| ConnectError::NoService(path.to_owned(), e);
        let socket = UnixStream::connect(path).map_err(no_service)?;
        let (greeting, descriptor) = greeting(&socket).map_err(no_service)?;
        let greeting = match greeting.map_err(|why| ConnectError::Protocol(why.to_string()))? {
            Down::Greeting(greeting) => greeting,
            Down::Bye(why) => return Err(ConnectError::Refused(why)),
            _ => return Err(ConnectError::Protocol("it sends no greeting".into())),
        };
        let found = greeting.version;
        if found != VERSION || descriptor.is_some() == (greeting.class == Class::Remote) {
            let why = format!("it has version {found}, and this client {VERSION}");
            return Err(ConnectError::Protocol(why));
        }
        let connection = Self {
            socket,
            last: Mutex::new(0),
            replies: Mutex::default(),
            changed: Condvar::new(),
            epoch: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            space: Mutex::new(()),
        };
        Ok((connection, greeting, descriptor))
    }

    /// Sends a message. Without a connection it is dropped.
    pub(crate) fn send(&self, message: &Up<'_>) {
        let _last = self.last.lock();
        self.send_now(message);
    }

    fn send_now(&self, message: &Up<'_>) {
        if self.ended().is_some() {
            return;
        }
        match encode(message) {
            // After an error the receiver finds the end, and the reason before it.
            Ok(frame) => drop({ &self.socket }.write_all(&frame)),
            Err(why) => self.end(&format!("cannot send to the service: {why}")),
        }
    }

    /// Sends a request, and waits for its reply: the result, or the reason of the refusal.
    pub(crate) fn ask(&self, request: Request<'_>) -> Result<Vec<u8>, String> {
        let number = {
            let mut last = self.last.lock();
            *last += 1;
            self.replies.lock().waiting.insert(*last, None);
            let number = *last;
            self.send_now(&Up::Ask { number, request });
            number
        };
        let mut replies = self.replies.lock();
        loop {
            if let Some(reply) = replies.waiting.get_mut(&number).and_then(Option::take) {
                replies.waiting.remove(&number);
                return reply;
            }
            if let Some(why) = &replies.ended {
                return Err(why.clone());
            }
            replies = self.changed.wait(replies);
        }
    }

    /// Receives messages until the connection ends.
    pub(crate) fn receive(&self, mut on_lock: impl FnMut(ToClient)) {
        loop {
            match self.next() {
                Ok(Down::Lock(message)) => {
                    if let Tell::Begun { .. } = message.tell {
                        self.epoch.store(message.epoch.0, SeqCst);
                    }
                    on_lock(message);
                }
                Ok(Down::Reply { number, result }) => {
                    let mut replies = self.replies.lock();
                    if let Some(reply) = replies.waiting.get_mut(&number) {
                        *reply = Some(result.map(|bytes| bytes.into_vec()));
                    }
                    self.changed.notify_all();
                }
                Ok(Down::Greeting(_)) => {}
                Ok(Down::Bye(why)) => return self.end(&why),
                Err(why) => return self.end(&why),
            }
        }
    }

    fn next(&self) -> Result<Down, String> {
        let received = receive(&self.socket);
        let received = received.map_err(|_| "the service has closed the connection".to_owned())?;
        received.map_err(|why| why.to_string())
    }

    /// Ends the connection. Requests that wait fail with the first reason, and the thread that receives finds the end. It
    /// [closes](Self::close) the connection.
    pub(crate) fn end(&self, why: &str) {
        let mut replies = self.replies.lock();
        replies.ended.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    /// Closes the connection: no thread stores to the memory any more. The service may give it to others now.
    pub(crate) fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Why the connection has ended, if it has.
    pub(crate) fn ended(&self) -> Option<String> {
        self.replies.lock().ended.clone()
    }

    /// The number of calls up to now.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }

    /// Makes a call.
    pub(crate) fn call(&self, call: &ops::Call<'_>) -> vfs::Result<ops::Reply> {
        self.calls.fetch_add(1, SeqCst);
        let call = ops::encode(call);
        let bytes = self.ask(Request::Call(aerie_proto::messages::Bytes::new(&call)));
        let outcome: ops::Outcome = self.decoded(bytes)?;
        outcome.map_err(ops::errno)
    }

    fn decoded<T: serde::de::DeserializeOwned>(
        &self,
        reply: Result<Vec<u8>, String>,
    ) -> vfs::Result<T> {
        let decoded = reply.and_then(|bytes| ops::decode(&bytes).map_err(|why| why.to_string()));
        decoded.map_err(|why| {
            self.end(&why);
            Errno::NODEV
        })
    }
}

/// The service, for a speculation.
pub(crate) struct Link(pub(crate) Arc<Connection>);

impl pxfs::Host for Link {
    fn reserve(&self, pages: usize, headers: usize) -> vfs::Result<Reserve> {
        let request = Request::Reserve {
            pages: pages as u32,
            headers: headers as u32,
        };
        self.0.decoded(self.0.ask(request))
    }

    fn ship(&self, batch: &[u8]) -> vfs::Result<Answers> {
        let request = Request::Batch {
            epoch: Epoch(self.0.epoch.load(SeqCst)),
            bytes: aerie_proto::messages::Bytes::new(batch),
        };
        self.0.decoded(self.0.ask(request))
    }

    fn leave(&self) {
        self.0
            .end("the client cannot make the contents of files durable");
    }

    fn statfs(&self) -> vfs::Result<vfs::StatFs> {
        let (caller, read) = (None, ops::Read::StatFs);
        let _turn = self.0.space.lock();
        match self.0.call(&ops::Call::Read { caller, read })? {
            ops::Reply::Space(space) => Ok(space),
            _ => Err(Errno::PROTO),
        }
    }
}

/// Receives one message.
fn receive(mut socket: &UnixStream) -> std::io::Result<Result<Down, BadFrame>> {
    let mut head = [0; HEAD_BYTES];
    socket.read_exact(&mut head)?;
    body(socket, head)
}

fn body(
    mut socket: &UnixStream,
    head: [u8; HEAD_BYTES],
) -> std::io::Result<Result<Down, BadFrame>> {
    let len = match len_of(head) {
        Ok(len) => len,
        Err(why) => return Ok(Err(why)),
    };
    let mut bytes = vec![0; len];
    socket.read_exact(&mut bytes)?;
    Ok(decode(&bytes))
}

/// A first message, and the descriptor that comes with it.
type Greeted = (Result<Down, BadFrame>, Option<OwnedFd>);

/// Receives the first message.
fn greeting(mut socket: &UnixStream) -> std::io::Result<Greeted> {
    let mut head = [0; HEAD_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut head)];
        recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    if received.bytes == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let descriptor = descriptors.last();
    socket.read_exact(&mut head[received.bytes..])?;
    Ok((body(socket, head)?, descriptor))
}
