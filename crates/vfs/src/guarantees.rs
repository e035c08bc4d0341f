//! What a file system promises about crashes, as a value (Figures 3.5 and 3.11 of the
//! Featherstitch/BPFS dissertation). The guarantee table, the manual page and the crash
//! explorer all read it from here.

use serde::Serialize;

/// When the effects of a call are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Never promised.
    None,
    /// Within so many seconds, or at fsync.
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
}

/// In which order the effects of calls become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ordering {
    /// Any.
    None,
    /// As called, among the calls of one thread.
    PerThread,
    /// As called.
    Global,
}

/// What a mounted file system promises.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Guarantees {
    /// Engine and mode, such as `bpfs` or `bpfs (mode=sp)`.
    pub name: String,
    /// When effects are durable.
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
    /// What else a user must know, one sentence each.
    pub notes: Vec<String>,
}
