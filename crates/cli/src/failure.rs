//! Failures of commands: one line for the user and an exit code.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// Exit codes, as the manual pages define them.
pub(crate) mod code {
    /// Anything that has no better code; also mkfs(8), and a violated guarantee.
    pub(crate) const FAILED: u8 = 1;
    /// clap's code for a wrong command line.
    pub(crate) const USAGE: u8 = 2;
    /// mount(8): incorrect invocation or permissions.
    pub(crate) const MOUNT_USAGE: u8 = 1;
    /// mount(8): mount failure.
    pub(crate) const MOUNT_FAILED: u8 = 32;
    /// fsck(8): file system errors corrected.
    pub(crate) const FSCK_CORRECTED: u8 = 1;
    /// fsck(8): file system errors left uncorrected.
    pub(crate) const FSCK_ERRORS_LEFT: u8 = 4;
    /// fsck(8): operational error.
    pub(crate) const FSCK_OPERATIONAL: u8 = 8;
    /// fsck(8): usage or syntax error.
    pub(crate) const FSCK_USAGE: u8 = 16;
}

/// The reason why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// The result of a command: the exit code, or the failure.
pub(crate) type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// Fails with code 1 and this message: what is wrong, with what, and the way out.
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            code: code::FAILED,
            message: message.to_string(),
        }
    }

    /// Fails with code 1 and a message that begins with the path.
    pub(crate) fn about(path: &Path, e: impl fmt::Display) -> Self {
        Self::new(format_args!("{}: {e}", path.display()))
    }

    /// Returns this failure with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> ExitCode {
        self.code.into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
