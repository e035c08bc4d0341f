//! `selvedge dump`: the structures of an image, for people. It only reads, and damage makes
//! it stop with a message, never run on.

use crate::failure::{Failure, Outcome};
use crate::{image, output, types};
use engine::{Image, Selection};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show structures of an image: an inode and its tree of blocks
///
/// Without --inode or --path: the super block, the redo log and the inode file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
    pub(crate) fn run(&self) -> Outcome {
        let what = match (self.inode, &self.path) {
            (Some(ino), _) => Selection::Inode(ino),
            (None, Some(path)) => Selection::Path(path.as_os_str().as_bytes().to_vec()),
            (None, None) => Selection::Super,
        };
        let engine = types::of_image(&self.image, 0)?;
        let image = Image::whole(&self.image);
        let mut text = Vec::new();
        let dumped = image::patiently(&self.image, || engine.dump(&image, &what, &mut text));
        // The structures before a damaged place are worth seeing.
        output::print(text)?;
        dumped.map_err(Failure::new)?;
        Ok(ExitCode::SUCCESS)
    }
}
