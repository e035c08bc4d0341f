//! Calls after a recovery, and a crash in them.
//!
//! The end of a life is drawn. It is a power cut, or the end of the server: a killed server
//! leaves all that it has stored to the next one, and what is not durable stays so. More calls
//! run on what is recovered from it, beside a model of that, and the states that a power cut
//! can leave of them are judged as those of any script. So a recovery must not only look
//! right: what it left in place (log records, blocks past the end of a file, orphans) must not
//! come to light later, and what it has found and built on must not be lost.

use crate::choice::{Policy, mix};
use crate::walk::Limits;
use oracle::script::{Script, generate};
use oracle::{ModelFs, Snapshot};
use std::fmt::{self, Display, Formatter, Write};
use vfs::{FileType, Timestamp};

/// Random calls of a second life.
const CALLS: usize = 4;

/// When the second life begins: later than all calls of the first one.
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

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The server is killed.
    Kill,
    /// The power fails: what is not durable is lost or not, as this says.
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

/// The calls of a second life: every file grows, so that what was left past its end shows, a
/// new one takes space, and random ones follow.
pub(crate) fn script_of(seed: u64, found: &ModelFs) -> Result<Script, String> {
    let snapshot = Snapshot::take(found).map_err(|e| e.to_string())?;
    let mut text = String::new();
    for (path, node, _) in snapshot.iter() {
        let path = String::from_utf8_lossy(path);
        if node.kind == FileType::Regular && node.nlink == 1 {
            let size = node.size + 20_000;
            let _ = writeln!(text, "truncate {path} {size}"); // a string takes it
        }
    }
    text.push_str("create n 644\nwrite n 0 2500 7\n");
    let calls: Script = text.parse().map_err(|e| format!("calls: {e}"))?;
    Ok(calls.then(&generate::random(seed, CALLS)))
}
