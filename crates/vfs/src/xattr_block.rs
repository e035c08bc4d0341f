//! Extended attributes in one block of a file system that has no older form for them.
//!
//! ```text
//! 0   u64   bytes used, this header included
//! 8   u64   zero
//! 16  each: u16 length of the name, u16 length of the value, u32 zero, name, value,
//!     padded to 8
//! ```

use crate::xattrs::Xattrs;
use crate::{Errno, NAME_MAX, Result};

/// Bytes before the first attribute.
const HEADER: usize = 16;
/// Bytes of an attribute before its name.
const HEAD: usize = 8;

/// The bytes of a block with these attributes.
///
/// # Errors
/// `ENOSPC` if they need more than `max_bytes`.
pub fn encode(xattrs: &Xattrs, max_bytes: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    for (name, value) in xattrs {
        bytes.extend((name.len() as u16).to_le_bytes());
        // A value too long for the field does not fit in the block either.
        bytes.extend((value.len() as u16).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(name);
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    if bytes.len() > max_bytes {
        return Err(Errno::NOSPC);
    }
    let len = bytes.len() as u64;
    bytes[..8].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

/// The attributes of a block. `None` if it is malformed.
pub fn decode(block: &[u8]) -> Option<Xattrs> {
    let (len, _) = block.split_first_chunk::<8>()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    let mut rest = block.get(HEADER..len)?;
    let mut xattrs = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_first_chunk::<HEAD>()?;
        let name_len = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let value_len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let name = tail.get(..name_len)?;
        let value = tail.get(name_len..name_len + value_len)?;
        if name.is_empty() || name_len > NAME_MAX {
            return None;
        }
        xattrs.push((name.to_vec(), value.to_vec()));
        rest = rest.get((HEAD + name_len + value_len).next_multiple_of(8)..)?;
    }
    Some(xattrs)
}
