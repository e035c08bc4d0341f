//! The `selvedge` program.
#![forbid(unsafe_code)]
fn main() {}
