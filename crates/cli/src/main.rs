//! The program `selvedge`: all of its code is in the library `cli`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
