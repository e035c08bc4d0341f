//! The locks of the clerk. The test `clerks` compiles the clerk over those of a scheduler instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use vfs::sync::{Condvar, Mutex, MutexGuard, thread_number};
