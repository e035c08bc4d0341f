//! Prints what e2fsck says of an image, in the terms of our own checker. Fails if that is
//! more than what soft updates may leave.

use ext2::fsck::{Verdict, judge};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(image) = std::env::args_os().nth(1) else {
        eprintln!("usage: judge IMAGE");
        return ExitCode::from(64);
    };
    let judgement = match judge(image.as_ref()) {
        Ok(judgement) => judgement,
        Err(error) => {
            eprintln!("cannot run e2fsck: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{:?}", judgement.verdict);
    if judgement.verdict == Verdict::Corrupt {
        println!("{}", judgement.worst.unwrap_or_default());
        println!("{}", judgement.output);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
