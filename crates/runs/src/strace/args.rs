//! The arguments of a call.

use super::state::Fault;
use super::text::elements;

/// The arguments of a call, as text.
#[derive(Debug)]
pub(super) struct Args<'a>(Vec<&'a [u8]>);

/// A descriptor as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fd {
    /// `AT_FDCWD`.
    Cwd,
    /// A number.
    Number(i32),
}

/// Names of bits, such as `O_RDWR|O_CREAT`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flags<'a>(&'a [u8]);

impl Flags<'_> {
    /// Whether a bit is there.
    pub(super) fn has(self, name: &str) -> bool {
        let mut names = self.0.split(|byte| *byte == b'|');
        names.any(|part| part.trim_ascii() == name.as_bytes())
    }

    /// Whether some name contains `part`.
    pub(super) fn mentions(self, part: &str) -> bool {
        let mut windows = self.0.windows(part.len());
        windows.any(|window| window == part.as_bytes())
    }
}

impl<'a> Args<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self(elements(text))
    }

    /// An argument as text; empty if it is missing.
    pub(super) fn text(&self, n: usize) -> &'a [u8] {
        self.0.get(n).copied().unwrap_or_default()
    }

    fn fault(&self, n: usize, what: &str) -> Fault {
        Fault::Skip(format!("argument {} is not {what}", n + 1))
    }

    /// A path, a name or a value.
    pub(super) fn string(&self, n: usize) -> Result<Vec<u8>, Fault> {
        string(self.text(n)).ok_or_else(|| self.fault(n, "a string"))?
    }

    /// A number.
    pub(super) fn number(&self, n: usize) -> Result<i128, Fault> {
        number(self.text(n)).ok_or_else(|| self.fault(n, "a number"))
    }

    /// An offset or a length.
    pub(super) fn offset(&self, n: usize) -> Result<u64, Fault> {
        let number = u64::try_from(self.number(n)?).ok();
        let number = number.filter(|number| i64::try_from(*number).is_ok());
        number.ok_or_else(|| self.fault(n, "an offset"))
    }

    /// A descriptor.
    pub(super) fn fd(&self, n: usize) -> Result<Fd, Fault> {
        if self.text(n).starts_with(b"AT_FDCWD") {
            return Ok(Fd::Cwd);
        }
        let number = i32::try_from(self.number(n)?);
        let number = number.map_err(|_| self.fault(n, "a descriptor"))?;
        Ok(Fd::Number(number))
    }

    /// The number of a descriptor.
    pub(super) fn fd_number(&self, n: usize) -> Result<i32, Fault> {
        match self.fd(n)? {
            Fd::Number(number) => Ok(number),
            Fd::Cwd => Err(self.fault(n, "the number of a descriptor")),
        }
    }

    /// Names of bits.
    pub(super) fn flags(&self, n: usize) -> Flags<'a> {
        Flags(self.text(n))
    }

    /// The bits of a mode. Names of types are left out.
    pub(super) fn mode(&self, n: usize) -> Result<u32, Fault> {
        mode(self.text(n)).ok_or_else(|| self.fault(n, "a mode"))
    }

    /// A field of a structure.
    pub(super) fn field(&self, n: usize, name: &str) -> Option<&'a [u8]> {
        let mut text = self.text(n);
        if !text.starts_with(b"{") {
            return None;
        }
        text = inner(text);
        field(text, name)
    }

    /// The names of bits in a field of a structure.
    pub(super) fn struct_flags(&self, n: usize, name: &str) -> Flags<'a> {
        Flags(self.field(n, name).unwrap_or_default())
    }

    /// The names of bits in an argument with a name (`flags=CLONE_VM|SIGCHLD`), or in a field of
    /// a structure.
    pub(super) fn named_flags(&self, name: &str) -> Flags<'a> {
        let prefix = format!("{name}=");
        let found = self
            .0
            .iter()
            .find_map(|text| text.strip_prefix(prefix.as_bytes()));
        Flags(found.or_else(|| self.field(0, name)).unwrap_or_default())
    }

    /// The data of an array of `iovec`, joined.
    pub(super) fn vectors(&self, n: usize) -> Result<Vec<u8>, Fault> {
        let text = self.text(n);
        if !text.starts_with(b"[") {
            return match text {
                b"NULL" => Ok(Vec::new()),
                _ => Err(self.fault(n, "an array of vectors")),
            };
        }
        let mut joined = Vec::new();
        for vector in elements(inner(text)) {
            if vector == b"..." {
                return Err(Fault::cut());
            }
            let base = field(inner(vector), "iov_base");
            let base = base.ok_or_else(|| self.fault(n, "an array of vectors"))?;
            if base != b"NULL" {
                let data = string(base).ok_or_else(|| self.fault(n, "an array of strings"))?;
                joined.extend_from_slice(&data?);
            }
        }
        Ok(joined)
    }
}

/// The text between the first bracket and the last one.
fn inner(text: &[u8]) -> &[u8] {
    let Some((_, text)) = text.split_first() else {
        return text;
    };
    let end = text.iter().rposition(|byte| matches!(byte, b']' | b'}'));
    &text[..end.unwrap_or(text.len())]
}

