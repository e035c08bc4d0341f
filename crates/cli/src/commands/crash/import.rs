//! `selvedge crash import`: makes a run of a trace of strace(1).

use crate::failure::{Failure, Outcome};
use crate::output::{self, count};
use std::path::PathBuf;
use std::process::ExitCode;

/// Make a run of the output of strace(1)
///
/// The trace needs whole data and exact names: strace -f -s 1073741823 -xx -o FILE. `crash record
/// --strace` traces with all options that are needed, and compares the run with the directory
/// afterwards.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The trace
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// The directory with the files of the program; its path when the program ran
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A copy of that directory as it was before; without it, the directory was empty
    #[arg(long, value_name = "DIR")]
    before: Option<PathBuf>,
    /// The new directory for the run
    #[arg(long, short = 'o', value_name = "RUN")]
    out: PathBuf,
}

impl Args {
    pub(super) fn run(&self) -> Outcome {
        let before = self.before.as_deref();
        let run = runs::strace::import_file(&self.trace, &self.dir, before);
        let run = run.map_err(Failure::new)?;
        run.save(&self.out).map_err(Failure::new)?;
        let calls = (run.entries.len() - run.header.setup) as u64;
        let mut text = format!("{}: {}\n", self.out.display(), count(calls, "call"));
        for unseen in &run.header.unseen {
            text.push_str(&format!("not seen: {unseen}\n"));
        }
        output::print(text)?;
        Ok(ExitCode::SUCCESS)
    }
}
