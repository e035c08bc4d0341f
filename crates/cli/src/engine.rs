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
        let found = signature::find(path).map_err(|e| image::about(path, e))?;
        Ok(match found {
            Some(signature::EXT2) => Self::Ext2,
            _ => Self::Bpfs,
        })
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
    pub fn engine(self, path: &Path) -> Result<Engine, Failure> {
        match self {
            Self::One(engine) => Ok(engine),
            Self::Any => Engine::of_image(path),
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
