//! The end of a process that cannot continue.

use std::fmt::Display;
use std::io::Write;

/// Prints the reason as one line on standard error, and aborts.
#[cold]
pub(crate) fn die(why: impl Display) -> ! {
    let line = format!("selvedge: {why}\n");
    // One call, so that lines of several threads do not mix. If it fails, there is no other way
    // to report.
    let _ = std::io::stderr().write_all(line.as_bytes());
    std::process::abort()
}
