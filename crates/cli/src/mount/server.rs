//! The process that serves a mount, and its end.
//!
//! The image is free when that process has ended. Locks of other processes, on the image or
//! on a file that the mount table names as the source, do not count.

use crate::mount::{facts, table};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time in which a server ends after its unmount.
const PATIENCE: Duration = Duration::from_secs(30);

/// The name of our program, as the kernel shows it.
const PROGRAM: &str = "selvedge";

/// The process that serves a mount.
#[derive(Debug)]
pub(crate) struct Server {
    /// The image that it serves.
    image: PathBuf,
    /// Nothing if it is dead, or cannot be found from here.
    process: Option<(u32, OwnedFd)>,
}

/// The fact by which the mount of `image` names this process, its server.
pub(crate) fn about(image: &str) -> String {
    let pid = std::process::id();
    json!({ "image": image, "pid": pid, "pid_namespace": pid_namespace() }).to_string()
}

impl Server {
    /// The server of a mount that is still there.
    pub(crate) fn of(mount: &table::Entry) -> Self {
        let told = facts::server(&mount.dir);
        let image = told.get("image").and_then(Value::as_str);
        let image = image.map_or_else(|| mount.source.clone(), PathBuf::from);
        // Process ids of another namespace mean other processes here.
        let is_near = told.get("pid_namespace") == Some(&json!(pid_namespace()));
        let told = told.get("pid").and_then(Value::as_u64).filter(|_| is_near);
        let pid = told.and_then(|pid| u32::try_from(pid).ok());
        // The mount of another user answers nobody else, not even the super-user.
        let is_silent = || !facts::is_dead(&mount.dir);
        let holder = || is_silent().then(|| holder(&image)).flatten();
        let process = pid.or_else(holder).and_then(open);
        Self { image, process }
    }

    /// The image that it serves.
    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    /// Waits until the process has ended, which is what frees the image.
    ///
    /// # Errors
    /// The reason, if it goes on for too long.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let Some((pid, process)) = &self.process else {
            return Ok(());
        };
        let start = Instant::now();
        loop {
            let rest = PATIENCE.saturating_sub(start.elapsed());
            let timeout = Timespec::try_from(rest).map_err(|e| e.to_string())?;
            match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Err(format!("its server, process {pid}, has not ended")),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(format!("its server, process {pid}: {e}")),
            }
        }
    }
}

/// The process of our program that has `image` locked.
fn holder(image: &Path) -> Option<u32> {
    let kind = std::fs::metadata(image).ok()?.file_type();
    // Opening anything else can block or have effects.
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let holder = medium::holder(&File::open(image).ok()?)?;
    (holder.name == PROGRAM).then_some(holder.pid)
}

fn open(pid: u32) -> Option<(u32, OwnedFd)> {
    let id = Pid::from_raw(i32::try_from(pid).ok()?)?;
    Some((pid, pidfd_open(id, PidfdFlags::empty()).ok()?))
}

/// The namespace of this process's ids, if `/proc` shows it.
fn pid_namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(link.to_string_lossy().into_owned())
}
