//! Readers of objects. The memory may contain anything.

pub(crate) mod bucket;
pub(crate) mod collection;
pub(crate) mod object;
pub(crate) mod tree;
