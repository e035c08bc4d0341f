//! The device as an engine, for commands.

use crate::WholeDisk;
use ::engine::{Engine, Error, Identity, Image, Interposer, MountRequest, Prepared, Result, Verb};
use blockfs::engine::MountArgs;
use blockfs::mount::Mountable;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use patch::stack::{Mode, Stack};
use vfs::Guarantees;

/// The engine.
pub struct WholeDiskEngine;

/// The modes without a journal.
const MODES: [Mode; 2] = [Mode::Async, Mode::SoftUpdates];

impl Engine for WholeDiskEngine {
    fn name(&self) -> &'static str {
        WholeDisk::NAME
    }

    fn about(&self) -> &'static str {
        "a block device as one file, for patchgroups on raw writes; durable at fsync"
    }

    fn uses_image(&self) -> bool {
        true
    }

    fn modes(&self) -> Vec<&'static str> {
        MODES.map(Mode::name).to_vec()
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        let promised = |mode| WholeDisk::guarantees(&Stack::new(WholeDisk::NAME, mode));
        Ok(MODES.map(promised).into())
    }

    fn options(&self, verb: Verb) -> Command {
        let command = Command::new(self.name());
        match verb {
            Verb::Mount => MountArgs::augment_args(command),
            Verb::Mkfs | Verb::Fsck | Verb::CrashTest | Verb::Graph | Verb::Serve => command,
        }
    }

    fn mkfs(&self, _image: &Image, _identity: &Identity, _options: &ArgMatches) -> Result<String> {
        Err(self.lacks("mkfs: it shows a device as it is"))
    }

    fn mount(
        &self,
        request: &MountRequest,
        options: &ArgMatches,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        let args = MountArgs::from_arg_matches(options).map_err(Error::new)?;
        args.prepare::<WholeDisk>(request, between)
    }
}
