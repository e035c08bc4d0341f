//! The protocol between a program and the server of a mount.
//!
//! A group is an open file of the mount. The lookup of a name that begins with [`NAME`] makes a
//! new group in any directory; no listing has it. The group ends when its last descriptor is
//! closed. Its inode number identifies it. Calls on groups are requests of `ioctl(2)`.

/// Start of the names that stand for new groups. Callers append something of their own, so that
/// two lookups at the same time are of two names.
pub const NAME: &str = ".selvedge-patchgroup";

/// Makes this group wait for another one. Input: the other group's number.
pub const DEPEND: u32 = write::<u64>(1);
/// Makes changes of the calling process part of the group.
pub const ENGAGE: u32 = none(2);
/// Ends [`ENGAGE`]: later changes of the calling process are not part of the group.
pub const DISENGAGE: u32 = none(3);
/// Makes the changes of the group durable, and those for which they wait.
pub const SYNC: u32 = none(4);
/// Makes later changes of the group wait for its earlier ones.
pub const BARRIER: u32 = none(5);
/// Makes each request of durability (`fsync`, `fdatasync`, a synchronous write) by an engaged
/// process a barrier of the group.
pub const ORDER: u32 = none(6);

/// The type of these requests: bits 8 to 15, as in `_IO` and `_IOW` of ioctl(2). The kernel's list has no
/// other use of it.
const TYPE: u32 = 0xe9;

const fn none(number: u32) -> u32 {
    TYPE << 8 | number
}

/// A request whose input is a `T`.
const fn write<T>(number: u32) -> u32 {
    1 << 30 | (size_of::<T>() as u32) << 16 | TYPE << 8 | number
}
