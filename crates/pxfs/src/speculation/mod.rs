//! A client: the file system on a speculation.
//!
//! # Guarantees
//! - **C1** A call runs at once, on what the client sees: the shared memory with its own changes. It is
//!   also recorded in the batch, with its time and its choices.
//! - **C2** [`Speculation::ship`] has the service run the batch, and drops the overlay: what is read then
//!   is what the service has made of it. `fsync` and `sync` ship. The calls of a batch are each atomic,
//!   and durable in their order.
//!   [`Speculation::ship_beside`] does so while calls go on. Their changes stay private, and so do directories
//!   and long files, until a ship finds nothing that was recorded meanwhile.
//! - **C3** Contents are stored in the shared memory at once, if it can be written, and are durable at
//!   the next fsync or ship; aligned words of 8 bytes are atomic. A page that a recorded call changes at
//!   the service is private until the batch was shipped, and its contents travel in the batch.
//! - **C4** A call that the service refuses is undone with the overlay, and reported once, by the next
//!   fsync or sync.
//! - **C5** A call fails with `ENOSPC` if there is no space for it: the pages that the service will need for the
//!   batch are reserved, and given back at its begin. A call that needs more than the service reserves for one
//!   client is accepted if it is alone in its batch and so much is free, and may be refused after all.
//! - **C6** A call that needs a page which this process may not read fails with `EREMOTE`. It has no effect
//!   after the next ship.
//!
//! The caller holds locks that cover what a call reads and changes.

mod answers;
mod apart;
mod beside;
mod calls;
mod ships;
mod values;
mod write;

#[cfg(test)]
pub(crate) use beside::Sent;
pub use write::InPlace;

use crate::error::{Fault, Res};
use crate::fs::{By, Pxfs};
use crate::inode::{self, Inode};
use crate::references::References;
use crate::seeded::{Bug, hit};
use crate::session::Credentials;
use aerie_objects::{
    Kind, ObjectId, Overlay, PAGE, Reserve, Superblock, Transaction, generation, parent,
};
use aerie_proto::ops::{Answers, Batch, Caller, Data, Op, Operation, Refused, operations};
use hashbrown::HashSet;
use medium::{Pmem, Rule};
use ships::{Ships, Turn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use vfs::sync::Mutex;
use vfs::{Atime, Clock, Ctx, Errno, Ino, Name, OpenFlags, Result, StatFs, Timestamp};

/// Headers or pages that are asked for at first, and at most.
const FIRST_REQUEST: usize = 64;
const LARGEST_REQUEST: usize = 4096;
/// Bytes of a batch that is shipped while references are added, since a batch has a largest size. Tests have few
/// references.
const PIECE: usize = if cfg!(test) { 1 << 10 } else { 8 << 20 };

/// The service, as a client reaches it. A speculation waits for the answers inside its calls.
pub trait Host: Send + Sync {
    /// Reserves more, as far as there is space; see [`Pxfs::grant`].
    ///
    /// # Errors
    /// The connection is lost.
    fn reserve(&self, pages: usize, headers: usize) -> Result<Reserve>;

    /// Has the service run a batch; see [`Pxfs::apply`].
    ///
    /// # Errors
    /// The connection is lost, so that the calls of the batch may be undone.
    fn ship(&self, batch: &[u8]) -> Result<Answers>;

    /// Ends the session, since the client cannot make contents durable.
    fn leave(&self) {}

    /// Returns the space of the file system.
    ///
    /// # Errors
    /// The connection is lost.
    fn statfs(&self) -> Result<StatFs>;
}

/// The access of a client to the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Contents that it writes travel in its batches.
    ReadOnly,
    /// As [`ReadOnly`](Self::ReadOnly), of a protected store. It can read some pages, and others may be
    /// taken from it at any time: a call that needs one fails with `EREMOTE` and has no effect. It reports to
    /// the service which files it has open.
    Partial,
    /// It stores contents itself. The service must trust it.
    ReadWrite,
}

