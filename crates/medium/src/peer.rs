//! The credentials of the process at the other end of a Unix socket.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ffi::{c_int, c_void};
use std::io;

/// Most supplementary groups that the kernel permits a process.
const MOST_GROUPS: usize = 65_536;

/// The credentials that a process had when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

/// The credentials of the peer of a connected Unix socket. (The process id is left out: it is 0
/// for a process of another PID namespace, and may belong to another process by now.)
///
/// # Errors
/// The error of `getsockopt(2)`, for example of a socket of another kind.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let socket = socket.as_fd();
    // pid, uid, gid: struct ucred.
    let mut process = [0; 3];
    if option(socket, libc::SO_PEERCRED, &mut process).map_err(|(e, _)| e)? != process.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut groups = vec![0; 64];
    let count = loop {
        match option(socket, libc::SO_PEERGROUPS, &mut groups) {
            Ok(count) => break count,
            // The kernel returns the number that it needs.
            Err((e, needed)) if is_short(&e, needed, groups.len()) => groups.resize(needed, 0),
            Err((e, _)) => return Err(e),
        }
    };
    groups.truncate(count);
    let [_, uid, gid] = process;
    Ok(Peer { uid, gid, groups })
}

fn is_short(error: &io::Error, needed: usize, had: usize) -> bool {
    let is_range = error.raw_os_error() == Some(libc::ERANGE);
    is_range && (had + 1..=MOST_GROUPS).contains(&needed)
}

/// Reads an option that is an array of 32-bit numbers. Returns the length of the array, or the
/// error and the length that the kernel would need.
fn option(
    socket: BorrowedFd<'_>,
    name: c_int,
    value: &mut [u32],
) -> Result<usize, (io::Error, usize)> {
    let mut bytes = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, which has that many, and any
    // bytes are a `u32`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast::<c_void>(),
            &mut bytes,
        )
    };
    let count = bytes as usize / size_of::<u32>();
    match result {
        0 => Ok(count),
        _ => Err((io::Error::last_os_error(), count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_has_the_credentials_of_its_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let found = peer(&one).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let numbers = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let words = line.unwrap().split_ascii_whitespace();
            words
                .map(|word| word.parse().unwrap())
                .collect::<Vec<u32>>()
        };
        // The real and the effective id.
        assert_eq!(found.uid, numbers("Uid:")[1]);
        assert_eq!(found.gid, numbers("Gid:")[1]);
        let sorted = |groups: Vec<u32>| groups.into_iter().collect::<BTreeSet<_>>();
        assert_eq!(sorted(found.groups), sorted(numbers("Groups:")));
    }

    #[test]
    fn other_files_have_no_peer() {
        assert!(peer(std::io::pipe().unwrap().0).is_err());
    }
}
