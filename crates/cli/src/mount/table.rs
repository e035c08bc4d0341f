//! The kernel's table of mounts, `/proc/self/mountinfo`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// The type that our mounts have.
pub(crate) const OURS: &str = "fuse.selvedge";

/// A mount in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The device number of its file system, as `0:35`: the same in every mount of it.
    pub device: String,
    /// The mount point.
    pub dir: PathBuf,
    /// Its type, such as `fuse.selvedge`.
    pub fs_type: String,
    /// The source of the mount.
    pub source: PathBuf,
    /// Whether users other than the one who mounted it may use it.
    pub allow_other: bool,
    /// Distinguishes its FUSE connection from a later one of the same number, if
    /// [`find`] saw one.
    pub connection: Option<u64>,
}

impl Entry {
    /// Whether this is a mount of the same file system.
    fn is_same(&self, other: &Self) -> bool {
        self.device == other.device && self.source == other.source
    }

    fn connected(self) -> Self {
        Self {
            connection: connection(&self.device),
            ..self
        }
    }
}

/// The mount that a path names, if it is a mount point: the topmost one there.
///
/// # Errors
/// If the table cannot be read.
pub(crate) fn find(dir: &Path) -> io::Result<Option<Entry>> {
    let found = entries("self")?.into_iter().rfind(|e| e.dir == dir);
    Ok(found.map(Entry::connected))
}

/// The mount of ours on `dir` that has this source, also below others.
///
/// # Errors
/// If the table cannot be read.
pub(crate) fn find_ours(dir: &Path, source: &Path) -> io::Result<Option<Entry>> {
    let ours = |e: &Entry| e.dir == dir && e.fs_type == OURS && e.source == source;
    Ok(entries("self")?
        .into_iter()
        .rfind(ours)
        .map(Entry::connected))
}

/// The directories that the file system of a mount is mounted on, in the order of the table.
///
/// # Errors
/// If the table cannot be read.
pub(crate) fn places_of(mount: &Entry) -> io::Result<Vec<PathBuf>> {
    let same = entries("self")?.into_iter().filter(|e| e.is_same(mount));
    Ok(same.map(|e| e.dir).collect())
}

/// A mount inside the one on `dir`, if there is one.
///
/// # Errors
/// If the table cannot be read.
pub(crate) fn find_inside(dir: &Path) -> io::Result<Option<Entry>> {
    let inside = |e: &Entry| e.dir != dir && e.dir.starts_with(dir);
    Ok(entries("self")?.into_iter().find(inside))
}

/// The mount of ours whose source is `image`, an absolute path.
///
/// # Errors
/// If the table cannot be read.
pub(crate) fn find_image(image: &Path) -> io::Result<Option<Entry>> {
    let mut ours = entries("self")?.into_iter().filter(|e| e.fs_type == OURS);
    Ok(ours.rfind(|e| e.source == image))
}

/// The mounts that process `pid` sees.
fn entries(pid: &str) -> io::Result<Vec<Entry>> {
    let table = fs::read(format!("/proc/{pid}/mountinfo"))?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// The use of a file system after an unmount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Mounted on another directory of this namespace.
    Mounted(PathBuf),
    /// Mounted in the mount namespace of this process.
    Elsewhere { pid: u32, dir: PathBuf },
    /// Mounted nowhere, but files in it are open.
    Open,
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(dir) => write!(f, "mounted on {}", dir.display()),
            Self::Elsewhere { pid, dir } => {
                let dir = dir.display();
                write!(
                    f,
                    "mounted on {dir} in the mount namespace of process {pid}"
                )
            }
            Self::Open => f.write_str("in use through open files"),
        }
    }
}

/// Returns the remaining use of a file system after the unmount of `gone`, as far as this process
/// may look. Its server ends only after that.
pub(crate) fn rest_of(gone: &Entry) -> Option<Rest> {
    // The number may belong to another mount already.
    let is_alive = || connection(&gone.device) == gone.connection;
    if gone.connection.is_some() && !is_alive() {
        return None;
    }
    let in_table = |pid: &str| {
        let mut entries = entries(pid).ok()?.into_iter();
        entries.find(|e| e.is_same(gone)).map(|e| e.dir)
    };
    if let Some(dir) = in_table("self") {
        return Some(Rest::Mounted(dir));
    }
    let mut seen = HashSet::from([namespace("self")]);
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let elsewhere = pids.filter_map(|pid| {
        let id = pid.to_string();
        let new = seen.insert(namespace(&id));
        let dir = new.then(|| in_table(&id)).flatten()?;
        Some(Rest::Elsewhere { pid, dir })
    });
    let open = || (gone.connection.is_some() && is_alive()).then_some(Rest::Open);
    elsewhere.into_iter().next().or_else(open)
}

/// Identifies the FUSE connection of a device number: the inode of the directory
/// that the kernel has for each connection that is alive, if fusectl is mounted.
fn connection(device: &str) -> Option<u64> {
    let minor = device.strip_prefix("0:")?;
    let dir = Path::new("/sys/fs/fuse/connections").join(minor);
    Some(fs::metadata(dir).ok()?.ino())
}

/// The mount namespace of a process, if this one may read it.
fn namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// `36 35 98:0 /root /dir options [tag...] - type source super-options`
fn parse(line: &[u8]) -> Option<Entry> {
    let mut words = line.split(|b| *b == b' ');
    let device = String::from_utf8_lossy(words.nth(2)?).into_owned();
    let dir = unescape(words.nth(1)?);
    let mut after = words.skip_while(|w| *w != b"-").skip(1);
    Some(Entry {
        device,
        dir: dir.into(),
        fs_type: String::from_utf8_lossy(after.next()?).into_owned(),
        source: unescape(after.next()?).into(),
        allow_other: after
            .next()?
            .split(|b| *b == b',')
            .any(|o| o == b"allow_other"),
        connection: None,
    })
}

/// Undoes the kernel's `\040` for bytes that would split words.
fn unescape(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|_| first == b'\\');
        let code = code.and_then(|c| u8::from_str_radix(std::str::from_utf8(c).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_fields_without_escapes() {
        let line =
            br"40 25 0:35 / /mnt/a\040b rw,relatime shared:1 - fuse.selvedge /x\134y rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!(entry.dir, Path::new("/mnt/a b"));
        assert_eq!(entry.device, "0:35");
        assert_eq!(entry.fs_type, "fuse.selvedge");
        assert_eq!(entry.source, Path::new("/x\\y"));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"40 25 0:35 / /mnt rw -"), None);
    }

    #[test]
    fn another_mount_of_the_same_number_is_not_a_rest() {
        let gone = Entry {
            connection: Some(0),
            ..find(Path::new("/proc")).unwrap().unwrap()
        };
        assert_eq!(rest_of(&gone), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(
            find(Path::new("/proc"))
                .unwrap()
                .is_some_and(|e| e.fs_type == "proc")
        );
        assert_eq!(find(Path::new("/no/such/place")).unwrap(), None);
    }
}
