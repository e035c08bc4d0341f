//! The end of a process that cannot go on.

use std::fmt::Display;
use std::io::Write;

/// Says why in one line on standard error, and aborts.
#[cold]
pub(crate) fn die(why: impl Display) -> ! {
    let line = format!("selvedge: {why}\n");
    // One call, so that lines of several threads do not mix. Nobody is left to tell if it
    // fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
    std::process::abort()
}
