//! `selvedge fsck`: checks a file system.

use crate::failure::{Failure, Outcome, code};
use crate::types::{self, EngineArgs, OfFsck};
use crate::{image, output, terminal};
use clap::ArgMatches;
use engine::{Checked, Engine, Image, Marks, Replayed, size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vfs::check::{Report, Severity};

/// Check a file system that is not mounted
///
/// Reads the whole image and lists what violates the format, by the numbers of format.md.
/// A crash needs no repair: mounting recovers by itself. The options that ask for repairs
/// (-a, -p, -y) replay a journal, accept leaks (space and counts that a crash without a
/// journal leaves behind), and clear the marks that errors were found before, if there
/// are none now, and that the image was not unmounted, if there are no leaks either. On SoupFS
/// they reclaim leaks. Without them nothing is changed, and a journal is replayed in memory only.
///
/// Exit codes, as fsck(8) defines them: 0 clean (with -a, -p, -y: or leaks), 1 a journal was
/// replayed or leaks were reclaimed, 4 errors (without -a, -p, -y: or leaks) found, 8 the check could not be made, 16
/// wrong usage.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Where in the file or device the image begins, in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size::parse, hide_default_value = true)]
    offset: u64,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
    /// Change nothing
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    no_changes: bool,
    /// Replay a journal, and accept or reclaim leaks, without questions
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
    #[command(flatten)]
    options: EngineArgs<OfFsck>,
}

/// The report, as JSON has it.
#[derive(Serialize)]
struct Json<'a> {
    path: &'a Path,
    r#type: &'static str,
    clean: bool,
    /// The target of the replay of a journal: the image, or memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<Replayed>,
    #[serde(flatten)]
    marks: Marks,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reclaimed: bool,
    #[serde(flatten)]
    report: &'a Report,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let operational = |e: Failure| e.with_code(code::FSCK_OPERATIONAL);
        let engine = types::of_image(&self.path, self.offset).map_err(operational)?;
        let options = self.options.of(engine);
        let options = options.map_err(|e| Failure::new(e).with_code(code::FSCK_USAGE))?;
        self.examine(engine, &options).map_err(operational)
    }

    fn examine(&self, engine: &dyn Engine, options: &ArgMatches) -> Outcome {
        let found = self.check(engine, options)?;
        let Checked {
            replayed,
            marks,
            reclaimed,
            report,
            ..
        } = &found;
        if self.json {
            output::print_json(&Json {
                path: &self.path,
                r#type: engine.name(),
                clean: report.is_clean(),
                replayed: *replayed,
                marks: *marks,
                reclaimed: *reclaimed,
                report,
            })?;
        } else {
            output::print(text(&self.path, &found))?;
        }
        Ok(match report.worst() {
            Some(Severity::Corrupt) => code::FSCK_ERRORS_LEFT.into(),
            Some(Severity::Leak) if !self.repairs() => code::FSCK_ERRORS_LEFT.into(),
            _ if *reclaimed || *replayed == Some(Replayed::InPlace) => code::FSCK_CORRECTED.into(),
            _ => ExitCode::SUCCESS,
        })
    }

    /// Whether a journal is replayed and leaks are accepted.
    fn repairs(&self) -> bool {
        self.preen || self.yes
    }

    fn check(&self, engine: &dyn Engine, options: &ArgMatches) -> Result<Checked, Failure> {
        let image = Image::at(&self.path, self.offset);
        let spinner = terminal::spinner("checking");
        let checked =
            image::patiently(&self.path, || engine.check(&image, self.repairs(), options));
        spinner.finish_and_clear();
        checked.map_err(Failure::new)
    }
}

fn text(path: &Path, found: &Checked) -> String {
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
    if found.reclaimed {
        let _ = writeln!(text, "{name}: leaks were reclaimed");
    }
    let report = &found.report;
    let errors = || (report.findings.iter()).filter(|found| found.severity == Severity::Corrupt);
    for error in errors() {
        let _ = writeln!(text, "{name}: error: {error}");
    }
    if let Some(leaks) = leaks(report, found.leaks_go_by) {
        let _ = writeln!(text, "{name}: {leaks}");
    }
    let _ = match report.worst() {
        None => writeln!(text, "{name}: clean"),
        Some(Severity::Leak) => writeln!(text, "{name}: sound, and can be used as it is"),
        Some(Severity::Corrupt) => {
            let violations = output::count(errors().count() as u64, "violation");
            let more = if report.is_truncated { " or more" } else { "" };
            writeln!(text, "{name}: {violations} of the format{more}")
        }
    };
    text
}

/// Most leaks that are described.
const LEAKS: usize = 20;

/// The harmless leaks of a crash, in one line, by invariant.
fn leaks(report: &Report, go_by: &str) -> Option<String> {
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
        more if report.is_truncated => format!("; and {more} more at least"),
        more => format!("; and {more} more"),
    };
    let listed = kinds.join("; ");
    (!kinds.is_empty()).then(|| format!("leaks, which {go_by} reclaims: {listed}{more}"))
}
