//! Operation scripts: file-system calls as text, one per line, that can be generated,
//! replayed on any file system, shrunk, and printed in failure reports.
//!
//! ```text
//! create f 644
//! write f 4090 11 7     # 11 bytes at 4090, of the pattern 7
//! rename f A/g exchange
//! open 0 f
//! unlink f
//! append @0 8 3         # the file that handle 0 has open
//! ```
//!
//! Paths start at the root and follow no symbolic links. `@N` at the start of a path is the
//! inode that handle N has open. Modes are octal, all other numbers decimal, times in
//! nanoseconds.

pub mod generate;
mod groups;
mod run;
mod shrink;
mod text;

pub use groups::Order;
pub use run::{LOG_MAGIC, State, fill, run, run_op};
pub use shrink::shrink;
pub use text::{GRAMMAR, ParseError};

use vfs::{Fallocate, FileType, RenameFlags, SetTime, XattrMode};

/// A script: operations in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Script {
    /// The operations.
    pub ops: Vec<Op>,
}

impl Script {
    /// A script of this one, then `other`.
    #[must_use]
    pub fn then(&self, other: &Self) -> Self {
        let ops = self.ops.iter().chain(&other.ops).cloned().collect();
        Self { ops }
    }
}

impl From<Vec<Op>> for Script {
    fn from(ops: Vec<Op>) -> Self {
        Self { ops }
    }
}

/// One operation. Paths and names hold no white space and no `#`, and are not empty. Other
/// names can be run, but not parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the arguments of the calls
pub enum Op {
    Create {
        path: String,
        mode: u32,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    /// `kind` is any type except directory and symbolic link.
    Mknod {
        path: String,
        kind: FileType,
        mode: u32,
        rdev: u32,
    },
    Symlink {
        target: String,
        path: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    /// Writes `len` bytes of the pattern `seed` (see [`fill`]).
    Write {
        path: String,
        off: u64,
        len: u32,
        seed: u32,
    },
    /// Writes as `Write` does, at the end.
    Append {
        path: String,
        len: u32,
        seed: u32,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Fallocate {
        path: String,
        kind: Fallocate,
        off: u64,
        len: u64,
    },
    /// Sets `len` bytes of the pattern `seed`.
    SetXattr {
        path: String,
        name: String,
        len: u32,
        seed: u32,
        mode: XattrMode,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Utimens {
        path: String,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    },
    Fsync {
        path: String,
        data_only: bool,
    },
    Fsyncdir {
        path: String,
    },
    Sync,
    /// Later changes of each engaged group wait for its earlier ones. A script without groups is
    /// one group.
    Barrier,
    /// Makes a group.
    Group {
        name: String,
    },
    /// Later changes of a group wait for the present ones of another, which is sealed.
    Depend {
        later: String,
        earlier: String,
    },
    /// The changes of the script belong to the group from now on.
    Engage {
        name: String,
    },
    Disengage {
        name: String,
    },
    /// Makes the changes of a group durable, and those for which they wait.
    SyncGroup {
        name: String,
    },
    /// Ends a group. The order of its changes stays.
    CloseGroup {
        name: String,
    },
    /// Makes a file without a name and opens it under a handle.
    Tmpfile {
        handle: u32,
        dir: String,
        mode: u32,
    },
    /// Opens a file or directory under a handle.
    Open {
        handle: u32,
        path: String,
    },
    Close {
        handle: u32,
    },
}

/// The files that a sync covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced<'a> {
    /// All files.
    Everything,
    /// One file or directory.
    Path {
        /// The path of the file.
        path: &'a str,
        /// Whether times are left out.
        data_only: bool,
    },
}

impl Op {
    /// The files that the operation makes durable; `None` if it is not a sync.
    pub fn synced(&self) -> Option<Synced<'_>> {
        match self {
            Self::Sync => Some(Synced::Everything),
            Self::Fsync { path, data_only } => Some(Synced::Path {
                path,
                data_only: *data_only,
            }),
            Self::Fsyncdir { path } => Some(Synced::Path {
                path,
                data_only: false,
            }),
            Self::Barrier
            | Self::Group { .. }
            | Self::Depend { .. }
            | Self::Engage { .. }
            | Self::Disengage { .. }
            | Self::SyncGroup { .. }
            | Self::CloseGroup { .. }
            | Self::Create { .. }
            | Self::Mkdir { .. }
            | Self::Mknod { .. }
            | Self::Symlink { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::Write { .. }
            | Self::Append { .. }
            | Self::Truncate { .. }
            | Self::Fallocate { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Chmod { .. }
            | Self::Chown { .. }
            | Self::Utimens { .. }
            | Self::Tmpfile { .. }
            | Self::Open { .. }
            | Self::Close { .. } => None,
        }
    }

    /// Whether it is a call on a group.
    pub fn is_of_groups(&self) -> bool {
        matches!(
            self,
            Self::Group { .. }
                | Self::Depend { .. }
                | Self::Engage { .. }
                | Self::Disengage { .. }
                | Self::SyncGroup { .. }
                | Self::CloseGroup { .. }
        )
    }

    /// The same operation with another pattern of data, if it has data.
    #[must_use]
    pub fn with_seed(mut self, new: u32) -> Self {
        if let Self::Write { seed, .. } | Self::Append { seed, .. } | Self::SetXattr { seed, .. } =
            &mut self
        {
            *seed = new;
        }
        self
    }
}

#[cfg(test)]
mod differential;
#[cfg(test)]
mod tests;
