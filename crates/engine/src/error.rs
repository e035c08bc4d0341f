//! Errors of engines.

use medium::OpenError;
use std::fmt::Display;
use std::path::Path;

/// Result with an engine's error.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an engine could not do its work. The text names the image and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image cannot be opened, for one because it is in use.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The engine does not have the feature.
    #[error("{engine} has no {what}")]
    Lacks {
        /// Its name.
        engine: &'static str,
        /// The feature, and why it is missing.
        what: String,
    },
    /// An option is unknown to the engine or has a wrong value.
    #[error("{0}")]
    Option(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// An error with this text.
    pub fn new(text: impl Display) -> Self {
        Self::Other(text.to_string())
    }

    /// An error about an image: its text begins with the path.
    pub fn about(path: &Path, text: impl Display) -> Self {
        Self::Other(format!("{}: {text}", path.display()))
    }
}
