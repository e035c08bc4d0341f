//! Calls after a recovery, and a crash in them.
//!
//! The end of a life is drawn: a power cut, or the end of the server. A killed server leaves all
//! its stores to the next one; those that are not durable stay so. More calls run on the
//! recovered system and on a model of it. The states that a power cut can leave of them are
//! judged as those of any script. They show two kinds of wrong recovery:
//!
//! - remnants that recovery left in place (log records, blocks past the end of a file, orphans)
//!   become visible later;
//! - state that recovery found and built on is lost later.

use crate::choice::{Policy, mix};
use crate::walk::Limits;
use oracle::script::{Script, generate};
use oracle::{ModelFs, Snapshot};
use std::fmt::{self, Display, Formatter, Write};
use vfs::{FileType, Timestamp};

/// Random calls of a second life.
const CALLS: usize = 4;

/// Time at which the second life begins: later than all calls of the first one.
pub(crate) const SECOND_LIFE: Timestamp = Timestamp(1_000_000_000_000_000_000);

/// Bounds of a second life.
pub(crate) fn limits_of(limits: Limits) -> Limits {
    Limits {
        lives: 0,
        moments: 8,
        leaves: limits.leaves.min(16),
        samples: limits.samples.min(4),
        recovery_depth: 0,
        ..limits
    }
}

/// The end of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The server is killed.
    Kill,
    /// The power fails. The policy decides which stores that are not durable are lost.
    Cut(Policy),
}

impl End {
    /// The end that `seed` draws.
    pub(crate) fn of(seed: u64) -> Self {
        match seed % 2 {
            0 => Self::Kill,
            _ => Self::Cut(Policy::Random(seed)),
        }
    }
}

impl Display for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "a kill",
            Self::Cut(_) => "a power cut",
        })
    }
}

/// The seed of life number `life` of a script.
pub(crate) fn seed_of(limits: Limits, life: u64, events: usize) -> u64 {
    let drawn = mix(limits.seed, events as u64);
    // Every other life ends by a kill.
    mix(drawn, life) >> 32 & !1 | (drawn ^ life) & 1
}

/// The calls of a second life. Every file grows, so that data left past its end show; a new file
/// takes space; random calls follow.
pub(crate) fn script_of(seed: u64, found: &ModelFs) -> Result<Script, String> {
    let snapshot = Snapshot::take(found).map_err(|e| e.to_string())?;
    let mut text = String::new();
    for (path, node, _) in snapshot.iter() {
        let path = String::from_utf8_lossy(path);
        if node.kind == FileType::Regular && node.nlink == 1 {
            let size = node.size + 20_000;
            let _ = writeln!(text, "truncate {path} {size}"); // writing to a string cannot fail
        }
    }
    text.push_str("create n 644\nwrite n 0 2500 7\n");
    let calls: Script = text.parse().map_err(|e| format!("calls: {e}"))?;
    Ok(calls.then(&generate::random(seed, CALLS)))
}
