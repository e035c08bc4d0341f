//! Prints the verdict of e2fsck on an image, in the terms of our own checker. Fails if the image is
//! worse than a crash may leave it in the mode. With a journal, which has been replayed, the image
//! must be clean. Otherwise it may have the leaks of soft updates.

use ext2::fsck::{Verdict, judge};
use patch::stack::Mode;
use std::process::ExitCode;

/// The worst that a crash may leave.
fn worst(mode: Mode) -> Verdict {
    match mode {
        Mode::Async => Verdict::Corrupt,
        Mode::SoftUpdates => Verdict::Leaks,
        Mode::JournalMetadata | Mode::JournalOrdered | Mode::Journal => Verdict::Clean,
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let image = args.next();
    let mode = args.next().and_then(|mode| mode.to_str()?.parse().ok());
    let (Some(image), Some(mode), None) = (image, mode, args.next()) else {
        eprintln!("usage: judge IMAGE MODE");
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
    if judgement.verdict > worst(mode) {
        println!("{}", judgement.worst.unwrap_or_default());
        println!("{}", judgement.output);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
