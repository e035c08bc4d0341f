//! `selvedge guarantees`: what each file system here promises about crashes, by the values
//! that the explorer tests; nothing is written down twice.

use crate::failure::{Failure, Outcome};
use crate::output;
use bpfs::format::{BLOCK, MIN_BLOCKS};
use bpfs::{Bpfs, MkfsOptions, Mode, MountOptions};
use medium::MemoryPmem;
use patch::stack::{self, Stack};
use std::process::ExitCode;
use vfs::{FileSystem, Guarantees, ModelFs};

/// Print what each file system promises about crashes
///
/// The table is made from the values that the file systems declare and that the crash
/// explorer tests.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let rows = rows()?;
        if self.json {
            output::print_json(&rows)?;
        } else {
            output::print(text(&rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What every engine in every mode promises, as a mount would declare it.
///
/// # Errors
/// If an empty file system in memory cannot be made, which would be a bug.
pub fn rows() -> Result<Vec<Guarantees>, Failure> {
    let bpfs = Mode::ALL.into_iter().map(|mode| {
        let pm = MemoryPmem::new(MIN_BLOCKS * BLOCK);
        let options = MkfsOptions {
            mode,
            ..MkfsOptions::default()
        };
        bpfs::mkfs(&pm, &options).map_err(Failure::new)?;
        let fs = Bpfs::open(pm, MountOptions::default()).map_err(Failure::new)?;
        Ok(fs.guarantees())
    });
    let ext2 = stack::Mode::ALL.map(|mode| Ok(ext2::mount::guarantees(&Stack::new("ext2", mode))));
    let model = [Ok(ModelFs::default().guarantees())];
    bpfs.chain(ext2).chain(model).collect()
}

/// The table, and below it what does not fit into a table.
pub fn text(rows: &[Guarantees]) -> String {
    let mut text = vfs::guarantees::table(rows);
    for row in rows.iter().filter(|r| !r.notes.is_empty()) {
        text.push_str(&format!("\n{}:\n", row.name));
        for note in &row.notes {
            text.push_str(&format!("  {note}\n"));
        }
    }
    text
}
