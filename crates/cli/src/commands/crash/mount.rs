//! `selvedge crash mount`: a crash state of a run as a directory.

use super::subjects::{Subjects, in_memory, load};
use crate::failure::{Failure, Outcome, code};
use crate::mount::daemon;
use crate::mount::options::Options as MountOptions;
use crate::mount::serve::{Opened, Prepared, serve};
use runs::checker::{Checker, CheckerKind};
use runs::explore::{Explorer, Options};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Mount a crash state of a recorded run, to look at it
///
/// The files are in memory. Changes are gone at the unmount (`selvedge umount DIR`).
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The run
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The id of the state, as `crash explore` prints it
    #[arg(long, value_name = "ID")]
    state: String,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The exploration was one with --order
    #[arg(long)]
    order: bool,
    /// Serve in the foreground; do not put a server in the background
    #[arg(long, short = 'f')]
    foreground: bool,
}

impl Args {
    pub(super) fn run(&self) -> Outcome {
        if !self.foreground && !daemon::is_second() {
            return daemon::start();
        }
        if daemon::is_second() {
            daemon::leave_session();
        }
        let prepared = Prepared {
            shared: false,
            source: format!("state {}", self.state),
            open: Box::new(|| self.opened()),
        };
        let served = serve(prepared, &self.dir, &MountOptions::default(), None, false);
        served.map_err(|e| e.with_code(code::MOUNT_FAILED))
    }

    fn opened(&self) -> Result<Opened, Failure> {
        let run = load(&self.run)?;
        let options = Options {
            checker: Checker {
                kind: CheckerKind::Command(String::new()),
                timeout: Duration::ZERO,
                memory_bytes: 0,
            },
            limit: 0,
            jobs: 1,
            seed: 0,
            max_failures: 0,
            order: self.order,
            scratch: std::env::temp_dir(),
        };
        let subjects = Subjects::of(&run);
        let state = Explorer::new(&run, &options).state(&self.state, &subjects.all());
        let state = state.map_err(Failure::new)?;
        let tree = state.tree.map_err(|why| {
            Failure::new(format_args!(
                "{}: the image cannot be opened: {why}",
                self.state
            ))
        })?;
        Ok(Opened {
            fs: Arc::new(in_memory(&tree)?),
            durability: None,
            about: serde_json::Map::from_iter([("type".into(), "model".into())]),
            stats: None,
            notes: vec!["the files are in memory; changes are gone at the unmount".into()],
            switch: None,
            close: Box::new(|| Ok(())),
            draw: None,
        })
    }
}
