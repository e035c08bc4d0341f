//! The permissions and ownership of Linux, as pure functions of the caller and the attributes
//! of the inodes.
//!
//! Each function allows the call (and returns what it really sets), or returns the errno of
//! Linux. A caller whose permissions the kernel has checked already ([`Ctx::checked`]) passes
//! every check. It keeps the modes that it requests, since the kernel has cleared set-id bits
//! before.

use crate::{
    Attr, Ctx, Errno, Fallocate, FileFlags, FileType, NewNode, OpenFlags, Result, SIZE_MAX,
    SetAttr, SetTime, check_xattr_name,
};

/// `S_ISUID`: a program runs as its owner.
pub const SET_UID: u32 = 0o4000;
/// `S_ISGID`: a program runs as its group; new inodes in a directory inherit its group.
pub const SET_GID: u32 = 0o2000;
/// `S_ISVTX`: only owners may delete from the directory.
pub(crate) const STICKY: u32 = 0o1000;
/// The bits that `chmod` can set.
pub const PERM_MASK: u32 = 0o7777;

/// The extended attribute with the capabilities of a program. Each change of its contents or owner removes
/// them, also one by the super-user.
pub const CAPABILITY: &[u8] = b"security.capability";

const GROUP_EXEC: u32 = 0o010;
const ANY_EXEC: u32 = 0o111;

bitflags::bitflags! {
    /// The kinds of access to an inode, with the values of `access(2)`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Execute a file, search a directory.
        const EXEC = 1;
        /// Write a file, change a directory.
        const WRITE = 2;
        /// Read a file, list a directory.
        const READ = 4;
    }
}

