//! The effect of the patch optimisations: patches, undo data and CPU time of ext2 with
//! soft updates, beside Figure 2.10 of the dissertation. The figure is of ext2, so that this
//! module uses that engine directly and not the list of engines.
//!
//! Everything happens in this process, on a device of memory: what differs between two
//! columns is the patch graph. Each workload runs with none, with hard patches, with
//! overlap merging and with both, and with both but without any order (`async`), in
//! turns, on an image of its own each time. Counts repeat exactly; of CPU times the least
//! counts, of which a busy machine makes none shorter.

mod mount;
pub mod scale;
mod workload;

use crate::chart::Chart;
use crate::error::{Context, Result};
use crate::machine::Machine;
use crate::matrix::{Cell, Matrix};
use crate::paper::FIGURE_2_10;
use crate::postmark::{self, Config};
use crate::table::{Grid, count};
use crate::tree::InProcess;
use mount::{Mounted, Taken, image};
use patch::Optimised;
use serde::Serialize;
use std::fmt;
use vfs::FileSystem;
use workload::{Tree, delete_all, postmark_bytes, postmark_inodes};

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Files in the tree that is unpacked and deleted.
    pub files: u32,
    /// Source files of the Andrew-like workload.
    pub andrew_files: u32,
    /// PostMark's files, and its transactions.
    pub mails: u32,
    /// Bytes of PostMark's largest file.
    pub max_bytes: u32,
    /// Runs of each kind, of which the least CPU time counts.
    pub repeats: u32,
}

impl Default for Options {
    /// A kernel's source tree; PostMark as published, but with files of up to 1 MB
    /// instead of 4 MB.
    fn default() -> Self {
        Self {
            files: 17_000,
            andrew_files: 250,
            mails: 500,
            max_bytes: 1_000_000,
            repeats: 3,
        }
    }
}

/// The name of a run, in our rows and in the published ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Unpacks a source tree.
    Untar,
    /// Deletes it, after a new mount.
    Delete,
    /// PostMark.
    PostMark,
    /// Directories, copy, stat, read, build.
    Andrew,
}

impl Workload {
    /// All workloads, in the order of the figure.
    pub const ALL: [Self; 4] = [Self::Untar, Self::Delete, Self::PostMark, Self::Andrew];

    /// The name in the figure.
    pub fn name(self) -> &'static str {
        match self {
            Self::Untar => "untar",
            Self::Delete => "delete",
            Self::PostMark => "postmark",
            Self::Andrew => "andrew",
        }
    }
}

/// Settings of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Optimisations {
    /// Soft updates, with these.
    Soft(Optimised),
    /// No order at all, with all.
    Async,
}

const COLUMNS: [Optimised; 4] = [
    Optimised::None,
    Optimised::Hard,
    Optimised::Overlap,
    Optimised::Both,
];

/// One workload with some optimisations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The work.
    pub workload: Workload,
    /// Which of the optimisations were on.
    pub optimisations: Optimised,
    /// Patches made, empty ones included.
    pub patches: u64,
    /// Bytes of undo data ever allocated.
    pub undo_bytes: u64,
    /// CPU time, in seconds.
    pub cpu_seconds: f64,
    /// Bytes that patches, edges and undo data took in all, frees not counted.
    pub patch_memory_bytes: u64,
    /// Bytes of the blocks that were written.
    pub data_bytes: u64,
    /// Blocks written without some of their changes, and so again later.
    pub double_writes: u64,
    /// CPU time without any order, where all optimisations are on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_cpu_seconds: Option<f64>,
}

impl Cell for Row {
    fn column(&self) -> &str {
        column_name(self.optimisations)
    }

    fn line(&self) -> &str {
        self.workload.name()
    }
}

fn column_name(which: Optimised) -> &'static str {
    match which {
        Optimised::None => "none",
        Optimised::Hard => "hard",
        Optimised::Overlap => "overlap",
        Optimised::Both => "both",
    }
}

/// The measurements and the machine. As JSON, the rows.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// One row for each workload and set of optimisations.
    pub rows: Vec<Row>,
    /// The conditions.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Runs the benchmark.
