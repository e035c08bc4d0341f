//! Hostile clients of the socket.

use crate::world::{GROUP, Manager, Role, STRANGER, World, take_turns};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, send, sendmsg, socket_with,
};
use scm::Limits;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

pub(crate) const TESTS: &[(&str, fn())] = &[(
    "a_flood_of_garbage_stops_no_other_client",
    a_flood_of_garbage_stops_no_other_client,
)];

pub(crate) const CLIENTS: &[(&str, Role)] = &[("flood", flood)];

fn a_flood_of_garbage_stops_no_other_client() {
    let Some(manager) = Manager::as_root() else {
        return;
    };
    let mut client = manager.client("flood", &[STRANGER, STRANGER]);
    client.wait();
    // The client has all the connections that a user may have.
    manager.run("member", &[STRANGER + 1, GROUP]);
    client.go_on();
    client.wait();
    manager.run("member", &[STRANGER + 1, GROUP]);
    client.go_on();
    client.end();
    // The server has closed what the client had: the same works again.
    let mut client = manager.client("flood", &[STRANGER, STRANGER]);
    client.wait();
    client.go_on();
    client.wait();
    client.go_on();
    client.end();
}

fn connection(world: &World) -> OwnedFd {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.unwrap();
    connect(&socket, &SocketAddrUnix::new(world.socket()).unwrap()).unwrap();
    socket
}

/// A request for the first partition.
fn request() -> [u8; 16] {
    let mut request = [0; 16];
    request[..4].copy_from_slice(b"SCM\x01");
    request[4] = 1;
    request
}

fn flood(world: &World) {
    let limits = Limits::default();
    let sockets: Vec<OwnedFd> = (0..limits.per_user + 20)
        .map(|_| connection(world))
        .collect();
    let mut packet = [0; 300];
    for (socket, n) in sockets.iter().zip(0..) {
        let _ = send(socket, &request(), SendFlags::NOSIGNAL);
        let (_, bytes) = recv(socket, &mut packet[..], RecvFlags::empty()).unwrap();
        let text = String::from_utf8_lossy(&packet[..bytes]);
        assert_eq!(
            text.contains("you have too many connections"),
            n >= limits.per_user,
            "{text}"
        );
    }
    take_turns();
    drop(sockets);
    garbage(world);
    unwanted_descriptors(world);
    // A client that sends and never reads is closed.
    let deaf = connection(world);
    let sent = (0..10_000).take_while(|_| send(&deaf, &request(), SendFlags::NOSIGNAL).is_ok());
    assert!(sent.count() < 10_000);
    // A client that asks for descriptors and never takes them.
    let mut open = request();
    open[4] = 2;
    let deaf = connection(world);
    let sent = (0..10_000).take_while(|_| send(&deaf, &open, SendFlags::NOSIGNAL).is_ok());
    assert!(sent.count() < 10_000);
    take_turns();
}

/// Descriptors that come with a request are closed at once.
fn unwanted_descriptors(world: &World) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let socket = connection(world);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [writer.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let packet = request();
    let packet = [IoSlice::new(&packet)];
    sendmsg(&socket, &packet, &mut control, SendFlags::NOSIGNAL).unwrap();
    drop(writer);
    recv(&socket, &mut [0; 300][..], RecvFlags::empty()).unwrap();
    // The server has replied. No process has the pipe open for writing.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
}

/// Packets that are not requests: each ends its connection, with a reason.
fn garbage(world: &World) {
    let mut rng = fastrand::Rng::with_seed(4);
    for _ in 0..300 {
        let mut packet = request().to_vec();
        match rng.u8(..4) {
            0 => packet.resize(rng.usize(1..4000), 0xee),
            1 => packet.fill_with(|| rng.u8(..)),
            2 => packet[4..8].fill(rng.u8(4..)),
            _ => packet.truncate(rng.usize(..16)),
        }
        let socket = connection(world);
        let _ = send(&socket, &packet, SendFlags::NOSIGNAL);
        let mut reply = [0; 300];
        if packet.len() == 16 || rng.bool() {
            let _ = recv(socket.as_fd(), &mut reply[..], RecvFlags::empty());
        }
    }
}
