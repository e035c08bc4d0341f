//! Everything in one folder: for each benchmark its JSON and its text, a bar chart, and
//! all tables together as Markdown.

use crate::chart::Chart;
use crate::error::{Context, Result};
use crate::machine::Machine;
use crate::matrix::Matrix;
use crate::table::Grid;
use crate::{aerie, bytes, memory, micro, mounted, patches, scaling, scan, soup, workloads};
use serde::Serialize;
use std::fmt::{Display, Write};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use tempfile::NamedTempFile;

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes per call.
    pub bytes: bytes::Options,
    /// Single operations.
    pub micro: micro::Options,
    /// Several threads at once.
    pub scaling: scaling::Options,
    /// SoupFS beside BPFS and tmpfs.
    pub soup: soup::Options,
    /// Servers and PostMark.
    pub workloads: workloads::Options,
    /// PXFS beside other file systems.
    pub aerie: aerie::Options,
    /// A mount of a full file system.
    pub scan: scan::Options,
    /// The effect of the patch optimisations.
    pub patches: patches::Options,
    /// The patch graph with ever more dirty blocks.
    pub patches_scale: patches::scale::Options,
    /// Durable memory, beside other stores.
    pub memory: memory::Options,
    /// Workloads on mounts; `None` where FUSE is unavailable.
    pub mounted: Option<mounted::Options>,
    /// Ext2 beside the kernel's file systems; `None` for all but root, or without FUSE.
    pub fs: Option<crate::fs::Options>,
}

impl Default for Options {
    /// Everything that this user may run: ext4 for root, mounts where `/dev/fuse` is.
    fn default() -> Self {
        let mounted = mounted::Options::default();
        let root = rustix::process::geteuid().is_root();
        let with_fuse = Path::new("/dev/fuse").exists();
        Self {
            bytes: bytes::Options::default(),
            micro: micro::Options {
                with_ext4: root,
                ..micro::Options::default()
            },
            scaling: scaling::Options::default(),
            soup: soup::Options::default(),
            workloads: workloads::Options::default(),
            aerie: aerie::Options::default(),
            scan: scan::Options {
                program: Some(mounted.program.clone()),
                ..scan::Options::default()
            },
            patches: patches::Options::default(),
            patches_scale: patches::scale::Options::default(),
            memory: memory::Options::default(),
            mounted: with_fuse.then_some(mounted),
            fs: (root && with_fuse).then(crate::fs::Options::default),
        }
    }
}

/// Runs the benchmarks, reports the next one to `progress`, and writes to `out_dir`, which
/// is made if need be: `NAME.json`, `NAME.txt` and `NAME.svg` for each, `machine.json`,
/// and `tables.md`.
///
/// # Errors
/// If a benchmark fails, or the folder cannot be written. Earlier measurements are in
/// the folder.
pub fn run_all(out_dir: &Path, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<()> {
    fs::create_dir_all(out_dir).what(|| format!("making {}", out_dir.display()))?;
    let machine = Machine::here();
    let mut folder = Folder {
        dir: out_dir,
        markdown: format!("Measured on {machine}.\n"),
    };
    folder.json("machine", &machine)?;
    progress("bytes written per call");
    folder.bytes(&bytes::run(&options.bytes)?)?;
    progress("single operations");
    folder.micro(&micro::run(&options.micro)?)?;
    progress("several threads at once");
    folder.scaling(&scaling::run(&options.scaling)?)?;
    progress("SoupFS beside BPFS");
    folder.soup(&soup::run(&options.soup)?)?;
    let tell = &mut |next: &str| progress(&format!("servers: {next}"));
    folder.workloads(&workloads::run(&options.workloads, tell)?)?;
    let tell = &mut |next: &str| progress(&format!("PXFS: {next}"));
    folder.aerie(&aerie::run(&options.aerie, tell)?)?;
    progress("a mount of a full file system");
    folder.scan(&scan::run(&options.scan)?)?;
    progress("what the patch optimisations are worth");
    folder.patches(&patches::run(&options.patches)?)?;
    progress("patches in a full cache");
    folder.patches_scale(&patches::scale::run(&options.patches_scale)?)?;
    let tell = &mut |next: &str| progress(&format!("durable memory: {next}"));
    folder.memory(&memory::run(&options.memory, tell)?)?;
    if let Some(options) = &options.mounted {
        progress("workloads on mounts");
        folder.mounted(&mounted::run(options)?)?;
    }
    if let Some(options) = &options.fs {
        let tell = &mut |next: &str| progress(&format!("ext2 and the kernel's: {next}"));
        folder.ext2(&crate::fs::run(options, tell)?)?;
    }
    Ok(())
}

/// The folder of all results.
struct Folder<'a> {
    dir: &'a Path,
    markdown: String,
}