///
/// # Errors
/// If an image cannot be made or mounted, or a call fails.
pub fn run(options: &Options) -> Result<Report> {
    let bench = Bench::new(options);
    let mut best: Vec<(Workload, Optimisations, Taken)> = Vec::new();
    for _ in 0..options.repeats.max(1) {
        for parts in [
            &[Workload::Untar, Workload::Delete][..],
            &[Workload::PostMark],
            &[Workload::Andrew],
        ] {
            for how in COLUMNS
                .map(Optimisations::Soft)
                .into_iter()
                .chain([Optimisations::Async])
            {
                for (workload, taken) in parts.iter().zip(bench.measure(parts, how)?) {
                    keep(&mut best, *workload, how, taken);
                }
            }
        }
    }
    let notes = vec![
        format!("{}.", Machine::here()),
        format!(
            "Untar and delete: {} files; PostMark: {} files of 500 to {} bytes, as many \
             transactions; Andrew: {} sources. Blocks of {} bytes on a device of memory, \
             the usual cache, least CPU time of {}.",
            count(Some(options.files.into())),
            options.mails,
            count(Some(options.max_bytes.into())),
            options.andrew_files,
            mount::BLOCK_BYTES,
            options.repeats.max(1),
        ),
    ];
    Ok(Report {
        rows: rows(&best),
        notes,
    })
}

/// Counts do not differ between repeats, times do.
fn keep(
    best: &mut Vec<(Workload, Optimisations, Taken)>,
    workload: Workload,
    how: Optimisations,
    taken: Taken,
) {
    match best
        .iter_mut()
        .find(|(w, h, _)| (*w, *h) == (workload, how))
    {
        Some((.., old)) => old.cpu_seconds = old.cpu_seconds.min(taken.cpu_seconds),
        None => best.push((workload, how, taken)),
    }
}

fn rows(best: &[(Workload, Optimisations, Taken)]) -> Vec<Row> {
    let find = |workload, how| {
        let mut all = best.iter();
        all.find(|(w, h, _)| (*w, *h) == (workload, how))
            .map(|(.., taken)| *taken)
    };
    let row = |(workload, which)| {
        let taken = find(workload, Optimisations::Soft(which))?;
        let without_order = find(workload, Optimisations::Async).map(|t| t.cpu_seconds);
        Some(Row {
            workload,
            optimisations: which,
            patches: taken.patches,
            undo_bytes: taken.undo_bytes,
            cpu_seconds: taken.cpu_seconds,
            patch_memory_bytes: taken.patch_memory_bytes,
            data_bytes: taken.data_bytes,
            double_writes: taken.double_writes,
            async_cpu_seconds: without_order.filter(|_| which == Optimised::Both),
        })
    };
    let all = Workload::ALL
        .into_iter()
        .flat_map(|w| COLUMNS.map(|c| (w, c)));
    all.filter_map(row).collect()
}

/// The parts that do not change between runs.
struct Bench {
    kernel: Tree,
    program: Tree,
    mail: Config,
}

impl Bench {
    fn new(options: &Options) -> Self {
        Self {
            kernel: Tree::new(options.files),
            program: Tree::new(options.andrew_files),
            mail: Config {
                files: options.mails,
                transactions: options.mails,
                min_bytes: 500.min(options.max_bytes as usize),
                max_bytes: options.max_bytes as usize,
                seed: 42,
            },
        }
    }

    /// Runs workloads in sequence on a new image, each on a mount of its own.
    fn measure(&self, parts: &[Workload], how: Optimisations) -> Result<Vec<Taken>> {
        let (bytes, inodes) = match parts.first() {
            Some(Workload::PostMark) => (postmark_bytes(&self.mail), postmark_inodes(&self.mail)),
            Some(Workload::Andrew) => (2 * self.program.image_bytes(), 2 * self.program.inodes()),
            Some(Workload::Untar | Workload::Delete) | None => {
                (self.kernel.image_bytes(), self.kernel.inodes())
            }
        };
        let device = image(bytes, inodes)?;
        let run = |workload: &Workload| {
            let mounted = Mounted::open(&device, how)?;
            let taken = mounted.measure(|fs| self.work(*workload, fs))?;
            mounted.close()?;
            Ok(taken)
        };
        parts.iter().map(run).collect()
    }

