//! Aerie for the commands: the engine `pxfs`, the service of its images, and mounts of its clients.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod directory;
mod engine;
mod facts;
mod service;

pub use crate::engine::PxfsEngine;
