//! `trace`: a log line for every change.

use super::option::Opt;
use crate::Trace;
use crate::stack::kind::{Build, Kind};
use std::sync::Arc;

/// The layer `trace`, which has no options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceLayer;

impl Kind for TraceLayer {
    const NAME: &'static str = "trace";
    const ABOUT: &'static str = "logs every change and every sync (-vvv shows it)";
    const OPTIONS: &'static [Opt<Self>] = &[];
    const BUILD: Build<Self> = Build::OnStore(|_, below, _| Ok(Arc::new(Trace(below))));
}
