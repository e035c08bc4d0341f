//! The target and the level of messages of the libraries.

use crate::{Cli, Command, mount};
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use syslog_tracing::{Facility, Options, Syslog};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Sends messages to standard error, and those of a server in the background, whose standard
/// error nobody reads, also to the system log.
pub(crate) fn start(cli: &Cli) {
    let to_file = matches!(&cli.command, Command::Mount(args) if args.log.is_some());
    let to_system = mount::daemon::is_second() && !to_file;
    let system = to_system.then(|| Syslog::new(c"selvedge", Options::LOG_PID, Facility::Daemon));
    let writer = match system.flatten() {
        Some(system) => BoxMakeWriter::new(io::stderr.and(system)),
        None => BoxMakeWriter::new(io::stderr),
    };
    let level = match cli.verbose {
        // Each of thousands of crash states warns that it was not unmounted.
        // An engine that cannot read one of them is a result of the exploration.
        0 if matches!(&cli.command, Command::Crash(args) if args.explores()) => LevelFilter::OFF,
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = Filter {
        counts: (cli.verbose == 0).then(Mutex::default),
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal() && !to_system)
        .without_time()
        // Said on standard error, which may be what failed: that would end the thread.
        .log_internal_errors(false)
        .finish()
        .with(filter)
        .init();
}

/// Most different messages that are counted.
const COUNTED: usize = 256;

/// Leaves out two kinds of messages.
///
/// An error that the crate `fuser` reports when a client is interrupted: it refuses the
/// kernel's request to stop through a descriptor that is not the one which has the request,
/// and the kernel then says that there is none. The server has answered the request itself.
///
/// And repetitions: each call on a medium that failed reports the same error. A message is
/// written the first, second, fourth, eighth... time.
struct Filter {
    /// Occurrences of each message; `None` if repetitions are printed.
    counts: Option<Mutex<HashMap<String, u64>>>,
}

impl Filter {
    /// Counts a message, and returns whether it is to be written.
    fn admits(&self, message: &str) -> bool {
        let Some(counts) = &self.counts else {
            return true;
        };
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= COUNTED && !counts.contains_key(message) {
            counts.clear();
        }
        let count = counts.entry(message.to_owned()).or_default();
        *count += 1;
        count.is_power_of_two()
    }
}

impl<S: Subscriber> Layer<S> for Filter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut text = Text::default();
        event.record(&mut text);
        let no_request = io::Error::from(rustix::io::Errno::NOENT);
        let refused = format!("Failed to send FUSE reply: {no_request}");
        text.message != refused && self.admits(&(text.message + &text.fields))
    }
}

/// The message of an event.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let (text, name) = match field.name() {
            "message" => (&mut self.message, ""),
            name => (&mut self.fields, name),
        };
        // Nothing fails that writes to a string.
        let _ = write!(text, "{name}{value:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_message_is_written_ever_less_often() {
        let filter = Filter {
            counts: Some(Mutex::default()),
        };
        let written = (1..=1000).filter(|_| filter.admits("the disk is full"));
        assert_eq!(written.count(), 10);
        assert!(filter.admits("another one"));
    }

    #[test]
    fn many_different_messages_are_all_written() {
        let filter = Filter {
            counts: Some(Mutex::default()),
        };
        for i in 0..10_000 {
            assert!(filter.admits(&i.to_string()));
        }
        let counts = filter.counts.unwrap().into_inner().unwrap();
        assert!(counts.len() <= COUNTED);
    }

    #[test]
    fn repetitions_are_written_if_they_are_wanted() {
        let filter = Filter { counts: None };
        assert_eq!((0..100).filter(|_| filter.admits("again")).count(), 100);
    }
}
