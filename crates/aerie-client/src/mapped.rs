//! The file system of a client that maps the memory: each call takes its locks from the clerk, and runs on
//! a speculation.
//!
//! A call usually takes a pass, and otherwise a guard of the clerk. Both keep other clients away. Other threads of
//! this client are kept away by the speculation, whose calls are atomic.
//!
//! The changes are shipped after a period, at a size, by `fsync` and `sync`, and before a lock is given
//! up. After the end of the session all calls fail with `ENODEV`, as if the medium had been removed.
//! Access times are not updated.
//!
//! A call that needs pages which this client may not read fails with `EREMOTE`. It is then a call of the service,
//! without locks of this client, after all its changes were shipped.

use crate::clerk::{Clerk, Host, LockError};
use crate::connection::{Connection, Link};
use crate::contended::Contended;
use crate::linger::Linger;
use crate::memory::Memory;
use crate::plan::{Need, Tree, is_held, look_up_with_pass, membership_count, under, with_pass};
use crate::remote::allocate_in_parts;
use crate::schedule::Schedule;
use aerie_objects::{HEADER_BYTES, lookup};
use aerie_proto::locks::{Access, LockId, Tell, ToService};
use aerie_proto::messages::Up;
use pxfs::{InPlace, WRITE_MAX};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vfs::sync::Mutex;
use vfs::{
    Attr, Cookie, Ctx, DirEntry, Errno, Fallocate, FileSystem, FileType, Guarantees, Ino, Name,
    NewNode, OpenFlags, Removal, RenameFlags, Result, SeekKind, SetAttr, StatFs, XattrMode,
};

use Access::{Exclusive, Shared};

/// Locks that no thread has used for this time are given back.
const UNUSED: Duration = Duration::from_secs(60);
/// The longest time between two ticks of the kernel, by which the clock of the lease is late.
const TICK: Duration = Duration::from_millis(10);
/// The time between looks at a session that has not begun.
const CONNECTING: Duration = Duration::from_millis(10);
/// A batch of this size is shipped while calls go on: the service has work early, and answers soon.
const BESIDE_BYTES: u64 = 64 << 10;
/// Files that can be appended to at a time.
const APPENDS: usize = 16;
/// Entries that a listing with attributes reads at a time.
const LIST_PART: usize = 128;

/// The store with the changes of the client.
pub(crate) type Speculation<P> = pxfs::Speculation<P, Link>;

pub(crate) type Overlay<P> = aerie_objects::Overlay<P>;

/// The client, for its clerk.
pub(crate) struct Own<P: Memory> {
    fs: Speculation<P>,
    contended: Contended,
}

/// The file system.
pub(crate) struct Mapped<P: Memory> {
    pub(crate) clerk: Clerk<Own<P>>,
    linger: Linger,
    /// Held during a call of the service.
    pub(crate) remote: Mutex<()>,
    /// Held by appends; each file has one of them.
    appends: [Mutex<()>; APPENDS],
    batch_bytes: u64,
    /// A batch of this size is shipped beside calls.
    beside_bytes: u64,
    schedule: Schedule,
    is_reported: AtomicBool,
}

impl<P: Memory> Host for Own<P> {
    fn send(&self, message: ToService) {
        self.fs.host().0.send(&Up::Lock(message));
    }

    /// The time of the kernel's last tick: each call reads it.
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn membership_count(&self, object: LockId) -> u64 {
        membership_count(self.fs.memory(), object)
    }

    fn ship(&self, lock: LockId) {
        self.contended.add(lock);
        // An error has ended the connection, and so the session: the changes are dropped.
        let _ = self.fs.ship(true);
    }
}

