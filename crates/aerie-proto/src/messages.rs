//! Messages between a client and the service, and their frames on a stream.
//!
//! A frame is the number of its bytes (32 bits, little-endian) and a message, as the crate `postcard`
//! encodes it. The service sends a [`Greeting`] first, or the reason why it does not serve the client.
//!
//! # Guarantees
//! - A decoder ends on any bytes. It takes memory in proportion to them.
//! - A frame has at most [`FRAME_MAX`] bytes.
//! - Requests have increasing numbers, and get one reply each. A client may send requests and lock
//!   messages before earlier ones are answered. The service takes requests in their order, and lock messages in
//!   theirs. A message that begins a session or lowers a lock comes after the batches before it; others do not
//!   wait for requests.

use crate::locks::{Epoch, ToClient, ToService};
use crate::ops::BATCH_MAX;
use medium::EffectiveDurability;
use serde::{Deserialize, Serialize};
pub use serde_bytes::{ByteBuf, Bytes};

/// Version of the protocol. It changes with every message.
pub const VERSION: u32 = 6;

/// The name of the partition of a protected store.
pub const PARTITION: &str = "pxfs";

/// Most bytes of a message: a batch, and what is around it.
pub const FRAME_MAX: usize = BATCH_MAX + 4096;

/// Bytes of the length of a frame.
pub const HEAD_BYTES: usize = 4;

/// The ways in which a client reads and writes, by its credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Maps the image for reading and writing, stores the contents of files itself, and acts for other
    /// users: the super-user, the user of the service, and the owner of the image.
    Trusted,
    /// Maps the image for reading.
    Reader,
    /// Calls the service.
    Remote,
}

/// The crashes that durable changes of a store survive. A client that stores contents itself makes them as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// As [`EffectiveDurability::Dax`].
    Dax,
    /// As [`EffectiveDurability::Process`].
    Process,
    /// As [`EffectiveDurability::Msync`].
    Msync,
}

impl From<EffectiveDurability> for Durability {
    fn from(effective: EffectiveDurability) -> Self {
        match effective {
            EffectiveDurability::Dax => Self::Dax,
            EffectiveDurability::Process => Self::Process,
            EffectiveDurability::Msync => Self::Msync,
        }
    }
}

impl From<Durability> for EffectiveDurability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Dax => Self::Dax,
            Durability::Process => Self::Process,
            Durability::Msync => Self::Msync,
        }
    }
}

/// The first message of the service. The descriptor of the image comes with it, or of a connection to the manager
/// of a protected store, unless the class is [`Class::Remote`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// [`VERSION`].
    pub version: u32,
    /// The class of the client.
    pub class: Class,
    /// Bytes of the store.
    pub bytes: u64,
    /// The seed of the store, by which a client recognises the image.
    pub seed: u64,
    /// The user for whom the client acts.
    pub uid: u32,
    /// Whether the store is protected: the client maps the pages that it may read, and makes calls for the others.
    pub is_protected: bool,
    /// The durability of the store.
    pub durability: Durability,
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up<'a> {
    /// A message of the clerk.
    Lock(ToService),
    /// A request, which gets a reply of the same number.
    Ask {
        /// Higher than that of all earlier requests.
        number: u64,
        /// The request.
        #[serde(borrow)]
        request: Request<'a>,
    },
}

/// A request. The contents are messages of the file system, which the transport does not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Applies a batch of operations.
    Batch {
        /// The session whose locks cover the changes.
        epoch: Epoch,
        /// The operations.
        #[serde(borrow)]
        bytes: &'a Bytes,
    },
    /// Reserves free pages, and headers for new objects.
    Reserve {
        /// Pages.
        pages: u32,
        /// Headers.
        headers: u32,
    },
    /// A call. Clients that map an image may call `statfs` only. Those that map a protected store make one
    /// call at a time, beside their other requests.
    Call(&'a Bytes),
}

/// A message of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// The connection is served.
    Greeting(Greeting),
    /// The connection ends, for this reason.
    Bye(String),
    /// A message of the lock service.
    Lock(ToClient),
    /// The reply to a request.
    Reply {
        /// The number of the request.
        number: u64,
        /// The result: answers to a batch, a reserve, or the result of a call. Otherwise the reason why
        /// the request had no effect.
        result: Result<ByteBuf, String>,
    },
}

