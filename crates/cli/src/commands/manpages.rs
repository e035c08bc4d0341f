//! `selvedge manpages`: the manual, from the same definitions as the command line.

use crate::Cli;
use crate::commands::guarantees;
use crate::failure::{Failure, Outcome};
use clap::CommandFactory;
use clap_mangen::Man;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write the manual pages to a directory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory; made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let failed = |e| Failure::new(format_args!("{}: {e}", self.dir.display()));
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        write_pages(command, &self.dir).map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// One page for the command and one for each of its subcommands, in section 8.
fn write_pages(command: clap::Command, dir: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        write_pages(sub.clone(), dir)?;
    }
    let command = match command.get_name() {
        "selvedge-guarantees" | "guarantees" => command.after_long_help(promises()?),
        _ => command,
    };
    let page = Man::new(command)
        .section("8")
        .manual("System Administration");
    page.generate_to(dir).map(drop)
}

/// The table of promises, indented: roff fills lines that begin at the margin.
fn promises() -> io::Result<String> {
    let rows = guarantees::rows().map_err(|e| io::Error::other(e.to_string()))?;
    let text = guarantees::text(&rows);
    Ok(text.lines().map(|line| format!("  {line}\n")).collect())
}
