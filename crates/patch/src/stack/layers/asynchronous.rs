//! `async`: no order.

use super::option::Opt;
use crate::Async;
use crate::stack::kind::{Build, Kind};
use std::sync::Arc;

/// The layer `async`, which has no options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AsyncLayer;

impl Kind for AsyncLayer {
    const NAME: &'static str = "async";
    const ABOUT: &'static str = "drops the order of changes; after a crash the image needs fsck";
    const OPTIONS: &'static [Opt<Self>] = &[];
    const BUILD: Build<Self> = Build::OnOrdered(|_, below, _| Ok(Arc::new(Async::new(below))));
}