impl Folder<'_> {
    fn bytes(&mut self, report: &bytes::Report) -> Result<()> {
        self.both("bytes", report)?;
        self.write("bytes.svg", &bytes_chart(report).svg())?;
        self.section("Bytes written per call", bytes::NOTES, &[report.grid()])
    }

    fn micro(&mut self, report: &micro::Report) -> Result<()> {
        self.both("micro", report)?;
        self.write("micro.svg", &micro_chart(report).svg())?;
        let mut goals = report.notes.join(" ");
        goals.push_str("\n\n");
        for goal in &report.goals {
            // Writing to a string cannot fail.
            let _ = writeln!(goals, "- {goal}");
        }
        self.section("Single operations", &goals, &[report.grid()])
    }

    fn scaling(&mut self, report: &scaling::Report) -> Result<()> {
        self.both("scaling", report)?;
        self.write("scaling.svg", &scaling_chart(report).svg())?;
        let notes = with_goals(scaling::NOTES.into(), &report.goals());
        self.section("Several threads", &notes, &[report.grid()])
    }

    fn soup(&mut self, report: &soup::Report) -> Result<()> {
        self.both("soup", report)?;
        self.write("soup.svg", &report.chart().svg())?;
        let goals: Vec<_> = report.goals.iter().map(ToString::to_string).collect();
        let notes = with_goals(soup::NOTES.into(), &goals);
        self.section("SoupFS beside BPFS", &notes, &[report.grid()])
    }

    fn workloads(&mut self, report: &workloads::Report) -> Result<()> {
        self.both("workloads", report)?;
        self.write("workloads.svg", &report.chart().svg())?;
        let notes = with_goals(workloads::NOTES.into(), &report.missing());
        self.section("Servers and PostMark", &notes, &[report.grid()])
    }

    fn aerie(&mut self, report: &aerie::Report) -> Result<()> {
        self.both("aerie", report)?;
        self.write("aerie.svg", &report.chart().svg())?;
        let mut lines: Vec<_> = report.goals.iter().map(ToString::to_string).collect();
        lines.extend(report.missing());
        let notes = with_goals(report.notes.join(" "), &lines);
        self.section("PXFS beside others", &notes, &[report.grid()])
    }

    fn scan(&mut self, report: &scan::Report) -> Result<()> {
        self.both("scan", report)?;
        self.write("scan.svg", &scan_chart(report).svg())?;
        let note = "A sparse image in `/dev/shm`; file data is never touched.";
        self.section("Mount time and memory", note, &[report.grid()])
    }

    fn patches(&mut self, report: &patches::Report) -> Result<()> {
        self.both("patches", report)?;
        self.write("patches.svg", &report.chart().svg())?;
        let notes = format!("{} {}", report.notes.join(" "), patches::NOTES);
        let notes = with_goals(notes, &report.goals());
        self.section("Patch optimisations", &notes, &[report.grid()])
    }

    fn patches_scale(&mut self, report: &patches::scale::Report) -> Result<()> {
        self.both("patches-scale", report)?;
        self.write("patches-scale.svg", &report.svg())?;
        let notes = with_goals(report.notes.join(" "), &report.goals());
        self.section("Patches in a full cache", &notes, &[report.grid()])
    }

    fn memory(&mut self, report: &memory::Report) -> Result<()> {
        self.both("memory", report)?;
        self.write("memory.svg", &report.chart().svg())?;
        let notes = format!("{} {}", report.notes.join(" "), memory::NOTES);
        let mut lines: Vec<_> = report.goals().iter().map(ToString::to_string).collect();
        lines.extend_from_slice(&report.missing);
        let sections = report.sections();
        let (titles, grids): (Vec<_>, Vec<_>) = sections.into_iter().unzip();
        let notes = format!("{notes} Tables, in this order: {}.", titles.join("; "));
        self.section("Durable memory", &with_goals(notes, &lines), &grids)
    }

    fn mounted(&mut self, report: &mounted::Report) -> Result<()> {
        self.both("mounted", report)?;
        let mut notes = format!("{} {}\n\n", report.notes.join(" "), mounted::NOTES);
        for goal in report.goals() {
            let _ = writeln!(notes, "- {goal}");
        }
        let placements = [mounted::Cpus::One, mounted::Cpus::Any];
        for cpus in placements {
            let name = format!(
                "mounted-{}.svg",
                if cpus == placements[0] { "one" } else { "any" }
            );
            self.write(&name, &mounted_chart(report, cpus).svg())?;
        }
        self.section(
            "Workloads on mounts",
            &notes,
            &placements.map(|cpus| report.grid(cpus)),
        )
    }

    fn ext2(&mut self, report: &crate::fs::Report) -> Result<()> {
        self.both("fs", report)?;
        self.write("fs.svg", &report.chart().svg())?;
        let notes = format!("{} {}", report.notes.join(" "), crate::fs::NOTES);
        let notes = with_goals(notes, &report.goals());
        self.section(
            "Ext2 beside the kernel's file systems",
            &notes,
            &report.grids(),
        )
    }

    /// A report as JSON and as text.
    fn both(&self, name: &str, report: &(impl Serialize + Display)) -> Result<()> {
        self.json(name, report)?;
        self.write(&format!("{name}.txt"), &report.to_string())
    }

    fn json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let path = format!("{name}.json");
        let mut text = serde_json::to_string_pretty(value)
            .map_err(std::io::Error::from)
            .what(|| path.clone())?;
        text.push('\n');
        self.write(&path, &text)
    }

    /// Adds a section to the Markdown, which is written anew each time, so that it is
    /// there even if a later benchmark fails.
    fn section(&mut self, title: &str, notes: &str, grids: &[Grid]) -> Result<()> {
        let _ = write!(self.markdown, "\n## {title}\n\n{}\n", notes.trim_end());
        for grid in grids {
            let _ = write!(self.markdown, "\n{}\n", grid.markdown());
        }
        self.write("tables.md", &self.markdown)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        // A link of that name, which somebody else may have made, is replaced.
        let written = NamedTempFile::new_in(self.dir).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            Ok(file.persist(&path)?)
        });
        written
            .map(drop)
            .what(|| format!("writing {}", path.display()))
    }
}

