//! `selvedge pg`: the patchgroups of a mount.

use crate::failure::{Failure, Outcome};
use crate::mount::facts;
use crate::output;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show the patchgroups of a mount
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the groups that exist now
    List {
        /// A directory of the mount
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let Command::List { dir, json } = &self.command;
        let groups = facts::root_of(dir).and_then(|root| facts::groups(&root));
        let Some(groups) = groups else {
            let dir = dir.display();
            return Err(Failure::new(format_args!(
                "{dir}: not in a mount of Selvedge"
            )));
        };
        match json {
            true => output::print_json(&groups)?,
            false => output::print(table(&groups))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The groups as a table, one line each.
fn table(groups: &Value) -> String {
    let mut out = String::from("GROUP     UID    PID      AGE  STATE    PENDING  ENGAGED BY\n");
    let list = groups["groups"].as_array().map_or(&[][..], Vec::as_slice);
    for group in list {
        let state = match (group["sealed"] == true, group["order"] == true) {
            (true, _) => "sealed",
            (_, true) => "order",
            _ => "open",
        };
        let engaged = group["engaged"].as_array().map_or(&[][..], Vec::as_slice);
        let engaged: Vec<String> = engaged.iter().map(ToString::to_string).collect();
        let line = format!(
            "{:<6} {:>6} {:>6} {:>6.0} s  {:<7} {:>8}  {}",
            group["group"].as_u64().unwrap_or(0),
            group["uid"].as_u64().unwrap_or(0),
            group["pid"].as_u64().unwrap_or(0),
            group["age_seconds"].as_f64().unwrap_or(0.0),
            state,
            group["pending"].as_u64().unwrap_or(0),
            engaged.join(" "),
        );
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let (listed, total) = (list.len() as u64, groups["total"].as_u64().unwrap_or(0));
    if total > listed {
        out.push_str(&format!("{} more\n", total - listed));
    }
    out
}
