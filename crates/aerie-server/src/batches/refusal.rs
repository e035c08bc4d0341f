//! Reasons for a refusal, as a client gets them.

use aerie_objects::{Error, ObjectId};
use aerie_proto::batch::Malformed;
use std::fmt;

/// Invariants of storage objects (paper, Table 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invariant {
    /// 4.2: the client's locks cover what it changes, and an index has one extent, a key one object.
    Covered,
    /// 4.3: an extent is allocated exactly if a file has it.
    ExtentMapped,
    /// 4.4: an object is allocated exactly if a collection has it.
    ObjectLinked,
    /// 4.5: no extents or objects are left behind.
    NoOrphans,
    /// 4.6: a collection has a key once.
    UniqueKeys,
    /// 4.7: collections do not form cycles.
    NoCycle,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Covered => "4.2",
            Self::ExtentMapped => "4.3",
            Self::ObjectLinked => "4.4",
            Self::NoOrphans => "4.5",
            Self::UniqueKeys => "4.6",
            Self::NoCycle => "4.7",
        })
    }
}

/// The reason why an operation was refused. Nothing of it has happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It violates an invariant.
    #[error("invariant {invariant}: {what}")]
    Violation {
        /// The invariant.
        invariant: Invariant,
        /// The object or extent, and the violation.
        what: String,
    },
    /// The bytes are not an operation.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The parts are not those of such an operation.
    #[error("{0}")]
    Parts(String),
    /// An object does not exist.
    #[error("there is no {0}")]
    NoObject(ObjectId),
    /// No page is free.
    #[error("the store is full")]
    Full,
    /// The operation does not fit into the log.
    #[error("the operation is too large")]
    TooLarge,
}

/// A refusal, or a failure of the service itself.
#[derive(Debug)]
pub(crate) enum Stop {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Malformed> for Stop {
    fn from(why: Malformed) -> Self {
        Self::Refused(why.into())
    }
}

impl From<Error> for Stop {
    /// Errors that a client can cause are refusals.
    fn from(error: Error) -> Self {
        let invariant = match error {
            Error::Full => return Refusal::Full.into(),
            Error::NoObject(object) => return Refusal::NoObject(object).into(),
            Error::TooLarge { .. } => return Refusal::TooLarge.into(),
            Error::KeyExists => Invariant::UniqueKeys,
            Error::HasParent(_) | Error::Cycle(_) => Invariant::NoCycle,
            Error::NotEmpty(_) => Invariant::NoOrphans,
            Error::NoIndex(_) | Error::KeyLength(_) | Error::Crowded => Invariant::Covered,
            other => return Self::Failed(other),
        };
        violation(invariant, error.to_string())
    }
}

pub(crate) fn violation(invariant: Invariant, what: impl Into<String>) -> Stop {
    let what = what.into();
    Stop::Refused(Refusal::Violation { invariant, what })
}
