//! The kernel's table of mounts, `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The type that our mounts have.
pub const OURS: &str = "fuse.selvedge";

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Its type, such as `fuse.selvedge`.
    pub fs_type: String,
    /// What is mounted.
    pub source: PathBuf,
    /// Whether users other than the one who mounted it may use it.
    pub allow_other: bool,
}

/// The mount that a path names, if it is a mount point: the topmost one there.
///
/// # Errors
/// If the table cannot be read.
pub fn find(dir: &Path) -> io::Result<Option<Entry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut entries = table.split(|b| *b == b'\n').filter_map(parse);
    Ok(entries.rfind(|e| e.dir == dir))
}

/// The mount of ours whose source is `image`, an absolute path.
///
/// # Errors
/// If the table cannot be read.
pub fn find_image(image: &Path) -> io::Result<Option<Entry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut entries = table.split(|b| *b == b'\n').filter_map(parse);
    Ok(entries.rfind(|e| e.fs_type == OURS && e.source == image))
}

/// `36 35 98:0 /root /dir options [tag...] - type source super-options`
fn parse(line: &[u8]) -> Option<Entry> {
    let mut words = line.split(|b| *b == b' ');
    let dir = unescape(words.nth(4)?);
    let mut after = words.skip_while(|w| *w != b"-").skip(1);
    Some(Entry {
        dir: dir.into(),
        fs_type: String::from_utf8_lossy(after.next()?).into_owned(),
        source: unescape(after.next()?).into(),
        allow_other: after
            .next()?
            .split(|b| *b == b',')
            .any(|o| o == b"allow_other"),
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

/// Whether `source`, as the table shows it, can be a file that a server holds locked.
pub fn is_file(source: &Path) -> bool {
    source.as_os_str().as_bytes().starts_with(b"/") && source.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        let line =
            br"40 25 0:35 / /mnt/a\040b rw,relatime shared:1 - fuse.selvedge /x\134y rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!(entry.dir, Path::new("/mnt/a b"));
        assert_eq!(entry.fs_type, "fuse.selvedge");
        assert_eq!(entry.source, Path::new("/x\\y"));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"40 25 0:35 / /mnt rw -"), None);
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
