//! The `selvedge` program: makes, mounts, checks, examines and measures file systems.
#![forbid(unsafe_code)]

mod alias;
mod commands;
mod engine;
mod ext2fs;
mod failure;
mod image;
mod mount;
mod output;
mod own_file;
mod random;
mod signature;
mod size;
mod terminal;
mod values;

use clap::{Parser, Subcommand};
use failure::{Outcome, code};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use syslog_tracing::{Facility, Options, Syslog};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

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
    Sync(commands::sync::Args),
    Fsck(commands::fsck::Args),
    Info(commands::info::Args),
    Dump(commands::dump::Args),
    Guarantees(commands::guarantees::Args),
    Crash(commands::crash::Args),
    Graph(commands::graph::Args),
    Heap(commands::heap::Args),
    Bench(commands::bench::Args),
    Completions(commands::completions::Args),
    Manpages(commands::manpages::Args),
}

impl Command {
    fn run(&self) -> Outcome {
        match self {
            Self::Mkfs(args) => args.run(),
            Self::Mount(args) => args.run(),
            Self::Umount(args) => args.run(),
            Self::Sync(args) => args.run(),
            Self::Fsck(args) => args.run(),
            Self::Info(args) => args.run(),
            Self::Dump(args) => args.run(),
            Self::Guarantees(args) => args.run(),
            Self::Crash(args) => args.run(),
            Self::Graph(args) => args.run(),
            Self::Heap(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Completions(args) => args.run(),
            Self::Manpages(args) => args.run(),
        }
    }
}

fn main() -> ExitCode {
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
    log(&cli);
    cli.command.run().unwrap_or_else(|failure| {
        if mount::daemon::is_detached() {
            tracing::error!("{failure}");
        } else {
            eprintln!("selvedge: {failure}");
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

/// Sends what the libraries have to say to standard error, and that of a server in the
/// background, whose standard error nobody reads, also to the system log.
fn log(cli: &Cli) {
    let to_file = matches!(&cli.command, Command::Mount(args) if args.log.is_some());
    let to_system = mount::daemon::is_second() && !to_file;
    let system = to_system.then(|| Syslog::new(c"selvedge", Options::LOG_PID, Facility::Daemon));
    let writer = match system.flatten() {
        Some(system) => BoxMakeWriter::new(io::stderr.and(system)),
        None => BoxMakeWriter::new(io::stderr),
    };
    let level = match cli.verbose {
        // Each of thousands of crash states warns that it was not unmounted.
        0 if matches!(cli.command, Command::Crash(_)) => LevelFilter::ERROR,
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal() && !to_system)
        .without_time()
        // Said on standard error, which may be what failed: that would end the thread.
        .log_internal_errors(false)
        .finish()
        .with(Interruptions)
        .init();
}

/// Leaves out what the crate `fuser` reports as an error when a client is interrupted: it
/// refuses the kernel's request to stop through a descriptor that is not the one which has
/// the request, and the kernel then says that there is none. The request itself is answered.
struct Interruptions;

impl<S: Subscriber> Layer<S> for Interruptions {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut found = Found(false);
        event.record(&mut found);
        !found.0
    }
}

/// Whether that is the event's message.
struct Found(bool);

impl Visit for Found {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let no_request = io::Error::from(rustix::io::Errno::NOENT);
            let refused = format!("Failed to send FUSE reply: {no_request}");
            self.0 = format!("{value:?}") == refused;
        }
    }
}