/// Calls that were not shipped yet, and what the service keeps for the client.
#[derive(Default)]
struct State {
    batch: Batch,
    /// Memory that the service has reserved for the client, and that no recorded call has used, nor a call taken apart.
    reserve: Reserve,
    /// Next numbers of pages and of headers to ask for.
    requests: [usize; 2],
    /// The objects of [`Speculation::told`] that operations of the batch tell the service, one for each such operation.
    told_in_batch: Vec<ObjectId>,
    /// Those that it has opened for writing, if it must.
    opened: HashSet<ObjectId>,
    dirty: Dirty,
    refusal: Option<Refused>,
    /// Whether calls were dropped that were not shipped.
    has_lost: bool,
    /// Whether the service may still have to run a batch, so that no other one may be shipped.
    is_sent: bool,
    /// Whether others would see the changes of that batch.
    sends_changes: bool,
    /// Number of times that all was dropped.
    session: u64,
}

/// Contents that may not be durable.
#[derive(Default)]
struct Dirty {
    /// Pages that must be flushed.
    pages: HashSet<u64>,
    /// Whether pages were filled around the caches, which need a fence only.
    are_filled: bool,
}

/// A file system whose calls change an overlay at once, and the store when they are shipped.
pub struct Speculation<P, H> {
    fs: Pxfs<Overlay<P>>,
    access: Access,
    who: Credentials,
    is_trusted: bool,
    host: H,
    ships: Ships,
    state: Mutex<State>,
    /// Objects that the service holds for this client, as often as it does. They change under the mutex of the state.
    told: References,
    /// [`FileSystem::paths_version`](vfs::FileSystem::paths_version). Changes of this client change it while they
    /// have the gate alone, so that no call sees one before.
    paths: AtomicU64,
    /// Operations that were recorded.
    recorded: AtomicU64,
}

impl<P: Pmem, H: Host> Speculation<P, H> {
    /// A client of the user `who`. `memory` is that of a store that a service has open; with
    /// [`Access::ReadWrite`] it can be stored to. `is_trusted` is what the service thinks.
    ///
    /// # Errors
    /// The memory has no store, or cannot be read.
    pub fn new(
        memory: P,
        access: Access,
        (who, is_trusted): (Credentials, bool),
        clock: Arc<dyn Clock>,
        atime: Atime,
        host: H,
    ) -> aerie_objects::Result<Self> {
        let requests = [FIRST_REQUEST; 2];
        Ok(Self {
            fs: Pxfs::speculate(memory, clock, atime)?,
            access,
            who,
            is_trusted,
            host,
            ships: Ships::default(),
            state: Mutex::new(State {
                requests,
                ..State::default()
            }),
            told: References::default(),
            paths: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
        })
    }

    /// The service.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The memory as the client sees it, for readers.
    pub fn memory(&self) -> &Overlay<P> {
        self.fs.memory()
    }

    /// Takes a reference to an inode that a call of the service has found or made, and holds for this client.
    pub fn adopt(&self, ino: Ino) {
        if let Some(object) = inode::object(self.superblock(), ino) {
            self.fs.refer(object);
            let _state = self.state.lock();
            self.told.add(object);
        }
    }

    /// Notes that the service holds an object once more, by the operation that is recorded next.
    fn tell_by_operation(&self, state: &mut State, object: ObjectId) {
        self.told.add(object);
        state.told_in_batch.push(object);
    }

    /// Undoes [`tell_by_operation`](Self::tell_by_operation), after a refusal.
    fn untell(&self, state: &mut State, object: ObjectId) {
        if self.told.give_back(object, 1) {
            state.opened.remove(&object);
        }
    }

    /// Adopts an inode that the service has opened.
    pub fn adopt_open(&self, ino: Ino, flags: OpenFlags) {
        self.adopt(ino);
        if let Some(object) = inode::object(self.superblock(), ino)
            && flags.contains(OpenFlags::WRITE)
        {
            self.state.lock().opened.insert(object);
        }
    }

