//! One writer, or many readers, of a mapped file.
//!
//! The lock is `flock(2)` on the open file: it holds between processes and between
//! two opens in one process, and the kernel drops it when the last descriptor goes,
//! however the process ends.

use rustix::fs::{FlockOperation, flock, fstat, major, minor};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::time::Duration;

/// Who has a file locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id, as seen from here.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// Why a lock was not had.
pub(crate) enum Refused {
    /// Somebody else has it; who, if the system tells.
    Held(Option<Holder>),
    /// The system could not lock at all.
    Failed(Errno),
}

/// Attempts to get a lock, since it may be held by nobody who means it: a child of its
/// former holder has it too, from its fork until it runs another program.
const ATTEMPTS: usize = 10;
/// The time from one attempt to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// Locks `file` against other writers, and if `exclusive` against readers too.
pub(crate) fn lock(file: &File, exclusive: bool) -> Result<(), Refused> {
    let how = if exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    for attempt in 1.. {
        match flock(file, how) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if attempt < ATTEMPTS => std::thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => break,
            Err(e) => return Err(Refused::Failed(e)),
        }
    }
    Err(Refused::Held(holder(file)))
}

/// Looks the holder up in the kernel's list of locks.
fn holder(file: &File) -> Option<Holder> {
    let stat = fstat(file).ok()?;
    let (dev, ino) = (stat.st_dev, stat.st_ino);
    let id = format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev));
    // The list is read in pieces; if others unlock meanwhile, some of it is passed over.
    let pid = (0..ATTEMPTS).find_map(|_| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| holder_pid(line, &id))
    })?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(Holder {
        pid,
        name: name.trim_end().to_owned(),
    })
}

/// The process id in a line of `/proc/locks`, if it is a `flock` of the file `id`.
/// (A line whose second word is `->` is a process that waits.)
fn holder_pid(line: &str, id: &str) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let is_flock = words.next() == Some("FLOCK");
    let pid = words.nth(2)?.parse().ok()?;
    (is_flock && words.next() == Some(id) && pid > 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_lock_list() {
        let pid = |line| holder_pid(line, "fe:00:77");
        assert_eq!(
            pid("1: FLOCK  ADVISORY  WRITE 1856 fe:00:77 0 EOF"),
            Some(1856)
        );
        assert_eq!(pid("1: -> FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF"), None);
        assert_eq!(pid("1: FLOCK  ADVISORY  WRITE 1856 fe:00:7 0 EOF"), None);
        assert_eq!(pid("1: OFDLCK ADVISORY  WRITE -1 fe:00:77 0 EOF"), None);
        assert_eq!(pid(""), None);
    }
}
