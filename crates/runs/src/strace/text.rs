//! The lines of the output of strace(1), and the calls in them.

use std::borrow::Cow;
use std::collections::HashMap;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Returned {
    /// Success, with the value.
    Value(i64),
    /// An error, or a call that the kernel restarts.
    Failed,
    /// No result: the process ended in the call, or the call does not return.
    Unknown,
}

/// A complete call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Syscall<'a> {
    pub(super) name: Cow<'a, str>,
    /// The text between the parentheses.
    pub(super) args: Cow<'a, [u8]>,
    pub(super) returned: Returned,
    /// Index of the event at which it began, if other events came between.
    pub(super) begun: Option<usize>,
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What<'a> {
    /// The begin of a call whose result comes later, with its text so far.
    Begin { name: &'a str, args: &'a [u8] },
    /// A call with its result.
    Call(Syscall<'a>),
    /// The end of the process.
    Exit,
    /// Another thread called `execve`, and takes this number.
    Superseded { by: u32 },
}

/// A line that is a call, a part of one, or the end of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Number of the line, from 1.
    pub(super) line: usize,
    /// Number of the thread; 0 if the trace has none.
    pub(super) pid: u32,
    pub(super) what: What<'a>,
}

/// A line that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Skipped {
    pub(super) line: usize,
    pub(super) what: &'static str,
}

/// Splits a trace into events. An incomplete last line is left out without a fault: strace was
/// killed.
pub(super) fn events(trace: &[u8]) -> (Vec<Event<'_>>, Vec<Skipped>) {
    let mut reader = Reader::default();
    let is_complete = trace.last() == Some(&b'\n');
    let lines: Vec<&[u8]> = trace.split(|byte| *byte == b'\n').collect();
    let count = lines.len();
    for (n, line) in lines.into_iter().enumerate() {
        if line.is_empty() || (n + 1 == count && !is_complete) {
            continue;
        }
        reader.line = n + 1;
        if let Err(what) = reader.read(line) {
            let line = reader.line;
            reader.skipped.push(Skipped { line, what });
        }
    }
    (reader.events, reader.skipped)
}

#[derive(Default)]
struct Reader<'a> {
    line: usize,
    events: Vec<Event<'a>>,
    skipped: Vec<Skipped>,
    /// Calls that have begun: the index of the event, and the text from the name on.
    pending: HashMap<u32, (usize, &'a [u8])>,
}

const UNFINISHED: &[u8] = b"<unfinished ...>";

impl<'a> Reader<'a> {
    fn read(&mut self, line: &'a [u8]) -> Result<(), &'static str> {
        let (pid, rest) = prefix(line);
        match rest {
            [b'-', b'-', b'-', ..] | [b'[', b' ', ..] => Ok(()), // a signal, or a remark
            [b'+', b'+', b'+', rest @ ..] => {
                self.ended(pid, rest);
                Ok(())
            }
            [b'<', b'.', b'.', b'.', b' ', rest @ ..] => self.resumed(pid, rest),
            _ if rest.trim_ascii_end().ends_with(UNFINISHED) => self.begun(pid, rest),
            _ => {
                let call = complete(Cow::Borrowed(rest), None)?;
                self.push(pid, What::Call(call));
                Ok(())
            }
        }
    }

    fn push(&mut self, pid: u32, what: What<'a>) {
        let line = self.line;
        self.events.push(Event { line, pid, what });
    }

    fn ended(&mut self, pid: u32, rest: &'a [u8]) {
        let rest = rest.trim_ascii();
        let by = rest.strip_prefix(b"superseded by execve in pid ");
        let what = match by.and_then(leading_number) {
            Some((by, _)) => {
                let by = u32::try_from(by).unwrap_or_default();
                if let Some(begun) = self.pending.remove(&by) {
                    self.pending.insert(pid, begun);
                }
                What::Superseded { by }
            }
            None if rest.starts_with(b"exited") || rest.starts_with(b"killed") => {
                self.pending.remove(&pid);
                What::Exit
            }
            None => return,
        };
        self.push(pid, what);
    }

    fn begun(&mut self, pid: u32, rest: &'a [u8]) -> Result<(), &'static str> {
        let rest = rest.trim_ascii_end();
        let text = rest[..rest.len() - UNFINISHED.len()].trim_ascii_end();
        let (name, args) = name_of(text).ok_or("a call without a name")?;
        self.pending.insert(pid, (self.events.len(), text));
        self.push(pid, What::Begin { name, args });
        Ok(())
    }

    fn resumed(&mut self, pid: u32, rest: &'a [u8]) -> Result<(), &'static str> {
        const RESUMED: &[u8] = b" resumed>";
        let at = rest.windows(RESUMED.len()).position(|w| w == RESUMED);
        let at = at.ok_or("a resumed call without a name")?;
        let begun = self.pending.remove(&pid);
        let (index, text) = begun.ok_or("the end of a call whose begin is not in the trace")?;
        let (name, _) = name_of(text).ok_or("a call without a name")?;
        // A call that the kernel restarts has the name of the restart.
        if name.as_bytes() != &rest[..at] && &rest[..at] != b"restart_syscall" {
            return Err("the end of another call than the one that began");
        }
        let mut joined = text.to_vec();
        joined.extend_from_slice(&rest[at + RESUMED.len()..]);
        let call = complete(Cow::Owned(joined), Some(index))?;
        self.push(pid, What::Call(call));
        Ok(())
    }
}

/// The number of the thread, and the line after it and after a time stamp.
fn prefix(line: &[u8]) -> (u32, &[u8]) {
    let (mut pid, mut rest) = (0, line.trim_ascii_start());
    let number = match rest.strip_prefix(b"[pid") {
        Some(inner) => leading_number(inner.trim_ascii_start())
            .and_then(|(number, rest)| Some((number, rest.strip_prefix(b"]")?))),
        None => leading_number(rest),
    };
    if let Some((number, after)) = number
        && let (Ok(number), Some(b' ')) = (u32::try_from(number), after.first())
    {
        (pid, rest) = (number, after.trim_ascii_start());
    }
    let is_time = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b':' | b'.');
    let len = rest.iter().take_while(|byte| is_time(byte)).count();
    if len > 0 && rest.get(len) == Some(&b' ') {
        rest = rest[len..].trim_ascii_start();
    }
    (pid, rest)
}

/// A decimal number, and the text after it.
pub(super) fn leading_number(text: &[u8]) -> Option<(i64, &[u8])> {
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..len]).ok()?.parse().ok()?;
    Some((number, &text[len..]))
}

