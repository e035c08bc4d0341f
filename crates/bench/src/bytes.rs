//! Bytes written per system call by BPFS: Figure 3.8 of the dissertation, ours beside the paper's.
//!
//! Only BPFS has published figures. The columns are its modes, and the engine that has all of
//! these modes is measured.
//!
//! Each row stands for itself: a fresh 64 MiB image in memory, what the row needs, a new
//! mount, then one call. Every byte that reaches the [`Pmem`](medium::Pmem) layer from the
//! end of the mount to the end of the call (the caller's last reference given back)
//! counts, unchanged ones and time stamps too. The clock is scripted, so that figures
//! repeat exactly.

use crate::error::{Context, Error, Result};
use crate::paper::{Call, FIGURE_3_8, RenameTo, Row as Published};
use crate::table::{self, Grid};
use crate::{Engine, names};
use engine::{Scratch, ScratchOptions};
use medium::{Counting, MemoryPmem};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use vfs::{
    Atime, Cookie, Ctx, FileSystem, Ino, ManualClock, Name, OpenFlags, RenameFlags, SetAttr,
    Timestamp,
};

/// Size of the images.
const IMAGE_BYTES: u64 = 64 << 20;

/// Longest single write when preparing, that of the paper's longest call.
const CHUNK: u64 = 128 << 10;

/// The time at which the image was made, in 2026. No byte of it is zero, and the calls of a row
/// stay in its window of 2^32 ns.
const START: Timestamp = Timestamp(0x18ba_5a3c_1726_3546);

/// The step of the clock at each reading, so that every stamp changes three bytes.
const STEP_NS: i64 = 1_234_567;

/// The time of the call for the column `far`: every byte of every stamp changes.
const FAR: Timestamp = Timestamp(START.0 + 0x0101_0101_0101_0101);

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    /// Shadow paging to the root.
    Sp,
    /// With short-circuit commits.
    Sc,
    /// With in-place appends or independent time updates, whichever writes less.
    AOrT,
    /// With both.
    AAndT,
    /// With all optimisations of the paper.
    Other,
    /// With all and the redo log: ours.
    Log,
}

impl Column {
    /// All columns, in the figure's order.
    pub const ALL: [Column; 6] = [
        Column::Sp,
        Column::Sc,
        Column::AOrT,
        Column::AAndT,
        Column::Other,
        Column::Log,
    ];

    /// The modes that the column is the minimum of.
    fn modes(self) -> &'static [&'static str] {
        match self {
            Column::Sp => &["sp"],
            Column::Sc => &["sc"],
            Column::AOrT => &["a", "t"],
            Column::AAndT => &["at"],
            Column::Other => &["other"],
            Column::Log => &["log"],
        }
    }

    fn published(self, row: &Published) -> Option<u64> {
        match self {
            Column::Sp => Some(row.sp),
            Column::Sc => Some(row.sc),
            Column::AOrT => Some(row.aort),
            Column::AAndT => Some(row.aandt),
            Column::Other => Some(row.other),
            Column::Log => None,
        }
    }

    fn head(self) -> &'static str {
        match self {
            Column::Sp => "SP",
            Column::Sc => "+SC",
            Column::AOrT => "A or T",
            Column::AAndT => "A and T",
            Column::Other => "+Other",
            Column::Log => "+Log",
        }
    }
}

/// The engine with all modes of the figure, alone and in each of its modes. Empty if the list of
/// engines has none.
pub fn engines() -> Vec<Engine> {
    let modes = Column::ALL.map(Column::modes).concat();
    Engine::with_modes(&modes).map_or_else(Vec::new, Engine::with_each_mode)
}

/// The options of the count.
#[derive(Debug, Clone)]
pub struct Options {
    /// The columns to fill.
    pub columns: Vec<Column>,
}

impl Options {
    /// All columns of an engine, or the one of the mode that was chosen.
    ///
    /// # Errors
    /// For an engine that has no published figures to stand beside.
    pub fn of(engine: Engine) -> Result<Self> {
        let known = engines();
        if !known.contains(&engine) {
            let known = names(&known);
            let why = format!("bytes are counted for: {known}; not for {engine}");
            return Err(Error::Usage(why));
        }
        let chosen = |c: &Column| engine.mode().is_none_or(|mode| c.modes().contains(&mode));
        Ok(Self {
            columns: Column::ALL.into_iter().filter(chosen).collect(),
        })
    }
}

