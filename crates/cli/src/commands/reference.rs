//! `selvedge reference`: all help texts as one page of Markdown, for the documents.

use crate::Cli;
use crate::commands::manpages::exit_status;
use crate::failure::Outcome;
use crate::output;
use clap::{Command, CommandFactory};
use std::process::ExitCode;

/// Columns of the help texts, whatever the terminal has.
const COLUMNS: usize = 100;

/// Print the help of all commands in Markdown
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let mut cli = Cli::command()
            .disable_help_subcommand(true)
            .term_width(COLUMNS);
        cli.build();
        let mut text = String::new();
        for command in visible(&cli) {
            describe(command, &mut text);
        }
        output::print(text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// Appends one section for the command, and one for each of its subcommands.
fn describe(command: &Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let page = command.get_display_name().unwrap_or(command.get_name());
    let help = command.clone().render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    let (help, exit) = (lines.join("\n"), exit_status(page));
    text.push_str(&format!(
        "## {name}\n\n```text\n{help}\n```\n\nExit status: {exit}.\n\n"
    ));
    for sub in visible(command) {
        describe(sub, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_section() {
        let mut cli = Cli::command().disable_help_subcommand(true);
        cli.build();
        let mut text = String::new();
        visible(&cli).for_each(|command| describe(command, &mut text));
        for name in ["selvedge mkfs", "selvedge crash test", "selvedge heap info"] {
            assert!(text.contains(&format!("## {name}\n")), "{name}");
        }
        assert!(!text.contains("## selvedge reference"));
    }
}
