//! Extended attributes.

use super::{Answer, At, Call};
use crate::memory;
use libc::*;
use vfs::{Ctx, Errno, FileSystem, Ino, XattrMode};

/// Largest value, as in the kernel.
const VALUE_MAX: u64 = 65536;

/// All calls on extended attributes.
pub(crate) fn call(call: &Call) -> Answer {
    let run = |fs: &dyn FileSystem, cx: &Ctx, ino: Ino| match call.number {
        SYS_getxattr | SYS_lgetxattr | SYS_fgetxattr => {
            let name = memory::xattr_name(call.args[1])?;
            show(call, 2, &fs.getxattr(cx, ino, &name)?)
        }
        SYS_listxattr | SYS_llistxattr | SYS_flistxattr => {
            let names = fs.listxattr(cx, ino)?;
            let names: Vec<u8> = names
                .iter()
                .flat_map(|name| [&name[..], b"\0"].concat())
                .collect();
            show(call, 1, &names)
        }
        SYS_removexattr | SYS_lremovexattr | SYS_fremovexattr => {
            fs.removexattr(cx, ino, &memory::xattr_name(call.args[1])?)?;
            Ok(0)
        }
        _ => {
            let mode = match call.int(4) {
                0 => XattrMode::Set,
                XATTR_CREATE => XattrMode::Create,
                XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Errno::INVAL.into()),
            };
            if call.args[3] > VALUE_MAX {
                return Err(Errno::TOOBIG.into());
            }
            let name = memory::xattr_name(call.args[1])?;
            let value = memory::bytes(call.args[2], call.args[3] as usize)?;
            fs.setxattr(cx, ino, &name, value, mode)?;
            Ok(0)
        }
    };
    match call.number {
        SYS_fgetxattr | SYS_fsetxattr | SYS_flistxattr | SYS_fremovexattr => {
            let file = call.file(0)?;
            run(file.fs()?, &*call.process.cx()?, file.ino())
        }
        number => {
            let follow = ![
                SYS_lgetxattr,
                SYS_lsetxattr,
                SYS_llistxattr,
                SYS_lremovexattr,
            ]
            .contains(&number);
            call.at(At::path(0), follow, |session, found| {
                run(session.fs, &session.cx, found.ino()?)
            })
        }
    }
}

/// Shows a value in the buffer of the arguments `n` and `n + 1`; only its length if that is 0.
fn show(call: &Call, n: usize, value: &[u8]) -> Answer {
    let len = call.args[n + 1];
    if len != 0 {
        if len < value.len() as u64 {
            return Err(Errno::RANGE.into());
        }
        memory::bytes_mut(call.args[n], value.len())?.copy_from_slice(value);
    }
    Ok(value.len() as u64)
}
