//! Errors of transactions and of the heap inside them.
//!
//! These types stand below both modules: a step of a transaction may be a step of the heap.

use medium::MediumError;
use std::sync::Arc;
use wordlog::LogError;

/// Errors of the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    /// The heap has no contiguous room for that many bytes, nor as many parts as a log can name.
    #[error(
        "the heap has no room for {bytes} more bytes, in one piece for a block, or in parts for a \
         transaction that writes more than a log holds"
    )]
    NoSpace {
        /// The bytes that were requested.
        bytes: u64,
    },
    /// The offset is not in the heap.
    #[error("offset {off:#x} is not in the heap")]
    Foreign {
        /// The offset that was to be freed.
        off: u64,
    },
    /// No allocated block begins at the offset.
    #[error(
        "no allocated block begins at offset {off:#x}: it was freed already, or never allocated"
    )]
    NotAllocated {
        /// The offset that was to be freed.
        off: u64,
    },
    /// A descriptor, which records the allocated blocks, is damaged.
    #[error("heap: descriptor at {descriptor:#x}: {what}")]
    Damaged {
        /// The offset of the descriptor.
        descriptor: u64,
        /// The damage.
        what: &'static str,
    },
    /// The memory cannot be read.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// The reason why a transaction had no effect.
#[derive(Debug, thiserror::Error)]
pub enum TxError<E> {
    /// The body cancelled the transaction.
    #[error("cancelled: {0}")]
    Cancelled(E),
    /// A step accessed memory that cannot be read, or that does not exist.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// A step read bytes that are not a value of the type.
    #[error("the bytes at offset {off:#x} are not a {what}")]
    NoValue {
        /// Their offset.
        off: u64,
        /// The type.
        what: &'static str,
    },
    /// The heap rejected a step.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The heap had no room and cannot grow.
    #[error(
        "the heap has no room for {bytes} more bytes, in one piece for a block, or in parts for a \
         transaction that writes more than a log holds, and cannot grow: {why}"
    )]
    Growth {
        /// The bytes that were requested.
        bytes: u64,
        /// The reason why the heap cannot grow.
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A log is damaged, or memory could not be made durable: no further transaction can commit.
    /// The next recovery decides whether the transaction that found this has happened.
    #[error("no more transactions: {0}")]
    Failed(Arc<LogError>),
}

/// The reason why a step of a transaction failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Interrupted {
    /// Another transaction was faster: run this one again.
    #[error("another transaction was faster")]
    Conflict,
    /// The memory cannot be read, or does not exist.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// The heap rejected the step.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The bytes are not a value of the type.
    #[error("the bytes at offset {off:#x} are not a {what}")]
    NoValue {
        /// Their offset.
        off: u64,
        /// The type.
        what: &'static str,
    },
}

/// The reason why the body of a transaction ends early.
#[derive(Debug)]
pub enum Stop<E> {
    /// A step returned this; the body passes it on.
    Interrupted(Interrupted),
    /// The body cancels the transaction, which then leaves nothing.
    Cancel(E),
}

impl<E> From<Interrupted> for Stop<E> {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

/// The reason why a commit failed.
#[derive(Debug)]
pub enum Uncommitted {
    /// Another transaction was faster: run this one again.
    Conflict,
    /// The transaction wrote more than a log takes, and the heap has no room for the rest.
    Heap(HeapError),
    /// As [`TxError::Failed`].
    Failed(Arc<LogError>),
}