    /// The superblock of the store.
    pub fn superblock(&self) -> &Superblock {
        self.fs.superblock()
    }

    /// Bytes of the batch, and with those of memory for private changes.
    pub fn pending_bytes(&self) -> [u64; 2] {
        let batch = self.state.lock().batch.bytes().len() as u64;
        [batch, batch + self.overlay().used_bytes()]
    }

    /// Whether it may [ship beside](Self::ship_beside) calls: the memory that it reads is the same all the time.
    pub fn may_ship_beside(&self) -> bool {
        self.access != Access::Partial
    }

    /// A number that grows with each change.
    pub fn progress(&self) -> u64 {
        self.recorded.load(Relaxed)
    }

    /// Whether a ship is under way.
    pub fn is_shipping(&self) -> bool {
        self.ships.are_under_way()
    }

    /// The byte offset of the first page of a file that begins at an offset or after it.
    ///
    /// # Errors
    /// There is no such file, or its tree cannot be read.
    pub fn next_page(&self, ino: Ino, off: u64) -> Result<Option<u64>> {
        self.fs.shared(|| {
            let file = self.fs.inode(self.overlay(), ino)?;
            let index = aerie_objects::next_page(self.overlay(), file.object, off.div_ceil(PAGE))?;
            Ok(index.map(|index| index * PAGE))
        })
    }

    /// The batch.
    #[cfg(test)]
    pub(crate) fn recorded(&self) -> Vec<u8> {
        self.state.lock().batch.bytes().to_vec()
    }

    /// Whether calls can use all pages that the service keeps for this client. No call is recorded.
    #[cfg(test)]
    pub(crate) fn has_all_reserved(&self) -> bool {
        self.state.lock().reserve.page_count() == self.fs.store.reserved().0
    }

    /// Numbers of pages that the recorded calls need, and that are reserved.
    #[cfg(test)]
    pub(crate) fn needed(&self) -> (usize, usize) {
        (self.fs.store.taken_private(), self.fs.store.reserved().0)
    }

    /// The refusal that the next fsync would report. It is then reported.
    pub fn take_refusal(&self) -> Option<Refused> {
        self.state.lock().refusal.take()
    }

