//! Requests that no kernel sends: the server neither panics nor stops.

use super::kernel::{Body, Packet, REPLY_HEADER, op, receive, write_body};
use super::model;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashSet;
use std::thread;

/// Numbers at which something ends.
const NUMBERS: [u64; 10] = [
    0,
    1,
    2,
    7,
    4095,
    4096,
    1 << 20,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];

#[derive(Debug, Clone)]
enum Field {
    Short(u32),
    Long(u64),
    Name(&'static [u8]),
    Noise(Vec<u8>),
}

fn field() -> impl Strategy<Value = Field> {
    let numbers = || prop::sample::select(&NUMBERS[..]);
    let names: [&[u8]; 6] = [b"a", b"b", b"", b".", b"..", b"x/y"];
    prop_oneof![
        3 => numbers().prop_map(|n| Field::Short(n as u32)),
        1 => prop::sample::select(vec![0o100_644, 0o040_755, 0o120_777, 0o010_600]).prop_map(Field::Short),
        4 => numbers().prop_map(Field::Long),
        3 => prop::sample::select(names.to_vec()).prop_map(Field::Name),
        1 => vec(any::<u8>(), 0..64).prop_map(Field::Noise),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    let put = |body: Body, field| match field {
        Field::Short(value) => body.u32(value),
        Field::Long(value) => body.u64(value),
        Field::Name(name) => body.name(name),
        Field::Noise(bytes) => body.bytes(&bytes),
    };
    vec(field(), 0..14).prop_map(move |fields| fields.into_iter().fold(Body::new(), put))
}

/// A request on one of the first nodes, or on none. It has no DESTROY, which ends the connection. It
/// avoids requests on which `fuser` 0.18 panics: an IOCTL, a SETXATTR or a WRITE whose length is
/// wrong, and a SETATTR with a second of nanoseconds or more.
fn hostile() -> impl Strategy<Value = (u32, u64, Body)> {
    let kernels = [op::DESTROY, op::IOCTL, op::SETXATTR, op::WRITE, op::SETATTR];
    let opcodes = (0..52_u32).prop_filter("of the kernel alone", move |n| !kernels.contains(n));
    let requests = prop_oneof![8 => (opcodes, body()), 1 => write(), 1 => setxattr()];
    (requests, 0..6_u64).prop_map(|((opcode, body), node)| (opcode, node, body))
}

/// A WRITE of as much as it says, anywhere.
fn write() -> impl Strategy<Value = (u32, Body)> {
    let offset = prop::sample::select(&NUMBERS[..]);
    let parts = (offset, vec(any::<u8>(), 0..100), any::<u32>());
    parts.prop_map(|(off, data, flags)| (op::WRITE, write_body(off, &data, flags)))
}

/// A SETXATTR with a value of as much as it says.
fn setxattr() -> impl Strategy<Value = (u32, Body)> {
    let names: [&[u8]; 4] = [b"user.a", b"user.", b"", b"system.x"];
    let name = prop::sample::select(names.to_vec());
    let parts = (name, vec(any::<u8>(), 0..100), 0..4_u32);
    parts.prop_map(|(name, value, flags)| {
        let body = Body::new().u32(value.len() as u32).u32(flags);
        (op::SETXATTR, body.name(name).bytes(&value))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_request_gets_at_most_one_reply_of_bounded_size(requests in vec(hostile(), 1..40)) {
        let mut kernel = model();
        let socket = kernel.reader();
        let reader = thread::spawn(move || {
            let mut packets: Vec<Packet> = Vec::new();
            loop {
                let packet = receive(&socket);
                let is_last = packet.unique == u64::MAX;
                packets.push(packet);
                if is_last {
                    return packets;
                }
            }
        });
        let first = kernel.send_make_file(b"a");
        let sent: HashSet<u64> = requests
            .iter()
            .map(|(opcode, node, body)| kernel.send(*opcode, *node, body))
            .chain([first])
            .collect();
        kernel.send_last();
        let packets = reader.join().expect("the server answers to the end");
        let mut answered = HashSet::new();
        for packet in packets.iter().filter(|packet| packet.unique != 0) {
            prop_assert!(sent.contains(&packet.unique) || packet.unique == u64::MAX);
            prop_assert!(answered.insert(packet.unique), "two replies: {:?}", packet);
            prop_assert!((-4095..=0).contains(&packet.code));
            prop_assert!(packet.code == 0 || packet.body.is_empty());
            prop_assert!(packet.body.len() + REPLY_HEADER <= (1 << 20) + 4096);
        }
        prop_assert!(kernel.end().is_ok());
    }
}
