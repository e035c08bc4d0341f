//! Tests of the crash behaviour, on simulated files.

mod bytes;
mod crashes;
mod simulated;