    /// Ships all recorded calls, and drops the overlay. With `holds` the service also learns of all
    /// references, as it must before others can get the locks. Without it, such a ship of another thread that is under
    /// way counts: no call ends while it takes what was recorded, and until its end.
    ///
    /// # Errors
    /// The connection is lost: all that was not shipped is undone.
    pub fn ship(&self, holds: bool) -> Result<()> {
        match self.ships.begin(!holds) {
            Turn::Ship => {
                let gate = self.fs.gate.write();
                let result = self.ship_recorded(holds);
                // This ship has nothing that is recorded once the gate is open.
                let late = (!hit(Bug::ShipEndedLate)).then_some(gate);
                if late.is_none() {
                    // Other threads record calls meanwhile, also on a busy machine.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                let result = self.ships.end(result);
                drop(late);
                result
            }
            Turn::Shipped(result) => result,
        }
    }

    /// Ships all recorded calls. The gate is held for a change.
    fn ship_recorded(&self, holds: bool) -> Result<()> {
        let mut state = self.state.lock();
        if holds {
            // The caller gives up locks, and others can change what they are of.
            self.paths_change();
            self.tell_all(&mut state)?;
        }
        self.ship_batch(&mut state)
    }

    fn ship_batch(&self, state: &mut State) -> Result<()> {
        let dirty = std::mem::take(&mut state.dirty);
        if let Err(errno) = self.flush(dirty) {
            // No later batch may name contents that are not durable.
            state.has_lost = true;
            self.drop_unshipped(state, None, errno);
            return Err(errno);
        }
        if state.batch.count() == 0 {
            // Lines of calls that were undone stay private.
            self.restart(state);
            return Ok(());
        }
        self.give_back(state);
        let mut batch = std::mem::take(&mut state.batch);
        let told = std::mem::take(&mut state.told_in_batch);
        match self.host.ship(batch.bytes()) {
            Ok(answers) => {
                self.take_answers(state, (&batch, &told), &answers);
                batch.clear();
                state.batch = batch;
                self.restart(state);
                Ok(())
            }
            Err(errno) => {
                self.drop_unshipped(state, Some(&batch), errno);
                Err(errno)
            }
        }
    }

    /// Drops the overlay.
    fn restart(&self, state: &State) {
        self.fs.store.restart(&state.reserve);
        self.fs.forget_xattrs();
    }

    /// Drops what was recorded, after a ship of a batch has failed.
    fn drop_unshipped(&self, state: &mut State, sent: Option<&Batch>, errno: Errno) {
        state.has_lost |= sent.is_some_and(changes_files) || changes_files(&state.batch);
        // Under `selvedge run` a fork may hold locks that the text of an error needs.
        let number = errno.raw_os_error();
        self.drop_all(
            state,
            format!("the calls were not shipped (errno {number})"),
        );
    }

    /// Begins again after the session has ended: drops what was not shipped, the reserve, and the holds.
    pub fn reset(&self) {
        let _gate = self.fs.gate.write();
        let mut state = self.state.lock();
        let is_sent = state.is_sent && state.sends_changes;
        if !is_sent && !changes_files(&state.batch) {
            self.clear(&mut state);
            return;
        }
        state.has_lost = true;
        let count = state.batch.count();
        self.drop_all(
            &mut state,
            format!("the session has ended with {count} calls and perhaps a batch"),
        );
    }

    /// Whether calls were lost that were not shipped, since the last question.
    pub fn take_loss(&self) -> bool {
        std::mem::take(&mut self.state.lock().has_lost)
    }

    fn drop_all(&self, state: &mut State, why: String) {
        tracing::error!("{why}");
        let (number, errno) = (0, Errno::IO.raw_os_error());
        state.refusal.get_or_insert(Refused { number, errno, why });
        self.clear(state);
    }

    /// Notes that paths may lead elsewhere.
    fn paths_change(&self) {
        if !hit(Bug::PathsKept) {
            self.paths.fetch_add(1, Release);
        }
    }

    fn clear(&self, state: &mut State) {
        self.paths_change();
        *state = State {
            requests: state.requests,
            refusal: state.refusal.take(),
            has_lost: state.has_lost,
            session: state.session + 1,
            ..State::default()
        };
        self.told.clear();
        self.fs.store.reset(&state.reserve);
        self.fs.forget_xattrs();
    }

    fn overlay(&self) -> &Overlay<P> {
        self.fs.store.memory()
    }

    /// Gives back as many reserved pages as the service needs for the batch.
    fn give_back(&self, state: &mut State) {
        let needed = self.fs.store.taken_private();
        if needed == 0 {
            return;
        }
        let pages = self.fs.store.take_reserved(needed);
        // No operation of the batch is earlier.
        let (caller, time, op) = (None, Timestamp(i64::MIN), Op::Return { pages });
        take_choices(&mut state.reserve, &op);
        state.batch.push_front(&Operation { caller, time, op });
    }

    /// Has the service hold all objects with references. The gate is held for a change, and no call is half recorded.
    fn tell_all(&self, state: &mut State) -> Result<()> {
        let superblock = self.fs.store.superblock();
        let memory = self.overlay();
        for object in self.fs.referenced() {
            let is_known = object == superblock.root || self.told.count(object) > 0;
            if !is_known && generation(memory, object).is_ok() {
                self.tell_by_operation(state, object);
                let ino = inode::number(superblock, object);
                self.push(state, None, Op::Hold { ino });
            }
            if state.batch.bytes().len() >= PIECE && !state.is_sent {
                self.ship_batch(state)?;
            }
        }
        Ok(())
    }

    /// Makes contents durable.
    fn flush(&self, dirty: Dirty) -> Result<()> {
        let are_stored = !dirty.pages.is_empty() && !hit(Bug::StoredNotFlushed);
        let are_filled = dirty.are_filled && !hit(Bug::FilledNotFenced);
        if !are_stored && !are_filled {
            return Ok(());
        }
        let base = self.overlay().base();
        for page in dirty.pages.into_iter().filter(|_| are_stored) {
            base.flush(page, PAGE);
        }
        let durable = base.fence(Rule::DurableBeforeReturn);
        durable.map_err(|error| {
            self.host.leave();
            Fault::Store(error.into()).errno()
        })
    }

    /// The user of the client, as a caller.
    pub fn own(&self) -> Ctx {
        self.who.ctx()
    }

    /// The caller as a field of an operation.
    ///
    /// # Errors
    /// `EPERM` if the client may not act for this user.
    pub fn caller(&self, cx: &Ctx) -> Result<Option<Caller>> {
        let Credentials { uid, gid, groups } = &self.who;
        // The kernel does not report the groups of callers that it has checked.
        let has_groups = cx.groups == *groups || cx.checked && cx.groups.is_empty();
        match (cx.uid, cx.gid) == (*uid, *gid) && has_groups {
            true if !cx.checked && !cx.drops_set_id => Ok(None),
            false if !self.is_trusted => Err(Errno::PERM),
            _ => Ok(Some(cx.into())),
        }
    }

    /// The caller of an open, as the service will see it: the claim that a descriptor permits it counts for
    /// files of the client's user.
    fn opener(&self, cx: &Ctx, ino: Ino) -> Result<Ctx> {
        if self.is_trusted || !cx.checked {
            return Ok(cx.clone());
        }
        self.caller(cx)?;
        let attr = self
            .fs
            .shared(|| Ok(self.fs.inode(self.overlay(), ino)?.attr))?;
        Ok(Ctx {
            checked: attr.uid == cx.uid,
            groups: self.who.groups.clone(),
            ..cx.clone()
        })
    }

    fn push(&self, state: &mut State, by: Option<(Option<Caller>, Timestamp)>, op: Op<'_>) {
        let (caller, time) = by.unwrap_or_else(|| (None, self.fs.clock.now()));
        take_choices(&mut state.reserve, &op);
        state.batch.push(&Operation { caller, time, op });
        self.recorded.fetch_add(1, Relaxed);
    }

    /// Runs a call on the overlay, and records it. The gate is held for a change.
    fn record<'o, T>(
        &self,
        cx: &Ctx,
        run: impl FnOnce(&mut Transaction<'_, Overlay<P>>, By<'_>) -> Res<T>,
        record: impl FnOnce(&mut State, &T) -> Op<'o>,
    ) -> Result<T> {
        let caller = self.caller(cx)?;
        let moment = self.fs.moment();
        let by = moment.by(cx);
        let run = |tx: &mut Transaction<'_, Overlay<P>>| {
            let done = run(tx, by)?;
            self.must_fit()?;
            Ok(done)
        };
        let done = self.fs.change(run).map_err(Fault::errno)?;
        self.fs.store.drop_freed();
        let state = &mut *self.state.lock();
        let op = record(state, &done);
        self.push(state, Some((caller, by.now())), op);
        Ok(done)
    }

    /// Sees to it that this many pages and headers are reserved, if there is space. The service grants a part of
    /// what is free at a time, and nothing above its limit, so that one client does not take all.
    fn refill(&self, wanted: [usize; 2]) -> Result<()> {
        loop {
            let (pages, headers) = self.fs.store.reserved();
            if pages >= wanted[0] && headers >= wanted[1] {
                return Ok(());
            }
            let mut state = self.state.lock();
            let mut ask = [0; 2];
            for (n, left) in [pages, headers].into_iter().enumerate() {
                if left < wanted[n] {
                    ask[n] = wanted[n].max(state.requests[n]);
                    state.requests[n] = (state.requests[n] * 2).min(LARGEST_REQUEST);
                }
            }
            let more = self.host.reserve(ask[0], ask[1])?;
            if more.is_empty() {
                return Ok(());
            }
            self.extend(&mut state, more);
        }
    }

    /// Adds to the reserve. The gate is held for a change.
    fn extend(&self, state: &mut State, more: Reserve) {
        self.fs.store.extend(&more);
        state.reserve.append(more);
    }

    /// Fails if the service will have no pages for the batch. The caller ships then, which frees what the calls
    /// of the batch have reserved and do not need any more, and tries again. A call that is alone in its batch
    /// may need more than the service reserves for one client.
    fn must_fit(&self) -> Result<()> {
        if self.fs.store.missing() == 0 {
            return Ok(());
        }
        self.refill([self.fs.store.taken_private(), 0])?;
        let missing = self.fs.store.missing();
        if missing == 0 {
            return Ok(());
        }
        let is_alone = {
            let state = self.state.lock();
            state.batch.count() == 0 && !state.is_sent
        };
        match is_alone && missing <= self.host.statfs()?.blocks_free {
            true => Ok(()),
            false => Err(Errno::NOSPC),
        }
    }

    /// Has the service hold a file with several names, which it would not find by its number.
    fn tell_path(&self, at: Name<'_>, ino: Ino) {
        let Some(object) = inode::object(self.fs.store.superblock(), ino) else {
            return;
        };
        let is_unknown = || matches!(parent(self.overlay(), object), Ok(None));
        if self.is_trusted || object.kind() == Kind::Collection || !is_unknown() {
            return;
        }
        let mut state = self.state.lock();
        if self.told.count(object) == 0 {
            self.tell_by_operation(&mut state, object);
            self.push(&mut state, None, Op::Look { at: at.into() });
        }
    }

    /// Records an access, if it is due.
    fn accessed(&self, cx: &Ctx, inode: &Inode) {
        if cx.noatime || self.fs.atime == Atime::Never {
            return;
        }
        if !self.fs.is_access_due(self.fs.moment().by(cx), inode) {
            return;
        }
        let (ino, object) = (inode.attr.ino, inode.object);
        let _gate = self.fs.gate.write();
        let noted = self.record(
            cx,
            |tx, by| Pxfs::access(tx, by, object),
            |_, ()| Op::Access { ino },
        );
        if let Err(errno) = noted {
            tracing::warn!("the access time of {object} is not updated: {errno}");
        }
    }
}

