//! Calls of clients that do not map the memory. The service is a client of its own locks for them: it has
//! a clerk, whose session does not end.

use super::Service;
use super::connection::Connection;
use super::requests::ENDED;
use aerie_client::clerk::{Clerk, Host};
use aerie_client::plan::{Need, Tree, membership_count, under};
use aerie_objects::{lookup, stable};
use aerie_proto::locks::{Access, ClientId, LockId, Tell, ToClient, ToService};
use aerie_proto::ops::{self, Call, Op, Outcome, Read};
use medium::Pmem;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vfs::{Errno, OpenFlags};

/// The service as a client of its locks.
pub(super) const CLIENT: ClientId = ClientId(0);

/// The service, for its clerk.
pub(super) struct OwnHost<P: Pmem + 'static>(pub(super) Weak<Service<P>>);

impl<P: Pmem + 'static> Host for OwnHost<P> {
    fn send(&self, message: ToService) {
        if let Some(service) = self.0.upgrade() {
            let now = service.now();
            let out = service.locks.lock().receive(CLIENT, now, message);
            service.dispatch(out);
        }
    }

    fn now(&self) -> Duration {
        let service = self.0.upgrade();
        service.map_or(Duration::ZERO, |service| service.now())
    }

    fn membership_count(&self, object: LockId) -> u64 {
        let service = self.0.upgrade();
        service.map_or(0, |service| membership_count(service.fs.memory(), object))
    }

    /// Nothing is buffered.
    fn ship(&self, _: LockId) {}
}

impl<P: Pmem + 'static> Service<P> {
    /// Starts the clerk. The messages to it come through a channel, since they may come while it sends.
    pub(super) fn start_clerk(self: &Arc<Self>, messages: Receiver<Option<ToClient>>) {
        let clerk = Clerk::widening(OwnHost(Arc::downgrade(self)));
        let _ = self.clerk.set(clerk);
        let service = Arc::clone(self);
        let attends = std::thread::spawn(move || service.clerk().attend());
        let service = Arc::clone(self);
        let delivers = std::thread::spawn(move || {
            while let Ok(Some(mut message)) = messages.recv() {
                if let Tell::Begun { lease } = &mut message.tell {
                    let now = service.now();
                    service.locks.lock().pin(CLIENT, message.epoch, now);
                    *lease = Duration::MAX;
                }
                service.clerk().deliver(message);
            }
        });
        self.threads.lock().extend([attends, delivers]);
    }

    /// Ends the threads of the clerk.
    pub(super) fn stop_clerk(&self) {
        self.clerk().close();
        let _ = self.to_clerk.lock().send(None);
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }

    fn clerk(&self) -> &Clerk<OwnHost<P>> {
        self.clerk.wait()
    }

    pub(super) fn call(&self, connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let call: Call<'_> = ops::decode(bytes).map_err(|why| why.to_string())?;
        let is_allowed = Self::is_remote(connection) || self.image.is_protected();
        if !is_allowed && !is_space(&call) {
            return Err("a client that maps the image makes calls itself".to_owned());
        }
        let mut has_ended = false;
        let mut run = || {
            // Not held while the call waits for locks, which the client may ship to give up.
            let mut session = connection.session.lock();
            match session.as_mut() {
                Some(session) => self.fs.call(session, &call),
                None => {
                    has_ended = true;
                    Err(Errno::NODEV)
                }
            }
        };
        let (memory, superblock) = (self.fs.memory(), self.fs.superblock());
        let find =
            |dir, name: &[u8]| stable(memory, dir, || lookup(memory, dir, superblock.seed, name));
        let tree = Tree::new(memory, superblock, &find);
        let result = match need(&call, self.image.is_protected()) {
            Some(need) => under(self.clerk(), &tree, &need, run).map_err(|e| e.to_string())?,
            None => run(),
        };
        if has_ended {
            return Err(ENDED.to_owned());
        }
        let outcome: Outcome = result.map_err(|errno| errno.raw_os_error());
        Ok(ops::encode(&outcome))
    }
}

/// Whether a call needs no locks.
pub(super) fn is_space(call: &Call<'_>) -> bool {
    let space = |read: &Read<'_>| matches!(read, Read::StatFs);
    matches!(call, Call::Read { read, .. } if space(read))
}

/// The names and inodes that a call reads and changes.
fn need<'a>(call: &Call<'a>, is_protected: bool) -> Option<Need<'a>> {
    use Access::{Exclusive, Shared};
    let operation = match call {
        Call::Change(operation) => &operation.op,
        Call::Read { read, .. } => {
            return Some(match *read {
                Read::Lookup(name) => Need::Lookup(name.into()),
                Read::ByNumber(ino) | Read::GetAttr(ino) | Read::ReadLink(ino) => {
                    Need::Inode(ino, Shared)
                }
                Read::Value { at, .. } => Need::Value(at.into()),
                Read::List { dir, .. } => Need::Inode(dir, Shared),
                Read::Read { ino, .. } | Read::Seek { ino, .. } => Need::Inode(ino, Shared),
                Read::GetXattr { ino, .. } | Read::ListXattr(ino) => Need::Inode(ino, Shared),
                Read::StatFs => return None,
            });
        }
    };
    Some(match *operation {
        Op::Make { at, .. } => Need::Make(at.into()),
        Op::Tmpfile { dir, .. } => Need::Inode(dir, Shared),
        Op::Look { at } => Need::Lookup(at.into()),
        Op::Put { at, .. } => Need::Put(at.into()),
        Op::Link { ino, at } => Need::Link(ino, at.into()),
        Op::Remove { at, .. } => Need::Remove(at.into()),
        Op::Rename { from, to, .. } => Need::Rename(from.into(), to.into()),
        Op::Open { ino, flags } => match flags.contains(OpenFlags::TRUNCATE) {
            true => Need::Inode(ino, Exclusive),
            false => Need::Inode(ino, Shared),
        },
        Op::SetAttr { ino, set } if is_protected && set.changes_rights() => Need::Protect(ino),
        Op::SetAttr { ino, .. }
        | Op::Write { ino, .. }
        | Op::Allocate { ino, .. }
        | Op::SetXattr { ino, .. }
        | Op::RemoveXattr { ino, .. }
        | Op::Access { ino }
        | Op::Touch { ino } => Need::Inode(ino, Exclusive),
        Op::Hold { ino } => Need::Inode(ino, Shared),
        Op::Release { ino, .. } => Need::Unrefer(ino),
        Op::Return { .. } => return None,
    })
}