/// Whether the permission bits allow `want`. Exactly one class decides: owner, else group, else
/// others. The super-user may do everything except execute a file without an execute bit.
///
/// # Errors
/// `EACCES`; `EPERM` for a write to an immutable inode, for everyone.
pub fn access(cx: &Ctx, attr: &Attr, want: Access) -> Result<()> {
    if want.contains(Access::WRITE) && attr.flags.contains(FileFlags::IMMUTABLE) {
        return Err(Errno::PERM);
    }
    let allowed = if cx.checked {
        true
    } else if cx.uid == 0 {
        !want.contains(Access::EXEC)
            || attr.kind == FileType::Directory
            || attr.perm & ANY_EXEC != 0
    } else {
        let class = if cx.uid == attr.uid {
            6
        } else if cx.is_in_group(attr.gid) {
            3
        } else {
            0
        };
        want.bits() & !(attr.perm >> class) & 7 == 0
    };
    if allowed { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Whether `dir` may be searched for a name.
///
/// # Errors
/// `EACCES`.
pub fn may_search(cx: &Ctx, dir: &Attr) -> Result<()> {
    access(cx, dir, Access::EXEC)
}

/// Whether a name may be added to `dir`.
///
/// # Errors
/// `EACCES`.
pub fn may_create(cx: &Ctx, dir: &Attr) -> Result<()> {
    access(cx, dir, Access::WRITE | Access::EXEC)
}

/// Whether a node of type `kind` may be made, in any directory.
///
/// # Errors
/// `EPERM` for a device unless privileged.
pub fn may_mknod(cx: &Ctx, kind: FileType) -> Result<()> {
    match kind {
        FileType::CharDevice | FileType::BlockDevice if !cx.is_privileged() => Err(Errno::PERM),
        _ => Ok(()),
    }
}

/// Whether the name of `victim` may be removed from `dir`, or replaced in it.
///
/// # Errors
/// `EACCES` without write and search permission on `dir`. `EPERM` if `dir` is sticky and the
/// caller owns neither, or if flags of one of them forbid it.
pub fn may_delete(cx: &Ctx, dir: &Attr, victim: &Attr) -> Result<()> {
    access(cx, dir, Access::WRITE | Access::EXEC)?;
    if dir.flags.contains(FileFlags::APPEND) || victim.flags.intersects(FileFlags::FIXED) {
        return Err(Errno::PERM);
    }
    let owner = cx.is_privileged() || cx.uid == victim.uid || cx.uid == dir.uid;
    if dir.perm & STICKY != 0 && !owner {
        return Err(Errno::PERM);
    }
    Ok(())
}

/// Whether `source` may be moved from `dir` to `new_dir`, over `target` if there is one. With
/// `exchange`, `target` moves the other way. Does not check types, emptiness and ancestry.
///
/// # Errors
/// As [`may_delete`] and [`may_create`]; `EACCES` if a directory gets a new parent and may not
/// be written (its `..` changes).
pub fn may_rename(
    cx: &Ctx,
    dir: &Attr,
    source: &Attr,
    new_dir: &Attr,
    target: Option<&Attr>,
    exchange: bool,
) -> Result<()> {
    may_delete(cx, dir, source)?;
    match target {
        None => may_create(cx, new_dir)?,
        Some(target) => may_delete(cx, new_dir, target)?,
    }
    if dir.ino != new_dir.ino {
        let moved = [Some(source), target.filter(|_| exchange)];
        for node in moved.into_iter().flatten() {
            if node.kind == FileType::Directory {
                access(cx, node, Access::WRITE)?;
            }
        }
    }
    Ok(())
}

/// Whether an inode may get another name.
///
/// # Errors
/// `EPERM`, for everyone, for a directory and for an inode whose flags forbid it.
pub fn may_link(attr: &Attr) -> Result<()> {
    let fixed = attr.flags.intersects(FileFlags::FIXED);
    match attr.kind {
        FileType::Directory => Err(Errno::PERM),
        _ if fixed => Err(Errno::PERM),
        _ => Ok(()),
    }
}

/// Whether the flags of a file, which may be open already, let its contents change from `off`
/// on.
///
/// # Errors
/// `EPERM` if it is immutable, or append-only and `off` lies before its end.
pub fn may_write(attr: &Attr, off: u64) -> Result<()> {
    let fixed = attr.flags.contains(FileFlags::IMMUTABLE);
    if fixed || (attr.flags.contains(FileFlags::APPEND) && off < attr.size) {
        return Err(Errno::PERM);
    }
    Ok(())
}

/// Whether the flags of a file allow an `fallocate`.
///
/// # Errors
/// `EPERM` if it is immutable, or append-only and the call does more than take space.
pub fn may_fallocate(attr: &Attr, kind: Fallocate) -> Result<()> {
    let off = match kind {
        Fallocate::Allocate { .. } => attr.size,
        Fallocate::PunchHole | Fallocate::ZeroRange { .. } => 0,
    };
    may_write(attr, off)
}

/// Whether `attr` may be opened with `flags`.
///
/// # Errors
/// `EISDIR` for a directory to be written or truncated; `EPERM` for an append-only file to be
/// truncated; `EACCES`.
pub fn may_open(cx: &Ctx, attr: &Attr, flags: OpenFlags) -> Result<()> {
    let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
    if writes && attr.kind == FileType::Directory {
        return Err(Errno::ISDIR);
    }
    if flags.contains(OpenFlags::TRUNCATE) && attr.flags.contains(FileFlags::APPEND) {
        return Err(Errno::PERM);
    }
    let mut want = Access::empty();
    want.set(Access::READ, flags.contains(OpenFlags::READ));
    want.set(Access::WRITE, writes);
    access(cx, attr, want)
}

/// Whether the extended attribute `name` may be read.
///
/// # Errors
/// `ENODATA` for `trusted.` unless privileged; `EACCES` for `user.` without read permission;
/// errors of the name, unless the caller is the super-user.
pub fn may_get_xattr(cx: &Ctx, attr: &Attr, name: &[u8]) -> Result<()> {
    has_usable_name(cx, name)?;
    if name.starts_with(b"trusted.") && !cx.is_privileged() {
        return Err(Errno::NODATA);
    }
    if name.starts_with(b"user.") {
        access(cx, attr, Access::READ)?;
    }
    Ok(())
}

/// Whether the extended attribute `name` is listed. `trusted.` and names that cannot be set any
/// more are listed to the super-user only, who alone can read them. (Linux requires
/// `CAP_SYS_ADMIN`; the capabilities of a caller are unavailable here.)
pub fn may_list_xattr(cx: &Ctx, name: &[u8]) -> bool {
    let is_public = !name.starts_with(b"trusted.");
    has_usable_name(cx, name).is_ok() && (is_public || cx.uid == 0)
}

/// Whether the name is valid. The super-user may use any name that an earlier version stored.
fn has_usable_name(cx: &Ctx, name: &[u8]) -> Result<()> {
    match cx.uid {
        0 => Ok(()),
        _ => check_xattr_name(name),
    }
}

/// Whether the extended attribute `name` may be set or removed.
///
/// # Errors
/// `user.`: `EACCES` without write permission, `EPERM` on a sticky directory of another owner.
/// Others: `EPERM` unless privileged, since `security.` has the capabilities of programs. `EPERM` for
/// all if flags forbid it. Errors of the name, unless the caller is the super-user.
pub fn may_set_xattr(cx: &Ctx, attr: &Attr, name: &[u8]) -> Result<()> {
    has_usable_name(cx, name)?;
    if attr.flags.intersects(FileFlags::FIXED) {
        return Err(Errno::PERM);
    }
    if name.starts_with(b"user.") {
        let owner = cx.is_privileged() || cx.uid == attr.uid;
        if attr.kind == FileType::Directory && attr.perm & STICKY != 0 && !owner {
            return Err(Errno::PERM);
        }
        return access(cx, attr, Access::WRITE);
    }
    match cx.is_privileged() {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Owner, group and permission bits of a new inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOwner {
    /// Owner: the caller.
    pub uid: u32,
    /// Group: the caller's, or that of a set-gid directory.
    pub gid: u32,
    /// Permission bits.
    pub perm: u32,
}

/// Owner, group and permission bits of `new` in `dir`. New inodes inherit the group of a
/// set-gid directory, and new directories inherit the bit. Nobody can make a set-gid program
/// for a group without belonging to it.
pub fn new_owner(cx: &Ctx, dir: &Attr, new: &NewNode<'_>) -> NewOwner {
    let mut perm = match new.kind() {
        FileType::Symlink => 0o777,
        _ => new.mode() & PERM_MASK,
    };
    let mut gid = cx.gid;
    if dir.perm & SET_GID != 0 {
        gid = dir.gid;
        let program = SET_GID | GROUP_EXEC;
        if new.is_directory() {
            perm |= SET_GID;
        } else if perm & program == program && !cx.is_privileged() && !cx.is_in_group(gid) {
            perm &= !SET_GID;
        }
    }
    NewOwner {
        uid: cx.uid,
        gid,
        perm,
    }
}

/// The permission bits after a change of the contents (`write`, `truncate`, `fallocate`): an
/// unprivileged caller clears the set-id bits of regular files.
pub fn perm_after_write(cx: &Ctx, attr: &Attr) -> u32 {
    match (cx.drops_set_id, attr.kind) {
        (true, FileType::Regular) => drop_set_id(attr.perm, true),
        (false, FileType::Regular) if !cx.is_privileged() => without_set_id(cx, attr),
        _ => attr.perm,
    }
}

/// The permission bits without set-uid. Set-gid is also removed if the file is group-executable
/// or the caller could not set the bit.
pub fn without_set_id(cx: &Ctx, attr: &Attr) -> u32 {
    drop_set_id(attr.perm, cx.is_privileged() || cx.is_in_group(attr.gid))
}

/// Set-gid of a file that is not group-executable stays if the caller may set it.
fn drop_set_id(perm: u32, may_set: bool) -> u32 {
    match perm & GROUP_EXEC == 0 && may_set {
        true => perm & !SET_UID,
        false => perm & !(SET_UID | SET_GID),
    }
}

/// Checks a `setattr` and returns what it really sets: `perm` is changed or added where set-id
/// bits must be cleared.
///
/// # Errors
/// - `EISDIR`: `size` of a directory; `EINVAL`: `size` of another type without data; `EFBIG`:
///   over [`SIZE_MAX`].
/// - `EACCES`: `size`, or both times to now, without write permission; the owner may set the
///   times.
/// - `EPERM`: `perm` or a chosen time by another user than the owner; `uid` changed by an
///   unprivileged caller; `gid` changed to a group that the owner is not in; anything that
///   flags forbid.
pub fn check_setattr(cx: &Ctx, attr: &Attr, set: &SetAttr) -> Result<SetAttr> {
    check_flags(attr, set)?;
    if let Some(size) = set.size {
        check_size(cx, attr, size)?;
    }
    let mut set = *set;
    if cx.checked {
        set.perm = match set.perm {
            Some(perm) => Some(perm & PERM_MASK),
            // Directories keep theirs.
            None if cx.drops_set_id && attr.kind != FileType::Directory => {
                Some(without_set_id(cx, attr)).filter(|perm| *perm != attr.perm)
            }
            None => None,
        };
        return Ok(set);
    }
    let owner = cx.uid == 0 || cx.uid == attr.uid;
    check_times(cx, attr, &set, owner)?;
    check_owner(cx, attr, &set, owner)?;
    if set.perm.is_some() && !owner {
        return Err(Errno::PERM);
    }
    set.perm = effective_perm(cx, attr, &set);
    Ok(set)
}

/// Checks that flags allow `set`: immutable and append-only inodes do not change, except that
/// both times of an append-only inode may be set to now.
fn check_flags(attr: &Attr, set: &SetAttr) -> Result<()> {
    let now = Some(SetTime::Now);
    let touch = SetAttr {
        atime: now,
        mtime: now,
        ..SetAttr::default()
    };
    let harmless =
        *set == SetAttr::default() || (*set == touch && !attr.flags.contains(FileFlags::IMMUTABLE));
    if attr.flags.intersects(FileFlags::FIXED) && !harmless {
        return Err(Errno::PERM);
    }
    Ok(())
}

fn check_size(cx: &Ctx, attr: &Attr, size: u64) -> Result<()> {
    match attr.kind {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::ISDIR),
        _ => return Err(Errno::INVAL),
    }
    access(cx, attr, Access::WRITE)?;
    if size > SIZE_MAX {
        return Err(Errno::FBIG);
    }
    Ok(())
}

/// Checks `utimensat`: both times to now need write permission, all other times ownership.
fn check_times(cx: &Ctx, attr: &Attr, set: &SetAttr, owner: bool) -> Result<()> {
    let touched = set.atime.is_some() || set.mtime.is_some() || set.ctime.is_some();
    if owner || !touched {
        return Ok(());
    }
    let now = Some(SetTime::Now);
    if set.atime == now && set.mtime == now && set.ctime.is_none() {
        return access(cx, attr, Access::WRITE);
    }
    // A truncate may set the modification time to now.
    if set.size.is_some() && set.mtime == now && set.atime.is_none() && set.ctime.is_none() {
        return Ok(());
    }
    Err(Errno::PERM)
}

fn check_owner(cx: &Ctx, attr: &Attr, set: &SetAttr, owner: bool) -> Result<()> {
    if cx.uid == 0 {
        return Ok(());
    }
    let uid_ok = set.uid.is_none_or(|uid| owner && uid == attr.uid);
    let gid_ok = set
        .gid
        .is_none_or(|gid| owner && (gid == attr.gid || cx.is_in_group(gid)));
    if uid_ok && gid_ok {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

fn effective_perm(cx: &Ctx, attr: &Attr, set: &SetAttr) -> Option<u32> {
    if let Some(perm) = set.perm {
        let gid = set.gid.unwrap_or(attr.gid);
        let keeps_group = cx.uid == 0 || cx.is_in_group(gid);
        let mask = if keeps_group {
            PERM_MASK
        } else {
            PERM_MASK & !SET_GID
        };
        return Some(perm & mask);
    }
    let chown = set.uid.is_some() || set.gid.is_some();
    let perm = if chown && attr.kind != FileType::Directory {
        // A chown clears the bits for every caller, the super-user included.
        without_set_id(cx, attr)
    } else if set.size.is_some() {
        perm_after_write(cx, attr)
    } else {
        attr.perm
    };
    (perm != attr.perm).then_some(perm)
}

#[cfg(test)]
mod tests;
