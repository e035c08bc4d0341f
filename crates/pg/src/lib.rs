//! Patchgroups: order between changes of files, without `fsync` (section 2.3 of the
//! Featherstitch chapter).
#![warn(unreachable_pub)]

pub mod protocol;
