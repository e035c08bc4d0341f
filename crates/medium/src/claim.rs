//! Uses that the kernel makes of a file or block device. The kernel ignores our locks.
//!
//! A check is valid for that moment only: the kernel may begin to use the file later.

use crate::lock::{Access, lock};
use crate::open_error::OpenError;
use crate::users::Claim;
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, major, minor, open, stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, read_dir, read_to_string};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The intended use of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Uses that do not write are permitted.
    Read,
    /// No other use is permitted.
    Write,
    /// As [`Write`](Self::Write), but idle loop devices are permitted.
    Overwrite,
}

impl Intent {
    pub(crate) fn new(read_only: bool, over_idle_loops: bool) -> Self {
        match (read_only, over_idle_loops) {
            (true, _) => Self::Read,
            (false, false) => Self::Write,
            (false, true) => Self::Overwrite,
        }
    }
}

/// Refuses to overwrite the file or block device at `path`, if it exists, while the kernel uses
/// it. With `over_idle_loops`, idle loop devices are permitted.
///
/// # Errors
/// [`OpenError::Claimed`] with the use.
pub fn check_unclaimed(path: impl AsRef<Path>, over_idle_loops: bool) -> Result<(), OpenError> {
    let path = path.as_ref();
    let found = match stat(path) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(system(path, e)),
    };
    let intent = Intent::new(false, over_idle_loops);
    claim(&found, intent, None).map_or(Ok(()), |claim| Err(claimed(path, claim)))
}

/// Refuses `file`, the regular file or block device at `path`, if the kernel uses it in
/// conflict with `intent`. For a loop device, the file that it shows is checked and locked,
/// too; the result keeps that lock.
pub(crate) fn check(path: &Path, file: &File, intent: Intent) -> Result<Option<File>, OpenError> {
    let found = fstat(file).map_err(|e| system(path, e))?;
    if let Some(claim) = claim(&found, intent, None) {
        return Err(claimed(path, claim));
    }
    let Some((device, backing, identity)) = backing_file(&found) else {
        return Ok(None);
    };
    // The file can be unreachable: in another mount namespace, or removed.
    let Ok(named) = open(&backing, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(None);
    };
    let behind = fstat(&named).map_err(|e| system(&backing, e))?;
    // Another file has that name: it is neither opened, which can have effects, nor locked.
    if identity.is_some_and(|identity| identity != (behind.st_dev, behind.st_ino)) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let again = format!("/proc/self/fd/{}", named.as_raw_fd());
    let Ok(file) = open(again, flags, Mode::empty()).map(File::from) else {
        return Ok(None);
    };
    if let Some(claim) = claim(&behind, intent, Some(&device)) {
        return Err(claimed(&backing, claim));
    }
    lock(&backing, &file, Access::of(intent == Intent::Read))?;
    Ok(Some(file))
}

/// The error for a block device that the kernel refuses to claim for us.
pub(crate) fn not_ours(path: &Path, file: &File, error: Errno) -> OpenError {
    if error != Errno::BUSY {
        return OpenError::System {
            doing: "claim",
            path: path.to_owned(),
            source: error.into(),
        };
    }
    let found = fstat(file).ok();
    let claim = found.and_then(|found| use_of_device(found.st_rdev, false));
    claimed(path, claim.unwrap_or(Claim::Unknown))
}

fn claimed(path: &Path, claim: Claim) -> OpenError {
    let path = path.to_owned();
    OpenError::Claimed { path, claim }
}

fn system(path: &Path, error: Errno) -> OpenError {
    OpenError::System {
        doing: "look at",
        path: path.to_owned(),
        source: error.into(),
    }
}

/// The conflicting use, apart from that by the loop device `except`.
fn claim(found: &Stat, intent: Intent, except: Option<&Path>) -> Option<Claim> {
    match FileType::from_raw_mode(found.st_mode) {
        // For writing, the kernel itself refuses a device that is in use.
        FileType::BlockDevice => use_of_device(found.st_rdev, intent == Intent::Read),
        FileType::RegularFile => use_of_file(found, intent, except),
        _ => None,
    }
}

