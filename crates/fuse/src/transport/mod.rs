//! How requests arrive from the kernel and replies return to it.
//!
//! A transport decodes a request, calls the method of [`Ops`](crate::ops::Ops) of the
//! same name, and encodes what that returned; it decides nothing else. There is one:
//! [`dev_fuse`], which reads and writes `/dev/fuse` through the crate `fuser`. A ring
//! shared with the kernel (FUSE over io_uring) would stand beside it.

pub(crate) mod dev_fuse;
pub(crate) mod dropped;
pub(crate) mod late;
pub(crate) mod short_lived;
mod written;
