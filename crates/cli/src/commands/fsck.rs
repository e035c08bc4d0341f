//! `selvedge fsck`: checks a file system.

use crate::engine::Engine;
use crate::failure::{Failure, Outcome, code};
use crate::{ext2fs, image, output, size, terminal};
use medium::block::{BlockDevice, DeviceOptions, FileDevice};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use vfs::check::{Report, Severity};

/// Check a file system that is not mounted
///
/// Reads the whole image and lists what violates the format, by the numbers of format.md.
/// A crash needs no repair: mounting recovers by itself. The options that ask for repairs
/// (-a, -p, -y) replay a journal, accept leaks (space and counts that a crash without a
/// journal leaves behind), and clear the marks of an ext2: that errors were found before, if
/// there are none now, and that it was not unmounted, if there are no leaks either. Without them
/// nothing is changed, and a journal is replayed in memory only.
///
/// Exit codes, as fsck(8) defines them: 0 clean (with -a, -p, -y: or leaks), 1 a journal was
/// replayed, 4 errors (without -a, -p, -y: or leaks) found, 8 the check could not be made, 16
/// wrong usage.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// ext2: where in the file or device the image begins, in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size::parse, hide_default_value = true)]
    offset: u64,
    /// ext2: the file or device of the log, if the image has one outside
    #[arg(long, short = 'j', value_name = "PATH")]
    journal: Option<PathBuf>,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
    /// Change nothing
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    no_changes: bool,
    /// Replay a journal, and accept leaks, without questions
    #[arg(short = 'p', short_alias = 'a', visible_short_alias = 'a')]
    preen: bool,
    /// The same as -p
    #[arg(short = 'y')]
    yes: bool,
    /// For fsck(8): ask before repairs
    #[arg(short = 'r', hide = true)]
    interactive: bool,
    /// For fsck(8): check even if clean (always so)
    #[arg(short = 'f')]
    force: bool,
    /// For fsck(8): a type, as `fsck -t selvedge` passes it
    #[arg(long = "type", short = 't', hide = true)]
    fs_type: Option<String>,
    /// For fsck(8): progress to a file descriptor
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = false)]
    progress: Option<Option<i32>>,
}

/// The report, as JSON has it.
#[derive(Serialize)]
struct Json<'a> {
    path: &'a Path,
    r#type: &'static str,
    clean: bool,
    /// What became of a journal: it was replayed in place, or in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<Replayed>,
    #[serde(flatten)]
    marks: Marks,
    #[serde(flatten)]
    report: &'a Report,
}

/// What the superblock no longer says.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Marks {
    /// That errors were found.
    #[serde(rename = "cleared", skip_serializing_if = "std::ops::Not::not")]
    errors: bool,
    /// That the image was not unmounted.
    #[serde(rename = "marked_clean", skip_serializing_if = "std::ops::Not::not")]
    unclean: bool,
}

/// Where a journal was replayed before the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Replayed {
    InPlace,
    InMemory,
}

