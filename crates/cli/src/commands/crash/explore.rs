//! `selvedge crash explore`: shows the crash states of a run to a checker.

use super::subjects::{Subjects, load, names};
use super::{at_least_one, verdict};
use crate::failure::{Failure, Outcome, code};
use crate::output::{self, count};
use crate::terminal;
use engine::size;
use runs::checker::{Checker, CheckerKind};
use runs::explore::{CallRef, Explored, Explorer, Failure as Found, Options, Report};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Show a checker each state that a crash could have left of a recorded run
///
/// For each state the files are written to a directory, and the checker judges them: exit status 0
/// accepts the state. The environment variable SELVEDGE_OUTPUT names a file with all that the
/// program had written to its standard output before the crash, so that a checker can demand what
/// the program had promised.
///
/// Exits with 1 if a state failed. Each failure has an id, which `crash mount` takes.
#[derive(Debug, clap::Args)]
#[command(after_long_help = about_models())]
pub(super) struct Args {
    /// The run
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The checker: a shell command, in which {dir} stands for the directory
    #[arg(long, value_name = "COMMAND", required_unless_present = "checker")]
    check: Option<String>,
    /// A checker that stays: it reads a line "DIRECTORY<tab>OUTPUT" for each state, and answers
    /// "ok" or "fail MESSAGE"
    #[arg(long, value_name = "COMMAND", conflicts_with = "check")]
    checker: Option<String>,
    /// The model of the file system; may be given several times; by default all
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// Take each request of durability as a barrier, as `selvedge order` does, on the engines that
    /// keep such an order
    #[arg(long)]
    order: bool,
    /// Most distinct states of each model
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Checkers that run at once; by default one for each CPU
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    jobs: Option<usize>,
    /// Time for one state, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
    /// Memory of each process of the checker
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    memory: u64,
    /// Distinct failures that are shrunk and reported
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one())]
    max_failures: usize,
    /// Seed of the random states
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Also write the report as a page for a browser, in one file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn about_models() -> String {
    let mut text = String::from("Models:\n");
    for model in runs::model::Model::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<14}{}", model.to_string(), model.about());
    }
    let engines = names()
        .into_iter()
        .filter(|name| name.parse::<runs::model::Model>().is_err());
    for name in engines {
        let _ = writeln!(text, "  {name}: the run is replayed on this engine");
    }
    text
}

impl Args {
    pub(super) fn run(&self) -> Outcome {
        let run = load(&self.run)?;
        let subjects = Subjects::of(&run);
        let mut chosen = subjects.named(&self.models)?;
        if self.order {
            chosen.retain(|subject| matches!(subject, runs::explore::Subject::Engine(..)));
        }
        if chosen.is_empty() {
            let why = "--order: only engines keep the order of barriers; name one of them";
            return Err(Failure::new(why).with_code(code::USAGE));
        }
        let options = self.options();
        let bar = terminal::spinner("explore");
        let progress = |model: &str, states: u64| {
            bar.set_message(format!("{model}: {}", count(states, "state")));
        };
        let report = Explorer::new(&run, &options).explore(&chosen, &progress);
        bar.finish_and_clear();
        let report = report.map_err(|why| Failure::about(&self.run, why))?;
        if let Some(path) = &self.html {
            let page = runs::html(&run, &report);
            std::fs::write(path, page).map_err(|e| Failure::about(path, e))?;
        }
        if self.json {
            output::print_json(&report)?;
        } else {
            output::print(text(&report, &self.run))?;
        }
        Ok(verdict(report.failures.is_empty()))
    }

    fn options(&self) -> Options {
        let kind = match (&self.check, &self.checker) {
            (_, Some(server)) => CheckerKind::Server(server.clone()),
            (check, None) => CheckerKind::Command(check.clone().unwrap_or_default()),
        };
        let memory = Path::new("/dev/shm");
        let scratch = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            checker: Checker {
                kind,
                timeout: Duration::from_secs(self.timeout),
                memory_bytes: self.memory,
            },
            limit: self.limit,
            jobs: self.jobs.unwrap_or_else(cpus),
            seed: self.seed,
            max_failures: self.max_failures,
            order: self.order,
            scratch,
        }
    }
}

/// The report for a person.
fn text(report: &Report, run: &Path) -> String {
    let calls = count(report.calls as u64, "call");
    let mut text = format!("{}: {calls} of {}\n\n", run.display(), report.command);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:<24}{:>9}{:>9}  RESULT",
        "MODEL", "STATES", "FAILED"
    );
    for model in &report.models {
        let (name, judged, failed) = (&model.model, model.judged, model.failed);
        let _ = writeln!(text, "{name:<24}{judged:>9}{failed:>9}  {}", result(model));
    }
    for failure in &report.failures {
        text.push('\n');
        describe(failure, &mut text);
    }
    if report.more_failures > 0 {
        let more = count(report.more_failures, "more failure");
        let _ = writeln!(text, "\n{more}; see --max-failures");
    }
    for unseen in &report.unseen {
        let _ = writeln!(text, "\nnot seen: {unseen}");
    }
    text
}

fn result(model: &Explored) -> String {
    match (&model.refused, model.failed, model.complete) {
        (Some(why), ..) => format!("not explored: {why}"),
        (None, 1.., _) => "fails".into(),
        (None, 0, true) => "safe: all states pass".into(),
        (None, 0, false) => "no failure in these states".into(),
    }
}

fn describe(failure: &Found, text: &mut String) {
    // Writing to a string cannot fail.
    let states = count(failure.states, "state");
    let _ = writeln!(text, "{}: {} ({states})", failure.model, failure.message);
    let _ = writeln!(text, "  id: {}", failure.id);
    if let Some(after) = &failure.after {
        let _ = writeln!(text, "  after: {}", call(after));
    }
    for lost in failure.lost.iter().take(10) {
        let _ = writeln!(text, "  lost:  {}", call(lost));
    }
    let more = failure.lost.len().saturating_sub(10);
    if more > 0 {
        let _ = writeln!(text, "  lost:  {}", count(more as u64, "more call"));
    }
    match &failure.before {
        Some(before) => {
            let _ = writeln!(text, "  crash: before {} returns", call(before));
        }
        None => text.push_str("  crash: after the program\n"),
    }
    for difference in failure.differences.iter().take(5) {
        let _ = writeln!(text, "  {difference}");
    }
    let more = failure.differences.len().saturating_sub(5) + failure.more_differences;
    if more > 0 {
        let _ = writeln!(text, "  {}", count(more as u64, "more difference"));
    }
}

fn call(call: &CallRef) -> String {
    match call.by.as_str() {
        "" => format!("{} (call {})", call.text, call.number),
        by => format!("{} (call {}, {by})", call.text, call.number),
    }
}
