//! The promises of a file system about crashes, as a value (Figures 3.5 and 3.11 of the
//! Featherstitch/BPFS dissertation). The guarantee table, the manual page and the crash
//! explorer all read it.

use serde::Serialize;

/// The time at which the effects of a call are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Never promised.
    None,
    /// Within this number of seconds, or at fsync.
    Interval(u32),
    /// When fsync (or sync) returns.
    AtFsync,
    /// When the call returns.
    AtReturn,
}

/// The largest unit that a crash leaves either old or new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Atomicity {
    /// Nothing is promised.
    None,
    /// Aligned words of 8 bytes.
    Word,
    /// Blocks of the file system.
    Block,
    /// The whole call.
    Call,
    /// All calls since the last checkpoint, together.
    Checkpoint,
}

/// The order in which the effects of calls become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// In any order.
    None,
    /// In call order, among the calls of one thread.
    PerThread,
    /// In call order.
    Global,
}

/// The promises of a mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Guarantees {
    /// Engine and mode, such as `bpfs` or `bpfs (mode=sp)`.
    pub name: String,
    /// The time at which effects are durable.
    pub durable: Durability,
    /// Atomicity of metadata.
    pub metadata_atomic: Atomicity,
    /// Atomicity of file data.
    pub data_atomic: Atomicity,
    /// Order of metadata changes.
    pub metadata_ordered: Ordering,
    /// Order of data changes.
    pub data_ordered: Ordering,
    /// Whether time stamps change in the same atomic step as the call. If not, each is
    /// old or new by itself.
    pub times_atomic: bool,
    /// Further facts for users, one sentence each.
    pub notes: Vec<String>,
}

impl Guarantees {
    /// The guarantees of a file system that promises nothing.
    pub fn none(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            durable: Durability::None,
            metadata_atomic: Atomicity::None,
            data_atomic: Atomicity::None,
            metadata_ordered: Ordering::None,
            data_ordered: Ordering::None,
            times_atomic: false,
            notes: Vec::new(),
        }
    }
}

/// The table of Figures 3.5 and 3.11: one row for each file system, in plain text. The columns
/// `Block` and `Call` are of data: whether a block, and whether a whole call, is atomic.
/// `together`: all calls since the last checkpoint are one atomic unit.
pub fn table(rows: &[Guarantees]) -> String {
    let name_width = rows.iter().map(|row| row.name.chars().count()).max();
    let width = name_width.unwrap_or(0).max("File system".len());
    let mut out = format!(
        "{:width$}  Durable   Atomic                 Ordered\n\
         {:width$}            Metadata  Block  Call  Metadata  Data\n",
        "File system", ""
    );
    for row in rows {
        let line = format!(
            "{:width$}  {:8}  {:8}  {:5}  {:4}  {:8}  {}",
            row.name,
            row.durable.to_string(),
            whole_calls(row.metadata_atomic),
            mark(row.data_atomic >= Atomicity::Block),
            mark(row.data_atomic >= Atomicity::Call),
            row.metadata_ordered,
            row.data_ordered,
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn whole_calls(atomic: Atomicity) -> &'static str {
    match atomic {
        Atomicity::Checkpoint => "together",
        Atomicity::Call => mark(true),
        Atomicity::None | Atomicity::Word | Atomicity::Block => mark(false),
    }
}

fn mark(yes: bool) -> &'static str {
    if yes { "yes" } else { "–" }
}

impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("–"),
            Self::Interval(secs) => write!(f, "in {secs} s"),
            Self::AtFsync => f.write_str("at fsync"),
            Self::AtReturn => f.write_str("yes"),
        }
    }
}

impl std::fmt::Display for Ordering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::None => "–",
            Self::PerThread => "thread",
            Self::Global => "yes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str) -> Guarantees {
        Guarantees {
            name: name.into(),
            durable: Durability::AtReturn,
            metadata_atomic: Atomicity::Call,
            data_atomic: Atomicity::Call,
            metadata_ordered: Ordering::Global,
            data_ordered: Ordering::Global,
            times_atomic: true,
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_table_lines_up() {
        let weak = Guarantees {
            durable: Durability::Interval(5),
            data_atomic: Atomicity::Block,
            data_ordered: Ordering::None,
            ..row("a longer name")
        };
        let expected = "\
File system    Durable   Atomic                 Ordered
                         Metadata  Block  Call  Metadata  Data
bpfs           yes       yes       yes    yes   yes       yes
a longer name  in 5 s    yes       yes    –     yes       –
waffle         at fsync  together  yes    yes   yes       yes
";
        let waffle = Guarantees {
            durable: Durability::AtFsync,
            metadata_atomic: Atomicity::Checkpoint,
            ..row("waffle")
        };
        assert_eq!(table(&[row("bpfs"), weak, waffle]), expected);
    }
}