/// What a check found.
struct Found {
    engine: &'static str,
    replayed: Option<Replayed>,
    /// Those that were taken back.
    marks: Marks,
    report: Report,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        self.examine()
            .map_err(|e| e.with_code(code::FSCK_OPERATIONAL))
    }

    fn examine(&self) -> Outcome {
        let found = if Engine::of_image_at(&self.path, self.offset)? == Engine::Ext2 {
            self.check_ext2()?
        } else {
            self.check()?
        };
        let Found {
            engine,
            replayed,
            marks,
            report,
        } = &found;
        if self.json {
            output::print_json(&Json {
                path: &self.path,
                r#type: engine,
                clean: report.is_clean(),
                replayed: *replayed,
                marks: *marks,
                report,
            })?;
        } else {
            output::print(text(&self.path, &found))?;
        }
        Ok(match report.worst() {
            Some(Severity::Corrupt) => code::FSCK_ERRORS_LEFT.into(),
            Some(Severity::Leak) if !self.repairs() => code::FSCK_ERRORS_LEFT.into(),
            _ if *replayed == Some(Replayed::InPlace) => code::FSCK_CORRECTED.into(),
            _ => ExitCode::SUCCESS,
        })
    }

    /// Whether a journal is replayed and leaks are accepted.
    fn repairs(&self) -> bool {
        self.preen || self.yes
    }

    fn check_ext2(&self) -> Result<Found, Failure> {
        let open_at = |path: &Path, offset_bytes, bytes, read_only| {
            let options = DeviceOptions {
                read_only,
                offset_bytes,
                ..DeviceOptions::default()
            };
            FileDevice::open(path, bytes, &options).map_err(Failure::new)
        };
        let open = |bytes, read_only| open_at(&self.path, self.offset, bytes, read_only);
        // The superblock tells the size of the blocks.
        let sup = ext2::probe(&open(4096, true)?).map_err(|e| image::about(&self.path, e))?;
        let dirty = sup.features.iter().any(|name| name == "needs_recovery");
        let replayed = dirty.then(|| match self.repairs() {
            true => Replayed::InPlace,
            false => Replayed::InMemory,
        });
        let read_only = !self.repairs() || !(dirty || sup.errors || !sup.clean);
        let device: Arc<dyn BlockDevice> = Arc::new(open(sup.block_bytes, read_only)?);
        let log = match &self.journal {
            Some(path) => Some(open_at(path, 0, sup.block_bytes, read_only)?),
            None => None,
        };
        let log = log.map(|log| Arc::new(log) as Arc<dyn BlockDevice>);
        let named = |e| ext2fs::named(&self.path, &e);
        let device = ext2::mount::recover(&device, log.as_ref(), read_only).map_err(named)?;
        // A journal can hold the superblock as well.
        let sup = ext2::probe(&*device).map_err(|e| image::about(&self.path, e))?;
        let spinner = terminal::spinner("checking");
        let report = ext2::check(&*device);
        spinner.finish_and_clear();
        let worst = report.worst();
        let marks = Marks {
            errors: sup.errors && !read_only && worst != Some(Severity::Corrupt),
            unclean: !sup.clean && !read_only && worst.is_none(),
        };
        if marks.errors || marks.unclean {
            ext2::mount::clear_marks(&*device, marks.unclean).map_err(named)?;
        }
        Ok(Found {
            engine: "ext2",
            replayed,
            marks,
            report,
        })
    }

    fn check(&self) -> Result<Found, Failure> {
        let pm = image::open_read_only(&self.path)?;
        // Told apart from a damaged image: this is not one at all.
        if let Err(e @ bpfs::Error::NotBpfs) = bpfs::probe(&pm) {
            return Err(image::about(&self.path, e));
        }
        let spinner = terminal::spinner("checking");
        let report = bpfs::check(&pm);
        spinner.finish_and_clear();
        Ok(Found {
            engine: "bpfs",
            replayed: None,
            marks: Marks::default(),
            report,
        })
    }
}

fn text(path: &Path, found: &Found) -> String {
    let name = path.display();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match found.replayed {
        None => Ok(()),
        Some(Replayed::InPlace) => writeln!(text, "{name}: the journal was replayed"),
        Some(Replayed::InMemory) => writeln!(
            text,
            "{name}: the journal is to be replayed by the next mount; checked as it will be then"
        ),
    };
    if found.marks.errors {
        let _ = writeln!(text, "{name}: the mark that errors were found was cleared");
    }
    if found.marks.unclean {
        let _ = writeln!(
            text,
            "{name}: the mark that it was not unmounted was cleared"
        );
    }
    let report = &found.report;
    let errors = || (report.findings.iter()).filter(|found| found.severity == Severity::Corrupt);
    for error in errors() {
        let _ = writeln!(text, "{name}: error: {error}");
    }
    if let Some(leaks) = leaks(report) {
        let _ = writeln!(text, "{name}: {leaks}");
    }
    let _ = match report.worst() {
        None => writeln!(text, "{name}: clean"),
        Some(Severity::Leak) => writeln!(text, "{name}: sound, and can be used as it is"),
        Some(Severity::Corrupt) => {
            let violations = output::count(errors().count() as u64, "violation");
            let more = if report.truncated { " or more" } else { "" };
            writeln!(text, "{name}: {violations} of the format{more}")
        }
    };
    text
}

/// Most leaks that are described.
const LEAKS: usize = 20;

/// What a crash left and does no harm, in one line, by invariant.
fn leaks(report: &Report) -> Option<String> {
    let leaks = || (report.findings.iter()).filter(|found| found.severity == Severity::Leak);
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for leak in leaks().take(LEAKS) {
        kinds.entry(&leak.invariant).or_default().push(&leak.what);
    }
    let kinds: Vec<String> = (kinds.iter())
        .map(|(invariant, leaks)| format!("{invariant}: {}", leaks.join(", ")))
        .collect();
    let more = match leaks().count().saturating_sub(LEAKS) {
        0 => String::new(),
        more if report.truncated => format!("; and {more} more at least"),
        more => format!("; and {more} more"),
    };
    let listed = kinds.join("; ");
    (!kinds.is_empty()).then(|| format!("leaks, which e2fsck reclaims: {listed}{more}"))
}
