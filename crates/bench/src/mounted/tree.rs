//! A source tree to unpack: many small files, the same in every run.

use crate::detached::run;
use crate::error::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files in one directory.
const PER_DIRECTORY: u32 = 20;

/// Mean size of a file in bytes: that of a kernel source tree.
const MEAN_BYTES: f64 = 10_500.0;

/// Longest file in bytes.
const MAX_BYTES: usize = 1 << 20;

/// An archive, and how much is in it.
pub(crate) struct Archive {
    /// The tar file.
    pub path: PathBuf,
    /// Files in it.
    pub files: u32,
    /// Bytes in these files.
    pub bytes: u64,
}

/// Makes an archive of about `files` files below `scratch`.
pub(crate) fn archive(scratch: &Path, files: u32) -> Result<Archive> {
    let tree = scratch.join("tree");
    let path = scratch.join("tree.tar");
    let bytes = grow(&tree, files).what(|| "making a source tree".into())?;
    run(Command::new("tar")
        .args(["--sort=name", "-cf"])
        .arg(&path)
        .arg("-C")
        .arg(&tree)
        .arg("."))?;
    fs::remove_dir_all(&tree).what(|| "removing the source tree".into())?;
    Ok(Archive { path, files, bytes })
}

/// Writes the tree; returns its bytes. Sizes are exponentially distributed, directories
/// three deep.
fn grow(tree: &Path, files: u32) -> std::io::Result<u64> {
    let mut random = fastrand::Rng::with_seed(17);
    let noise: Vec<u8> = (0..2 * MAX_BYTES).map(|_| random.u8(b' '..=b'~')).collect();
    let mut dir = PathBuf::new();
    let mut bytes = 0;
    for i in 0..files {
        if i % PER_DIRECTORY == 0 {
            let leaf = i / PER_DIRECTORY;
            dir = tree.join(format!("top{}/mid{}/leaf{leaf}", leaf / 100, leaf / 10));
            fs::create_dir_all(&dir)?;
        }
        let len = (-MEAN_BYTES * (1.0 - random.f64()).ln()) as usize;
        let len = len.min(MAX_BYTES);
        let start = random.usize(..MAX_BYTES);
        fs::write(dir.join(format!("source{i}.c")), &noise[start..start + len])?;
        bytes += len as u64;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_holds_its_files_and_repeats() {
        let scratch = tempfile::tempdir().unwrap();
        let first = archive(scratch.path(), 100).unwrap();
        let packed = fs::read(&first.path).unwrap();
        assert!(packed.len() as u64 > first.bytes && first.bytes > 100_000);
        let listed = Command::new("tar")
            .arg("-tf")
            .arg(&first.path)
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert_eq!(listed.lines().filter(|l| l.ends_with(".c")).count(), 100);

        let second = archive(scratch.path(), 100).unwrap();
        assert_eq!((second.files, second.bytes), (first.files, first.bytes));
    }
}
