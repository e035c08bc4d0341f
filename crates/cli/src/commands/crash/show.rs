//! `selvedge crash show`: the calls of a run.

use super::subjects::load;
use crate::failure::Outcome;
use crate::output;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the calls of a recorded run, one a line
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run
    #[arg(value_name = "RUN")]
    run: PathBuf,
}

impl Args {
    pub(super) fn run(&self) -> Outcome {
        let run = load(&self.run)?;
        let mut text = format!("{}\n", run.header.command);
        let setup = run.header.setup;
        for (n, entry) in run.entries.iter().enumerate().skip(setup) {
            text.push_str(&format!("{n:6}  {:<20}  {}\n", entry.by, entry.text));
        }
        output::print(text)?;
        Ok(ExitCode::SUCCESS)
    }
}
