//! Calls that copy data between descriptors. The data are not in the trace.

use super::args::{Args, Flags};
use super::files::move_on;
use super::process::{Description, Location, Target};
use super::state::{Fault, State};
use std::rc::Rc;

type Done = Result<(), Fault>;

/// One end of a copy.
struct End {
    open: Option<Rc<Description>>,
    /// An offset in the call, instead of the one of the open file.
    given: Option<u64>,
}

impl End {
    fn offset(&self) -> u64 {
        let own = self.open.as_ref().map_or(0, |open| open.offset.get());
        self.given.unwrap_or(own)
    }
}

impl State {
    /// `sendfile`, `copy_file_range` and `splice`; `len` is the result.
    pub(super) fn copy_call(&mut self, args: &Args<'_>, name: &str, len: i64) -> Done {
        let (from, to) = match name {
            "sendfile" | "sendfile64" => (self.end(args, 1, Some(2))?, self.end(args, 0, None)?),
            _ => (self.end(args, 0, Some(1))?, self.end(args, 2, Some(3))?),
        };
        self.copied(&from, &to, len.max(0) as u64, name)
    }

    /// `FICLONE` and `FICLONERANGE`.
    pub(super) fn ioctl_call(&mut self, args: &Args<'_>) -> Done {
        let request = args.flags(1);
        if request.mentions("FICLONERANGE") || request.mentions("CLONE_RANGE") {
            return self.clone_range(args);
        }
        if !request.mentions("FICLONE") && !request.mentions("IOC_CLONE") {
            return Ok(());
        }
        let (mut from, mut to) = (self.end(args, 2, None)?, self.end(args, 0, None)?);
        (from.given, to.given) = (Some(0), Some(0));
        let len = match from.open.as_ref().and_then(|open| open.node()) {
            Some(node) => self.size(node),
            None => 0,
        };
        self.copied(&from, &to, len, "ioctl(FICLONE)")
    }

    fn clone_range(&mut self, args: &Args<'_>) -> Done {
        let field = |name| {
            let number = args.field(2, name).and_then(super::args::number);
            let number = number.and_then(|number| u64::try_from(number).ok());
            number.ok_or_else(|| Fault::Skip("ioctl(FICLONERANGE) without its fields".into()))
        };
        let mut to = self.end(args, 0, None)?;
        to.given = Some(field("dest_offset")?);
        let fd = i32::try_from(field("src_fd")?).unwrap_or(-1);
        let from = End {
            open: self.process().and_then(|process| process.open(fd)),
            given: Some(field("src_offset")?),
        };
        let len = match (field("src_length")?, from.open.as_ref()) {
            (0, Some(open)) => open.node().map_or(0, |node| self.size(node)),
            (len, _) => len,
        };
        self.copied(&from, &to, len, "ioctl(FICLONERANGE)")
    }

    fn end(&self, args: &Args<'_>, fd: usize, off: Option<usize>) -> Result<End, Fault> {
        let number = args.fd_number(fd)?;
        let open = self.process().and_then(|process| process.open(number));
        let text = off.map(|off| args.text(off)).unwrap_or_default();
        let given = text.strip_prefix(b"[").map(|text| {
            let end = text.iter().position(|byte| *byte == b']');
            let number = super::args::number(&text[..end.unwrap_or(text.len())]);
            number
                .and_then(|number| u64::try_from(number).ok())
                .unwrap_or(0)
        });
        Ok(End { open, given })
    }

    fn copied(&mut self, from: &End, to: &End, len: u64, name: &str) -> Done {
        let off = from.offset();
        if let (None, Some(open)) = (from.given, &from.open) {
            move_on(open, len);
        }
        let Some(open) = &to.open else {
            return Ok(());
        };
        if matches!(open.target, Target::At(Location::Outside(_))) || len == 0 {
            return Ok(());
        }
        let node = from.open.as_ref().and_then(|open| open.node());
        let data = node.filter(|node| self.is_file(*node));
        let data = data.and_then(|node| self.copy(node, off, len));
        match data {
            Some(data) => self.written(open, &data, to.given, no_flags()),
            None => self.missing(open, to, len, name),
        }
    }

    /// Notes data that are not seen, and gives the file its new length.
    fn missing(&mut self, open: &Description, to: &End, len: u64, name: &str) -> Done {
        let path = match (&open.target, open.node()) {
            (Target::Output, _) => "the standard output".to_owned(),
            (_, Some(node)) => self.path(node),
            (_, None) => return Ok(()),
        };
        let note = format!("data that {name} copied from outside of the directory to {path}");
        self.notes.add(note);
        let Some(node) = open.node() else {
            return Ok(());
        };
        let off = match open.append.get() {
            true => self.size(node),
            false => to.offset(),
        };
        let end = off.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| Fault::Skip("the file would be too long".into()))?;
        if to.given.is_none() {
            open.offset.set(end);
        }
        match end > self.size(node) {
            true => self.set_size(node, end),
            false => Ok(()),
        }
    }
}

fn no_flags() -> Flags<'static> {
    Args::new(b"").flags(0)
}
