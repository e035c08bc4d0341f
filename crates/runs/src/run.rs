//! A run on disk: a directory with a header, the calls and their data.
//!
//! `run.json` is the [`Header`], `calls.jsonl` has one [`Entry`] in each line, and `data` has the
//! bytes to which [`Blob`]s refer. A recording that was killed may end inside a line or before its
//! data; the incomplete end is ignored.

use crate::{Blob, Call, Tree};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The version of the format.
const VERSION: u32 = 1;

/// Most bytes of data in a run that is read: it is kept in memory.
const DATA_MAX: u64 = 4 << 30;

/// The way in which a run was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// By the server of a mount.
    Mount,
    /// From the output of strace(1).
    Strace,
}

/// Facts about a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub version: u32,
    /// The way in which it was recorded.
    pub source: Source,
    /// The command, or a description of it.
    pub command: String,
    /// The promise of the file system under the recording, if there was one of ours.
    pub recorded_on: Option<String>,
    /// Number of entries at the begin that make the tree in which the program started.
    pub setup: usize,
    /// Facts that the recording could not see, such as stores through a mapping.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
}

impl Header {
    /// The header of a new run.
    pub fn new(source: Source, command: &str) -> Self {
        Self {
            version: VERSION,
            source,
            command: command.to_owned(),
            recorded_on: None,
            setup: 0,
            unseen: Vec::new(),
        }
    }
}

/// A call, with what a person needs to recognise it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// The call as text, such as `rename('a', 'b')`.
    pub text: String,
    /// The process that made it, such as `sqlite3[123]`; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Whether the kernel wrote pages of a shared mapping. Their time and order are its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_write_back: bool,
}

impl Entry {
    /// An entry of an unknown process.
    pub fn new(call: Call, text: impl Into<String>) -> Self {
        Self {
            call,
            text: text.into(),
            by: String::new(),
            is_write_back: false,
        }
    }
}

/// The reason why a run cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The header, or a line of the calls.
    #[error("{}: line {line}: {what}; record the run again", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// Another version.
    #[error("{}: version {version} of the format is unknown; record the run again", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Too many bytes.
    #[error("{}: {bytes} bytes of data are more than can be explored ({DATA_MAX})", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> RunError + '_ {
    |error| RunError::Io {
        path: path.to_owned(),
        error,
    }
}

const HEADER: &str = "run.json";
const CALLS: &str = "calls.jsonl";
const DATA: &str = "data";

fn write_header(path: &Path, header: &Header) -> Result<(), RunError> {
    let text = serde_json::to_string_pretty(header).map_err(|e| io_at(path)(e.into()))?;
    std::fs::write(path, text + "\n").map_err(io_at(path))
}

/// A run in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Facts about it.
    pub header: Header,
    /// Its calls, those of the setup first.
    pub entries: Vec<Entry>,
    /// The bytes of all writes.
    pub data: Vec<u8>,
}

