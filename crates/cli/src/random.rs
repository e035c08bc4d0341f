//! Random bytes from the system.

use crate::failure::Failure;
use rustix::rand::{GetRandomFlags, getrandom};

/// `N` random bytes.
///
/// # Errors
/// If the system has none.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes[..], GetRandomFlags::empty()) {
        Ok(n) if n == N => Ok(bytes),
        Ok(_) => Err(Failure::new("the system gave too few random bytes")),
        Err(e) => Err(Failure::new(format_args!("cannot get random bytes: {e}"))),
    }
}

/// A random seed.
///
/// # Errors
/// As [`bytes`].
pub(crate) fn seed() -> Result<u64, Failure> {
    bytes().map(u64::from_le_bytes)
}