/// The reason why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The frame is too long.
    #[error("a message has at most {FRAME_MAX} bytes, not {0}")]
    Length(usize),
    /// The bytes are not a message.
    #[error("the message cannot be read: {0}")]
    Contents(postcard::Error),
}

/// The frame of a message.
///
/// # Errors
/// [`BadFrame::Length`].
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, BadFrame> {
    let frame = postcard::to_extend(message, vec![0; HEAD_BYTES]);
    let mut frame = frame.map_err(BadFrame::Contents)?;
    let len = frame.len() - HEAD_BYTES;
    check_len(len)?;
    frame[..HEAD_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(frame)
}

/// The bytes of the message that follows the head of a frame.
///
/// # Errors
/// [`BadFrame::Length`].
pub fn len_of(head: [u8; HEAD_BYTES]) -> Result<usize, BadFrame> {
    let len = u32::from_le_bytes(head) as usize;
    check_len(len).map(|()| len)
}

fn check_len(len: usize) -> Result<(), BadFrame> {
    match len <= FRAME_MAX {
        true => Ok(()),
        false => Err(BadFrame::Length(len)),
    }
}

/// The message of a frame, without its head.
///
/// # Errors
/// [`BadFrame::Contents`], also if bytes are left.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, BadFrame> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(BadFrame::Length(bytes.len())),
        Err(why) => Err(BadFrame::Contents(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::{Access, Age, Ask, LockId, Mode, Tell};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::time::Duration;

    fn ups() -> Vec<Up<'static>> {
        let (lock, mode, age) = (LockId(64), Mode::tree(Access::Exclusive), Age::default());
        let uses = vec![(lock, Mode::intent(Access::Shared))];
        let ask = Ask::Request {
            lock,
            mode,
            age,
            uses,
        };
        let (epoch, seq, bytes) = (Epoch(9), 3, Bytes::new(b"operations"));
        let requests = [
            Request::Batch { epoch, bytes },
            Request::Reserve {
                pages: 4,
                headers: 5,
            },
            Request::Call(bytes),
        ];
        let asks = (7..).zip(requests);
        let asks = asks.map(|(number, request)| Up::Ask { number, request });
        let lock = Up::Lock(ToService { epoch, seq, ask });
        asks.chain([lock]).collect()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        for up in ups() {
            let frame = encode(&up).unwrap();
            let (head, rest) = frame.split_first_chunk().unwrap();
            assert_eq!(len_of(*head), Ok(rest.len()));
            assert_eq!(decode(rest), Ok(up));
        }
        let lease = Duration::from_millis(1500);
        let lock = Down::Lock(ToClient {
            epoch: Epoch(9),
            seq: 1,
            tell: Tell::Begun { lease },
        });
        let reply = Down::Reply {
            number: 8,
            result: Err("no".into()),
        };
        for down in [lock, reply, Down::Bye("full".into())] {
            assert_eq!(
                decode::<Down>(&encode(&down).unwrap()[HEAD_BYTES..]),
                Ok(down)
            );
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused() {
        let bytes = vec![0; FRAME_MAX];
        let request = Request::Call(Bytes::new(&bytes));
        let refused = encode(&Up::Ask { number: 1, request });
        assert!(matches!(refused, Err(BadFrame::Length(_))));
        assert!(len_of(u32::MAX.to_le_bytes()).is_err());
    }

    #[test]
    fn every_mode_and_no_other_number_is_a_mode() {
        let modes = (0..=u8::MAX).filter_map(|bits| Mode::try_from(bits).ok());
        let mut found: Vec<Mode> = modes.collect();
        let mut all: Vec<Mode> = Mode::all().collect();
        found.sort();
        all.sort();
        assert_eq!(found, all);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in vec(any::<u8>(), 0..100),
            damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            of in prop::option::of(any::<prop::sample::Index>()),
        ) {
            if let Some(of) = of {
                let all = ups();
                bytes = encode(&all[of.index(all.len())]).unwrap()[HEAD_BYTES..].to_vec();
            }
            for (at, byte) in damage {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            let _ = decode::<Up<'_>>(&bytes);
            let _ = decode::<Down>(&bytes);
        }
    }
}
