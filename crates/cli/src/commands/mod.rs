//! The commands: one module for each, with its arguments and its work.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod crash;
pub(crate) mod depend;
pub(crate) mod dump;
pub(crate) mod fsck;
pub(crate) mod graph;
pub(crate) mod guarantees;
pub(crate) mod heap;
pub(crate) mod info;
pub(crate) mod manpages;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod order;
pub(crate) mod pg;
pub(crate) mod reference;
#[cfg(target_arch = "x86_64")]
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod stack;
pub(crate) mod stats;
pub(crate) mod sync;
pub(crate) mod umount;
