//! The crash-state explorer.
#![forbid(unsafe_code)]