impl Default for Options {
    /// All columns.
    fn default() -> Self {
        Self {
            columns: Column::ALL.to_vec(),
        }
    }
}

/// One call in one column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The row of the figure.
    pub op: &'static str,
    /// The column.
    pub mode: Column,
    /// Bytes that we wrote.
    pub bytes: u64,
    /// Bytes in the paper; `None` where it has no such column.
    pub paper: Option<u64>,
    /// Bytes when the time stamps that are replaced lie seconds back.
    pub bytes_far: u64,
    /// For `aort`, the mode that wrote less, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helped: Option<&'static str>,
}

/// The table. As JSON, the rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// Every call in every column asked for.
    pub rows: Vec<Row>,
}

/// Counts.
///
/// # Errors
/// If a call fails.
pub fn run(options: &Options) -> Result<Report> {
    let mut rows = Vec::new();
    for published in &FIGURE_3_8 {
        for column in &options.columns {
            rows.push(measure(published, *column)?);
        }
    }
    Ok(Report { rows })
}

fn measure(published: &Published, column: Column) -> Result<Row> {
    let mut near = Vec::new();
    let mut far = Vec::new();
    for mode in column.modes() {
        near.push(bytes_of(published.call, mode, false)?);
        far.push(bytes_of(published.call, mode, true)?);
    }
    let helped = match near[..] {
        [a, t] if a < t => Some("a"),
        [a, t] if t < a => Some("t"),
        _ => None,
    };
    let least = |bytes: Vec<u64>| bytes.into_iter().min().unwrap_or_default();
    Ok(Row {
        op: published.op,
        mode: column,
        bytes: least(near),
        paper: column.published(published),
        bytes_far: least(far),
        helped,
    })
}

/// Bytes that one call writes in one mode, soon or long after the preparing calls.
fn bytes_of(call: Call, mode: &str, is_far: bool) -> Result<u64> {
    let pm = Arc::new(Counting::new(MemoryPmem::new(IMAGE_BYTES)));
    let clock = Arc::new(ManualClock::new(Timestamp(START.0 + STEP_NS), STEP_NS));
    let mut all = engines().into_iter();
    let engine = all.find(|engine| engine.mode() == Some(mode));
    let engine = engine.ok_or_else(|| Error::Usage(format!("no engine has the mode {mode}")))?;
    let options = ScratchOptions {
        clock: clock.clone(),
        atime: Atime::Strict,
        made: START,
        ..ScratchOptions::default()
    };
    let failed = || format!("{call:?} in mode {mode}");
    let fs = engine.fresh_on(Scratch::Any(pm.clone()), &options)?;
    Hand::new(&*fs).prepare(call).what(failed)?;
    drop(fs);
    let fs = engine.reopen(Scratch::Any(pm.clone()), &options)?;
    if is_far {
        clock.set(FAR);
    }
    let before = pm.snapshot();
    Hand::new(&*fs).perform(call).what(failed)?;
    Ok((pm.snapshot() - before).bytes())
}

/// Makes calls, and drops all references. Those of the figure are by one-letter names, as the paper's
/// programs made them.
pub(crate) struct Hand<'a> {
    pub fs: &'a dyn FileSystem,
    pub cx: Ctx,
}

impl<'a> Hand<'a> {
    pub(crate) fn new(fs: &'a dyn FileSystem) -> Self {
        Self {
            fs,
            cx: Ctx::root(),
        }
    }

    /// Makes what a row's call needs.
    fn prepare(&self, call: Call) -> vfs::Result<()> {
        match call {
            Call::Append { size, .. } => self.file(Ino::ROOT, b"a", size),
            Call::Overwrite { .. } => self.file(Ino::ROOT, b"a", 1 << 20),
            Call::Create | Call::Symlink | Call::Mkdir => Ok(()),
            Call::Link | Call::Unlink | Call::Chown | Call::Chmod | Call::Read | Call::Readdir => {
                self.file(Ino::ROOT, b"a", 8)
            }
            Call::UnlinkHardLink => {
                self.file(Ino::ROOT, b"a", 8)?;
                self.with(b"a", |ino| self.link(ino, b"b"))
            }
            Call::UnlinkSymlink => self.symlink(b"a"),
            Call::Rmdir => self.dir(Ino::ROOT, b"a"),
            Call::Rename { is_dir, to } => self.prepare_rename(is_dir, to),
        }
    }