/// The name of a call, and the text after its parenthesis.
fn name_of(text: &[u8]) -> Option<(&str, &[u8])> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let name = std::str::from_utf8(&text[..open]).ok()?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some((name, &text[open + 1..]))
}

/// A call with its result, of the text from the name on.
fn complete(text: Cow<'_, [u8]>, begun: Option<usize>) -> Result<Syscall<'_>, &'static str> {
    let (name, args) = name_of(&text).ok_or("neither a call nor a signal")?;
    let close = args.len() - rest_after_list(args).ok_or("a call without its end")?.len();
    let returned = returned(&args[close..]).ok_or("a call without a result")?;
    let (at, name_len) = (name.len() + 1, name.len());
    let to = at + close - 1;
    Ok(match text {
        Cow::Borrowed(text) => Syscall {
            name: String::from_utf8_lossy(&text[..name_len]),
            args: Cow::Borrowed(&text[at..to]),
            returned,
            begun,
        },
        Cow::Owned(text) => Syscall {
            name: Cow::Owned(String::from_utf8_lossy(&text[..name_len]).into_owned()),
            args: Cow::Owned(text[at..to].to_vec()),
            returned,
            begun,
        },
    })
}

/// The result in `   = 3</a/file>`.
fn returned(text: &[u8]) -> Option<Returned> {
    let text = text.trim_ascii_start().strip_prefix(b"=")?.trim_ascii();
    if let Some(rest) = text.strip_prefix(b"?") {
        let restarts = rest.trim_ascii_start().starts_with(b"ERESTART");
        return Some(match restarts {
            true => Returned::Failed,
            false => Returned::Unknown,
        });
    }
    if text.starts_with(b"-") {
        return Some(Returned::Failed);
    }
    if let Some(hex) = text.strip_prefix(b"0x") {
        let len = hex.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let digits = std::str::from_utf8(&hex[..len]).ok()?;
        let value = u64::from_str_radix(digits, 16).ok()?;
        return Some(Returned::Value(value as i64));
    }
    let (value, rest) = leading_number(text)?;
    // A process in another name space of process numbers: "2 /* 123 in strace's PID NS */".
    let outer = rest.trim_ascii_start().strip_prefix(b"/* ");
    let outer = outer.and_then(leading_number);
    let outer = outer.filter(|(_, rest)| rest.starts_with(b" in strace's PID NS"));
    Some(Returned::Value(outer.map_or(value, |(outer, _)| outer)))
}

/// The text after the parenthesis that closes a list; `None` without that parenthesis.
fn rest_after_list(text: &[u8]) -> Option<&[u8]> {
    let mut end = None;
    scan(text, &mut |at, byte| {
        if byte == b')' {
            end = Some(at + 1);
        }
        end.is_none()
    });
    end.map(|end| &text[end..])
}

/// The elements of a list, which may be in brackets or braces.
pub(super) fn elements(text: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let mut from = 0;
    scan(text, &mut |at, byte| {
        if byte == b',' {
            found.push(text[from..at].trim_ascii());
            from = at + 1;
        }
        byte == b','
    });
    let last = text[from..].trim_ascii();
    if !last.is_empty() || !found.is_empty() {
        found.push(last);
    }
    found
}

/// Reports commas and closing brackets that are in no inner brackets, string or comment, until
/// `report` returns false.
fn scan(text: &[u8], report: &mut dyn FnMut(usize, u8) -> bool) {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at),
            b'/' if text.get(at + 1) == Some(&b'*') => at = comment_end(text, at),
            b'<' if is_annotation(text, at) => at = annotation_end(text, at),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth > 0 => depth -= 1,
            byte @ (b',' | b')' | b']' | b'}') if depth == 0 && !report(at, byte) => return,
            _ => {}
        }
        at += 1;
    }
}

/// The position of the quote that ends a string, or the last position.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < text.len() && text[at] != b'"' {
        at += 1 + usize::from(text[at] == b'\\');
    }
    at
}

fn comment_end(text: &[u8], at: usize) -> usize {
    let end = text[at..].windows(2).position(|two| two == b"*/");
    end.map_or(text.len(), |end| at + end + 1)
}

/// Whether a `<` begins the path of a descriptor (`3</a/file>`).
fn is_annotation(text: &[u8], at: usize) -> bool {
    let before = at.checked_sub(1).map(|at| text[at]);
    let is_shift = text.get(at + 1) == Some(&b'<') || before == Some(b'<');
    let is_after = |byte: u8| byte.is_ascii_digit() || byte == b'D'; // AT_FDCWD
    before.is_some_and(is_after) && !is_shift
}

fn annotation_end(text: &[u8], at: usize) -> usize {
    let mut depth = 0usize;
    for (n, byte) in text.iter().enumerate().skip(at) {
        match byte {
            b'<' => depth += 1,
            b'>' if text[n - 1] != b'-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return n;
        }
    }
    text.len()
}
