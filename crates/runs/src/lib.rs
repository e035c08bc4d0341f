//! Recorded runs of programs, and the states that a crash could leave of them.
//!
//! - [`Run`]: the calls of a program that changed files, in order, with their data. A
//!   [`Recorder`] under a mount makes one, or [`strace`] reads one from the output of strace(1).
//! - [`model`]: what a crash can leave of a run on different file systems.
//! - [`explore`]: the states of a run, judged by the user's checker; [`html()`] shows the report.
//! - [`Tree`]: the files and directories after some calls, as a value.
//!
//! A run names inodes by numbers of its own ([`Node`]), and not by paths. So a call
//! stays valid when a crash has lost calls before it.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod bytes;
mod call;
pub mod checker;
pub mod explore;
mod html;
pub mod model;
mod play;
mod recorder;
mod run;
pub mod strace;
mod tree;

pub use bytes::Bytes;
pub use call::{Blob, Call, Kind, Node, Place};
pub use html::{html, timeline};
pub use recorder::{OUTPUT_NAME, PassOn, Recorder, WithOutput};
pub use run::{Entry, Header, Run, RunError, Source, Writer};
pub use tree::{Contents, Difference, Inode, PAGE_BYTES, Tree};
