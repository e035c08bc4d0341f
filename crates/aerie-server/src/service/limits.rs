//! Bounds of the service.

use crate::locks;
use std::time::Duration;

/// Bounds of a service.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a client may be silent, and how long it may keep a lock that another client needs.
    pub lease: Duration,
    /// Most connections.
    pub clients: usize,
    /// Most connections of one user who is not trusted. A trusted one can harm the store in other ways.
    pub per_user: usize,
    /// Most locks that a client holds or requests.
    pub locks_per_client: usize,
    /// Most free pages, and most headers of new objects, that are reserved for a client.
    pub reserve: usize,
    /// Memory for requests that are being received or served, of all clients together. A user who is not trusted has
    /// an eighth of it, or room for one request.
    pub request_bytes: usize,
    /// Memory for answers that a client has not read, beyond one; the connections of a user who is not trusted share it.
    /// A connection that needs more ends.
    pub answer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            clients: 1024, // each process of a `selvedge run` is one
            per_user: 256, // as above: `make -j` is many
            locks_per_client: 1 << 16,
            reserve: 1 << 14,
            request_bytes: 512 << 20,
            answer_bytes: 32 << 20,
        }
    }
}

impl Limits {
    pub(super) fn of_locks(&self) -> locks::Limits {
        locks::Limits {
            lease: self.lease,
            locks_per_client: self.locks_per_client,
            clients: self.clients + 1, // the service's own
        }
    }
}
