//! Scripts that commands take from files.

use crate::failure::Failure;
use oracle::script::Script;
use std::fmt::Display;
use std::io::Read;
use std::path::Path;

/// Reads a script; `-` is standard input.
///
/// # Errors
/// If the file cannot be read, or a line is not a call: the error has its number.
pub(crate) fn read(path: &Path) -> Result<Script, Failure> {
    let failed = |e: &dyn Display| Failure::about(path, e);
    let mut text = String::new();
    if path == Path::new("-") {
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|e| failed(&e))?;
    } else {
        text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
    }
    text.parse().map_err(|e| failed(&e))
}
