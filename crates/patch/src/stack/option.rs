//! Options of layers: forms, descriptions and values.

use super::ValueError;
use std::time::Duration;

/// An option of the layer `L`.
pub struct Opt<L> {
    /// The form: `KEY=VALUE`, or a value without a key.
    pub form: &'static str,
    /// Short description for lists.
    pub help: &'static str,
    /// Whether the layer must have the option.
    pub is_required: bool,
    /// Sets the option to the value of a text. Without a key, it fails if the text is a value
    /// of another option.
    pub set: fn(&mut L, &str) -> Result<(), ValueError>,
    /// The text of the value; `None` if a stack's text leaves it out.
    pub get: fn(&L) -> Option<String>,
}

impl<L> Opt<L> {
    /// The key, if the form has one.
    pub fn key(&self) -> Option<&'static str> {
        self.form.split_once('=').map(|(key, _)| key)
    }
}

/// Values and their names.
pub(super) type Names<T> = [(&'static str, T)];

/// The value with this name.
pub(super) fn choose<T: Clone>(text: &str, known: &Names<T>) -> Result<T, ValueError> {
    let found = known.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        ValueError::new(format_args!("'{text}' is not one of {names}"))
    })
}

/// The name of a value.
pub(super) fn name_of<T: PartialEq>(value: &T, known: &Names<T>) -> &'static str {
    let found = known.iter().find(|(_, other)| other == value);
    found.map_or("?", |(name, _)| name)
}

/// The name of a value, unless it is the default.
pub(super) fn changed<T: PartialEq>(value: &T, usual: &T, known: &Names<T>) -> Option<String> {
    (value != usual).then(|| name_of(value, known).into())
}

const UNITS: [(u32, &str); 4] = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];

/// Parses a number of bytes: `4096`, `64K`, `256M`, `1G`.
pub(super) fn bytes(text: &str) -> Result<u64, ValueError> {
    let wrong = || ValueError::new(format_args!("'{text}' is not a size such as 256M"));
    let unit = UNITS.iter().find(|(_, unit)| text.ends_with(unit));
    let (shift, digits) = unit.map_or((0, text), |(shift, _)| (*shift, &text[..text.len() - 1]));
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Formats a number of bytes in the largest exact unit.
pub(super) fn show_bytes(bytes: u64) -> String {
    let exact = |(shift, _): &&(u32, &str)| bytes > 0 && bytes.is_multiple_of(1 << shift);
    match UNITS.iter().find(exact) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Parses a time: `5s`, `100ms`.
pub(super) fn duration(text: &str) -> Result<Duration, ValueError> {
    let wrong = || ValueError::new(format_args!("'{text}' is not a time such as 5s or 100ms"));
    let (digits, ms) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 1000),
        (None, None) => return Err(wrong()),
    };
    let number: u32 = digits.parse().map_err(|_| wrong())?;
    if number == 0 {
        return Err(wrong());
    }
    Ok(Duration::from_millis(u64::from(number) * ms))
}

/// Formats a time, in seconds if that is exact.
pub(super) fn show_duration(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

/// Parses a whole number above 0.
pub(super) fn positive<N>(text: &str, what: &str) -> Result<N, ValueError>
where
    N: std::str::FromStr + PartialOrd + From<u8>,
{
    let wrong = || ValueError::new(format_args!("'{text}' is not {what}"));
    let number = text.parse::<N>().map_err(|_| wrong())?;
    if number < N::from(1) {
        Err(wrong())
    } else {
        Ok(number)
    }
}
