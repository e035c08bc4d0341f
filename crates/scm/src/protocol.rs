//! Requests of clients and the replies of the manager: one packet each.
//!
//! Guarantees: both have a fixed size. Any bytes are a request or a reason to refuse them.

use crate::files::Part;
use crate::identity::Identity;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `SCM` and the version, 1.
const MAGIC: u32 = u32::from_le_bytes(*b"SCM\x01");
/// Most bytes of a text.
const TEXT_BYTES: usize = 216;

const _: () = assert!(size_of::<Request>() == 16);
const _: () = assert!(size_of::<Reply>() == 256);

/// A request.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Request {
    magic: U32,
    /// 1: the next partition, 2: an identity table, 3: a class.
    operation: U32,
    partition: U32,
    identity: U32,
}

/// The request in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// The first partition with this number or a higher one that the client may map.
    Next(u32),
    /// A part of the partition with this number.
    Open(u32, Part),
}

impl Request {
    pub(crate) fn new(operation: Operation) -> Self {
        let (operation, partition, identity) = match operation {
            Operation::Next(partition) => (1, partition, Identity::FREE),
            Operation::Open(partition, Part::Identities) => (2, partition, Identity::FREE),
            Operation::Open(partition, Part::Class(identity)) => (3, partition, identity),
        };
        Self {
            magic: MAGIC.into(),
            operation: operation.into(),
            partition: partition.into(),
            identity: identity.raw().into(),
        }
    }

    /// The request in a packet of exactly its size.
    pub(crate) fn parse(packet: &[u8]) -> Result<Operation, &'static str> {
        let request = Self::read_from_bytes(packet);
        let request = request.map_err(|_| "a request has 16 bytes")?;
        if request.magic.get() != MAGIC {
            return Err("a request of another version");
        }
        let partition = request.partition.get();
        let identity = Identity::from_raw(request.identity.get());
        match request.operation.get() {
            1 => Ok(Operation::Next(partition)),
            2 => Ok(Operation::Open(partition, Part::Identities)),
            3 => Ok(Operation::Open(partition, Part::Class(identity))),
            _ => Err("a request that does not exist"),
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// As requested; the text is the name of a partition.
    Done = 0,
    /// No further partition.
    End = 1,
    /// Refused; the text is the reason.
    Refused = 2,
    /// The client lacks a right; the text is the reason.
    Denied = 3,
}

/// A reply.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Reply {
    magic: U32,
    status: U32,
    /// Number of the partition.
    pub(crate) partition: U32,
    /// 1 if the descriptor is open for writing, too.
    writable: U32,
    /// Offset of the part in its file.
    pub(crate) base: U64,
    /// Bytes of the part, or of the partition.
    pub(crate) bytes: U64,
    text_bytes: U64,
    text: [u8; TEXT_BYTES],
}

impl Reply {
    /// A reply with a text, which is cut to the space that there is.
    pub(crate) fn new(status: Status, partition: u32, text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES)];
        let mut reply = Self {
            magic: MAGIC.into(),
            status: (status as u32).into(),
            partition: partition.into(),
            writable: 0.into(),
            base: 0.into(),
            bytes: 0.into(),
            text_bytes: (text.len() as u64).into(),
            text: [0; TEXT_BYTES],
        };
        reply.text[..text.len()].copy_from_slice(text.as_bytes());
        reply
    }

    pub(crate) fn set_writable(&mut self, writable: bool) {
        self.writable = u32::from(writable).into();
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable.get() == 1
    }

    pub(crate) fn parse(packet: &[u8]) -> Option<(Status, Self)> {
        let reply = Self::read_from_bytes(packet).ok()?;
        let statuses = [Status::Done, Status::End, Status::Refused, Status::Denied];
        let status = statuses
            .into_iter()
            .find(|one| *one as u32 == reply.status.get());
        Some((status.filter(|_| reply.magic.get() == MAGIC)?, reply))
    }

    pub(crate) fn text(&self) -> String {
        let bytes = usize::try_from(self.text_bytes.get()).unwrap_or(TEXT_BYTES);
        String::from_utf8_lossy(&self.text[..bytes.min(TEXT_BYTES)]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_parse_back() {
        let identity = Identity::from_raw(u32::MAX);
        for operation in [
            Operation::Next(7),
            Operation::Open(8, Part::Identities),
            Operation::Open(u32::MAX, Part::Class(identity)),
        ] {
            let request = Request::new(operation);
            assert_eq!(Request::parse(request.as_bytes()), Ok(operation));
            assert!(Request::parse(&request.as_bytes()[1..]).is_err());
        }
    }

    #[test]
    fn any_packet_is_a_request_or_refused() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..10_000 {
            let mut packet = Request::new(Operation::Next(1)).as_bytes().to_vec();
            packet.resize(rng.usize(12..20), 0);
            let at = rng.usize(..packet.len());
            packet[at] = rng.u8(..);
            let parsed = Request::parse(&packet);
            assert!(parsed.is_err() || packet.len() == 16);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reply = Reply::new(Status::Refused, 0, &"ä".repeat(300));
        let (status, reply) = Reply::parse(reply.as_bytes()).unwrap();
        assert_eq!((status, reply.text()), (Status::Refused, "ä".repeat(108)));
    }
}
