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
        for line in runs::timeline(&run) {
            text.push_str(&line);
            text.push('\n');
        }
        output::print(text)?;
        Ok(ExitCode::SUCCESS)
    }
}