/// Takes what an operation has chosen out of a reserve. An object that is refused does not come back:
/// the caller may still name the file that was not made, so that no other one gets its number in this session.
fn take_choices(reserve: &mut Reserve, op: &Op<'_>) {
    let (object, pages) = chosen(op);
    object.and_then(|object| reserve.take_object(object));
    for page in pages {
        reserve.take_page(*page);
    }
}

/// Whether others would see what a batch does.
fn changes_files(batch: &Batch) -> bool {
    let mut all = operations(batch.bytes());
    all.any(|operation| match operation.map(|operation| operation.op) {
        Ok(Op::Open { flags, .. }) => flags.contains(OpenFlags::TRUNCATE),
        Ok(Op::Hold { .. } | Op::Look { .. } | Op::Release { .. }) => false,
        Ok(Op::Access { .. } | Op::Return { .. }) => false,
        Ok(_) => true,
        Err(_) => false,
    })
}

/// The object and the pages that an operation has chosen.
fn chosen<'a>(op: &'a Op<'_>) -> (Option<ObjectId>, &'a [u64]) {
    match op {
        Op::Make { object, .. } | Op::Tmpfile { object, .. } => (*object, &[]),
        Op::Write { data, .. } => (None, stored(data)),
        Op::Return { pages } => (None, pages),
        Op::Put { data, object, .. } => (*object, stored(data)),
        _ => (None, &[]),
    }
}

fn stored<'a>(data: &'a Data<'_>) -> &'a [u64] {
    match data {
        Data::Stored { pages, .. } => pages,
        _ => &[],
    }
}
