//! The kernel's side of a connection.
//!
//! The server reads and writes one end of a pair of sockets as if it were `/dev/fuse`: packets
//! keep their boundaries. The layouts are those of `include/uapi/linux/fuse.h`.

use crate::ops::Ops;
use crate::options::MountOptions;
use crate::transport::dev_fuse::DevFuse;
use crate::transport::dropped::Dropped;
use crate::transport::late::Late;
use fuser::{Config, InitFlags, Session, SessionACL};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vfs::FileSystem;

/// Numbers of requests.
pub(super) mod op {
    pub(in super::super) const LOOKUP: u32 = 1;
    pub(in super::super) const FORGET: u32 = 2;
    pub(in super::super) const GETATTR: u32 = 3;
    pub(in super::super) const SETATTR: u32 = 4;
    pub(in super::super) const READLINK: u32 = 5;
    pub(in super::super) const SYMLINK: u32 = 6;
    pub(in super::super) const MKNOD: u32 = 8;
    pub(in super::super) const MKDIR: u32 = 9;
    pub(in super::super) const UNLINK: u32 = 10;
    pub(in super::super) const RMDIR: u32 = 11;
    pub(in super::super) const RENAME: u32 = 12;
    pub(in super::super) const LINK: u32 = 13;
    pub(in super::super) const OPEN: u32 = 14;
    pub(in super::super) const READ: u32 = 15;
    pub(in super::super) const WRITE: u32 = 16;
    pub(in super::super) const STATFS: u32 = 17;
    pub(in super::super) const RELEASE: u32 = 18;
    pub(in super::super) const FSYNC: u32 = 20;
    pub(in super::super) const SETXATTR: u32 = 21;
    pub(in super::super) const GETXATTR: u32 = 22;
    pub(in super::super) const LISTXATTR: u32 = 23;
    pub(in super::super) const REMOVEXATTR: u32 = 24;
    pub(in super::super) const FLUSH: u32 = 25;
    pub(in super::super) const INIT: u32 = 26;
    pub(in super::super) const OPENDIR: u32 = 27;
    pub(in super::super) const READDIR: u32 = 28;
    pub(in super::super) const FSYNCDIR: u32 = 30;
    pub(in super::super) const ACCESS: u32 = 34;
    pub(in super::super) const CREATE: u32 = 35;
    pub(in super::super) const INTERRUPT: u32 = 36;
    pub(in super::super) const DESTROY: u32 = 38;
    pub(in super::super) const IOCTL: u32 = 39;
    pub(in super::super) const POLL: u32 = 40;
    pub(in super::super) const BATCH_FORGET: u32 = 42;
    pub(in super::super) const FALLOCATE: u32 = 43;
    pub(in super::super) const READDIRPLUS: u32 = 44;
    pub(in super::super) const RENAME2: u32 = 45;
    pub(in super::super) const LSEEK: u32 = 46;
    pub(in super::super) const COPY_FILE_RANGE: u32 = 47;
}

/// Bytes of the header of a request, and of the part of it that a reply has.
const REQUEST_HEADER: usize = 40;
pub(super) const REPLY_HEADER: usize = 16;

/// The most that this kernel reads as one packet.
const PACKET_BYTES: usize = 256 << 10;

/// Longest time that the server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// All that kernels offer, up to the flags that this crate asks for.
pub(super) fn everything() -> InitFlags {
    InitFlags::from_bits_retain((1 << 40) - 1)
}

/// The arguments of a request, field by field.
#[derive(Debug, Clone, Default)]
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// A name, with the zero byte that ends it.
    pub(super) fn name(self, name: &[u8]) -> Self {
        self.bytes(name).bytes(&[0])
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// A packet from the server: a reply, or a notification, which has no request.
#[derive(Debug)]
pub(super) struct Packet {
    /// The request, or 0.
    pub(super) unique: u64,
    /// 0 or a negative errno of a reply; the code of a notification.
    pub(super) code: i32,
    pub(super) body: Vec<u8>,
}

impl Packet {
    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.body[at..at + 4].try_into().unwrap())
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.body[at..at + 8].try_into().unwrap())
    }
}

/// A kernel that is connected to a server.
pub(super) struct Kernel {
    socket: UnixDatagram,
    server: Option<JoinHandle<io::Result<()>>>,
    unique: u64,
    /// The server's answer to INIT.
    pub(super) negotiated: Packet,
}

impl Kernel {
    /// Starts a server for `fs`, and negotiates with it; the kernel offers `offered`.
    pub(super) fn start(fs: Arc<dyn FileSystem>, o: &MountOptions, offered: InitFlags) -> Self {
        let (socket, device) = UnixDatagram::pair().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let low = (offered | InitFlags::FUSE_INIT_EXT).bits() as u32;
        let high = (offered.bits() >> 32) as u32;
        let init = Body::new().u32(7).u32(40).u32(1 << 20).u32(low).u32(high);
        send(&socket, op::INIT, 1, 0, &init.bytes(&[0; 44]));

        let late = Late::default();
        late.set(Ops::new(
            fs,
            vec![("selvedge.fact", "told".to_owned().into())],
        ));
        let (notifier, dropped) = (Arc::new(OnceLock::new()), Arc::new(Dropped::default()));
        let server = DevFuse::new(o, late, Arc::clone(&notifier), Arc::clone(&dropped));
        let mut config = Config::default();
        config.n_threads = Some(o.threads.unwrap_or(1));
        let device = OwnedFd::from(device);
        let session = Session::from_fd(server, device, SessionACL::All, config).unwrap();
        assert!(notifier.set(session.notifier()).is_ok());
        dropped.set_device(session.as_fd().try_clone_to_owned().unwrap());
        let negotiated = receive(&socket);
        assert_eq!((negotiated.unique, negotiated.code), (1, 0));
        Self {
            socket,
            server: Some(thread::spawn(move || session.run())),
            unique: 1,
            negotiated,
        }
    }

