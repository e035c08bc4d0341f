//! Attributes: `stat` and its relatives, `access`, `chmod`, `chown`, times, `truncate`, `umask`.

use super::{Answer, At, Call, Resolved, SYS_FCHMODAT2, Session, Stop};
use crate::kernel::Result;
use crate::memory;
use crate::process::File;
use crate::shared::Reason;
use libc::*;
use vfs::{Attr, Ctx, Errno, FileType, Ino, SetAttr, SetTime, StatFs, Timestamp, perm};

/// The magic number of a FUSE file system, which `statfs` shows for the store's mount too.
const FUSE_MAGIC: u64 = 0x6573_5546;

/// Calls that show attributes.
pub(crate) fn show(call: &Call) -> Answer {
    match call.number {
        SYS_access => access(call, At::path(0), call.int(1), 0),
        SYS_faccessat => access(call, At::dir(0), call.int(2), 0),
        SYS_faccessat2 => access(call, At::dir(0), call.int(2), call.int(3)),
        SYS_statfs => call.at(At::path(0), true, |session, found| {
            found.attr()?;
            show_space(call, session.fs.statfs()?)
        }),
        SYS_fstatfs => {
            let file = call.file(0)?;
            show_space(call, file.fs()?.statfs()?)
        }
        SYS_fstat => {
            let attr = of_descriptor(call)?;
            show_stat(call, 1, &attr)
        }
        SYS_stat => call.show_at(At::path(0), true, |attr| show_stat(call, 1, attr)),
        SYS_lstat => call.show_at(At::path(0), false, |attr| show_stat(call, 1, attr)),
        SYS_newfstatat => at_with_flags(call, call.int(3), |attr| show_stat(call, 2, attr)),
        _ => at_with_flags(call, call.int(2), |attr| show_statx(call, attr)),
    }
}

/// The attributes of the descriptor in the first argument.
fn of_descriptor(call: &Call) -> std::result::Result<Attr, Stop> {
    of_file(call, &call.file(0)?)
}

fn of_file(call: &Call, file: &File) -> std::result::Result<Attr, Stop> {
    Ok(file.fs()?.getattr(&*call.process.cx()?, file.ino())?)
}

/// The attributes of what an empty path names: the descriptor in the first argument, or the working directory.
fn of_empty_path(call: &Call) -> std::result::Result<Attr, Stop> {
    match call.int(0) {
        AT_FDCWD => of_file(call, &call.process.cwd().ok_or(Stop::Kernel)?),
        _ => of_descriptor(call),
    }
}

/// Whether the path of a call is empty, or absent, and the flags permit that.
fn is_descriptor(call: &Call, path: usize, flags: i32) -> Result<bool> {
    let is_empty = || Ok(call.args[path] == 0 || memory::text(call.args[path], 1)?.is_some());
    Ok(flags & AT_EMPTY_PATH != 0 && is_empty()?)
}

fn at_with_flags(call: &Call, flags: i32, show: impl Fn(&Attr) -> Answer) -> Answer {
    if is_descriptor(call, 1, flags)? {
        return show(&of_empty_path(call)?);
    }
    let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
    call.show_at(At::dir(0), follow, show)
}

