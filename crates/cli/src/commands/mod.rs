//! One module per command: its arguments and what it does.

pub mod completions;
pub mod manpages;
pub mod mount;
pub mod umount;
