//! Text form of scripts.

use super::{Op, Script};
use std::fmt::{self, Display, Formatter};
use std::str::{FromStr, SplitWhitespace};
use vfs::{Fallocate, FileType, RenameFlags, SetTime, Timestamp, XattrMode};

/// The form of each operation, one on a line.
pub const GRAMMAR: &str = "\
create PATH MODE
mkdir PATH MODE
mknod PATH file|fifo|socket|char|block MODE DEVICE
symlink TARGET PATH
link PATH NEW-PATH
unlink PATH
rmdir PATH
rename PATH NEW-PATH replace|noreplace|exchange
write PATH OFFSET LENGTH PATTERN
append PATH LENGTH PATTERN
truncate PATH SIZE
fallocate PATH allocate|allocate-keep|punch|zero|zero-keep OFFSET LENGTH
setxattr PATH NAME LENGTH PATTERN set|create|replace
removexattr PATH NAME
chmod PATH MODE
chown PATH UID|- GID|-
utimens PATH NANOSECONDS|now|- NANOSECONDS|now|-
fsync PATH
fdatasync PATH
fsyncdir PATH
sync
barrier
group NAME
depend LATER-NAME EARLIER-NAME
engage NAME
disengage NAME
pgsync NAME
pgclose NAME
open HANDLE PATH
tmpfile HANDLE DIRECTORY MODE
close HANDLE
";

/// The form of the operation of that name.
fn form(call: &str) -> Option<&'static str> {
    let mut forms = GRAMMAR.lines();
    forms.find(|form| form.split_whitespace().next() == Some(call))
}

/// A line that is not an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// The error in the line.
    pub what: String,
}

const KINDS: [(&str, FileType); 5] = [
    ("file", FileType::Regular),
    ("fifo", FileType::Fifo),
    ("socket", FileType::Socket),
    ("char", FileType::CharDevice),
    ("block", FileType::BlockDevice),
];

const RENAMES: [(&str, RenameFlags); 3] = [
    ("replace", RenameFlags::empty()),
    ("noreplace", RenameFlags::NO_REPLACE),
    ("exchange", RenameFlags::EXCHANGE),
];

const FALLOCATES: [(&str, Fallocate); 5] = [
    ("allocate", Fallocate::Allocate { keep_size: false }),
    ("allocate-keep", Fallocate::Allocate { keep_size: true }),
    ("punch", Fallocate::PunchHole),
    ("zero", Fallocate::ZeroRange { keep_size: false }),
    ("zero-keep", Fallocate::ZeroRange { keep_size: true }),
];

const XATTR_MODES: [(&str, XattrMode); 3] = [
    ("set", XattrMode::Set),
    ("create", XattrMode::Create),
    ("replace", XattrMode::Replace),
];

/// The word for a value of one of the tables above.
fn word<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    let found = table.iter().find(|(_, candidate)| candidate == value);
    found.map_or("?", |(word, _)| word)
}

/// A number, or `-` for none.
struct Maybe(Option<u32>);

impl Display for Maybe {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

struct Time(Option<SetTime>);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(SetTime::At(at)) => at.0.fmt(f),
            Some(SetTime::Now) => f.write_str("now"),
            None => f.write_str("-"),
        }
    }
}