    fn prepare_rename(&self, is_dir: bool, to: RenameTo) -> vfs::Result<()> {
        let make = |parent, name: &[u8]| match is_dir {
            true => self.dir(parent, name),
            false => self.file(parent, name, 8),
        };
        match to {
            RenameTo::Intra => make(Ino::ROOT, b"a"),
            RenameTo::Clobber => make(Ino::ROOT, b"a").and_then(|()| make(Ino::ROOT, b"b")),
            RenameTo::Inter => {
                self.dir(Ino::ROOT, b"a")?;
                self.dir(Ino::ROOT, b"b")?;
                self.with(b"a", |parent| make(parent, b"c"))
            }
        }
    }

    /// The call itself.
    fn perform(&self, call: Call) -> vfs::Result<()> {
        let Self { fs, cx } = self;
        match call {
            Call::Append { size, len } => self.with(b"a", |ino| self.write(ino, size, len, 2)),
            Call::Overwrite { off, len } => self.with(b"a", |ino| self.write(ino, off, len, 2)),
            Call::Create => self.file(Ino::ROOT, b"a", 0),
            Call::Link => self.with(b"a", |ino| self.link(ino, b"b")),
            Call::Symlink => self.symlink(b"a"),
            Call::Mkdir => self.dir(Ino::ROOT, b"a"),
            Call::Unlink | Call::UnlinkSymlink => fs.unlink(cx, Ino::ROOT, b"a"),
            Call::UnlinkHardLink => fs.unlink(cx, Ino::ROOT, b"b"),
            Call::Rmdir => fs.rmdir(cx, Ino::ROOT, b"a"),
            Call::Rename { to, .. } => self.rename(to),
            Call::Chown => self.setattr(SetAttr {
                uid: Some(1),
                gid: Some(1),
                ..SetAttr::default()
            }),
            Call::Chmod => self.setattr(SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            }),
            Call::Read => self.with(b"a", |ino| fs.read(cx, ino, 0, &mut [0; 8]).map(drop)),
            Call::Readdir => self.readdir(),
        }
    }

    fn rename(&self, to: RenameTo) -> vfs::Result<()> {
        let Self { fs, cx } = self;
        let root = Ino::ROOT;
        match to {
            RenameTo::Intra | RenameTo::Clobber => fs.rename(
                cx,
                Name::new(root, b"a"),
                Name::new(root, b"b"),
                RenameFlags::empty(),
            ),
            RenameTo::Inter => self.with(b"a", |from| {
                self.with(b"b", |to| {
                    fs.rename(
                        cx,
                        Name::new(from, b"c"),
                        Name::new(to, b"c"),
                        RenameFlags::empty(),
                    )
                })
            }),
        }
    }

    /// Two calls: one takes all entries, one finds that there are no more.
    fn readdir(&self) -> vfs::Result<()> {
        let mut last = Cookie::default();
        self.fs.open(&self.cx, Ino::ROOT, OpenFlags::READ)?;
        self.fs.readdir(&self.cx, Ino::ROOT, last, &mut |entry| {
            last = entry.cookie;
            true
        })?;
        self.fs.readdir(&self.cx, Ino::ROOT, last, &mut |_| true)?;
        self.fs.release(Ino::ROOT);
        Ok(())
    }

    fn setattr(&self, set: SetAttr) -> vfs::Result<()> {
        self.with(b"a", |ino| self.fs.setattr(&self.cx, ino, &set).map(drop))
    }

    /// Looks a name up in the root and gives the reference back afterwards.
    pub(crate) fn with(
        &self,
        name: &[u8],
        act: impl FnOnce(Ino) -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        let ino = self.fs.lookup(&self.cx, Ino::ROOT, name)?.ino;
        let done = act(ino);
        self.fs.forget(ino, 1);
        done
    }

    pub(crate) fn file(&self, dir: Ino, name: &[u8], size: u64) -> vfs::Result<()> {
        let ino = self.fs.create(&self.cx, dir, name, 0o644)?.ino;
        for off in (0..size).step_by(CHUNK as usize) {
            self.write(ino, off, CHUNK.min(size - off), 1)?;
        }
        self.fs.forget(ino, 1);
        Ok(())
    }

    pub(crate) fn write(&self, ino: Ino, off: u64, len: u64, byte: u8) -> vfs::Result<()> {
        let data = vec![byte; len as usize];
        self.fs.write(&self.cx, ino, off, &data).map(drop)
    }

    pub(crate) fn dir(&self, parent: Ino, name: &[u8]) -> vfs::Result<()> {
        let ino = self.fs.mkdir(&self.cx, parent, name, 0o755)?.ino;
        self.fs.forget(ino, 1);
        Ok(())
    }

    fn symlink(&self, name: &[u8]) -> vfs::Result<()> {
        let ino = self.fs.symlink(&self.cx, Ino::ROOT, name, b"x")?.ino;
        self.fs.forget(ino, 1);
        Ok(())
    }

    pub(crate) fn link(&self, ino: Ino, name: &[u8]) -> vfs::Result<()> {
        self.fs.link(&self.cx, ino, Ino::ROOT, name)?;
        self.fs.forget(ino, 1);
        Ok(())
    }
}

