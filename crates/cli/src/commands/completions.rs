//! `selvedge completions`: completion scripts for shells, made from the command line's own
//! definition, so that they cannot differ from it.

use crate::Cli;
use crate::failure::Outcome;
use clap::CommandFactory;
use clap_complete::Shell;
use std::process::ExitCode;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "selvedge", &mut script);
        crate::output::print(script)?;
        Ok(ExitCode::SUCCESS)
    }
}