impl Display for Script {
    /// Prints one line per operation, each with a newline.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path, mode } => write!(f, "create {path} {mode:o}"),
            Self::Mkdir { path, mode } => write!(f, "mkdir {path} {mode:o}"),
            Self::Mknod {
                path,
                kind,
                mode,
                rdev,
            } => {
                let kind = word(&KINDS, kind);
                write!(f, "mknod {path} {kind} {mode:o} {rdev}")
            }
            Self::Symlink { target, path } => write!(f, "symlink {target} {path}"),
            Self::Link { from, to } => write!(f, "link {from} {to}"),
            Self::Unlink { path } => write!(f, "unlink {path}"),
            Self::Rmdir { path } => write!(f, "rmdir {path}"),
            Self::Rename { from, to, flags } => {
                write!(f, "rename {from} {to} {}", word(&RENAMES, flags))
            }
            Self::Write {
                path,
                off,
                len,
                seed,
            } => write!(f, "write {path} {off} {len} {seed}"),
            Self::Append { path, len, seed } => write!(f, "append {path} {len} {seed}"),
            Self::Truncate { path, size } => write!(f, "truncate {path} {size}"),
            Self::Fallocate {
                path,
                kind,
                off,
                len,
            } => {
                let kind = word(&FALLOCATES, kind);
                write!(f, "fallocate {path} {kind} {off} {len}")
            }
            Self::SetXattr {
                path,
                name,
                len,
                seed,
                mode,
            } => {
                let mode = word(&XATTR_MODES, mode);
                write!(f, "setxattr {path} {name} {len} {seed} {mode}")
            }
            Self::RemoveXattr { path, name } => write!(f, "removexattr {path} {name}"),
            Self::Chmod { path, mode } => write!(f, "chmod {path} {mode:o}"),
            Self::Chown { path, uid, gid } => {
                write!(f, "chown {path} {} {}", Maybe(*uid), Maybe(*gid))
            }
            Self::Utimens { path, atime, mtime } => {
                write!(f, "utimens {path} {} {}", Time(*atime), Time(*mtime))
            }
            Self::Fsync { path, data_only } => {
                let call = if *data_only { "fdatasync" } else { "fsync" };
                write!(f, "{call} {path}")
            }
            Self::Fsyncdir { path } => write!(f, "fsyncdir {path}"),
            Self::Sync => f.write_str("sync"),
            Self::Barrier => f.write_str("barrier"),
            Self::Tmpfile { handle, dir, mode } => write!(f, "tmpfile {handle} {dir} {mode:o}"),
            Self::Open { handle, path } => write!(f, "open {handle} {path}"),
            Self::Close { handle } => write!(f, "close {handle}"),
            _ => self.fmt_on_group(f),
        }
    }
}

impl Op {
    /// Prints a call on a group.
    fn fmt_on_group(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { name } => write!(f, "group {name}"),
            Self::Depend { later, earlier } => write!(f, "depend {later} {earlier}"),
            Self::Engage { name } => write!(f, "engage {name}"),
            Self::Disengage { name } => write!(f, "disengage {name}"),
            Self::SyncGroup { name } => write!(f, "pgsync {name}"),
            Self::CloseGroup { name } => write!(f, "pgclose {name}"),
            _ => Err(fmt::Error), // `Display` prints the others
        }
    }
}

impl FromStr for Script {
    type Err = ParseError;

    /// Parses a script; `#` starts a comment, empty lines are skipped.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut ops = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                ops.push(line.parse().map_err(|what| ParseError {
                    line: index + 1,
                    what,
                })?);
            }
        }
        Ok(Self { ops })
    }
}

impl FromStr for Op {
    type Err = String;

    /// Parses one line without comment.
    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = Words(line.split_whitespace());
        let op = words.op().and_then(|op| match words.0.next() {
            None => Ok(op),
            Some(word) => Err(format!("`{word}` is one word too many")),
        });
        op.map_err(|what| match line.split_whitespace().next().and_then(form) {
            Some(form) => format!("{what}; the form is: {form}"),
            None => what,
        })
    }
}

