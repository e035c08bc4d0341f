//! `selvedge graph`: what is not durable yet, and what waits for what, as a picture.

use crate::failure::{Failure, Outcome};
use crate::values::listed;
use crate::{ext2fs, image, output, size};
use clap::ValueEnum;
use ext2::{Devices, MkfsOptions, MountOptions};
use medium::block::{Geometry, MemoryDevice};
use patch::stack::{Mode, Stack};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use vfs::FileSystem;
use vfs::script::{Script, State, run};

/// Draw the graph of changes that a script leaves in the cache
///
/// Runs the script on an empty ext2 in memory, writes nothing back but what the script
/// syncs, and draws what is left: blocks as boxes, their patches inside (hard ones heavy,
/// empty ones dashed), an arrow from each patch to those that must be durable before it,
/// labelled with the rule. Of a mount, SIGUSR2 to its server draws the same beside the
/// image.
///
/// A script has one call a line: mkdir PATH MODE, create PATH MODE, write PATH OFFSET
/// LENGTH SEED, truncate PATH SIZE, rename FROM TO, unlink PATH, fsync PATH, sync and others.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The script; - reads standard input
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
    /// How order is kept
    #[arg(
        long,
        value_name = "MODE",
        default_value_t = Mode::default(),
        value_parser = listed::<Mode>(Mode::ALL)
    )]
    mode: Mode,
    /// What it is put together from, as for mount
    #[arg(long, value_name = "STACK", conflicts_with = "mode")]
    stack: Option<Stack>,
    /// Size of the file system
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "16M")]
    size: u64,
    /// Bytes in a block: 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    block_size: u32,
    /// svg (an image), dot (text for Graphviz) or json
    #[arg(long, value_name = "FORMAT", default_value = "svg")]
    format: Format,
}

/// How to show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Svg,
    Dot,
    Json,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let script = self.read()?;
        let mut stack = match &self.stack {
            Some(stack) => stack.clone(),
            None => Stack::new("ext2", self.mode),
        };
        stack.cache.interval = None;
        let memory = Path::new("memory");
        let mounted = ext2::mount(&stack, self.memory()?, &MountOptions::default())
            .map_err(|e| ext2fs::named(memory, &e))?;
        let fs = mounted.file_system();
        // What making and mounting it has left.
        fs.sync().map_err(Failure::new)?;
        let mut state = State::default();
        let results = run(&**fs, &mut state, &script);
        for (op, result) in script.ops.iter().zip(results) {
            result.map_err(|e| Failure::new(format_args!("{op}: {e}")))?;
        }
        let drawing = ext2fs::drawing(&mounted);
        match self.format {
            Format::Svg => output::print(drawing.svg())?,
            Format::Dot => output::print(drawing.dot())?,
            Format::Json => output::print_json(&drawing)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn read(&self) -> Result<Script, Failure> {
        let failed = |e: &dyn std::fmt::Display| image::about(&self.script, e);
        let mut text = String::new();
        if self.script == Path::new("-") {
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|e| failed(&e))?;
        } else {
            text = std::fs::read_to_string(&self.script).map_err(|e| failed(&e))?;
        }
        text.parse().map_err(|e| failed(&e))
    }

    /// An empty file system in memory.
    fn memory(&self) -> Result<Devices, Failure> {
        let options = MkfsOptions {
            block_bytes: self.block_size,
            ..MkfsOptions::for_size(self.size)
        };
        let block_bytes = self.block_size.max(512);
        let geometry = Geometry {
            block_bytes,
            blocks: self.size / u64::from(block_bytes),
        };
        if self.size > 1 << 32 {
            return Err(Failure::new("at most 4G: it is in memory"));
        }
        let disk = Arc::new(MemoryDevice::new(geometry));
        ext2::mkfs(&*disk, &options).map_err(Failure::new)?;
        Ok(Devices { disk, log: None })
    }
}