fn use_of_file(found: &Stat, intent: Intent, except: Option<&Path>) -> Option<Claim> {
    let is_it = |swap: &Path| stat(swap).is_ok_and(|swap| is_same_file(&swap, found));
    if swaps().iter().any(|swap| is_it(swap)) {
        return Some(Claim::Swap);
    }
    let loops = loops_over(found).into_iter();
    let loops = loops.filter(|device| Some(device.as_path()) != except);
    let mut claims = loops.filter_map(|device| {
        let rdev = stat(&device).map(|found| found.st_rdev);
        let used = rdev.map(|rdev| use_of_device(rdev, intent == Intent::Read));
        let used = used.ok().flatten().map(Box::new);
        match intent {
            _ if used.is_some() => Some(Claim::Loop { device, used }),
            Intent::Read => None,
            _ if is_claimed(&device) => {
                let used = Some(Box::new(Claim::Unknown));
                Some(Claim::Loop { device, used })
            }
            // A loop device that ends when it is closed is about to end.
            Intent::Write if !is_autoclear(&device) => Some(Claim::Loop { device, used }),
            Intent::Write | Intent::Overwrite => None,
        }
    });
    claims.next()
}

/// The use of a block device, or of a partition of it; with `only_writers`, a use that may
/// write.
fn use_of_device(rdev: u64, only_writers: bool) -> Option<Claim> {
    let number = |rdev| format!("{}:{}", major(rdev), minor(rdev));
    let sysfs = Path::new("/sys/dev/block").join(number(rdev));
    let mut numbers = vec![number(rdev)];
    for entry in read_dir(&sysfs).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            let number = read_to_string(entry.path().join("dev"));
            numbers.extend(number.map(|number| number.trim().to_owned()));
        }
    }
    let mut mounts = mounts().into_iter();
    let is_it = |mount: &Mounted| numbers.contains(&mount.device);
    if let Some(mount) = mounts.find(|mount| is_it(mount) && (mount.writes || !only_writers)) {
        return Some(Claim::Mounted(mount.dir));
    }
    let is_it = |swap: &PathBuf| stat(swap).is_ok_and(|s| numbers.contains(&number(s.st_rdev)));
    if swaps().iter().any(is_it) {
        return Some(Claim::Swap);
    }
    let mut holders = read_dir(sysfs.join("holders"))
        .into_iter()
        .flatten()
        .flatten();
    let holder = holders.next().filter(|_| !only_writers)?.file_name();
    Some(Claim::Part(holder.to_string_lossy().into_owned()))
}

/// Whether a block device is claimed, or the question fails.
fn is_claimed(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(device, flags, Mode::empty()).is_err()
}

