//! Bytes that are mostly text, such as names.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt::{self, Display, Formatter};

/// A name, a target or a path: any bytes. In JSON it is a string in which `%XX` stands for a byte
/// outside of printable ASCII, and for `%` itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    fn encoded(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        for &byte in &self.0 {
            match byte {
                b'%' | 0..0x20 | 0x7f.. => text.push_str(&format!("%{byte:02x}")),
                _ => text.push(char::from(byte)),
            }
        }
        text
    }

    fn decoded(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'%' => {
                    let digits = [rest.next()?, rest.next()?];
                    if !digits.iter().all(u8::is_ascii_hexdigit) {
                        return None;
                    }
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                byte => byte,
            });
        }
        Some(Self(bytes))
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "'{self}'")
    }
}

/// Text as it is, and escapes for bytes that are not UTF-8 or that a terminal would obey.
impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for part in self.0.utf8_chunks() {
            for c in part.valid().chars() {
                match c.is_control() {
                    true => write!(f, "{}", c.escape_default())?,
                    false => write!(f, "{c}")?,
                }
            }
            write!(f, "{}", part.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.encoded())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::decoded(&text).ok_or_else(|| D::Error::custom("`%` without two hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_json() {
        let all = Bytes((0..=255).collect());
        let json = serde_json::to_string(&all).unwrap();
        assert!(json.is_ascii());
        assert_eq!(serde_json::from_str::<Bytes>(&json).unwrap(), all);
        assert!(serde_json::from_str::<Bytes>("\"%\"").is_err());
        assert!(serde_json::from_str::<Bytes>("\"%+f\"").is_err());
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let name = Bytes(b"a\x1b[31m\xff\xc3\xa4".to_vec());
        assert_eq!(name.to_string(), "a\\u{1b}[31m\\xffä");
    }
}
