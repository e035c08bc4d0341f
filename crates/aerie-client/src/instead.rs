//! Calls that the service runs in place of a mapped client, which may not read what they need.

use crate::mapped::Mapped;
use crate::memory::Memory;
use crate::remote::Remote;
use std::sync::Arc;
use vfs::{Attr, Ctx, Errno, Result};

impl<P: Memory> Mapped<P> {
    /// Has the service run a call that needs what this client may not read.
    pub(crate) fn or_remote<T>(
        &self,
        cx: &Ctx,
        done: Result<T>,
        call: impl FnOnce(&Remote) -> Result<T>,
    ) -> Result<T> {
        if !matches!(done, Err(Errno::REMOTE)) {
            return done;
        }
        // The service then has the changes and the references of this client.
        self.clerk.quietly(|| self.fs().ship(true))?;
        let remote = Remote {
            connection: Arc::clone(&self.fs().host().0),
            caller: self.fs().caller(cx)?,
            permitted: None,
        };
        let _turn = self.remote.lock();
        self.checked(call(&remote))
    }

    /// As [`or_remote`](Self::or_remote), and makes durable what this client has changed. It reports a refusal.
    pub(crate) fn settle_remote(
        &self,
        cx: &Ctx,
        settled: Result<()>,
        call: impl FnOnce(&Remote) -> Result<()>,
    ) -> Result<()> {
        if settled == Err(Errno::REMOTE) {
            self.checked(self.sync_quietly())?;
        }
        self.or_remote(cx, settled, call)
    }

    /// As [`or_remote`](Self::or_remote), with a reference to the inode.
    pub(crate) fn or_found(
        &self,
        cx: &Ctx,
        done: Result<Attr>,
        call: impl FnOnce(&Remote) -> Result<Attr>,
    ) -> Result<Attr> {
        self.or_remote(cx, done, |remote| {
            let attr = call(remote)?;
            self.fs().adopt(attr.ino);
            Ok(attr)
        })
    }
}
