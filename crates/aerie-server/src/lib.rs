//! The trusted service of Aerie (TFS).
//!
//! - [`batches`]: checks the batches of clients, and makes what it accepts durable.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod batches;