/// A list of goals under notes.
fn with_goals(mut notes: String, goals: &[String]) -> String {
    notes.push_str("\n\n");
    for goal in goals {
        // Writing to a string cannot fail.
        let _ = writeln!(notes, "- {goal}");
    }
    notes
}

fn bytes_chart(report: &bytes::Report) -> Chart {
    use bytes::Column::{Log, Other, Sp};
    let value = |op: &str, column| report.find(op, column);
    let group = |op: &str| {
        let ours = |column| value(op, column).map(|r| r.bytes as f64);
        let paper = |column| value(op, column).and_then(|r| r.paper).map(|b| b as f64);
        (
            op.to_owned(),
            vec![ours(Log), ours(Other), paper(Other), paper(Sp)],
        )
    };
    let series = ["+Log", "+Other", "+Other, paper", "shadow paging, paper"];
    Chart {
        title: "Bytes written per call (less is better)".into(),
        series: series.map(String::from).to_vec(),
        groups: crate::paper::FIGURE_3_8
            .iter()
            .map(|row| group(row.op))
            .collect(),
    }
}

fn micro_chart(report: &micro::Report) -> Chart {
    let title = "Nanoseconds per operation, median (less is better)".into();
    report.matrix().chart(title, |row| row.ns_median)
}

fn scaling_chart(report: &scaling::Report) -> Chart {
    let title = "Operations per second of all threads (more is better)".into();
    Matrix::of(&report.rows).chart(title, |row| row.ops_per_second)
}