impl Run {
    /// An empty run.
    pub fn new(header: Header) -> Self {
        Self {
            header,
            entries: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Reads a run.
    ///
    /// # Errors
    /// A file is missing or damaged. Calls that refer to inodes that do not exist are found when
    /// they are [applied](Tree::apply).
    pub fn load(dir: &Path) -> Result<Self, RunError> {
        let header = Self::load_header(&dir.join(HEADER))?;
        let path = dir.join(DATA);
        let bytes = std::fs::metadata(&path).map_err(io_at(&path))?.len();
        if bytes > DATA_MAX {
            return Err(RunError::TooLarge { path, bytes });
        }
        let mut run = Self {
            data: std::fs::read(&path).map_err(io_at(&path))?,
            ..Self::new(header)
        };
        run.load_calls(&dir.join(CALLS))?;
        run.header.setup = run.header.setup.min(run.entries.len());
        // The unmount at the end synchronises everything: that is not the program's.
        while matches!(
            run.entries.last(),
            Some(Entry {
                call: Call::SyncAll,
                ..
            })
        ) {
            run.entries.pop();
        }
        Ok(run)
    }

    /// Names the command of a run that was recorded.
    ///
    /// # Errors
    /// The header cannot be read or written.
    pub fn describe(dir: &Path, command: &str) -> Result<(), RunError> {
        let path = dir.join(HEADER);
        let header = Header {
            command: command.to_owned(),
            ..Self::load_header(&path)?
        };
        write_header(&path, &header)
    }

    fn load_header(path: &Path) -> Result<Header, RunError> {
        let text = std::fs::read_to_string(path).map_err(io_at(path))?;
        let header: Header = serde_json::from_str(&text).map_err(|e| RunError::Syntax {
            path: path.to_owned(),
            line: e.line(),
            what: e.to_string(),
        })?;
        match header.version {
            VERSION => Ok(header),
            version => Err(RunError::Version {
                path: path.to_owned(),
                version,
            }),
        }
    }

    fn load_calls(&mut self, path: &Path) -> Result<(), RunError> {
        let mut lines = BufReader::new(File::open(path).map_err(io_at(path))?);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let len = lines.read_until(b'\n', &mut line).map_err(io_at(path))?;
            if len == 0 || line.last() != Some(&b'\n') {
                break; // the end, or a line that a killed recorder did not finish
            }
            let entry: Entry = serde_json::from_slice(&line).map_err(|e| RunError::Syntax {
                path: path.to_owned(),
                line: number,
                what: e.to_string(),
            })?;
            if self.blob_of(&entry.call).is_none() {
                break; // its data were not written any more
            }
            self.entries.push(entry);
        }
        Ok(())
    }

    /// The bytes of a call, empty for one without data; `None` if they are not there.
    fn blob_of(&self, call: &Call) -> Option<&[u8]> {
        match call {
            Call::Write { data, .. } | Call::Output { data } => {
                let end = data.at.checked_add(data.len)?;
                self.data
                    .get(usize::try_from(data.at).ok()?..usize::try_from(end).ok()?)
            }
            _ => Some(&[]),
        }
    }

    /// The bytes of a blob of this run; empty if it is not in the run.
    pub fn bytes(&self, blob: Blob) -> &[u8] {
        let end = blob.at.saturating_add(blob.len);
        self.data
            .get(blob.at as usize..end as usize)
            .unwrap_or_default()
    }

    /// Keeps data for a call.
    pub fn keep(&mut self, data: &[u8]) -> Blob {
        let at = self.data.len() as u64;
        self.data.extend_from_slice(data);
        Blob {
            at,
            len: data.len() as u64,
        }
    }

    /// Writes the run into a directory, which must not exist or be empty.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), RunError> {
        let mut writer = Writer::new(dir, &self.header)?;
        for entry in &self.entries {
            writer.entry(entry)?;
        }
        writer.data.write_all(&self.data).map_err(io_at(dir))?;
        writer.end(&self.header)
    }

    /// The tree in which the program started.
    ///
    /// # Errors
    /// The first call of the setup that does not fit.
    pub fn start(&self) -> Result<Tree, String> {
        let mut tree = Tree::default();
        for (n, entry) in self.entries[..self.header.setup].iter().enumerate() {
            let applied = tree.apply(&entry.call, &self.data);
            applied.map_err(|e| format!("call {n}: {}: {e}", entry.text))?;
        }
        Ok(tree)
    }
}

/// Writes a run while it is recorded.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    calls: BufWriter<File>,
    data: BufWriter<File>,
    written: u64,
    entries: usize,
}

impl Writer {
    /// Begins a run in a directory, which must not exist or be empty.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn new(dir: &Path, header: &Header) -> Result<Self, RunError> {
        std::fs::create_dir_all(dir).map_err(io_at(dir))?;
        if std::fs::read_dir(dir).map_err(io_at(dir))?.next().is_some() {
            let error = io::Error::other("the directory is not empty; name a new one");
            return Err(io_at(dir)(error));
        }
        let make = |name: &str| {
            let path = dir.join(name);
            File::create_new(&path).map_err(io_at(&path))
        };
        let writer = Self {
            dir: dir.to_owned(),
            calls: BufWriter::new(make(CALLS)?),
            data: BufWriter::new(make(DATA)?),
            written: 0,
            entries: 0,
        };
        writer.header(header)?;
        Ok(writer)
    }

    fn header(&self, header: &Header) -> Result<(), RunError> {
        write_header(&self.dir.join(HEADER), header)
    }

    /// Keeps data for a call.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn keep(&mut self, data: &[u8]) -> Result<Blob, RunError> {
        self.data.write_all(data).map_err(io_at(&self.dir))?;
        let at = self.written;
        self.written += data.len() as u64;
        Ok(Blob {
            at,
            len: data.len() as u64,
        })
    }

    /// Appends a call.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), RunError> {
        let mut line = serde_json::to_vec(entry).map_err(|e| io_at(&self.dir)(e.into()))?;
        line.push(b'\n');
        self.calls.write_all(&line).map_err(io_at(&self.dir))?;
        self.entries += 1;
        Ok(())
    }

    /// Number of calls so far.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether there is no call yet.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Writes everything out, with the header as it is now. More calls may follow.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(&mut self, header: &Header) -> Result<(), RunError> {
        self.data.flush().map_err(io_at(&self.dir))?;
        self.calls.flush().map_err(io_at(&self.dir))?;
        self.header(header)
    }
}