impl<P: Memory> Mapped<P> {
    /// Begins a session, and starts the threads of the client.
    pub(crate) fn start(
        fs: Speculation<P>,
        period: Duration,
        batch_bytes: u64,
    ) -> (Arc<Self>, Vec<JoinHandle<()>>) {
        let beside_bytes = match fs.may_ship_beside() {
            true => BESIDE_BYTES.min(batch_bytes),
            false => u64::MAX,
        };
        let own = Own {
            fs,
            contended: Contended::default(),
        };
        let client = Arc::new(Self {
            clerk: Clerk::widening(own),
            linger: Linger::default(),
            remote: Mutex::new(()),
            appends: [const { Mutex::new(()) }; APPENDS],
            batch_bytes,
            beside_bytes,
            schedule: Schedule::default(),
            is_reported: AtomicBool::new(false),
        });
        let thread = |work: fn(&Self, Duration)| {
            let client = Arc::clone(&client);
            std::thread::spawn(move || work(&client, period))
        };
        let threads = vec![
            thread(|client, _| client.receive()),
            thread(|client, _| client.clerk.attend()),
            thread(|client, _| client.keep_alive()),
            thread(Self::ship_periodically),
        ];
        (client, threads)
    }

    fn connection(&self) -> &Connection {
        &self.fs().host().0
    }

    pub(crate) fn fs(&self) -> &Speculation<P> {
        &self.clerk.host().fs
    }

    fn receive(&self) {
        self.connection().receive(|mut message| {
            if let Tell::Begun { lease } = &mut message.tell {
                *lease = lease.saturating_sub(TICK);
            }
            let (progress, now) = (self.fs().progress(), Instant::now());
            if let Some(message) = self.linger.take(message, progress, now) {
                self.clerk.deliver(message);
            }
        });
        self.linger.end();
        self.clerk.close();
        self.clerk.drain();
        self.connection().close();
    }

    /// Renews the lease, gives back locks that are not used, and answers revokes that have waited. A ship may take
    /// longer than a lease.
    fn keep_alive(&self) {
        let until = |next: Instant| next.saturating_duration_since(Instant::now());
        let mut next = Instant::now() + self.step();
        while self.linger.pause(until(next)) {
            self.answer_revokes();
            if until(next).is_zero() {
                next = Instant::now() + self.step();
                self.clerk.tick();
                let since = self.clerk.host().now().checked_sub(UNUSED);
                let release = |since| self.clerk.release_unused(since);
                since.into_iter().for_each(release);
            }
        }
    }

    /// The time between two renewals of the lease.
    fn step(&self) -> Duration {
        let lease = self.clerk.lease();
        lease.map_or(CONNECTING, |lease| (lease / 8).min(UNUSED))
    }

    /// Answers the revokes that wait no longer.
    fn answer_revokes(&self) {
        if self.linger.has_waiting() {
            let is_busy = self.fs().is_shipping() || self.clerk.has_guards();
            let progress = self.fs().progress();
            let due = self.linger.due(progress, is_busy, Instant::now());
            due.into_iter().for_each(|one| self.clerk.deliver(one));
        }
    }

    fn ship_periodically(&self, period: Duration) {
        while self.schedule.wait(period) {
            let _ = match self.fs().may_ship_beside() {
                true => self.fs().ship_beside(|end| self.clerk.quietly(end)),
                false => self.ship(),
            };
        }
    }

    /// Ships what is left, and ends the session and the threads.
    pub(crate) fn stop(&self) -> Result<()> {
        let shipped = match self.connection().ended() {
            Some(_) => Err(Errno::NODEV),
            None => self.sync_quietly(),
        };
        self.schedule.stop();
        self.linger.end();
        self.clerk.close();
        self.connection().end("the client was closed");
        shipped
    }