impl Report {
    pub(crate) fn find(&self, op: &str, column: Column) -> Option<&Row> {
        self.rows.iter().find(|r| r.op == op && r.mode == column)
    }

    /// The rows of the +Other column that write more than the paper's. The goal is none.
    pub fn missed(&self) -> Vec<&Row> {
        self.rows
            .iter()
            .filter(|r| r.mode == Column::Other && verdict(r) == "missed")
            .collect()
    }

    /// Ours beside the paper's, a row for each call.
    pub(crate) fn grid(&self) -> Grid {
        let columns: Vec<_> = Column::ALL
            .into_iter()
            .filter(|c| self.rows.iter().any(|r| r.mode == *c))
            .collect();
        let mut heads = vec!["call".to_owned()];
        for column in &columns {
            heads.push(column.head().into());
            if *column != Column::Log {
                heads.push("paper".into());
            }
            match column {
                Column::Other => heads.extend(["far".into(), "goal".into()]),
                Column::Log => heads.push("far".into()),
                Column::Sp | Column::Sc | Column::AOrT | Column::AAndT => {}
            }
        }
        let ops = FIGURE_3_8.iter().map(|r| r.op);
        let rows = ops
            .map(|op| {
                let found = columns.iter().filter_map(|c| self.find(op, *c));
                let cells = found.flat_map(cells);
                std::iter::once(op.to_owned()).chain(cells).collect()
            })
            .collect();
        Grid { heads, rows }
    }
}

/// The cells of one row in one column: ours, the paper's, and what the column adds.
fn cells(row: &Row) -> Vec<String> {
    let ours = table::count(Some(row.bytes));
    let mut cells = vec![match row.helped {
        Some(mode) => format!("({}) {ours}", mode.to_uppercase()),
        None => ours,
    }];
    if row.mode != Column::Log {
        cells.push(table::count(row.paper));
    }
    if matches!(row.mode, Column::Other | Column::Log) {
        cells.push(table::count(Some(row.bytes_far)));
    }
    if row.mode == Column::Other {
        cells.push(verdict(row).into());
    }
    cells
}

fn verdict(row: &Row) -> &'static str {
    match row.paper.map(|paper| row.bytes.cmp(&paper)) {
        None => "",
        Some(std::cmp::Ordering::Less) => "beaten",
        Some(std::cmp::Ordering::Equal) => "met",
        Some(std::cmp::Ordering::Greater) => "missed",
    }
}

