//! The device as an engine, for commands.

use crate::WholeDisk;
use ::engine::{
    Engine, Error, Identity, Image, Info, Interposer, MountRequest, Prepared, Result, Verb, size,
};
use blockfs::engine::{MountArgs, named};
use blockfs::mount::{Devices, Mountable};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use patch::stack::{Mode, Stack};
use serde_json::json;
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
            Verb::Mkfs | Verb::Fsck | Verb::CrashTest | Verb::Graph => command,
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

    fn info(&self, image: &Image) -> Result<Info> {
        let mut stack = Stack::new(self.name(), Mode::default());
        stack.set_disks(|disk| disk.options.offset_bytes = image.offset_bytes);
        let devices = Devices::open::<WholeDisk>(&image.path, &stack, true);
        let devices = devices.map_err(|e| named(&image.path, e))?;
        let geometry = devices.disk.geometry();
        let (bytes, block) = (geometry.bytes(), geometry.block_bytes);
        let all = size::display(bytes);
        Ok(Info {
            lines: vec![
                ("path", image.path.display().to_string()),
                ("type", self.name().to_owned()),
                (
                    "size",
                    format!("{all}, {} blocks of {block}", geometry.blocks),
                ),
            ],
            json: json!({
                "path": image.path,
                "type": self.name(),
                "size_bytes": bytes,
                "block_bytes": block,
                "blocks": geometry.blocks,
            }),
        })
    }
}