    /// Looks at the objects of the store.
    fn with_tree<T>(&self, look: impl FnOnce(&Tree<'_, Overlay<P>>) -> T) -> T {
        let fs = self.fs();
        let (memory, superblock) = (fs.memory(), fs.superblock());
        let find =
            |dir, name: &[u8]| memory.stable(dir, || lookup(memory, dir, superblock.seed, name));
        look(&Tree::new(memory, superblock, &find))
    }

    /// Runs a call, which does not ship, under its locks.
    pub(crate) fn call<T>(
        &self,
        need: Need<'_>,
        call: impl FnOnce(&Speculation<P>) -> Result<T>,
    ) -> Result<T> {
        let fs = self.fs();
        let result = self.with_tree(|tree| with_pass(&self.clerk, tree, &need, || call(fs)));
        self.checked(result.unwrap_or_else(|why| Err(self.ended(&why))))
    }

    /// Looks up a name under a pass, if that is enough.
    pub(crate) fn looked_up<T>(
        &self,
        dir: Ino,
        look: impl FnOnce(&dyn Fn(Ino) -> bool) -> Result<T>,
    ) -> Option<Result<T>> {
        let found = self.with_tree(|tree| look_up_with_pass(&self.clerk, tree, dir, look))?;
        Some(self.checked(found.unwrap_or_else(|why| Err(self.ended(&why)))))
    }

    /// Makes all changes up to now durable, if `check` accepts the inode. No lock is needed meanwhile: a lock is
    /// given up after its changes are durable.
    fn settle(&self, ino: Ino, check: impl FnOnce(&Speculation<P>) -> Result<()>) -> Result<()> {
        self.call(Need::Inode(ino, Shared), check)?;
        self.checked(self.sync_quietly())
    }

    /// Makes all changes durable. It fails if the connection has ended: a ship of another thread may have lost changes,
    /// and a refusal is reported once.
    pub(crate) fn sync_quietly(&self) -> Result<()> {
        self.clerk.quietly(|| self.fs().sync())?;
        match self.connection().ended() {
            Some(_) => Err(Errno::NODEV),
            None => Ok(()),
        }
    }

    /// Runs a call under locks that other calls of this client do not share.
    pub(crate) fn guarded<T>(
        &self,
        need: Need<'_>,
        call: impl FnOnce(&Speculation<P>) -> Result<T>,
    ) -> Result<T> {
        let fs = self.fs();
        let result = self.with_tree(|tree| under(&self.clerk, tree, &need, || call(fs)));
        self.checked(result.unwrap_or_else(|why| Err(self.ended(&why))))
    }

    /// Whether the client holds the locks that a call needs.
    pub(crate) fn holds(&self, need: &Need<'_>) -> bool {
        self.with_tree(|tree| is_held(&self.clerk, tree, need))
    }

    /// Ships without locks.
    fn ship(&self) -> Result<()> {
        self.clerk.quietly(|| self.fs().ship(false))
    }

    /// Gives back references.
    fn unrefer(&self, ino: Ino, unrefer: impl FnOnce(&Speculation<P>)) {
        if !self.with_tree(|tree| tree.is_nameless_inode(ino)) {
            return unrefer(self.fs());
        }
        let need = Need::Unrefer(ino);
        let _ = self.call(need, |fs| {
            unrefer(fs);
            Ok(())
        });
    }

    /// Ends the session if a call has found the end of the connection: the next calls fail, too.
    pub(crate) fn checked<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Errno::NODEV)) && self.connection().ended().is_some() {
            self.clerk.close();
        }
        result
    }

    /// Runs a call that changes something. Pages that this client has freed, or not used, are available
    /// after it has shipped.
    pub(crate) fn change<T>(
        &self,
        need: Need<'_>,
        call: impl Fn(&Speculation<P>) -> Result<T>,
    ) -> Result<T> {
        let result = match self.call(need, &call) {
            Err(Errno::NOSPC) => self.ship().and_then(|()| self.call(need, &call)),
            result => result,
        }?;
        let [recorded, all] = self.fs().pending_bytes();
        if all >= self.batch_bytes {
            let _ = self.ship();
        } else if recorded >= self.beside_bytes && !self.fs().is_shipping() {
            self.schedule.ship_soon();
        }
        Ok(result)
    }

    /// Makes a node in a directory to which a path led at a version; see [`pxfs::Speculation::make_at`].
    pub(crate) fn make_at(
        &self,
        cx: &Ctx,
        known: (Name<'_>, Option<u64>),
        new: &NewNode<'_>,
    ) -> Result<Attr> {
        self.change(Need::Make(known.0), |fs| fs.make_at(cx, known, new))
    }

    /// Removes a name, in the same way.
    pub(crate) fn remove_at(
        &self,
        cx: &Ctx,
        known: (Name<'_>, Option<u64>),
        which: Removal,
    ) -> Result<()> {
        self.change(Need::Remove(known.0), |fs| fs.remove_at(cx, known, which))
    }

    fn write_part(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        if self.clerk.host().contended.has(LockId(ino.0)) {
            let write = |fs: &Speculation<P>| fs.write_in_place(cx, ino, off, data);
            match self.call(Need::Overwrite(ino), write) {
                // The service writes what this client may not even look at.
                Ok(InPlace::Impossible) | Err(Errno::REMOTE) => {}
                Ok(InPlace::Done) => return Ok(data.len()),
                Ok(InPlace::Touched) => return self.ship().map(|()| data.len()),
                Err(errno) => return Err(errno),
            }
        }
        let need = Need::Inode(ino, Exclusive);
        let written = self.change(need, |fs| fs.write(cx, ino, off, data));
        self.or_remote(cx, written, |remote| remote.write(cx, ino, off, data))
    }

    /// Reports the end of the session, once.
    fn ended(&self, why: &LockError) -> Errno {
        if let LockError::Refused(..) = why {
            tracing::warn!("{why}");
            return Errno::NOLCK;
        }
        if !self.is_reported.swap(true, SeqCst) {
            let reason = self.connection().ended();
            let reason = reason.unwrap_or_else(|| why.to_string());
            tracing::error!("the file system is gone: {reason}; what was not shipped is lost");
            self.fs().reset();
            // The service keeps the connection when it ends a session alone.
            self.schedule.stop();
            self.linger.end();
            self.connection().end(&reason);
        }
        Errno::NODEV
    }

    /// Fails after the end of the session.
    fn check(&self) -> Result<()> {
        match self.clerk.ended() {
            Some(end) => Err(self.ended(&LockError::Removed(end))),
            None => Ok(()),
        }
    }
}

impl<P: Memory> FileSystem for Mapped<P> {
    fn guarantees(&self) -> Guarantees {
        self.fs().guarantees()
    }

    fn paths_version(&self) -> Option<u64> {
        self.fs().paths_version()
    }

    fn drops_capabilities(&self) -> bool {
        true
    }

    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        let unlocked = Cell::new(None);
        let look = |may_read: &dyn Fn(Ino) -> bool| {
            let attr = self.fs().lookup(cx, dir, name)?;
            if may_read(attr.ino) {
                return Ok(attr);
            }
            unlocked.set(Some(attr.ino));
            Err(Errno::AGAIN)
        };
        if let Some(found) = self.looked_up(dir, look) {
            return found;
        }
        if let Some(ino) = unlocked.get() {
            self.forget(ino, 1);
        }
        let need = Need::Lookup(Name::new(dir, name));
        let found = self.call(need, |fs| fs.lookup(cx, dir, name));
        self.or_found(cx, found, |remote| remote.lookup(cx, dir, name))
    }

    fn attributes(&self, cx: &Ctx, at: Name<'_>) -> Result<Option<Attr>> {
        let look = |may_read: &dyn Fn(Ino) -> bool| self.fs().attributes_if(cx, at, may_read);
        self.looked_up(at.dir, look).unwrap_or(Ok(None))
    }

    fn open_file(&self, cx: &Ctx, at: Name<'_>, flags: OpenFlags) -> Result<Option<Attr>> {
        let open = |may_read: &dyn Fn(Ino) -> bool| self.fs().open_file_if(cx, at, flags, may_read);
        self.looked_up(at.dir, open).unwrap_or(Ok(None))
    }

    fn by_number(&self, ino: Ino) -> Result<Attr> {
        let found = self.call(Need::Inode(ino, Shared), |fs| fs.by_number(ino));
        self.or_found(&self.fs().own(), found, |remote| remote.by_number(ino))
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.unrefer(ino, |fs| fs.forget(ino, count));
    }

    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr> {
        let found = self.call(Need::Inode(ino, Shared), |fs| fs.getattr(cx, ino));
        self.or_remote(cx, found, |remote| remote.getattr(cx, ino))
    }

    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let need = match P::IS_PROTECTED && set.changes_rights() {
            true => Need::Protect(ino),
            false => Need::Inode(ino, Exclusive),
        };
        let changed = self.change(need, |fs| fs.setattr(cx, ino, set));
        self.or_remote(cx, changed, |remote| remote.setattr(cx, ino, set))
    }

    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let need = Need::Inode(dir, Shared);
        let (mut last, mut is_full) = (after, false);
        let listed = self.call(need, |fs| {
            fs.readdir(cx, dir, after, &mut |entry| {
                is_full = !sink(entry);
                last = if is_full { last } else { entry.cookie };
                !is_full
            })
        });
        // The service goes on where the pages ended.
        self.or_remote(cx, listed, |remote| match is_full {
            true => Ok(()),
            false => remote.readdir(cx, dir, last, sink),
        })
    }

    /// Reads names first, and then the attributes of each, under their own locks.
    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        mut after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        loop {
            let mut part: Vec<(Ino, FileType, Vec<u8>, Cookie)> = Vec::new();
            self.readdir(cx, dir, after, &mut |entry| {
                let is_accepted = part.len() < LIST_PART;
                if is_accepted {
                    part.push((entry.ino, entry.kind, entry.name.to_vec(), entry.cookie));
                }
                is_accepted
            })?;
            let Some(last) = part.last() else {
                return Ok(());
            };
            after = last.3;
            for (ino, kind, name, cookie) in &part {
                let is_dot = matches!(&name[..], b"." | b"..");
                // By name: another client may have removed or replaced the file since the listing, and a new one may
                // have its number.
                let attr = match is_dot {
                    true => self.getattr(cx, *ino),
                    false => self.lookup(cx, dir, name),
                };
                if attr == Err(Errno::NOENT) && !is_dot {
                    continue;
                }
                let entry = DirEntry {
                    ino: attr.as_ref().map_or(*ino, |attr| attr.ino),
                    kind: attr.as_ref().map_or(*kind, |attr| attr.kind),
                    name,
                    cookie: *cookie,
                };
                if !sink(&entry, attr.as_ref().ok()) {
                    if !is_dot && attr.is_ok() {
                        self.forget(entry.ino, 1);
                    }
                    return Ok(());
                }
            }
        }
    }

    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let made = self.change(Need::Make(at), |fs| fs.make(cx, at, new));
        self.or_found(cx, made, |remote| remote.make(cx, at, new))
    }

    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        let read = self.call(Need::Inode(ino, Shared), |fs| fs.readlink(cx, ino));
        self.or_remote(cx, read, |remote| remote.readlink(cx, ino))
    }

    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let need = Need::Link(ino, Name::new(dir, name));
        let linked = self.change(need, |fs| fs.link(cx, ino, dir, name));
        self.or_found(cx, linked, |remote| remote.link(cx, ino, dir, name))
    }

    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let removed = self.change(Need::Remove(at), |fs| fs.remove(cx, at, which));
        self.or_remote(cx, removed, |remote| remote.remove(cx, at, which))
    }

    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        let moved = self.change(Need::Rename(from, to), |fs| fs.rename(cx, from, to, flags));
        self.or_remote(cx, moved, |remote| remote.rename(cx, from, to, flags))
    }

    fn tmpfile(&self, cx: &Ctx, dir: Ino, mode: u32) -> Result<Attr> {
        let made = self.change(Need::Inode(dir, Shared), |fs| fs.tmpfile(cx, dir, mode));
        self.or_found(cx, made, |remote| remote.tmpfile(cx, dir, mode))
    }

    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        let opened = match flags.contains(OpenFlags::TRUNCATE) {
            true => self.change(Need::Inode(ino, Exclusive), |fs| fs.open(cx, ino, flags)),
            false => self.call(Need::Inode(ino, Shared), |fs| fs.open(cx, ino, flags)),
        };
        self.or_remote(cx, opened, |remote| {
            remote.open(cx, ino, flags)?;
            self.fs().adopt_open(ino, flags);
            Ok(())
        })
    }

    fn release(&self, ino: Ino) {
        self.unrefer(ino, |fs| fs.release(ino));
    }

    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.call(Need::Inode(ino, Shared), |fs| fs.read(cx, ino, off, buf));
        self.or_remote(cx, read, |remote| remote.read(cx, ino, off, buf))
    }

    /// Writes parts, each with the room that a shipment of those before gives back. If one fails, those before
    /// it are written.
    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        let (first, rest) = data.split_at(data.len().min(WRITE_MAX));
        let mut written = self.write_part(cx, ino, off, first)?;
        for part in rest.chunks(WRITE_MAX) {
            match self.write_part(cx, ino, off.saturating_add(written as u64), part) {
                Ok(count) => written += count,
                Err(_) => break,
            }
        }
        Ok(written)
    }

    /// Under the lock for changes of the file, so that no client writes there meanwhile. The threads of this one share it.
    fn append(&self, cx: &Ctx, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        let _turn = self.appends[(ino.0 / HEADER_BYTES) as usize % APPENDS].lock();
        let append = |part: &[u8]| {
            let need = Need::Inode(ino, Exclusive);
            let appended = self.change(need, |fs| fs.append(cx, ino, part));
            self.or_remote(cx, appended, |remote| remote.append(cx, ino, part))
        };
        let (first, rest) = data.split_at(data.len().min(WRITE_MAX));
        let (off, mut written) = append(first)?;
        for part in rest.chunks(WRITE_MAX) {
            match append(part) {
                Ok((_, count)) => written += count,
                Err(_) => break,
            }
        }
        Ok((off, written))
    }

    fn fallocate(&self, cx: &Ctx, ino: Ino, kind: Fallocate, off: u64, len: u64) -> Result<()> {
        let next = |from: u64| {
            let found = self.call(Need::Inode(ino, Shared), |fs| fs.next_page(ino, from));
            // If this client may not read the tree of the file, no part is left out.
            found.map_or(from, |found| found.unwrap_or(u64::MAX))
        };
        allocate_in_parts(kind, off, len, next, |off, len| {
            let need = Need::Inode(ino, Exclusive);
            let done = self.change(need, |fs| fs.fallocate(cx, ino, kind, off, len));
            self.or_remote(cx, done, |remote| remote.fallocate(cx, ino, kind, off, len))
        })
    }

    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        let found = self.call(Need::Inode(ino, Shared), |fs| fs.seek(cx, ino, off, kind));
        self.or_remote(cx, found, |remote| remote.seek(cx, ino, off, kind))
    }

    fn fsync(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        let settled = self.settle(ino, |fs| fs.getattr(cx, ino).map(drop));
        self.settle_remote(cx, settled, |remote| remote.fsync(cx, ino, data_only))
    }

    fn fsyncdir(&self, cx: &Ctx, ino: Ino, data_only: bool) -> Result<()> {
        let settled = self.settle(ino, |fs| match fs.getattr(cx, ino)?.kind {
            FileType::Directory => Ok(()),
            _ => Err(Errno::NOTDIR),
        });
        self.settle_remote(cx, settled, |remote| remote.fsyncdir(cx, ino, data_only))
    }

    /// After the end of the session, `EIO` says once that changes of this client are lost.
    fn sync(&self) -> Result<()> {
        let synced = self.check();
        let synced = synced.and_then(|()| self.checked(self.sync_quietly()));
        match synced {
            Err(Errno::NODEV) if self.fs().take_loss() => Err(Errno::IO),
            synced => synced,
        }
    }

    fn statfs(&self) -> Result<StatFs> {
        self.check()?;
        self.checked(self.fs().statfs())
    }

    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let found = self.call(Need::Inode(ino, Shared), |fs| fs.getxattr(cx, ino, name));
        self.or_remote(cx, found, |remote| remote.getxattr(cx, ino, name))
    }

    fn setxattr(
        &self,
        cx: &Ctx,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let need = Need::Inode(ino, Exclusive);
        let set = self.change(need, |fs| fs.setxattr(cx, ino, name, value, mode));
        self.or_remote(cx, set, |remote| {
            remote.setxattr(cx, ino, name, value, mode)
        })
    }

    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let found = self.call(Need::Inode(ino, Shared), |fs| fs.listxattr(cx, ino));
        self.or_remote(cx, found, |remote| remote.listxattr(cx, ino))
    }

    fn removexattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<()> {
        let need = Need::Inode(ino, Exclusive);
        let removed = self.change(need, |fs| fs.removexattr(cx, ino, name));
        self.or_remote(cx, removed, |remote| remote.removexattr(cx, ino, name))
    }
}
