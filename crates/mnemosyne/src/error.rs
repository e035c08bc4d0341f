//! Why transactions, and the heap inside them, do not do what they are asked.
//!
//! These types stand below both: a step of a transaction may be a step of the heap, and its caller
//! learns of either in the same way.

use medium::MediumError;
use std::sync::Arc;
use wordlog::LogError;

/// What the heap refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    /// The heap has no contiguous room for that many bytes, nor as many parts as a log can name.
    #[error(
        "the heap has no room for {bytes} more bytes, in one piece for a block, or in parts for a \
         transaction that writes more than a log holds"
    )]
    NoSpace {
        /// What was asked for.
        bytes: u64,
    },
    /// No part of the heap is there.
    #[error("offset {off:#x} is not in the heap")]
    Foreign {
        /// What was to be freed.
        off: u64,
    },
    /// No block that is allocated begins there.
    #[error(
        "no allocated block begins at offset {off:#x}: it was freed already, or never allocated"
    )]
    NotAllocated {
        /// What was to be freed.
        off: u64,
    },
    /// What says which blocks are allocated is damaged.
    #[error("heap: descriptor at {descriptor:#x}: {what}")]
    Damaged {
        /// Where it is.
        descriptor: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The memory cannot be read.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// Why a transaction did not happen.
#[derive(Debug, thiserror::Error)]
pub enum TxError<E> {
    /// Its own wish.
    #[error("cancelled: {0}")]
    Cancelled(E),
    /// A step met memory that cannot be read, or is not there to be written.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// A step met bytes that are no value of a type.
    #[error("what lies at offset {off:#x} is no {what}")]
    NoValue {
        /// Where.
        off: u64,
        /// The type.
        what: &'static str,
    },
    /// The heap refused a step.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The heap had no room, and cannot have more.
    #[error(
        "the heap has no room for {bytes} more bytes, in one piece for a block, or in parts for a \
         transaction that writes more than a log holds, and cannot grow: {why}"
    )]
    Growth {
        /// What was asked for.
        bytes: u64,
        /// Why not.
        why: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A log is damaged, or memory could not be made durable: nothing can be committed any
    /// more. The transaction that finds out may or may not be there after the next recovery.
    #[error("no more transactions: {0}")]
    Failed(Arc<LogError>),
}

/// Why a step of a transaction was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Interrupted {
    /// Somebody else was faster: the transaction is to be run again.
    #[error("another transaction was faster")]
    Conflict,
    /// The memory cannot be read, or is not there to be written.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// The heap refused.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The bytes there are no value of a type.
    #[error("what lies at offset {off:#x} is no {what}")]
    NoValue {
        /// Where.
        off: u64,
        /// The type.
        what: &'static str,
    },
}

/// Why the body of a transaction ends early.
#[derive(Debug)]
pub enum Stop<E> {
    /// As a step said, which is to be passed on.
    Interrupted(Interrupted),
    /// It is to leave nothing.
    Cancel(E),
}

impl<E> From<Interrupted> for Stop<E> {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

/// Why a commit was none.
#[derive(Debug)]
pub enum Uncommitted {
    /// Somebody else was faster: the transaction is to be run again.
    Conflict,
    /// It wrote more than a log takes, and the heap refused room for the rest.
    Heap(HeapError),
    /// As [`TxError::Failed`].
    Failed(Arc<LogError>),
}