    fn work(&self, workload: Workload, fs: &dyn FileSystem) -> Result<()> {
        let done = match workload {
            Workload::Untar => self.kernel.unpack(fs),
            Workload::Delete => delete_all(fs),
            Workload::Andrew => self.program.develop(fs),
            Workload::PostMark => {
                return postmark::run(&InProcess::new(fs), &self.mail).map(drop);
            }
        };
        done.what(|| "the workload".into())
    }
}

/// The least part of undo data and of patches that the optimisations save.
const UNDO_GOAL: f64 = 0.99;
const PATCHES_GOAL: f64 = 0.85;
/// The most that patches may take, of the data that PostMark writes.
const MEMORY_GOAL: f64 = 0.04;
/// The most CPU time, in that of the same without any order.
const CPU_GOAL: f64 = 1.3;

impl Report {
    fn row(&self, workload: Workload, which: Optimised) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|r| r.workload == workload && r.optimisations == which)
    }

    /// Every row, with the published figures at the right.
    pub(crate) fn grid(&self) -> Grid {
        let heads = [
            "workload, optimisations",
            "patches",
            "undo KiB",
            "CPU s",
            "patch memory KiB",
            "data MiB",
            "written twice",
            "paper: patches",
            "undo KiB",
            "system s",
        ];
        let cells = |row: &Row| {
            let (line, column) = (row.line(), row.column());
            let mut published = FIGURE_2_10.iter();
            let published = published.find(|p| (p.workload, p.optimisations) == (line, column));
            let seconds = published.map(|p| format!("{:.2}", p.seconds));
            vec![
                format!("{line}, {column}"),
                count(Some(row.patches)),
                count(Some(row.undo_bytes >> 10)),
                format!("{:.3}", row.cpu_seconds),
                count(Some(row.patch_memory_bytes >> 10)),
                count(Some(row.data_bytes >> 20)),
                count(Some(row.double_writes)),
                count(published.map(|p| p.patches)),
                count(published.map(|p| (p.undo_mib * 1024.0) as u64)),
                seconds.unwrap_or_default(),
            ]
        };
        Grid {
            heads: heads.map(String::from).to_vec(),
            rows: self.rows.iter().map(cells).collect(),
        }
    }

    /// Whether this run met each goal.
    pub fn goals(&self) -> Vec<String> {
        let mut goals = Vec::new();
        for workload in Workload::ALL {
            let pair = [Optimised::None, Optimised::Both].map(|which| self.row(workload, which));
            if let [Some(none), Some(both)] = pair {
                goals.extend(judge(none, both));
            }
        }
        goals
    }

    pub(crate) fn chart(&self) -> Chart {
        let title = "Patches made, by optimisations (less is better)".into();
        Matrix::of(&self.rows).chart(title, |row| row.patches as f64)
    }
}

/// The goals of one workload.
fn judge(none: &Row, both: &Row) -> Vec<String> {
    let name = both.workload.name();
    let verdict = |met| if met { "met" } else { "missed" };
    let saved = |what: &str, none: u64, both: u64, goal: f64| {
        let saved = 1.0 - both as f64 / none.max(1) as f64;
        let (met, per_cent) = (verdict(saved >= goal), 100.0 * saved);
        let goal = 100.0 * goal;
        format!("{met:6}  {name}, {what}: {per_cent:.2} % less (goal: at least {goal} %)")
    };
    let mut goals = vec![
        saved("undo data", none.undo_bytes, both.undo_bytes, UNDO_GOAL),
        saved("patches", none.patches, both.patches, PATCHES_GOAL),
    ];
    if both.workload == Workload::PostMark {
        let part = both.patch_memory_bytes as f64 / both.data_bytes.max(1) as f64;
        let (met, per_cent) = (verdict(part <= MEMORY_GOAL), 100.0 * part);
        let goal = 100.0 * MEMORY_GOAL;
        goals.push(format!(
            "{met:6}  {name}, patch memory: {per_cent:.2} % of the data (goal: at most {goal} %)"
        ));
    }
    if let Some(seconds) = both.async_cpu_seconds {
        let times = both.cpu_seconds / seconds.max(1e-9);
        let met = verdict(times <= CPU_GOAL);
        goals.push(format!(
            "{met:6}  {name}, CPU time: {times:.2} times that without order, {seconds:.3} s \
             (goal: at most {CPU_GOAL})"
        ));
    }
    goals
}

