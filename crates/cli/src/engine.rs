//! The engines that commands can name.

use crate::failure::Failure;
use crate::{image, signature};
use std::path::Path;
use std::str::FromStr;

/// A file system that this program can mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// BPFS, on persistent memory.
    Bpfs,
    /// ext2, on block devices.
    Ext2,
    /// The in-memory model; nothing outlives the mount.
    Model,
}

impl Engine {
    /// The engine of what an image holds; BPFS if it is none of ours, to say so.
    ///
    /// # Errors
    /// If the image cannot be read.
    pub fn of_image(path: &Path) -> Result<Self, Failure> {
        Self::of_image_at(path, 0)
    }

    /// The same of an image that begins at a byte of another.
    ///
    /// # Errors
    /// As [`of_image`](Self::of_image); if there is no ext2 at an offset that is not 0.
    pub fn of_image_at(path: &Path, offset: u64) -> Result<Self, Failure> {
        let found = signature::find(path, offset).map_err(|e| image::about(path, e))?;
        match found {
            Some(signature::EXT2) => Ok(Self::Ext2),
            _ if offset == 0 => Ok(Self::Bpfs),
            _ => Err(image::about(
                path,
                format_args!("there is no ext2 file system at byte {offset}"),
            )),
        }
    }
}

/// What `-t` names: an engine, or ours without saying which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `selvedge`: whatever the image holds.
    Any,
    /// This one.
    One(Engine),
}

impl Type {
    /// The engine; if any will do, that of what the image holds.
    ///
    /// # Errors
    /// As [`Engine::of_image`].
    pub fn engine(self, path: &Path, offset: u64) -> Result<Engine, Failure> {
        match self {
            Self::One(engine) if offset == 0 || engine == Engine::Ext2 => Ok(engine),
            Self::One(_) => Err(Failure::new("an offset is for ext2 only")),
            Self::Any => Engine::of_image_at(path, offset),
        }
    }
}

impl FromStr for Type {
    type Err = String;

    /// `bpfs`, `model`, `selvedge`, each with or without `fuse.` before it.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("fuse.").unwrap_or(text) {
            "bpfs" => Ok(Self::One(Engine::Bpfs)),
            "ext2" => Ok(Self::One(Engine::Ext2)),
            "model" => Ok(Self::One(Engine::Model)),
            "selvedge" => Ok(Self::Any),
            _ => Err(format!("'{text}' is not one of bpfs, ext2, model")),
        }
    }
}