fn show_stat(call: &Call, n: usize, attr: &Attr) -> Answer {
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut stat: stat = unsafe { std::mem::zeroed() };
    stat.st_dev = call.process.device();
    stat.st_ino = attr.ino.0;
    stat.st_nlink = attr.nlink.into();
    stat.st_mode = attr.mode();
    (stat.st_uid, stat.st_gid) = (attr.uid, attr.gid);
    stat.st_rdev = attr.rdev.into();
    stat.st_size = attr.size as i64;
    stat.st_blksize = attr.blksize.into();
    stat.st_blocks = attr.blocks as i64;
    (stat.st_atime, stat.st_atime_nsec) = seconds(attr.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = seconds(attr.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = seconds(attr.ctime);
    memory::store(call.args[n], &stat)?;
    Ok(0)
}

fn seconds(time: Timestamp) -> (i64, i64) {
    let (seconds, nanoseconds) = time.parts();
    (seconds, nanoseconds.into())
}

fn show_statx(call: &Call, attr: &Attr) -> Answer {
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut stat: statx = unsafe { std::mem::zeroed() };
    stat.stx_mask = STATX_BASIC_STATS;
    stat.stx_blksize = attr.blksize;
    stat.stx_nlink = attr.nlink;
    (stat.stx_uid, stat.stx_gid) = (attr.uid, attr.gid);
    stat.stx_mode = attr.mode() as u16;
    stat.stx_ino = attr.ino.0;
    stat.stx_size = attr.size;
    stat.stx_blocks = attr.blocks;
    set_time(&mut stat.stx_atime, attr.atime);
    set_time(&mut stat.stx_mtime, attr.mtime);
    set_time(&mut stat.stx_ctime, attr.ctime);
    let device = call.process.device();
    (stat.stx_dev_major, stat.stx_dev_minor) = (major(device), minor(device));
    (stat.stx_rdev_major, stat.stx_rdev_minor) = (major(attr.rdev.into()), minor(attr.rdev.into()));
    memory::store(call.args[4], &stat)?;
    Ok(0)
}

fn set_time(to: &mut statx_timestamp, time: Timestamp) {
    (to.tv_sec, to.tv_nsec) = time.parts();
}

fn show_space(call: &Call, space: StatFs) -> Answer {
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut statfs: statfs = unsafe { std::mem::zeroed() };
    statfs.f_type = FUSE_MAGIC as i64;
    statfs.f_bsize = space.block_bytes.into();
    statfs.f_frsize = space.block_bytes.into();
    statfs.f_blocks = space.blocks;
    statfs.f_bfree = space.blocks_free;
    statfs.f_bavail = space.blocks_avail;
    statfs.f_files = space.inodes;
    statfs.f_ffree = space.inodes_free;
    statfs.f_namelen = space.name_max.into();
    memory::store(call.args[1], &statfs)?;
    Ok(0)
}

fn access(call: &Call, at: At, mode: i32, flags: i32) -> Answer {
    if !call.is_ours(at)? {
        return Err(Stop::Kernel);
    }
    let wanted = u32::try_from(mode)
        .ok()
        .and_then(perm::Access::from_bits)
        .ok_or(Errno::INVAL)?;
    let session = call.session()?;
    let cx = match flags & AT_EACCESS {
        0 => call.process.real_cx()?,
        _ => Ctx::clone(&session.cx),
    };
    if is_descriptor(call, 1, flags)? {
        perm::access(&cx, &of_empty_path(call)?, wanted)?;
        return Ok(0);
    }
    call.process.count(Reason::Answered);
    match session.resolve_as(call, at, flags & AT_SYMLINK_NOFOLLOW == 0, &cx)? {
        Resolved::Inside(found, _dir) => {
            perm::access(&cx, &found.attr()?, wanted)?;
            Ok(0)
        }
        Resolved::Outside(path) => Ok(call.with(call.moved(at, &path))?),
        Resolved::Foreign => Err(Stop::Kernel),
    }
}

/// Calls that change attributes.
pub(crate) fn change(call: &Call) -> Answer {
    match call.number {
        SYS_umask => {
            let old = call.pass()?;
            call.process.set_umask(call.args[0] as u32);
            Ok(old)
        }
        SYS_truncate => {
            let size = Some(u64::try_from(call.args[1] as i64).map_err(|_| Errno::INVAL)?);
            // A shared mapping must lose what is cut.
            if call.process.shared.has_mapped()
                && let Some(path) = call.kernel_path(At::path(0))?
            {
                call.process.count(Reason::SharedMapping);
                return Ok(call.with(call.moved(At::path(0), &path))?);
            }
            set_at(
                call,
                At::path(0),
                0,
                SetAttr {
                    size,
                    ..SetAttr::default()
                },
            )
        }
        SYS_chmod => set_at(call, At::path(0), 0, mode(call.args[1])),
        SYS_fchmod => set_of_descriptor(call, mode(call.args[1])),
        SYS_fchmodat => set_at(call, At::dir(0), 0, mode(call.args[2])),
        SYS_FCHMODAT2 => set_at(call, At::dir(0), call.int(3), mode(call.args[2])),
        SYS_chown => set_at(call, At::path(0), 0, owner(call.args[1], call.args[2])),
        SYS_lchown => set_at(
            call,
            At::path(0),
            AT_SYMLINK_NOFOLLOW,
            owner(call.args[1], call.args[2]),
        ),
        SYS_fchown => set_of_descriptor(call, owner(call.args[1], call.args[2])),
        SYS_fchownat => set_at(
            call,
            At::dir(0),
            call.int(4),
            owner(call.args[2], call.args[3]),
        ),
        _ => times(call),
    }
}

fn mode(mode: u64) -> SetAttr {
    SetAttr {
        perm: Some(mode as u32 & perm::PERM_MASK),
        ..SetAttr::default()
    }
}

fn owner(uid: u64, gid: u64) -> SetAttr {
    let id = |id: u64| Some(id as u32).filter(|id| *id != u32::MAX);
    SetAttr {
        uid: id(uid),
        gid: id(gid),
        ..SetAttr::default()
    }
}

fn set(session: &Session, ino: Ino, set: &SetAttr) -> Answer {
    session.fs.setattr(&session.cx, ino, set)?;
    Ok(0)
}

fn set_of_descriptor(call: &Call, wanted: SetAttr) -> Answer {
    let file = call.file(0)?;
    if file.has(O_PATH) {
        return Err(Errno::BADF.into());
    }
    file.fs()?;
    set(&call.session()?, file.ino(), &wanted)
}

fn set_at(call: &Call, at: At, flags: i32, wanted: SetAttr) -> Answer {
    if is_descriptor(call, at.path, flags)? {
        let attr = of_empty_path(call)?;
        return set(&call.session()?, attr.ino, &wanted);
    }
    call.at(at, flags & AT_SYMLINK_NOFOLLOW == 0, |session, found| {
        let attr = found.attr()?;
        if attr.kind == FileType::Symlink && wanted.perm.is_some() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if let Some(size) = wanted.size {
            call.process.may_resize(attr.size, size)?;
        }
        set(session, attr.ino, &wanted)
    })
}

/// `utime`, `utimes`, `futimesat`, `utimensat`.
fn times(call: &Call) -> Answer {
    let (at, n, flags) = match call.number {
        SYS_utime | SYS_utimes => (At::path(0), 1, 0),
        SYS_futimesat => (At::dir(0), 2, 0),
        _ => (At::dir(0), 2, call.int(3)),
    };
    let (atime, mtime) = match (call.args[n], call.number) {
        (0, _) => (Some(SetTime::Now), Some(SetTime::Now)),
        (address, SYS_utime) => {
            let [atime, mtime] = memory::load::<[i64; 2]>(address)?;
            let whole = |seconds| Some(SetTime::At(Timestamp::from_parts(seconds, 0)));
            (whole(atime), whole(mtime))
        }
        (address, number) => {
            let [a, b, c, d] = memory::load::<[i64; 4]>(address)?;
            let factor = if number == SYS_utimensat { 1 } else { 1000 };
            (time(a, b, factor)?, time(c, d, factor)?)
        }
    };
    let wanted = SetAttr {
        atime,
        mtime,
        ..SetAttr::default()
    };
    if call.args[at.path] == 0 && at.dir.is_some() {
        return set_of_descriptor(call, wanted);
    }
    set_at(call, at, flags, wanted)
}

/// A time of `utimensat`, or with `factor` 1000 of `utimes`.
fn time(seconds: i64, fraction: i64, factor: i64) -> Result<Option<SetTime>> {
    match fraction {
        UTIME_OMIT if factor == 1 => Ok(None),
        UTIME_NOW if factor == 1 => Ok(Some(SetTime::Now)),
        _ => {
            let in_second = (0..1_000_000_000 / factor).contains(&fraction);
            let nanoseconds = fraction.wrapping_mul(factor) as u32;
            in_second
                .then(|| Some(SetTime::At(Timestamp::from_parts(seconds, nanoseconds))))
                .ok_or(Errno::INVAL)
        }
    }
}
