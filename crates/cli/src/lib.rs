//! The `selvedge` program: makes, mounts, checks, examines and measures file systems. It
//! names no engine: those of the crate `engines` are there.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod alias;
mod commands;
mod failure;
mod image;
mod launch;
mod log;
mod mount;
mod output;
mod own_file;
mod random;
mod script;
mod terminal;
mod types;

use clap::{Parser, Subcommand};
use failure::{Outcome, code};
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

/// Storage in which every write states what must be durable before it
#[derive(Debug, Parser)]
#[command(name = "selvedge", version, arg_required_else_help = true)]
pub struct Cli {
    /// Say more; repeat for still more
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mkfs(commands::mkfs::Args),
    Mount(commands::mount::Args),
    Umount(commands::umount::Args),
    Serve(commands::serve::Args),
    #[cfg(target_arch = "x86_64")]
    Run(commands::run::Args),
    Sync(commands::sync::Args),
    Depend(commands::depend::Args),
    Order(commands::order::Args),
    Pg(commands::pg::Args),
    Stats(commands::stats::Args),
    Fsck(commands::fsck::Args),
    Info(commands::info::Args),
    Dump(commands::dump::Args),
    Guarantees(commands::guarantees::Args),
    Crash(commands::crash::Args),
    Graph(commands::graph::Args),
    Stack(commands::stack::Args),
    Heap(commands::heap::Args),
    Bench(commands::bench::Args),
    Completions(commands::completions::Args),
    Manpages(commands::manpages::Args),
    #[command(hide = true)]
    Reference(commands::reference::Args),
}

impl Command {
    fn run(&self) -> Outcome {
        match self {
            Self::Mkfs(args) => args.run(),
            Self::Mount(args) => args.run(),
            Self::Umount(args) => args.run(),
            Self::Serve(args) => args.run(),
            #[cfg(target_arch = "x86_64")]
            Self::Run(args) => args.run(),
            Self::Sync(args) => args.run(),
            Self::Depend(args) => args.run(),
            Self::Order(args) => args.run(),
            Self::Pg(args) => args.run(),
            Self::Stats(args) => args.run(),
            Self::Fsck(args) => args.run(),
            Self::Info(args) => args.run(),
            Self::Dump(args) => args.run(),
            Self::Guarantees(args) => args.run(),
            Self::Crash(args) => args.run(),
            Self::Graph(args) => args.run(),
            Self::Stack(args) => args.run(),
            Self::Heap(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Completions(args) => args.run(),
            Self::Manpages(args) => args.run(),
            Self::Reference(args) => args.run(),
        }
    }
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let args = alias::expand(std::env::args_os());
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(e) => {
            // Nothing is left to try if the message cannot be printed either.
            let _ = e.print();
            return if e.use_stderr() {
                usage_code(&args).into()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    log::start(&cli);
    // The handler does nothing: a write beyond `ulimit -f` then fails, which is reported. The
    // signal would end the server. Without the handler that is all that is lost.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    cli.command.run().unwrap_or_else(|failure| {
        if mount::daemon::is_detached() {
            tracing::error!("{failure}");
        } else {
            output::complain(&failure);
        }
        failure.code()
    })
}

/// The exit code of a wrong command line, which some commands have a convention for.
fn usage_code(args: &[OsString]) -> u8 {
    match args.get(1).and_then(|a| a.to_str()) {
        Some("mount") => code::MOUNT_USAGE,
        Some("fsck") => code::FSCK_USAGE,
        _ => code::USAGE,
    }
}
