//! One module per command: its arguments and what it does.

pub mod bench;
pub mod completions;
pub mod crash;
pub mod dump;
pub mod fsck;
pub mod graph;
pub mod guarantees;
pub mod heap;
pub mod info;
pub mod manpages;
pub mod mkfs;
pub mod mount;
pub mod reference;
pub mod stack;
pub mod sync;
pub mod umount;