    /// Whether the server accepted a flag that it was offered.
    pub(super) fn has(&self, flag: InitFlags) -> bool {
        let (low, high) = (self.negotiated.u32(12), self.negotiated.u32(32));
        let accepted = u64::from(low) | u64::from(high) << 32;
        InitFlags::from_bits_retain(accepted).contains(flag)
    }

    /// Sends a request of the super-user; returns its number.
    pub(super) fn send(&mut self, opcode: u32, node: u64, body: &Body) -> u64 {
        self.unique += 1;
        send(&self.socket, opcode, self.unique, node, body);
        self.unique
    }

    /// Sends bytes that may not be a request.
    pub(super) fn send_raw(&self, bytes: &[u8]) {
        self.socket.send(bytes).unwrap();
    }

    pub(super) fn receive(&self) -> Packet {
        receive(&self.socket)
    }

    /// Sends a request and returns the next packet, which must be its reply.
    pub(super) fn call(&mut self, opcode: u32, node: u64, body: &Body) -> Packet {
        let unique = self.send(opcode, node, body);
        let reply = self.receive();
        assert_eq!(reply.unique, unique, "not the reply to {opcode}: {reply:?}");
        reply
    }

    /// As [`call`](Self::call), for a request that must succeed.
    pub(super) fn ok(&mut self, opcode: u32, node: u64, body: &Body) -> Packet {
        let reply = self.call(opcode, node, body);
        assert_eq!(reply.code, 0, "of {opcode} on {node}");
        reply
    }

    /// As [`call`](Self::call), for a request that must fail: the errno.
    pub(super) fn errno(&mut self, opcode: u32, node: u64, body: &Body) -> i32 {
        let reply = self.call(opcode, node, body);
        assert!(reply.code < 0 && reply.body.is_empty(), "{reply:?}");
        -reply.code
    }

    /// Ends the connection as an unmount does, and returns the outcome of the server.
    pub(super) fn unmount(mut self) -> io::Result<()> {
        self.ok(op::DESTROY, 0, &Body::new());
        self.end()
    }

    /// The outcome of a server that ends by itself.
    pub(super) fn end(mut self) -> io::Result<()> {
        let server = self.server.take().expect("it ends once");
        server.join().expect("the server does not panic")
    }

    /// The other end of the socket, for another thread that reads.
    pub(super) fn reader(&self) -> UnixDatagram {
        self.socket.try_clone().unwrap()
    }

    /// A new regular file in the root.
    pub(super) fn make_file(&mut self, name: &[u8], perm: u32) -> u64 {
        let body = Body::new().u32(0o100_000 | perm).u32(0).u64(0).name(name);
        self.ok(op::MKNOD, 1, &body).u64(0)
    }

    /// Sends the request for a new file; the caller reads the reply.
    pub(super) fn send_make_file(&mut self, name: &[u8]) -> u64 {
        let body = Body::new().u32(0o100_600).u32(0).u64(0).name(name);
        self.send(op::MKNOD, 1, &body)
    }

    /// Sends DESTROY under the largest number.
    pub(super) fn send_last(&mut self) {
        send(&self.socket, op::DESTROY, u64::MAX, 0, &Body::new());
    }

    pub(super) fn make_dir(&mut self, parent: u64, name: &[u8]) -> u64 {
        let body = Body::new().u32(0o755).u32(0).name(name);
        self.ok(op::MKDIR, parent, &body).u64(0)
    }

    pub(super) fn write(&mut self, node: u64, off: u64, data: &[u8], flags: u32) -> u64 {
        let body = write_body(off, data, flags);
        self.send(op::WRITE, node, &body)
    }

    pub(super) fn read(&mut self, node: u64, off: u64, len: u32) -> Vec<u8> {
        self.ok(op::READ, node, &read_body(off, len)).body
    }
}

pub(super) fn write_body(off: u64, data: &[u8], flags: u32) -> Body {
    let body = Body::new().u64(0).u64(off).u32(data.len() as u32);
    body.u32(flags).u64(0).u64(0).bytes(data)
}

pub(super) fn read_body(off: u64, len: u32) -> Body {
    Body::new().u64(0).u64(off).u32(len).u32(0).u64(0).u64(0)
}

fn send(socket: &UnixDatagram, opcode: u32, unique: u64, node: u64, body: &Body) {
    socket.send(&request(opcode, unique, node, body)).unwrap();
}

/// A request with its header: of the super-user, by process 1.
pub(super) fn request(opcode: u32, unique: u64, node: u64, body: &Body) -> Vec<u8> {
    let header = Body::new().u32((REQUEST_HEADER + body.0.len()) as u32);
    let header = header.u32(opcode).u64(unique).u64(node);
    let header = header.u32(0).u32(0).u32(1).u32(0);
    header.bytes(&body.0).0
}

/// The next packet of the server.
pub(super) fn receive(socket: &UnixDatagram) -> Packet {
    let mut bytes = vec![0; PACKET_BYTES];
    let len = socket.recv(&mut bytes).expect("a packet in time");
    bytes.truncate(len);
    let field = |at: usize| bytes[at..at + 4].try_into().unwrap();
    assert_eq!(u32::from_ne_bytes(field(0)) as usize, len);
    Packet {
        unique: u64::from_ne_bytes(bytes[8..16].try_into().unwrap()),
        code: i32::from_ne_bytes(field(4)),
        body: bytes.split_off(REPLY_HEADER),
    }
}
