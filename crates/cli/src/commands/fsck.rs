//! `selvedge fsck`: checks a file system.

use crate::engine::Engine;
use crate::failure::{Failure, Outcome, code};
use crate::{image, output, terminal};
use medium::block::{DeviceOptions, FileDevice};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vfs::check::{Report, Severity};

/// Check a file system that is not mounted
///
/// Reads the whole image, changes nothing, and lists what violates the format, by the
/// numbers of format.md. There is nothing to repair after a crash: mounting recovers by
/// itself, so the options that ask for repairs are accepted and repair nothing.
///
/// Exit codes, as fsck(8) defines them: 0 clean, 4 errors found, 8 the check could not
/// be made, 16 wrong usage.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print a report in JSON
    #[arg(long)]
    json: bool,
    /// Change nothing (always so)
    #[arg(short = 'n')]
    no_changes: bool,
    /// For fsck(8): repair without questions
    #[arg(short = 'p', short_alias = 'a', visible_short_alias = 'a')]
    preen: bool,
    /// For fsck(8): answer yes to all questions
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
    #[serde(flatten)]
    report: &'a Report,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let operational = |e: Failure| e.with_code(code::FSCK_OPERATIONAL);
        let ext2 = Engine::of_image(&self.path).map_err(operational)? == Engine::Ext2;
        let report = if ext2 {
            self.check_ext2()
        } else {
            self.check()
        };
        let report = report.map_err(operational)?;
        let clean = report.is_clean();
        let printed = if self.json {
            output::print_json(&Json {
                path: &self.path,
                r#type: if ext2 { "ext2" } else { "bpfs" },
                clean,
                report: &report,
            })
        } else {
            output::print(text(&self.path, &report))
        };
        printed.map_err(operational)?;
        Ok(if clean {
            ExitCode::SUCCESS
        } else {
            code::FSCK_ERRORS_LEFT.into()
        })
    }

    fn check_ext2(&self) -> Result<Report, Failure> {
        let options = DeviceOptions {
            read_only: true,
            ..DeviceOptions::default()
        };
        let open = |bytes| FileDevice::open(&self.path, bytes, &options).map_err(Failure::new);
        // The superblock tells the size of the blocks.
        let sup = ext2::probe(&open(4096)?).map_err(|e| image::about(&self.path, e))?;
        if sup.features.iter().any(|name| name == "needs_recovery") {
            let why = "its journal must be replayed first: mount it";
            return Err(image::about(&self.path, why));
        }
        let device = open(sup.block_bytes)?;
        let spinner = terminal::spinner("checking");
        let report = ext2::check(&device);
        spinner.finish_and_clear();
        Ok(report)
    }

    fn check(&self) -> Result<Report, Failure> {
        let pm = image::open_read_only(&self.path)?;
        // Told apart from a damaged image: this is not one at all.
        if let Err(e @ bpfs::Error::NotBpfs) = bpfs::probe(&pm) {
            return Err(image::about(&self.path, e));
        }
        let spinner = terminal::spinner("checking");
        let report = bpfs::check(&pm);
        spinner.finish_and_clear();
        Ok(report)
    }
}

fn text(path: &Path, report: &Report) -> String {
    let name = path.display();
    if report.is_clean() {
        return format!("{name}: clean\n");
    }
    let mut text = String::new();
    for finding in &report.findings {
        let kind = match finding.severity {
            Severity::Leak => "leak",
            Severity::Corrupt => "error",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}: {kind}: {finding}");
    }
    let found = output::count(report.findings.len() as u64, "violation");
    let more = if report.truncated { " or more" } else { "" };
    let _ = writeln!(text, "{name}: {found} of the format{more}");
    text
}