/// The words of a line that are still to be read.
struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "a word is missing".into())
    }

    fn text(&mut self) -> Result<String, String> {
        self.next().map(str::to_owned)
    }

    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.next()?;
        word.parse()
            .map_err(|_| format!("`{word}` is not a number"))
    }

    fn octal(&mut self) -> Result<u32, String> {
        let word = self.next()?;
        let mode = u32::from_str_radix(word, 8);
        mode.map_err(|_| format!("`{word}` is not an octal number"))
    }

    fn maybe(&mut self) -> Result<Option<u32>, String> {
        if self.0.clone().next() == Some("-") {
            return self.next().map(|_| None);
        }
        self.number().map(Some)
    }

    fn time(&mut self) -> Result<Option<SetTime>, String> {
        match self.0.clone().next() {
            Some("-") => self.next().map(|_| None),
            Some("now") => self.next().map(|_| Some(SetTime::Now)),
            _ => Ok(Some(SetTime::At(Timestamp(self.number()?)))),
        }
    }

    fn one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Result<T, String> {
        let word = self.next()?;
        let found = table.iter().find(|(candidate, _)| *candidate == word);
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| format!("unexpected word `{word}`"))
    }

    /// Parses an operation. Fields are read in the order of the expressions.
    fn op(&mut self) -> Result<Op, String> {
        Ok(match self.next()? {
            "create" => Op::Create {
                path: self.text()?,
                mode: self.octal()?,
            },
            "mkdir" => Op::Mkdir {
                path: self.text()?,
                mode: self.octal()?,
            },
            "mknod" => Op::Mknod {
                path: self.text()?,
                kind: self.one_of(&KINDS)?,
                mode: self.octal()?,
                rdev: self.number()?,
            },
            "symlink" => Op::Symlink {
                target: self.text()?,
                path: self.text()?,
            },
            "link" => Op::Link {
                from: self.text()?,
                to: self.text()?,
            },
            "unlink" => Op::Unlink { path: self.text()? },
            "rmdir" => Op::Rmdir { path: self.text()? },
            "rename" => Op::Rename {
                from: self.text()?,
                to: self.text()?,
                flags: self.one_of(&RENAMES)?,
            },
            "open" => Op::Open {
                handle: self.number()?,
                path: self.text()?,
            },
            "tmpfile" => Op::Tmpfile {
                handle: self.number()?,
                dir: self.text()?,
                mode: self.octal()?,
            },
            "close" => Op::Close {
                handle: self.number()?,
            },
            "sync" => Op::Sync,
            "barrier" => Op::Barrier,
            call => match self.op_on_group(call)? {
                Some(op) => op,
                None => self.op_on_inode(call)?,
            },
        })
    }

    fn op_on_group(&mut self, call: &str) -> Result<Option<Op>, String> {
        Ok(Some(match call {
            "group" => Op::Group { name: self.text()? },
            "depend" => Op::Depend {
                later: self.text()?,
                earlier: self.text()?,
            },
            "engage" => Op::Engage { name: self.text()? },
            "disengage" => Op::Disengage { name: self.text()? },
            "pgsync" => Op::SyncGroup { name: self.text()? },
            "pgclose" => Op::CloseGroup { name: self.text()? },
            _ => return Ok(None),
        }))
    }

    fn op_on_inode(&mut self, call: &str) -> Result<Op, String> {
        Ok(match call {
            "write" => Op::Write {
                path: self.text()?,
                off: self.number()?,
                len: self.number()?,
                seed: self.number()?,
            },
            "append" => Op::Append {
                path: self.text()?,
                len: self.number()?,
                seed: self.number()?,
            },
            "truncate" => Op::Truncate {
                path: self.text()?,
                size: self.number()?,
            },
            "fallocate" => Op::Fallocate {
                path: self.text()?,
                kind: self.one_of(&FALLOCATES)?,
                off: self.number()?,
                len: self.number()?,
            },
            "setxattr" => Op::SetXattr {
                path: self.text()?,
                name: self.text()?,
                len: self.number()?,
                seed: self.number()?,
                mode: self.one_of(&XATTR_MODES)?,
            },
            "removexattr" => Op::RemoveXattr {
                path: self.text()?,
                name: self.text()?,
            },
            "chmod" => Op::Chmod {
                path: self.text()?,
                mode: self.octal()?,
            },
            "chown" => Op::Chown {
                path: self.text()?,
                uid: self.maybe()?,
                gid: self.maybe()?,
            },
            "utimens" => Op::Utimens {
                path: self.text()?,
                atime: self.time()?,
                mtime: self.time()?,
            },
            "fsync" | "fdatasync" => Op::Fsync {
                path: self.text()?,
                data_only: call == "fdatasync",
            },
            "fsyncdir" => Op::Fsyncdir { path: self.text()? },
            _ => return Err(format!("`{call}` is not an operation")),
        })
    }
}
