//! Lines flushed, fences and bytes of calls that share a write-back: SoupFS beside BPFS.
//!
//! Each figure stands for itself: a new image in memory, what the calls need, a sync; then one call
//! or many of them, and a sync. All that reaches the [`Pmem`](medium::Pmem) layer after the first
//! sync counts, the work of persisters included, which run in the sync alone. The clock is scripted,
//! so that figures repeat exactly.

use crate::bytes::Hand;
use crate::error::{Context, Result};
use crate::table::Grid;
use crate::{Engine, images};
use engine::{Scratch, ScratchOptions};
use medium::{Counting, MemoryPmem};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use vfs::{Ino, ManualClock, Name, RenameFlags, SetAttr, Timestamp};

/// Bytes of an append.
const APPEND: u64 = 64;
/// Bytes of an overwrite.
const BLOCK: u64 = 4096;

/// The options of the count.
#[derive(Debug, Clone)]
pub struct Options {
    /// Engines.
    pub types: Vec<Engine>,
    /// Calls that share a write-back.
    pub calls: u32,
}

impl Default for Options {
    /// 1,000 calls on SoupFS and BPFS.
    fn default() -> Self {
        let types = ["soupfs", "bpfs"];
        Self {
            types: types.iter().filter_map(|name| name.parse().ok()).collect(),
            calls: 1000,
        }
    }
}

/// One kind of calls on one engine. Figures are averages of a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine.
    pub target: String,
    /// The call.
    pub op: &'static str,
    /// Calls before the sync.
    pub calls: u32,
    /// Lines of 64 bytes that were flushed.
    pub lines: f64,
    /// Fences.
    pub fences: f64,
    /// Bytes stored, through the cache and around it.
    pub bytes: f64,
}

/// The table. As JSON, the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// Each call on each engine, alone and shared.
    pub rows: Vec<Row>,
}

/// Counts.
///
/// # Errors
/// If a call fails.
pub fn run(options: &Options) -> Result<Report> {
    let mut rows = Vec::new();
    for op in Op::ALL {
        for engine in &options.types {
            rows.push(measure(op, *engine, 1)?);
            rows.push(measure(op, *engine, options.calls)?);
        }
    }
    Ok(Report { rows })
}

fn measure(op: Op, engine: Engine, calls: u32) -> Result<Row> {
    let pm = Arc::new(Counting::new(MemoryPmem::new(images::IMAGE_BYTES)));
    let options = ScratchOptions {
        clock: Arc::new(ManualClock::new(Timestamp(1 << 60), 1000)),
        writes_back_alone: false,
        ..ScratchOptions::default()
    };
    let fs = engine.fresh_on(Scratch::Any(pm.clone()), &options)?;
    let hand = Hand::new(&*fs);
    let failed = || format!("{} on {engine}", op.name());
    prepare(&hand, op, calls).what(failed)?;
    fs.sync().what(failed)?;
    let before = pm.snapshot();
    (0..calls)
        .try_for_each(|n| perform(&hand, op, n))
        .what(failed)?;
    fs.sync().what(failed)?;
    let counts = pm.snapshot() - before;
    let average = |count: u64| count as f64 / f64::from(calls);
    Ok(Row {
        target: engine.to_string(),
        op: op.name(),
        calls,
        lines: average(counts.flushed_lines),
        fences: average(counts.fences),
        bytes: average(counts.bytes()),
    })
}

/// A call, or a pair of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Create,
    Mkdir,
    Link,
    Rename,
    Unlink,
    Rmdir,
    Chmod,
    Append,
    Overwrite,
    CreateAndUnlink,
}

impl Op {
    const ALL: [Self; 10] = [
        Self::Create,
        Self::Mkdir,
        Self::Link,
        Self::Rename,
        Self::Unlink,
        Self::Rmdir,
        Self::Chmod,
        Self::Append,
        Self::Overwrite,
        Self::CreateAndUnlink,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Mkdir => "mkdir",
            Self::Link => "link",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Chmod => "chmod",
            Self::Append => "append of 64 B",
            Self::Overwrite => "overwrite of 4 KiB",
            Self::CreateAndUnlink => "create and unlink",
        }
    }
}

fn numbered(n: u32) -> Vec<u8> {
    format!("name-{n}").into_bytes()
}

