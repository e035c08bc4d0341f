//! Replies that several requests have in common.

use super::convert::{errno, file_attr};
use fuser::{Errno, ReplyAttr, ReplyEmpty, ReplyXattr};
use std::time::Duration;
use vfs::Attr;

/// The time for which names and attributes stay valid in the kernel if every change passes through it: a
/// year, in practice always.
pub(super) const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) fn attr(result: vfs::Result<Attr>, lifetime: Duration, reply: ReplyAttr) {
    match result {
        Ok(a) => reply.attr(&lifetime, &file_attr(&a)),
        Err(e) => reply.error(errno(e)),
    }
}

pub(super) fn empty(result: vfs::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

/// The size protocol of extended attributes: size 0 asks for the length, a buffer that
/// is too small is `ERANGE`.
pub(super) fn xattr(result: vfs::Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(e) => reply.error(errno(e)),
    }
}
