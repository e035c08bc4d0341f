//! Patchgroups of a mounted file system (section 2.3 of the Featherstitch chapter).
//!
//! [`Grouped`] stands on any file system that keeps an order between sets of changes
//! ([`vfs::ChangeOrder`]), or in which each call is durable in order. A group is a file without a
//! lasting name, so its descriptors are inherited, passed on and closed as all others are. The
//! calls on it are those of [`pg::protocol`].
//!
//! # Guarantee
//! If a crash state has a change of a group, it has all changes of the groups for which that
//! one waits. A change belongs to the groups that its process had engaged when the call began.
//! The kernel writes pages of mappings without naming a process: they belong to all groups that
//! are open at that moment. A program that needs them in a group calls `msync` before the group is
//! sealed.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod by_itself;
mod gate;
mod processes;
mod served;
mod table;
mod threads;

pub use processes::{ProcFs, Process, Processes};
pub use served::{Grouped, keeps_order};
pub use table::GroupInfo;
