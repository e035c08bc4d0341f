//! Kernel file systems that exist only while this process uses them.

use crate::error::{Context, Error, Result};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Output};

/// The root of a fresh ext4 of this size on a loop device over a file on tmpfs. It is mounted, opened
/// and at once detached and unlinked, so that it is removed with the descriptor, however
/// this process ends.
///
/// # Errors
/// Without root, mkfs.ext4, mount or a loop device.
pub(crate) fn ext4_on_loop(bytes: u64) -> Result<OwnedFd> {
    let dir = tempfile::Builder::new()
        .prefix("selvedge-ext4-")
        .tempdir_in("/dev/shm")
        .what(|| "making a directory in /dev/shm".into())?;
    let (image, root) = (dir.path().join("image"), dir.path().join("root"));
    let what = || "preparing an ext4 image".to_owned();
    File::create(&image)
        .and_then(|file| file.set_len(bytes))
        .and_then(|()| std::fs::create_dir(&root))
        .what(what)?;
    // No lazy initialisation: it would write in the background of the measurement.
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    run(Command::new("mkfs.ext4")
        .args(["-q", "-F", "-E", lazy])
        .arg(&image))?;
    run(Command::new("mount")
        .args(["-o", "loop"])
        .args([&image, &root]))?;
    let opened = rustix::fs::open(&root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let detached = run(Command::new("umount").arg("--lazy").arg(&root));
    let root = opened.what(what)?;
    detached.map(|()| root)
}

/// Runs a program to its end; its first message becomes the error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a program as [`run`] does, and returns its output.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |why: String| Error::Program {
        program: program.clone(),
        why,
    };
    let output = command.output().map_err(|e| failed(e.to_string()))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(failed(why(&output))),
    }
}

/// The first line of a failed program's error output, or else its exit status.
pub(crate) fn why(output: &Output) -> String {
    let message = String::from_utf8_lossy(&output.stderr);
    match message.trim().lines().next() {
        None => output.status.to_string(),
        Some(first) => first.to_owned(),
    }
}

/// Whether a program is installed.
pub(crate) fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
        || Path::new("/usr/sbin").join(program).is_file()
}
