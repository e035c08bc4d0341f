//! Short names for the usual stacks.

use super::option::choose;
use super::{AsyncLayer, JournalLayer, Layer, ValueError};
use crate::journal;
use std::fmt;
use std::str::FromStr;

/// The order in which changes become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(into = "String")]
pub enum Mode {
    /// No order.
    Async,
    /// The order that the file system states.
    #[default]
    SoftUpdates,
    /// Metadata in transactions, data at any time.
    JournalMetadata,
    /// Metadata in transactions, data before them.
    JournalOrdered,
    /// Metadata and data in transactions.
    Journal,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 5] = [
        Self::Async,
        Self::SoftUpdates,
        Self::JournalMetadata,
        Self::JournalOrdered,
        Self::Journal,
    ];

    /// The name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::SoftUpdates => "softupdates",
            Self::JournalMetadata => "journal-metadata",
            Self::JournalOrdered => "journal-ordered",
            Self::Journal => "journal",
        }
    }

    /// The layer of the mode; soft updates need none.
    pub(super) fn layer(self) -> Option<Layer> {
        let journal = |what| {
            let journal = JournalLayer {
                what,
                ..JournalLayer::default()
            };
            Some(journal.into())
        };
        match self {
            Self::Async => Some(AsyncLayer.into()),
            Self::SoftUpdates => None,
            Self::JournalMetadata => journal(journal::Mode::Metadata),
            Self::JournalOrdered => journal(journal::Mode::Ordered),
            Self::Journal => journal(journal::Mode::Full),
        }
    }

    /// The mode that a layer determines, if any.
    pub(super) fn of(layer: &Layer) -> Option<Self> {
        match layer {
            Layer::AsyncLayer(_) => Some(Self::Async),
            Layer::JournalLayer(journal) => Some(match journal.what {
                journal::Mode::Metadata => Self::JournalMetadata,
                journal::Mode::Ordered => Self::JournalOrdered,
                journal::Mode::Full => Self::Journal,
            }),
            Layer::TraceLayer(_)
            | Layer::VerifyLayer(_)
            | Layer::CacheLayer(_)
            | Layer::DelayLayer(_)
            | Layer::PartitionLayer(_)
            | Layer::DiskLayer(_) => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.name().into()
    }
}

impl FromStr for Mode {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        choose(text, &Self::ALL.map(|mode| (mode.name(), mode)))
    }
}
