//! A region as text, for the images that tests keep.
//!
//! The text has a line for each 64 bytes that are not all zero: their offset and the bytes, in
//! hexadecimal. A byte that repeats to the end is written once, after a `*`; zeros are left out.

use crate::{LINE_BYTES, MediumError, MemoryPmem, Pmem};
use std::fmt::Write;

const LINE: usize = LINE_BYTES as usize;

/// Writes a region as text.
///
/// # Errors
/// The region cannot be read.
pub fn encode(pm: &dyn Pmem) -> Result<String, MediumError> {
    let mut text = String::new();
    let mut bytes = [0; LINE];
    for off in (0..pm.len()).step_by(LINE) {
        pm.read(off, &mut bytes)?;
        if bytes == [0; LINE] {
            continue;
        }
        let last = bytes[LINE - 1];
        let kept = bytes.iter().rposition(|b| *b != last).map_or(0, |i| i + 1);
        let _ = write!(text, "{off:x} "); // writing to a string cannot fail
        for byte in &bytes[..kept] {
            let _ = write!(text, "{byte:02x}");
        }
        if last != 0 {
            let _ = write!(text, "*{last:02x}");
        }
        text.push('\n');
    }
    Ok(text)
}

/// Makes a region of `len` bytes from its text. `None`: it is not such a text.
#[must_use]
pub fn decode(text: &str, len: u64) -> Option<MemoryPmem> {
    let pm = MemoryPmem::new(len);
    for line in text.lines() {
        let (off, hex) = line.split_once(' ')?;
        let off = u64::from_str_radix(off, 16).ok()?;
        let (hex, fill) = hex.split_once('*').unwrap_or((hex, "00"));
        let mut bytes = [byte(fill)?; LINE];
        for (n, place) in bytes.iter_mut().enumerate().take(hex.len() / 2) {
            *place = byte(hex.get(n * 2..n * 2 + 2)?)?;
        }
        if hex.len() > LINE * 2 || off.checked_add(LINE_BYTES)? > len {
            return None;
        }
        pm.store(off, &bytes);
    }
    Some(pm)
}

fn byte(digits: &str) -> Option<u8> {
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_survives_its_text() {
        let pm = MemoryPmem::new(4096);
        pm.store(64, &[7; 64]);
        pm.store(130, b"some bytes");
        pm.store(4032, &[9; 60]);
        let text = encode(&pm).expect("memory");
        assert_eq!(text.lines().count(), 3, "{text}");
        let again = decode(&text, 4096).expect("its own text");
        assert_eq!(encode(&again).expect("memory"), text);
        let mut bytes = [[0; 4096]; 2];
        pm.read(0, &mut bytes[0]).expect("memory");
        again.read(0, &mut bytes[1]).expect("memory");
        assert!(bytes[0] == bytes[1]);
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "40",
            "x 00",
            "0 0g",
            "1000 00",
            "0 00*",
            "ffffffffffffffff 00",
        ] {
            assert!(decode(text, 4096).is_none(), "{text}");
        }
    }
}
