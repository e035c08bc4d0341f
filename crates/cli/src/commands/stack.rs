//! `selvedge stack`: the layers that mounts are put together from, and what is in a stack.

use crate::failure::{Failure, Outcome};
use crate::output;
use patch::stack::{NOTATION, Stack, list};
use rustix::termios::tcgetwinsize;
use std::process::ExitCode;
use std::{env, io, iter};

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
            None => {
                let text = format!("{NOTATION}\n\n{}", list());
                output::print(wrapped(&text, columns()))?;
            }
            Some(text) => {
                let stack: Stack = text.parse().map_err(Failure::new)?;
                output::print(format!("{stack}\n{}", stack.explain()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Columns of the terminal, or of `$COLUMNS`; at most 100, as in help texts.
fn columns() -> usize {
    const MOST: usize = 100;
    let terminal = tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    let variable = || env::var("COLUMNS").ok()?.parse().ok();
    let columns = Some(terminal).filter(|columns| *columns > 0);
    columns
        .or_else(variable)
        .map_or(MOST, |columns| columns.clamp(40, MOST))
}

/// Breaks lines between words. A line that continues an option begins below its description.
fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let gap = line[indent..].find("  ").map(|gap| indent + gap);
        let begin = gap.map_or(indent, |gap| line.len() - line[gap..].trim_start().len());
        let (head, description) = line.split_at(begin);
        out.push_str(head);
        let mut column = begin;
        for (n, word) in description.split(' ').enumerate() {
            let width = word.chars().count();
            if n > 0 && column + 1 + width > columns {
                column = begin.min(columns / 2);
                out.push('\n');
                out.extend(iter::repeat_n(' ', column));
            } else if n > 0 {
                column += 1;
                out.push(' ');
            }
            column += width;
            out.push_str(word);
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_line_begins_below_the_description() {
        let text = "one two three\n    KEY=N  what it is for\n";
        let expected = "one two three\n    KEY=N  what it is\n           for\n";
        assert_eq!(wrapped(text, 24), expected);
        assert_eq!(wrapped("one two three", 8), "one two\nthree\n");
    }

    #[test]
    fn lines_of_the_list_fit() {
        let text = format!("{NOTATION}\n\n{}", list());
        for columns in [60, 80, 100] {
            let longest = wrapped(&text, columns).lines().map(str::len).max();
            assert!(longest <= Some(columns), "{longest:?} at {columns}");
        }
    }
}
