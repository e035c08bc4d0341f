//! `selvedge stack`: the layers that mounts are put together from, and what is in a stack.

use crate::failure::{Failure, Outcome};
use crate::output;
use patch::stack::{NOTATION, Stack, list};
use std::process::ExitCode;

/// List the layers that a mount can be put together from, or explain a stack
///
/// Without a text, lists all layers, their options, and what may stand on what. With the
/// text of a stack, as mount takes it after --stack, says what each of its layers does, or
/// shows the place of the first mistake.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The stack
    #[arg(value_name = "TEXT")]
    text: Option<String>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        match &self.text {
            None => output::print(format!("{NOTATION}\n\n{}", list()))?,
            Some(text) => {
                let stack: Stack = text.parse().map_err(Failure::new)?;
                output::print(format!("{stack}\n{}", stack.explain()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