fn is_same_file(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

// --- loop devices -------------------------------------------------------------------

/// The loop devices that show a file.
fn loops_over(found: &Stat) -> Vec<PathBuf> {
    let entries = read_dir("/sys/block").into_iter().flatten().flatten();
    let loops = entries.filter_map(|entry| {
        let backing = backing_path(&entry.path())?;
        let device = Path::new("/dev").join(entry.file_name());
        // The device reports its file exactly, but not to every user. The path may name another
        // file in another mount namespace.
        let shown = match status(&device) {
            Ok(status) => (status[0], status[1]) == (found.st_dev, found.st_ino),
            Err(_) => stat(&backing).is_ok_and(|backing| is_same_file(&backing, found)),
        };
        shown.then_some(device)
    });
    loops.collect()
}

/// Device and inode of a file.
type Identity = (u64, u64);

/// The loop device `found`, the path of the file that it shows, and the identity of that file
/// if the device reports it.
fn backing_file(found: &Stat) -> Option<(PathBuf, PathBuf, Option<Identity>)> {
    if FileType::from_raw_mode(found.st_mode) != FileType::BlockDevice {
        return None;
    }
    let (major, minor) = (major(found.st_rdev), minor(found.st_rdev));
    let sysfs = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    // A partition's directory is inside that of its device.
    let sysfs = sysfs.canonicalize().ok()?;
    let whole = match sysfs.join("partition").exists() {
        true => sysfs.parent()?,
        false => &sysfs,
    };
    let backing = backing_path(whole)?;
    let device = Path::new("/dev").join(whole.file_name()?);
    let is_device = std::fs::metadata(&device).is_ok_and(|d| d.file_type().is_block_device());
    let status = is_device.then(|| status(&device).ok()).flatten();
    let identity = status.map(|status| (status[0], status[1]));
    Some((device, backing, identity))
}

/// Whether a loop device ends at its last close, as those of mount(8) do.
fn is_autoclear(device: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    let flag = Path::new("/sys/block").join(name).join("loop/autoclear");
    read_to_string(flag).is_ok_and(|flag| flag.trim() == "1")
}

fn backing_path(sysfs: &Path) -> Option<PathBuf> {
    let mut path = std::fs::read(sysfs.join("loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(path).into())
}

/// `struct loop_info64` in words: the first two are device and inode of the file.
type Status = [u64; 29];

/// `LOOP_GET_STATUS64`.
const GET_STATUS: rustix::ioctl::Opcode = 0x4c05;

fn status(device: &Path) -> io::Result<Status> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open(device, flags, Mode::empty())?;
    // SAFETY: the caller found a loop device, for which LOOP_GET_STATUS64 writes the 232 bytes
    // of a loop_info64. Other block devices reject the request.
    let status = unsafe {
        let get = rustix::ioctl::Getter::<GET_STATUS, Status>::new();
        rustix::ioctl::ioctl(&device, get)?
    };
    Ok(status)
}

// --- mounts and swap space ----------------------------------------------------------

/// A line of the mount table.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    device: String,
    dir: PathBuf,
    /// Whether the file system may write, even if this mount of it is read-only.
    writes: bool,
}

fn mounts() -> Vec<Mounted> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    table.lines().filter_map(mounted).collect()
}

/// `36 35 98:0 /root /dir options [tag...] - type source super-options`
fn mounted(line: &str) -> Option<Mounted> {
    let mut words = line.split(' ');
    let device = words.nth(2)?.to_owned();
    let dir = words.nth(1)?.into();
    let mut rest = words.skip_while(|word| *word != "-").skip(3);
    let writes = rest.next()?.split(',').any(|option| option == "rw");
    Some(Mounted {
        device,
        dir,
        writes,
    })
}

/// Files and devices that are swap space.
fn swaps() -> Vec<PathBuf> {
    let table = read_to_string("/proc/swaps").unwrap_or_default();
    let lines = table.lines().skip(1);
    let paths = lines.filter_map(|line| line.split_ascii_whitespace().next());
    paths.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_parsed() {
        let line = "36 35 7:0 / /mnt/a ro,noatime master:1 - ext4 /dev/loop0 rw,errors=continue";
        let expected = Mounted {
            device: "7:0".into(),
            dir: "/mnt/a".into(),
            writes: true,
        };
        assert_eq!(mounted(line), Some(expected));
        assert_eq!(mounted("36 35 7:0 / /mnt/a rw -"), None);
    }

    #[test]
    fn a_file_that_nobody_uses_is_free() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for intent in [Intent::Read, Intent::Write, Intent::Overwrite] {
            let lock = check(file.path(), file.as_file(), intent).unwrap();
            assert!(lock.is_none());
        }
        check_unclaimed(file.path(), false).unwrap();
        check_unclaimed("/no/such/file", false).unwrap();
    }

    #[test]
    fn a_claim_names_the_command_that_ends_it() {
        let claim = Claim::Loop {
            device: "/dev/loop3".into(),
            used: Some(Box::new(Claim::Mounted("/mnt".into()))),
        };
        let expected = "in use by the loop device /dev/loop3, which is mounted by the kernel on \
                        /mnt; unmount it with `umount /mnt`";
        assert_eq!(claim.to_string(), expected);
    }
}
