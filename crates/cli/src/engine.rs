//! The engines that commands can name.

use std::str::FromStr;

/// A file system that this program can mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// BPFS, on persistent memory.
    Bpfs,
    /// The in-memory model; nothing outlives the mount.
    Model,
}

/// What `-t` names: an engine, or ours without saying which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `selvedge`: whatever the image holds.
    Any,
    /// This one.
    One(Engine),
}

impl FromStr for Type {
    type Err = String;

    /// `bpfs`, `model`, `selvedge`, each with or without `fuse.` before it.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("fuse.").unwrap_or(text) {
            "bpfs" => Ok(Self::One(Engine::Bpfs)),
            "model" => Ok(Self::One(Engine::Model)),
            "selvedge" => Ok(Self::Any),
            _ => Err(format!("'{text}' is not one of bpfs, model")),
        }
    }
}
