//! The list of layers. A new layer is a module here and a line in the list.

use super::kind::{self, About, Assembly, BuildError, Built, Device, Image, Kind};
use super::text::Term;
use super::{StackError, option};
use crate::Store;
use std::fmt;
use std::sync::Arc;

/// Declares the modules of layers, the type that can hold any of them, and their list.
macro_rules! layers {
    ($($(#[$about:meta])* $module:ident::$Kind:ident,)*) => {
        $(mod $module;)*
        $(pub use $module::$Kind;)*

        /// Any layer, with its options.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Layer {$(
            $(#[$about])*
            $Kind($Kind),
        )*}

        /// All kinds of layers.
        pub const KINDS: &[About] = &[$(About::of::<$Kind>()),*];

        impl Layer {
            /// Parses a layer; `None` if no kind has this name.
            pub(super) fn parse(text: &str, term: &Term) -> Option<Result<Self, StackError>> {
                $(if term.name.value == $Kind::NAME {
                    return Some(kind::parse(text, term).map(Self::$Kind));
                })*
                None
            }

            /// The kind of the layer.
            pub fn about(&self) -> About {
                match self {
                    $(Self::$Kind(_) => About::of::<$Kind>(),)*
                }
            }

            pub(super) fn device(
                &self,
                below: Vec<Device>,
                image: &mut Image<'_>,
            ) -> Result<Device, BuildError> {
                match self {
                    $(Self::$Kind(layer) => kind::device(layer, below, image),)*
                }
            }

            pub(super) fn store(
                &self,
                below: Vec<Built>,
                assembly: &mut Assembly,
            ) -> Result<Arc<dyn Store>, BuildError> {
                match self {
                    $(Self::$Kind(layer) => kind::store(layer, below, assembly),)*
                }
            }
        }

        impl fmt::Display for Layer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$Kind(layer) => kind::show(layer, f),)*
                }
            }
        }

        $(impl From<$Kind> for Layer {
            fn from(layer: $Kind) -> Self {
                Self::$Kind(layer)
            }
        })*
    };
}

layers! {
    /// A log line for every change.
    trace::TraceLayer,
    /// No order.
    asynchronous::AsyncLayer,
    /// Transactions in a log.
    journal::JournalLayer,
    /// Checks of the graph and of every write.
    verify::VerifyLayer,
    /// Blocks in memory.
    cache::CacheLayer,
    /// The latency of a slower device.
    delay::DelayLayer,
    /// One partition of a device.
    partition::PartitionLayer,
    /// A file or device.
    disk::DiskLayer,
}

#[cfg(test)]
pub(super) use cache::MIN_CACHE;
pub use delay::Delay;
pub use journal::LogLocation;