fn scan_chart(report: &scan::Report) -> Chart {
    let mounts = [
        ("first", report.mount_ms),
        ("again, pages mapped", report.remount_ms),
        ("first, with flushes", report.flushed_mount_ms),
    ];
    let group = |(name, ms): (&str, f64)| (name.into(), vec![Some(ms), Some(scan::MOUNT_GOAL_MS)]);
    Chart {
        title: "Milliseconds to mount a full file system (less is better)".into(),
        series: vec!["measured".into(), "goal".into()],
        groups: mounts.map(group).to_vec(),
    }
}

fn mounted_chart(report: &mounted::Report, cpus: mounted::Cpus) -> Chart {
    let title = format!(
        "Microseconds on a FUSE mount, {}, at best (less is better)",
        cpus.describe()
    );
    report
        .matrix(cpus)
        .chart(title, |row| row.best_seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    /// Everything that needs no mount, on as little work as it takes.
    fn tiny() -> Options {
        Options {
            bytes: bytes::Options {
                columns: vec![bytes::Column::Other],
            },
            micro: micro::Options {
                types: vec![Engine::usual(), Engine::baseline()],
                with_tmpfs: false,
                rounds: 1,
                ..micro::Options::default()
            },
            scaling: scaling::Options {
                dirs: Vec::new(),
                rounds: 1,
                ..scaling::Options::default()
            },
            soup: soup::Options {
                rounds: 1,
                names: 20,
                flush_ns: vec![0],
                directories: [10, 20],
                files: 20,
                image_bytes: 64 << 20,
                ..soup::Options::default()
            },
            workloads: workloads::Options {
                types: vec![Engine::baseline()],
                dirs: Vec::new(),
                with_ext4: false,
                workloads: vec![workloads::Workload::VarMail],
                threads: Some(1),
                ..workloads::Options::default().quick()
            },
            aerie: aerie::Options {
                parts: vec![aerie::Part::Calls],
                targets: vec![aerie::Target::Pxfs],
                ..aerie::Options::default().quick()
            },
            scan: scan::Options {
                image_bytes: 64 << 20,
                files: 100,
                ..scan::Options::default()
            },
            patches: patches::Options {
                files: 60,
                andrew_files: 20,
                mails: 10,
                max_bytes: 20_000,
                repeats: 1,
            },
            patches_scale: patches::scale::Options {
                sizes: vec![10, 100],
                patches: 100,
            },
            memory: memory::Options {
                parts: vec![memory::Part::Hash],
                live: 100,
                operations: 50,
                disk_operations: 10,
                ..memory::Options::default().quick()
            },
            mounted: None,
            fs: None,
        }
    }

    #[test]
    fn the_folder_holds_every_table_and_plot() {
        let out = tempfile::tempdir().unwrap();
        let mut steps = 0;
        run_all(&out.path().join("new"), &tiny(), &mut |next| {
            steps += u32::from(!next.contains(':'));
        })
        .unwrap();
        assert_eq!(steps, 7);
        let read = |name: &str| fs::read_to_string(out.path().join("new").join(name)).unwrap();
        let names = [
            "bytes",
            "micro",
            "scaling",
            "soup",
            "workloads",
            "aerie",
            "scan",
            "patches",
            "patches-scale",
            "memory",
        ];
        for name in names.into_iter().chain(["machine"]) {
            let json: serde_json::Value =
                serde_json::from_str(&read(&format!("{name}.json"))).unwrap();
            assert!(json.is_array() || json.is_object());
        }
        for name in names {
            assert!(read(&format!("{name}.svg")).contains("<rect"));
            assert!(!read(&format!("{name}.txt")).is_empty());
        }
        let tables = read("tables.md");
        for title in [
            "Bytes written per call",
            "Single operations",
            "Several threads",
            "SoupFS beside BPFS",
            "Servers and PostMark",
            "PXFS beside others",
            "Mount time and memory",
            "Patch optimisations",
            "Patches in a full cache",
            "Durable memory",
        ] {
            assert!(tables.contains(&format!("\n## {title}\n")), "{title}");
        }
        assert!(tables.contains("| create"));
    }
}
