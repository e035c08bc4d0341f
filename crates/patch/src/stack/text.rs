//! The letters of the notation: names, arguments, quotes, units.

use super::StackError;
use std::fmt::{self, Write};
use std::time::Duration;

/// `name(value, key=value, ...)`, arguments optional.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    pub name: String,
    pub args: Vec<Arg>,
}

/// `value` or `key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arg {
    pub key: Option<String>,
    pub value: String,
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{key}={}", Quoted(&self.value)),
            None => Quoted(&self.value).fmt(f),
        }
    }
}

/// Letters that end a word, unless it is in quotes.
const MARKS: &[char] = &['>', '(', ')', ',', '=', '"', '\\'];

/// A word; in quotes, with `\` before `"` and `\`, where it must be.
pub(super) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let special = |c: char| c.is_whitespace() || MARKS.contains(&c);
        if !self.0.is_empty() && !self.0.contains(special) {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for c in self.0.chars() {
            if matches!(c, '"' | '\\') {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char('"')
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Mark(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "'{word}'"),
            Self::Mark(mark) => write!(f, "'{mark}'"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, StackError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let (token, after) = match c {
            '"' => quoted_word(&rest[1..])?,
            '\\' => return Err(StackError::new("'\\' stands only in quotes")),
            c if MARKS.contains(&c) => (Token::Mark(c), &rest[1..]),
            _ => {
                let ends = |c: char| c.is_whitespace() || MARKS.contains(&c);
                let (word, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
                (Token::Word(word.into()), after)
            }
        };
        tokens.push(token);
        rest = after.trim_start();
    }
    Ok(tokens)
}

/// A word up to its closing quote, and what follows that.
fn quoted_word(text: &str) -> Result<(Token, &str), StackError> {
    let mut word = String::new();
    let mut letters = text.char_indices();
    while let Some((at, c)) = letters.next() {
        match c {
            '"' => return Ok((Token::Word(word), &text[at + 1..])),
            '\\' => word.extend(letters.next().map(|(_, c)| c)),
            c => word.push(c),
        }
    }
    Err(StackError::new("a quote is not closed"))
}

/// The terms of `a > b(c) > ...`.
pub(super) fn terms(text: &str) -> Result<Vec<Term>, StackError> {
    let mut tokens = tokens(text)?.into_iter().peekable();
    let mut terms = Vec::new();
    loop {
        let name = word(tokens.next(), "the name of a module")?;
        let mut args = Vec::new();
        if tokens.next_if_eq(&Token::Mark('(')).is_some() {
            while tokens.next_if_eq(&Token::Mark(')')).is_none() {
                let first = word(tokens.next(), "an option or ')'")?;
                args.push(match tokens.next_if_eq(&Token::Mark('=')) {
                    None => Arg {
                        key: None,
                        value: first,
                    },
                    Some(_) => Arg {
                        value: word(tokens.next(), &format!("the value of {first}"))?,
                        key: Some(first),
                    },
                });
                if tokens.next_if_eq(&Token::Mark(',')).is_none()
                    && tokens.peek() != Some(&Token::Mark(')'))
                {
                    return Err(expected(tokens.next(), "',' or ')'"));
                }
            }
        }
        terms.push(Term { name, args });
        match tokens.next() {
            None => return Ok(terms),
            Some(Token::Mark('>')) => {}
            other => return Err(expected(other, "'>'")),
        }
    }
}

fn word(token: Option<Token>, what: &str) -> Result<String, StackError> {
    match token {
        Some(Token::Word(word)) => Ok(word),
        other => Err(expected(other, what)),
    }
}

fn expected(token: Option<Token>, what: &str) -> StackError {
    match token {
        Some(token) => StackError::new(format_args!("{what} is expected where {token} stands")),
        None => StackError::new(format_args!("{what} is missing at the end")),
    }
}

const UNITS: [(u32, &str); 4] = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];

/// A number of bytes: `4096`, `64K`, `256M`, `1G`.
pub(super) fn bytes(text: &str) -> Result<u64, StackError> {
    let wrong = || StackError::new(format_args!("'{text}' is not a size such as 256M"));
    let unit = UNITS.iter().find(|(_, unit)| text.ends_with(unit));
    let (shift, digits) = unit.map_or((0, text), |(shift, _)| (*shift, &text[..text.len() - 1]));
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A number of bytes, in the largest unit that is exact.
pub(super) fn show_bytes(bytes: u64) -> String {
    let exact = |(shift, _): &&(u32, &str)| bytes > 0 && bytes.is_multiple_of(1 << shift);
    match UNITS.iter().find(exact) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A time: `5s`, `100ms`.
pub(super) fn duration(text: &str) -> Result<Duration, StackError> {
    let wrong = || StackError::new(format_args!("'{text}' is not a time such as 5s or 100ms"));
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

/// A time, in seconds if that is exact.
pub(super) fn show_duration(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}
