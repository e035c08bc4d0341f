//! `selvedge guarantees`: what each file system here promises about crashes, by the values
//! that the explorer tests; nothing is written down twice.

use crate::failure::{Failure, Outcome};
use crate::output;
use std::process::ExitCode;
use vfs::Guarantees;

/// Print what each file system promises about crashes
///
/// The table is made from the values that the file systems declare and that the crash
/// explorer tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let rows = rows()?;
        if self.json {
            output::print_json(&rows)?;
        } else {
            output::print(text(&rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The promises of every engine in every mode, as a mount would declare them.
///
/// # Errors
/// If an empty file system in memory cannot be made, which would be a bug.
pub(crate) fn rows() -> Result<Vec<Guarantees>, Failure> {
    let mut rows = Vec::new();
    for engine in engines::all() {
        rows.extend(engine.guarantees().map_err(Failure::new)?);
    }
    Ok(rows)
}

/// The table, and below it what does not fit into a table.
pub(crate) fn text(rows: &[Guarantees]) -> String {
    let mut text = vfs::guarantees::table(rows);
    for row in rows.iter().filter(|r| !r.notes.is_empty()) {
        text.push_str(&format!("\n{}:\n", row.name));
        for note in &row.notes {
            text.push_str(&format!("  {note}\n"));
        }
    }
    text
}
