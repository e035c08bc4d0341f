//! One module per command: its arguments and what it does.

pub mod completions;
pub mod guarantees;
pub mod info;
pub mod manpages;
pub mod mkfs;
pub mod mount;
pub mod umount;
