//! Errors of a benchmark, one line each.

use engine::Error as EngineError;
use mnemosyne::memory::MemoryError;
use mnemosyne::tx::TxError;
use std::convert::Infallible;
use std::io;
use vfs::Errno;
use wordlog::LogError;

/// The reason why a benchmark could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call that is measured, or prepares a measurement, failed.
    #[error("{what}: {errno}")]
    Call {
        /// The call and its target.
        what: String,
        /// The errno that it returned.
        errno: Errno,
    },
    /// A step of a run failed.
    #[error("{what}: {source}")]
    Step {
        /// The run.
        what: String,
        /// The error of its step.
        source: Box<Error>,
    },
    /// The harness itself could not read or write a file.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The engine could not make or open its image.
    #[error("{what}: {source}")]
    Engine {
        /// The step that failed.
        what: String,
        /// The error of the engine.
        source: EngineError,
    },
    /// The mapped file that stands in for persistent memory could not be made.
    #[error("{what}: {source}")]
    Open {
        /// The step that failed.
        what: String,
        /// The error of the mapping.
        source: medium::OpenError,
    },
    /// The medium failed.
    #[error("{what}: {source}")]
    Medium {
        /// The step that failed.
        what: String,
        /// The error of the medium.
        source: medium::MediumError,
    },
    /// Durable memory could not be made or opened.
    #[error("{what}: {source}")]
    Store {
        /// The step that failed.
        what: String,
        /// The error of durable memory.
        source: MemoryError,
    },
    /// A transaction did not happen.
    #[error("{what}: {source}")]
    Transaction {
        /// The step that failed.
        what: String,
        /// The error of the transaction.
        source: TxError<Infallible>,
    },
    /// A log refused a record, or is damaged.
    #[error("{what}: {source}")]
    Log {
        /// The step that failed.
        what: String,
        /// The error of the log.
        source: LogError,
    },
    /// A store of Aerie could not be made or opened.
    #[error("{what}: {source}")]
    Objects {
        /// The step that failed.
        what: String,
        /// The error of the store.
        source: aerie_objects::Error,
    },
    /// A protected store could not be made.
    #[error("{what}: {source}")]
    Protected {
        /// The step that failed.
        what: String,
        /// The error of the manager of its memory.
        source: scm::ScmError,
    },
    /// A service of Aerie could not begin.
    #[error("{what}: {source}")]
    Serve {
        /// The step that failed.
        what: String,
        /// The error of the service.
        source: aerie_server::ServeError,
    },
    /// A client of Aerie could not connect.
    #[error("{what}: {source}")]
    Connect {
        /// The step that failed.
        what: String,
        /// The error of the client.
        source: aerie_client::ConnectError,
    },
    /// A program that the benchmark needs is missing or failed.
    #[error("{program}: {why}")]
    Program {
        /// The command.
        program: String,
        /// Its message or exit status.
        why: String,
    },
    /// The measured program failed.
    #[error("{what}")]
    Wrong {
        /// The fault.
        what: &'static str,
    },
    /// The options make no sense.
    #[error("{0}")]
    Usage(String),
}

/// Result of a benchmark.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds the step that failed to an error.
pub(crate) trait Context<T> {
    /// Turns the error into an [`Error`] that begins with `what`.
    fn what(self, what: impl FnOnce() -> String) -> Result<T>;
}

macro_rules! context {
    ($source:ty, $variant:ident, $field:ident) => {
        impl<T> Context<T> for std::result::Result<T, $source> {
            fn what(self, what: impl FnOnce() -> String) -> Result<T> {
                self.map_err(|$field| Error::$variant {
                    what: what(),
                    $field,
                })
            }
        }
    };
}
impl<T> Context<T> for Result<T> {
    fn what(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Step {
            what: what(),
            source: error.into(),
        })
    }
}

context!(Errno, Call, errno);
context!(io::Error, Io, source);
context!(EngineError, Engine, source);
context!(medium::OpenError, Open, source);
context!(medium::MediumError, Medium, source);
context!(MemoryError, Store, source);
context!(TxError<Infallible>, Transaction, source);
context!(LogError, Log, source);
context!(aerie_objects::Error, Objects, source);
context!(scm::ScmError, Protected, source);
context!(aerie_server::ServeError, Serve, source);
context!(aerie_client::ConnectError, Connect, source);
