//! Aerie for the commands: the engine `pxfs`.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod engine;

pub use crate::engine::PxfsEngine;
