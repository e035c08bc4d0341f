//! Options of a mount.

/// How to mount.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// The source in `/proc/mounts`.
    pub source: String,
    /// Refuse changes.
    pub read_only: bool,
    /// Let all users access the file system, not only the user who mounts.
    pub allow_other: bool,
    /// Ignore set-user-id and set-group-id bits. Always so for unprivileged mounts.
    pub nosuid: bool,
    /// Ignore device nodes. Always so for unprivileged mounts.
    pub nodev: bool,
    /// Refuse to run programs.
    pub noexec: bool,
    /// Never update access times.
    pub noatime: bool,
    /// Pass every read to the file system, so that it records each access. The kernel's caches serve
    /// only mapped files.
    pub strict_atime: bool,
    /// Others change the file system, too, so that the kernel keeps no names and attributes, and passes
    /// every read. Its caches serve only mapped files, which may show older contents.
    pub shared: bool,
    /// Threads that serve requests; `None` for one per CPU, at most 8.
    pub threads: Option<usize>,
}
