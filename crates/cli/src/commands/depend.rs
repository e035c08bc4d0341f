//! `selvedge depend`: commands whose changes reach the disk in order.

use crate::failure::{Failure, Outcome};
use crate::launch::{Groups, Launcher};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Run commands so that the changes of each reach the disk after those of the one before
///
/// The commands run in turn, by sh(1), and nothing waits for the disk. The first command that fails
/// ends the list, and its exit status is the one of `depend`. A command has ended when all processes
/// that it started have ended.
///
/// `selvedge depend "sort <in >out" "rm in"` never loses both files in a crash.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory of the mount; repeat it for several mounts, between which there is no order
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: Vec<PathBuf>,
    /// Read each COMMAND as 'NAME: COMMAND' or 'NAME after NAME,...: COMMAND'; commands wait only for
    /// those that they name
    #[arg(long)]
    graph: bool,
    /// Make the changes of all commands durable before the command ends
    #[arg(long)]
    sync_at_exit: bool,
    /// Commands for sh(1)
    #[arg(required = true, value_name = "COMMAND")]
    commands: Vec<String>,
}

/// A command, and the earlier ones for which its changes wait, by index.
#[derive(Debug, PartialEq, Eq)]
struct Step<'a> {
    command: &'a str,
    after: Vec<usize>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let steps = match self.graph {
            true => graph(&self.commands)?,
            false => list(&self.commands),
        };
        let launcher = Launcher::new()?;
        let mut groups: Vec<Groups> = Vec::new();
        for step in &steps {
            let own = Groups::new(&self.dir)?;
            for before in &step.after {
                own.depend(&groups[*before])?;
            }
            let ended = {
                let _engaged = own.engage()?;
                launcher.run(Command::new("sh").arg("-c").arg(step.command))?
            };
            groups.push(own);
            if !ended.is_success() {
                return Ok(ended.code());
            }
        }
        if self.sync_at_exit {
            groups.iter().try_for_each(Groups::sync)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Each command after the one before it.
fn list(commands: &[String]) -> Vec<Step<'_>> {
    let steps = commands.iter().enumerate();
    steps
        .map(|(at, command)| Step {
            command,
            after: Vec::from_iter(at.checked_sub(1)),
        })
        .collect()
}

/// Commands with names, each after those that it names.
fn graph(commands: &[String]) -> Result<Vec<Step<'_>>, Failure> {
    let mut names = BTreeMap::new();
    let mut steps = Vec::new();
    for (at, text) in commands.iter().enumerate() {
        let wrong = |what: &str| Failure::new(format_args!("'{text}': {what}"));
        let (head, command) = text
            .split_once(':')
            .ok_or_else(|| wrong("with --graph, a command reads 'NAME: COMMAND'"))?;
        let (name, befores) = match head.split_once(" after ") {
            Some((name, befores)) => (name.trim(), befores),
            None => (head.trim(), ""),
        };
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(wrong("a name is one word"));
        }
        let befores = befores.split(',').map(str::trim).filter(|b| !b.is_empty());
        let find = |before: &str| {
            let found = names.get(before).copied();
            found.ok_or_else(|| wrong(&format!("no command before this one is named '{before}'")))
        };
        let after = befores.map(find).collect::<Result<_, _>>()?;
        if names.insert(name, at).is_some() {
            return Err(wrong("another command has this name"));
        }
        steps.push(Step {
            command: command.trim(),
            after,
        });
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_graph_names_its_befores() {
        let texts = commands(&["a: x", "b: y:z", "c after a, b: w"]);
        let steps = graph(&texts).unwrap();
        let after = |at: usize| steps[at].after.clone();
        assert_eq!((after(0), after(1), after(2)), (vec![], vec![], vec![0, 1]));
        assert_eq!(steps[1].command, "y:z");
    }

    #[test]
    fn a_wrong_graph_is_refused() {
        for (texts, what) in [
            (vec!["x"], "reads 'NAME: COMMAND'"),
            (vec!["a b: x"], "one word"),
            (vec!["a after b: x", "b: y"], "named 'b'"),
            (vec!["a after a: x"], "named 'a'"),
            (vec!["a: x", "a: y"], "another command"),
        ] {
            let error = graph(&commands(&texts)).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
