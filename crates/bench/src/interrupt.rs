//! Signals that end a benchmark between two runs, when everything can be undone.

use crate::error::{Context, Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// While it lives, the first signal is noted, and the second one ends the process; as it
/// always does later.
pub(crate) struct Interrupt {
    noted: Arc<AtomicBool>,
}

impl Interrupt {
    /// # Errors
    /// If signals cannot be caught.
    pub(crate) fn catch() -> Result<Self> {
        let noted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: what a signal does depends on those before it.
            flag::register_conditional_default(signal, Arc::clone(&noted))
                .and_then(|_| flag::register(signal, Arc::clone(&noted)))
                .what(|| "catching signals".into())?;
        }
        Ok(Self { noted })
    }

    /// # Errors
    /// [`Error::Usage`] if there was a signal.
    pub(crate) fn check(&self) -> Result<()> {
        match self.noted.load(Ordering::Relaxed) {
            true => Err(Error::Usage("interrupted".into())),
            false => Ok(()),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.noted.store(true, Ordering::Relaxed);
    }
}
