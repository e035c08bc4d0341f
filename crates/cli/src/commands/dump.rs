//! `selvedge dump`: the structures of an image, for people. It only reads, and damage makes
//! it stop with a message, never run on.

use crate::engine::Engine;
use crate::failure::Outcome;
use crate::{image, output};
use bpfs::{Dump, dump};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show structures of an image: an inode and its tree of blocks
///
/// Without --inode or --path: the super block, the redo log and the inode file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The inode with this number
    #[arg(long, value_name = "N", conflicts_with = "path")]
    inode: Option<u64>,
    /// The inode that this path names in the image; links are not followed
    #[arg(long, value_name = "P")]
    path: Option<PathBuf>,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        if Engine::of_image(&self.image)? == Engine::Ext2 {
            let why = "dump knows bpfs only; debugfs(8) shows structures of ext2";
            return Err(image::about(&self.image, why));
        }
        let pm = image::open_read_only(&self.image)?;
        let what = match (self.inode, &self.path) {
            (Some(ino), _) => Dump::Inode(ino),
            (None, Some(path)) => Dump::Path(path.as_os_str().as_bytes().to_vec()),
            (None, None) => Dump::Super,
        };
        let mut text = Vec::new();
        let dumped = dump(&pm, &what, &mut text);
        // What came before a damaged place is worth seeing.
        output::print(text)?;
        dumped.map_err(|e| image::about(&self.image, e))?;
        Ok(ExitCode::SUCCESS)
    }
}
