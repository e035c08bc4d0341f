//! Claims: at most one open transaction changes an object.
//!
//! A transaction claims an object before its first change of it, and keeps the claim until its record is
//! truncated. So all words that it changes at home belong to objects that no other record on the medium changes:
//! a recovery may replay the records of several logs in any order. No transaction waits for a claim.

use crate::error::{Error, Result};
use crate::seeded::{Bug, hit};
use hashbrown::{HashMap, HashSet};
use vfs::sync::Mutex;

/// The claimed objects by their headers, each with the number of the log of its transaction.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<u64, usize>>);

impl Claims {
    /// Claims the object with this header for the transaction that uses this log.
    ///
    /// # Errors
    /// [`Error::Claimed`] if another transaction has the claim.
    pub(crate) fn claim(&self, header: u64, log: usize) -> Result<()> {
        let mut claimed = self.0.lock();
        match claimed.insert(header, log) {
            Some(other) if other != log && !hit(Bug::ClaimedTwice) => {
                claimed.insert(header, other);
                Err(Error::Claimed)
            }
            _ => Ok(()),
        }
    }

    /// Gives up the claims of a transaction.
    pub(crate) fn release(&self, headers: &HashSet<u64>, log: usize) {
        if headers.is_empty() {
            return;
        }
        let mut claimed = self.0.lock();
        for header in headers {
            if claimed.get(header) == Some(&log) {
                claimed.remove(header);
            }
        }
    }
}