/// Makes what as many calls need.
fn prepare(hand: &Hand<'_>, op: Op, calls: u32) -> vfs::Result<()> {
    let file = |n| hand.file(Ino::ROOT, &numbered(n), 0);
    match op {
        Op::Create | Op::Mkdir | Op::CreateAndUnlink => Ok(()),
        Op::Link | Op::Rename | Op::Unlink | Op::Chmod => (0..calls).try_for_each(file),
        Op::Rmdir => (0..calls).try_for_each(|n| hand.dir(Ino::ROOT, &numbered(n))),
        Op::Append => file(0),
        Op::Overwrite => hand.file(Ino::ROOT, &numbered(0), BLOCK * u64::from(calls)),
    }
}

/// The call with this number.
fn perform(hand: &Hand<'_>, op: Op, n: u32) -> vfs::Result<()> {
    let Hand { fs, cx } = hand;
    let (root, name) = (Ino::ROOT, numbered(n));
    let write = |len| {
        hand.with(&numbered(0), |ino| {
            hand.write(ino, len * u64::from(n), len, 2)
        })
    };
    match op {
        Op::Create => hand.file(root, &name, 0),
        Op::Mkdir => hand.dir(root, &name),
        Op::Link => hand.with(&name, |ino| hand.link(ino, format!("link-{n}").as_bytes())),
        Op::Rename => {
            let new = format!("new-{n}");
            let [from, to] = [&name, new.as_bytes()].map(|name| Name::new(root, name));
            fs.rename(cx, from, to, RenameFlags::empty())
        }
        Op::Unlink => fs.unlink(cx, root, &name),
        Op::Rmdir => fs.rmdir(cx, root, &name),
        Op::Chmod => hand.with(&name, |ino| {
            let set = SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            };
            fs.setattr(cx, ino, &set).map(drop)
        }),
        Op::Append => write(APPEND),
        Op::Overwrite => write(BLOCK),
        Op::CreateAndUnlink => {
            hand.file(root, &name, 0)?;
            fs.unlink(cx, root, &name)
        }
    }
}

impl Report {
    /// A row for each call and engine: alone, then shared.
    fn grid(&self) -> Grid {
        let calls = self.rows.iter().map(|row| row.calls).max().unwrap_or(1);
        let heads = ["lines", "fences", "bytes"];
        let shared = heads.map(|head| format!("{head} of {calls}"));
        let mut all = vec!["call".to_owned(), "target".to_owned()];
        all.extend(heads.iter().map(|head| format!("{head}, alone")));
        all.extend(shared);
        let rows = self.rows.chunks(2).map(|pair| {
            let names = [pair[0].op.to_owned(), pair[0].target.clone()];
            let figures = pair
                .iter()
                .flat_map(|row| [row.lines, row.fences, row.bytes]);
            let figures = figures.map(|figure| format!("{figure:.2}"));
            names.into_iter().chain(figures).collect()
        });
        Grid {
            heads: all,
            rows: rows.collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = "Averages of a call, with the sync after one call and after many; smaller is better.\n\
                     A line has 64 bytes, and is counted at each flush.";
        write!(f, "{about}\n\n{}", self.grid().text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The point of soft updates: calls share fences, and lines where they have some in common.
    #[test]
    fn calls_of_soupfs_that_share_a_write_back_hardly_fence() {
        let report = run(&Options {
            calls: 200,
            ..Options::default()
        })
        .unwrap();
        assert_eq!(report.rows.len(), Op::ALL.len() * 4);
        for pair in report.rows.chunks(2) {
            let [alone, shared] = pair else { panic!("two") };
            assert_eq!((alone.calls, shared.calls), (1, 200));
            if alone.target == "soupfs" {
                assert!(shared.lines <= alone.lines, "{alone:?} {shared:?}");
                assert!(shared.fences < 0.5, "{shared:?}");
            } else {
                assert!(shared.fences >= 1.0, "{shared:?}");
            }
        }
    }

    #[test]
    fn what_cancels_costs_the_medium_nothing() {
        let report = run(&Options::default()).unwrap();
        let is_pair = |row: &&Row| row.target == "soupfs" && row.op == "create and unlink";
        let pair = report.rows.iter().rfind(is_pair).unwrap();
        assert!(pair.lines < 0.1, "{pair:?}");
    }

    #[test]
    fn counts_repeat() {
        let options = Options {
            calls: 50,
            ..Options::default()
        };
        assert_eq!(run(&options).unwrap(), run(&options).unwrap());
    }
}