/// Notes for readers of the table.
pub(crate) const NOTES: &str = "\
ext2 with soft updates in this process; CPU time of the calls and of the write-back to
memory; patch memory: all that was ever allocated, frees not counted; written twice:
blocks that went out without some of their changes. The paper: Figure 2.10 (Linux 2.6.15,
some 20,000 files; files of up to 4 MB; the Ion window manager), system time.";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}\n{NOTES}\n\n{}\n",
            self.notes.join("\n"),
            self.grid().text()
        )?;
        write!(f, "{}", self.goals().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Options = Options {
        files: 120,
        andrew_files: 25,
        mails: 20,
        max_bytes: 60_000,
        repeats: 1,
    };

    #[test]
    fn every_row_is_there_and_optimisations_help() {
        let report = run(&SMALL).unwrap();
        assert_eq!(report.rows.len(), 16);
        assert!(
            report
                .rows
                .iter()
                .all(|row| row.patches > 0 && row.cpu_seconds > 0.0)
        );
        for workload in Workload::ALL {
            let row = |which| report.row(workload, which).unwrap();
            let (none, both) = (row(Optimised::None), row(Optimised::Both));
            assert!(both.patches < none.patches, "{both:?} {none:?}");
            assert!(both.undo_bytes < none.undo_bytes, "{both:?} {none:?}");
            assert!(both.async_cpu_seconds.is_some() && none.async_cpu_seconds.is_none());
            assert!(both.data_bytes > 0);
        }
        let untar = report.row(Workload::Untar, Optimised::Both).unwrap();
        assert!(untar.data_bytes > 1_000_000, "{untar:?}");
        assert_eq!(report.goals().len(), 4 * 3 + 1);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json[0]["workload"], "untar");
        assert_eq!(json[15]["optimisations"], "both");
        assert!(
            report.to_string().contains("619,740"),
            "the paper's first figure"
        );
        assert!(report.chart().svg().contains("postmark"));
    }

    #[test]
    fn counts_repeat_and_images_stay_sound() {
        let bench = Bench::new(&SMALL);
        let how = Optimisations::Soft(Optimised::Both);
        let parts = [Workload::Untar, Workload::Delete];
        let counts = |taken: Vec<Taken>| -> Vec<_> {
            taken
                .iter()
                .map(|t| (t.patches, t.undo_bytes, t.data_bytes))
                .collect()
        };
        let runs = [(); 2].map(|()| counts(bench.measure(&parts, how).unwrap()));
        assert_eq!(runs[0], runs[1]);

        let device = image(bench.kernel.image_bytes(), bench.kernel.inodes()).unwrap();
        let mounted = Mounted::open(&device, how).unwrap();
        mounted
            .measure(|fs| bench.work(Workload::Untar, fs))
            .unwrap();
        mounted.close().unwrap();
        let report = ext2::check(&*device);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }

    #[test]
    fn goals_are_judged_by_the_rows() {
        let row = |patches, undo_bytes, cpu_seconds, memory| Row {
            workload: Workload::PostMark,
            optimisations: Optimised::Both,
            patches,
            undo_bytes,
            cpu_seconds,
            patch_memory_bytes: memory,
            data_bytes: 1000,
            double_writes: 0,
            async_cpu_seconds: Some(1.0),
        };
        let none = row(100, 1000, 9.0, 1000);
        let met = |both: &Row| -> Vec<bool> {
            judge(&none, both)
                .iter()
                .map(|line| line.starts_with("met "))
                .collect()
        };
        assert_eq!(met(&row(15, 10, 1.3, 40)), [true; 4]);
        assert_eq!(met(&row(16, 11, 1.31, 41)), [false; 4]);
    }
}
