//! A peer that speaks the protocol itself, well or not.

use aerie_proto::locks::{Age, Ask, Epoch, GrantNo, LockId, Mode, Tell, ToClient, ToService};
use aerie_proto::messages::{
    Bytes, Class, Down, Greeting, HEAD_BYTES, Request, Up, decode, encode, len_of,
};
use aerie_proto::ops::{self, Answers, Batch, Operation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) struct Peer {
    pub(crate) socket: UnixStream,
    pub(crate) greeting: Greeting,
    pub(crate) epoch: Epoch,
    /// The descriptor that came with the greeting.
    pub(crate) descriptor: Option<OwnedFd>,
    seq: u64,
    number: u64,
}

impl Peer {
    /// Connects.
    pub(crate) fn new(socket: &Path) -> Result<Self, String> {
        let socket = UnixStream::connect(socket).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let (first, descriptor) = first(&socket);
        let greeting = match first {
            Some(Down::Greeting(greeting)) => greeting,
            Some(Down::Bye(why)) => return Err(why),
            other => panic!("{other:?}"),
        };
        Ok(Self {
            socket,
            greeting,
            epoch: Epoch(0),
            descriptor,
            seq: 0,
            number: 0,
        })
    }

    /// Connects, and begins a session.
    pub(crate) fn begin(socket: &Path) -> Self {
        let mut peer = Self::new(socket).unwrap();
        assert_eq!(peer.greeting.class, Class::Trusted);
        peer.lock(Ask::Begin);
        let message = peer.told();
        assert!(matches!(message.tell, Tell::Begun { .. }), "{message:?}");
        peer.epoch = message.epoch;
        peer
    }

    pub(crate) fn send(&mut self, up: &Up<'_>) {
        let _ = self.socket.write_all(&encode(up).unwrap());
    }

    pub(crate) fn lock(&mut self, ask: Ask) {
        self.seq += 1;
        let (epoch, seq) = (self.epoch, self.seq);
        self.send(&Up::Lock(ToService { epoch, seq, ask }));
    }

    /// Requests a lock.
    pub(crate) fn send_lock_request(&mut self, lock: u64, mode: Mode) {
        self.lock(Ask::Request {
            lock: LockId(lock),
            mode,
            age: Age::default(),
            uses: Vec::new(),
        });
    }

    /// Requests a lock, and waits for it.
    pub(crate) fn request(&mut self, lock: u64, mode: Mode) -> GrantNo {
        self.send_lock_request(lock, mode);
        let ToClient { seq, tell, .. } = self.told();
        assert!(matches!(tell, Tell::Granted { .. }), "{tell:?}");
        GrantNo(seq)
    }

    /// The next message of the lock service.
    pub(crate) fn told(&mut self) -> ToClient {
        match self.next() {
            Some(Down::Lock(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    /// The next message; `None` at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<Down> {
        receive(&self.socket)
    }

    /// Whether the service sends nothing more.
    pub(crate) fn is_left(&self) -> bool {
        let mut socket = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut socket, Some(&Timespec::default())).unwrap();
        socket[0].revents().contains(PollFlags::RDHUP)
    }

    /// Sends a request, and returns the reply. Messages of the lock service are left out.
    pub(crate) fn ask(&mut self, request: Request<'_>) -> Result<Vec<u8>, String> {
        self.number += 1;
        self.ask_as(self.number, request)
    }

    pub(crate) fn ask_as(&mut self, number: u64, request: Request<'_>) -> Result<Vec<u8>, String> {
        self.send(&Up::Ask { number, request });
        loop {
            match self.next() {
                Some(Down::Reply { number: of, result }) => {
                    assert_eq!(of, number);
                    return result.map(|bytes| bytes.into_vec());
                }
                Some(Down::Lock(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends a request with the next number.
    pub(crate) fn send_request(&mut self, request: Request<'_>) {
        self.number += 1;
        let number = self.number;
        self.send(&Up::Ask { number, request });
    }

    /// The space of the store.
    pub(crate) fn space(&mut self) -> vfs::StatFs {
        let (caller, read) = (None, ops::Read::StatFs);
        let call = ops::encode(&ops::Call::Read { caller, read });
        let reply = self.ask(Request::Call(Bytes::new(&call))).unwrap();
        match ops::decode::<ops::Outcome>(&reply).unwrap() {
            Ok(ops::Reply::Space(space)) => space,
            other => panic!("{other:?}"),
        }
    }

    /// Ships operations.
    pub(crate) fn ship(&mut self, epoch: Epoch, all: &[Operation<'_>]) -> Result<Answers, String> {
        let mut batch = Batch::default();
        all.iter().for_each(|operation| batch.push(operation));
        let bytes = Bytes::new(batch.bytes());
        let reply = self.ask(Request::Batch { epoch, bytes })?;
        Ok(ops::decode(&reply).unwrap())
    }
}

/// The first message, with its descriptor.
fn first(mut socket: &UnixStream) -> (Option<Down>, Option<OwnedFd>) {
    let mut head = [0; HEAD_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut head)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    let bytes = received.map_or(0, |received| received.bytes);
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let descriptor = descriptors.next();
    match socket.read_exact(&mut head[bytes..]) {
        Ok(()) => (body(socket, head), descriptor),
        Err(_) => (None, descriptor),
    }
}

fn body(mut socket: &UnixStream, head: [u8; HEAD_BYTES]) -> Option<Down> {
    let mut bytes = vec![0; len_of(head).unwrap()];
    socket.read_exact(&mut bytes).ok()?;
    Some(decode(&bytes).unwrap())
}

fn receive(mut socket: &UnixStream) -> Option<Down> {
    let mut head = [0; HEAD_BYTES];
    socket.read_exact(&mut head).ok()?;
    body(socket, head)
}