fn field<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let prefix = format!("{name}=");
    let mut fields = elements(text).into_iter();
    fields.find_map(|field| field.strip_prefix(prefix.as_bytes()))
}

/// The bits of a mode that are numbers.
pub(super) fn mode(text: &[u8]) -> Option<u32> {
    let mut bits = 0;
    for part in text.split(|byte| *byte == b'|') {
        let part = part.trim_ascii();
        if part.first().is_some_and(u8::is_ascii_digit) {
            let digits = std::str::from_utf8(part).ok()?;
            bits |= u32::from_str_radix(digits, 8).ok()?;
        } else if !part.starts_with(b"S_I") {
            return None;
        }
    }
    Some(bits)
}

/// A number in decimal, hexadecimal or octal, with an annotation or without.
pub(super) fn number(text: &[u8]) -> Option<i128> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (radix, digits) = match text {
        [b'0', b'x', digits @ ..] => (16, digits),
        [b'0', digits @ ..] if digits.first().is_some_and(u8::is_ascii_digit) => (8, digits),
        digits => (10, digits),
    };
    let len = digits.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let (digits, rest) = digits.split_at(len.min(40));
    if !matches!(rest.first(), None | Some(b'<' | b' ')) {
        return None;
    }
    let value = i128::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()?;
    Some(if is_negative { -value } else { value })
}

/// The bytes of a string in quotes; a fault if strace has cut it off.
pub(super) fn string(text: &[u8]) -> Option<Result<Vec<u8>, Fault>> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut bytes = Vec::with_capacity(rest.len() / 4);
    loop {
        match rest {
            [b'"', after @ ..] => {
                return match after {
                    b"" => Some(Ok(bytes)),
                    b"..." => Some(Err(Fault::cut())),
                    _ => None,
                };
            }
            [b'\\', b'x', high, low, after @ ..] => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                rest = after;
            }
            [b'\\', b'0'..=b'7', ..] => {
                let octal = |byte: &&u8| matches!(byte, b'0'..=b'7');
                let len = rest[1..].iter().take(3).take_while(octal).count();
                let digits = std::str::from_utf8(&rest[1..=len]).ok()?;
                bytes.push(u32::from_str_radix(digits, 8).ok()? as u8);
                rest = &rest[1 + len..];
            }
            [b'\\', letter, after @ ..] => {
                bytes.push(match letter {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    other => *other,
                });
                rest = after;
            }
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        string(text.as_bytes()).unwrap().ok().unwrap()
    }

    #[test]
    fn strings_are_decoded_in_both_notations() {
        assert_eq!(bytes(r#""\x61\x00\xff""#), b"a\0\xff");
        assert_eq!(bytes(r#""a\n\"\\\0\3771\18""#), b"a\n\"\\\0\xff1\x018");
        assert_eq!(bytes(r#""""#), b"");
        assert!(matches!(string(br#""abc"..."#), Some(Err(Fault::Fatal(_)))));
        for bad in [r#""abc"#, r#""\x4""#, "NULL", r#""a"b"#, "\"\\", ""] {
            assert!(string(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn arguments_are_split_outside_of_strings_and_brackets() {
        let args =
            Args::new(br#"AT_FDCWD</a, (b>, "a,\")", {flags=O_RDWR|O_CREAT, mode=0600}, 24"#);
        assert_eq!(args.fd(0).ok(), Some(Fd::Cwd));
        assert_eq!(args.string(1).ok().unwrap(), b"a,\")");
        assert_eq!(args.field(2, "mode"), Some(&b"0600"[..]));
        assert!(Flags(args.field(2, "flags").unwrap()).has("O_CREAT"));
        assert_eq!(args.number(3).ok(), Some(24));
        assert!(args.string(4).is_err());
    }

    #[test]
    fn vectors_are_joined() {
        let args = Args::new(
            br#"3, [{iov_base="\x78", iov_len=1}, {iov_base=NULL, iov_len=0}, {iov_base="yz", iov_len=2}], 3"#,
        );
        assert_eq!(args.vectors(1).ok().unwrap(), b"xyz");
        let cut = Args::new(br#"3, [{iov_base="\x78", iov_len=1}, ...], 3"#);
        assert!(matches!(cut.vectors(1), Err(Fault::Fatal(_))));
    }

    #[test]
    fn numbers_have_three_notations() {
        for (text, value) in [
            ("0", Some(0)),
            ("-100", Some(-100)),
            ("0x1f", Some(31)),
            ("0644", Some(0o644)),
            ("3</a/b>", Some(3)),
            ("18446744073709551615", Some(u64::MAX.into())),
            ("7fff", None),
            ("0x", None),
            ("x", None),
        ] {
            assert_eq!(number(text.as_bytes()), value, "{text}");
        }
        assert_eq!(mode(b"S_IFIFO|0644"), Some(0o644));
        assert_eq!(mode(b"O_RDWR"), None);
    }
}
