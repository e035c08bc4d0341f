//! Standard output, which may be closed by its reader (`selvedge info IMG | head -1`), and
//! standard error.

use crate::failure::Failure;
use std::io::{self, Write};

/// Writes `text` to standard output.
///
/// # Errors
/// If it cannot be written; a reader that went away is not an error.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes why the command failed to standard error, which may have failed as well: then the
/// exit code is all that is left.
pub(crate) fn complain(failure: &Failure) {
    let _ = writeln!(io::stderr(), "selvedge: {failure}");
}

/// Formats a number of things: `1 state`, `2 states`.
pub(crate) fn count(n: u64, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {thing}{plural}")
}

/// Writes `value` as indented JSON and a newline.
///
/// # Errors
/// If standard output cannot be written, as for [`print`].
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::new)?;
    text.push('\n');
    print(text)
}