/// The notes below the figures, in sentences.
pub(crate) const NOTES: &str = "\
Bytes stored per call, ours beside Figure 3.8 of the dissertation; smaller is better.
+Log is ours alone. (A) or (T): the build of the two that wrote less.
A store is the narrowest atomic one that covers the bytes that change, as in the paper's
middle columns. Time stamps have 64 bits (the paper's have 32): 4 bytes are stored while
the old one lies in the same window of 4.29 s, else 8. 'far' counts the same call when
every byte of all old time stamps changes.";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{NOTES}\n\n{}", self.grid().text())?;
        let goal = self.rows.iter().filter(|r| r.mode == Column::Other).count();
        if goal > 0 {
            let met = goal - self.missed().len();
            writeln!(f, "\n+Other: met or beaten in {met} of {goal} rows.")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(column: Column) -> Report {
        let columns = vec![column];
        run(&Options { columns }).unwrap()
    }

    /// The goal, row by row. Counts repeat exactly, so this holds or it does not.
    #[test]
    fn the_type_chooses_the_columns() {
        let of = |name: &str| Options::of(name.parse().unwrap()).map(|o| o.columns);
        assert_eq!(of("bpfs").unwrap(), Column::ALL);
        assert_eq!(of("bpfs:t").unwrap(), [Column::AOrT]);
        assert_eq!(of("bpfs:log").unwrap(), [Column::Log]);
        let error = of("model").unwrap_err().to_string();
        assert!(error.contains("bpfs, bpfs:MODE"), "{error}");
    }

    #[test]
    fn all_optimisations_write_no_more_than_the_paper() {
        let report = only(Column::Other);
        assert_eq!(report.rows.len(), FIGURE_3_8.len());
        let missed: Vec<_> = report
            .missed()
            .iter()
            .map(|r| format!("{}: {} > {:?}", r.op, r.bytes, r.paper))
            .collect();
        assert!(missed.is_empty(), "{missed:#?}");
    }

    /// A time stamp takes 8 bytes at most, and no call of the figure stores more than six.
    #[test]
    fn far_time_stamps_cost_little() {
        for row in only(Column::Other).rows {
            assert!(row.bytes_far >= row.bytes, "{row:?}");
            assert!(row.bytes_far - row.bytes <= 6 * 8, "{row:?}");
        }
    }

    /// The least that a call must write: its data and something that commits it.
    #[test]
    fn no_mode_writes_less_than_the_data() {
        for row in run(&Options::default()).unwrap().rows {
            let published = FIGURE_3_8.iter().find(|p| p.op == row.op).unwrap();
            let data = match published.call {
                Call::Append { len, .. } | Call::Overwrite { len, .. } => len,
                Call::Create
                | Call::Link
                | Call::Symlink
                | Call::Mkdir
                | Call::Unlink
                | Call::UnlinkHardLink
                | Call::UnlinkSymlink
                | Call::Rmdir
                | Call::Rename { .. }
                | Call::Chown
                | Call::Chmod
                | Call::Read
                | Call::Readdir => 0,
            };
            assert!(row.bytes > data, "{row:?}");
        }
    }

    /// The ablation is significant: each group of optimisations saves bytes over all.
    #[test]
    fn columns_shrink() {
        let report = run(&Options::default()).unwrap();
        let total = |column| -> u64 {
            let of = report.rows.iter().filter(|r| r.mode == column);
            of.map(|r| r.bytes).sum()
        };
        let totals = Column::ALL.map(total);
        assert!(
            totals.windows(2).all(|pair| pair[1] < pair[0]),
            "{totals:?}"
        );
    }

    #[test]
    fn json_is_rows_with_the_names_of_the_figure() {
        let row = |mode, paper| Row {
            op: "create",
            mode,
            bytes: 92,
            paper,
            bytes_far: 100,
            helped: None,
        };
        let rows = Column::ALL
            .map(|c| row(c, c.published(&FIGURE_3_8[14])))
            .to_vec();
        let json = serde_json::to_value(Report { rows }).unwrap();
        let rows = json.as_array().unwrap();
        let modes: Vec<_> = rows.iter().map(|r| r["mode"].as_str().unwrap()).collect();
        assert_eq!(modes, ["sp", "sc", "aort", "aandt", "other", "log"]);
        assert_eq!(
            (rows[4]["op"].as_str(), rows[4]["paper"].as_u64()),
            (Some("create"), Some(92))
        );
        assert!(rows[5]["paper"].is_null() && rows[5]["bytes"].is_u64());
    }

    #[test]
    fn a_figure_above_the_published_one_is_missed() {
        let row = |bytes| Row {
            op: "create",
            mode: Column::Other,
            bytes,
            paper: Some(92),
            bytes_far: bytes,
            helped: None,
        };
        assert_eq!(
            [91, 92, 93].map(|b| verdict(&row(b))),
            ["beaten", "met", "missed"]
        );
        let rows = vec![row(91), row(93)];
        assert_eq!(Report { rows }.missed().len(), 1);
    }
}
