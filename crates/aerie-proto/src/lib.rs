//! The protocol between a client of Aerie and its trusted service.
//!
//! - [`batch`]: the changes that a client asks for, as bytes.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod batch;
