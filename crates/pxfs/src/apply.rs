//! Operations of clients, as the service runs them.
//!
//! An operation is accepted or refused as a whole, as a change of what those before it have left. The
//! calls are those of the file system, with all their checks. The claims of a client are checked here:
//! the caller, the time, the choices, the locks, and that a file was opened.

use crate::error::{Fault, Res};
use crate::fs::{By, Moment, Pxfs};
use crate::seeded::{Bug, hit};
use crate::session::{Authority, Session};
use crate::values::Put;
use aerie_objects::{
    Error, Kind, Load, Mark, NewObject, ObjectId, Reserve, Transaction, generation, own, parent,
};
use aerie_proto::ops::{Data, END, Op, Operation};
use medium::Pmem;
use vfs::xattrs::XattrChange;
use vfs::{Attr, Ctx, Errno, Ino, Name, OpenFlags, SetAttr, Timestamp, perm};

/// The clock of a client may be ahead by this many nanoseconds.
const AHEAD: i64 = 1_000_000_000;
/// Most directories above an inode that an operation names, and objects on a path that locks cover.
const DEEP: usize = 4096;

/// The reason why an operation is undone.
pub(crate) enum Stop {
    /// It is refused.
    Refused(Errno, String),
    /// Another batch is in the way: it must run alone.
    Claimed,
    /// The store has failed.
    Failed(Error),
}

pub(crate) type Run<T> = Result<T, Stop>;

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Call(errno) => errno.into(),
            Fault::Store(error @ (Error::Medium(_) | Error::Log(_))) => Self::Failed(error),
            Fault::Store(Error::Claimed) => Self::Claimed,
            Fault::Store(error) => {
                let why = error.to_string();
                Self::Refused(Fault::Store(error).errno(), why)
            }
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno, errno.to_string())
    }
}

pub(crate) fn refused(errno: Errno, why: impl Into<String>) -> Stop {
    Stop::Refused(errno, why.into())
}

/// The object and the pages that an operation has taken from the reserve.
#[derive(Default)]
struct Taken {
    object: Option<NewObject>,
    pages: Vec<u64>,
}

impl Taken {
    /// Takes the object that the client has chosen, if any.
    fn object(
        &mut self,
        reserve: &mut Reserve,
        chosen: Option<ObjectId>,
        kind: Kind,
    ) -> Run<Option<NewObject>> {
        let Some(id) = chosen else {
            return Ok(None);
        };
        if id.kind() != kind {
            return Err(refused(Errno::INVAL, format!("{id} is of another kind")));
        }
        self.object = reserve.take_object(id);
        match self.object {
            None if hit(Bug::ForeignObject) => Ok(None),
            None => Err(refused(
                Errno::PERM,
                format!("the client has not reserved {id}"),
            )),
            taken => Ok(taken),
        }
    }

    fn pages(&mut self, reserve: &mut Reserve, chosen: &[u64]) -> Run<()> {
        for page in chosen {
            if !reserve.take_page(*page) {
                if hit(Bug::ForeignPage) {
                    continue;
                }
                let why = format!("the client has not reserved page {page:#x}");
                return Err(refused(Errno::PERM, why));
            }
            self.pages.push(*page);
        }
        Ok(())
    }

    fn put_back(self, reserve: &mut Reserve) {
        if hit(Bug::ReserveLost) {
            return;
        }
        self.object
            .into_iter()
            .for_each(|new| reserve.put_object(new));
        self.pages
            .into_iter()
            .for_each(|page| reserve.put_page(page));
    }
}

/// Takes the pages whose contents a client has stored, which must be trusted.
fn take_stored(session: &mut Session, chosen: &[u64], taken: &mut Taken) -> Run<()> {
    if !session.is_trusted && !hit(Bug::StoredByAnyone) {
        let why = "the client may not store contents itself";
        return Err(refused(Errno::PERM, why));
    }
    taken.pages(&mut session.reserve, chosen)
}

/// The pages that a client has chosen, for those that a file needs.
struct Chosen<'a> {
    left: std::slice::Iter<'a, u64>,
    is_short: bool,
}

impl<'a> Chosen<'a> {
    fn new(pages: &'a [u64]) -> Self {
        let left = pages.iter();
        let is_short = false;
        Self { left, is_short }
    }

    fn next(&mut self) -> std::result::Result<u64, Errno> {
        let page = self.left.next().copied();
        self.is_short |= page.is_none();
        page.ok_or(Errno::INVAL)
    }

    /// The result of a change, which must have needed all of them and no more.
    fn used<T>(&self, done: Res<T>) -> Run<T> {
        let wrong = || {
            let why = "the pages of the write are not those that the file needs";
            refused(Errno::INVAL, why)
        };
        if self.is_short {
            return Err(wrong());
        }
        let done = done?;
        match self.left.len() {
            0 => Ok(done),
            _ => Err(wrong()),
        }
    }
}

/// The change in memory after an accepted operation.
pub(crate) enum After {
    Nothing,
    Hold(ObjectId),
    Open(ObjectId, OpenFlags),
    Release(ObjectId, u64),
}

/// A finished operation.
pub(crate) struct Done {
    /// The attributes of the inode that it has made, named or changed.
    pub(crate) attr: Option<Attr>,
    pub(crate) after: After,
}

impl Done {
    fn after(after: After) -> Self {
        Self { attr: None, after }
    }
}

impl From<Attr> for Done {
    fn from(attr: Attr) -> Self {
        let attr = Some(attr);
        let after = After::Nothing;
        Self { attr, after }
    }
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::after(After::Nothing)
    }
}

impl<P: Pmem> Pxfs<P> {
    /// Runs one operation, or nothing of it.
    pub(crate) fn one(
        &self,
        tx: &mut Transaction<'_, P>,
        session: &mut Session,
        authority: Option<&dyn Authority>,
        operation: &Operation<'_>,
    ) -> Run<Done> {
        let mark = tx.mark();
        let mut taken = Taken::default();
        let mut done = self
            .caller(session, operation.caller.as_ref())
            .and_then(|cx| self.permitted(tx, session, cx, &operation.op))
            .and_then(|cx| {
                let moment = Moment {
                    clock: &*self.clock,
                    at: self.time(session, operation.time).into(),
                };
                self.run(tx, session, moment.by(&cx), &operation.op, &mut taken)
            });
        // Nobody deletes what the client holds from here on.
        if let Ok(Done {
            after: After::Hold(object) | After::Open(object, _),
            ..
        }) = done
            && !hit(Bug::HeldUnclaimed)
            && let Err(error) = tx.claim(object)
        {
            done = Err(error.into());
        }
        if done.is_ok()
            && is_covered(&operation.op)
            && let Some(authority) = authority
            && let Err(stop) = covered(tx, mark, authority)
        {
            done = Err(stop);
        }
        // The next operation may store names or contents that these users may not read.
        if done.is_ok()
            && let Err(error) = tx.narrow()
        {
            done = Err(error.into());
        }
        if done.is_ok() && !tx.fits() {
            done = Err(refused(
                Errno::FBIG,
                "the operation does not fit into the log",
            ));
        }
        if done.is_err() {
            taken.put_back(&mut session.reserve);
            if !hit(Bug::RefusedNotUndone) {
                tx.roll_back(mark);
            }
        }
        done
    }

    /// The time of an operation: not long after now, and not before the last one. If the clock was set back, the last
    /// one can be long after now, and does not count.
    fn time(&self, session: &mut Session, time: Timestamp) -> Timestamp {
        if hit(Bug::AnyTime) {
            return time;
        }
        let latest = Timestamp(self.clock.now().0.saturating_add(AHEAD));
        session.last = time.max(session.last).min(latest);
        session.last
    }

    fn run(
        &self,
        tx: &mut Transaction<'_, P>,
        session: &mut Session,
        by: By<'_>,
        op: &Op<'_>,
        taken: &mut Taken,
    ) -> Run<Done> {
        // A client gives back all that it holds, wherever it is.
        if !session.is_trusted && !matches!(op, Op::Release { .. }) {
            op.inodes()
                .try_for_each(|ino| self.must_reach(tx, session, by.cx, ino))?;
        }
        let reserve = &mut session.reserve;
        match *op {
            Op::Make { at, node, object } => {
                let new = node.check()?;
                let kind = [Kind::MFile, Kind::Collection][usize::from(new.is_directory())];
                let chosen = taken.object(reserve, object, kind)?;
                Ok(self.make_node(tx, by, at.into(), &new, chosen)?.into())
            }
            Op::Tmpfile { dir, mode, object } => {
                let chosen = taken.object(reserve, object, Kind::MFile)?;
                let attr = self.make_nameless(tx, by, dir, mode, chosen)?;
                let after = After::Hold(self.object(tx, attr.ino)?);
                let attr = Some(attr);
                Ok(Done { attr, after })
            }
            Op::Write { ino, off, ref data } => {
                self.must_be_open(session, self.object(tx, ino)?, OpenFlags::WRITE)?;
                if off != END {
                    return self.run_write(tx, session, by, (ino, off), data, taken);
                }
                let end = self.inode(tx, ino)?.attr.size;
                let done = self.run_write(tx, session, by, (ino, end), data, taken)?;
                let attr = Some(self.inode(tx, ino)?.attr);
                Ok(Done { attr, ..done })
            }
            Op::Put {
                at,
                mode,
                ref data,
                object,
                condition,
            } => {
                let put = Put {
                    at: at.into(),
                    mode,
                    len: data.len(),
                    condition,
                };
                self.run_put(tx, session, by, (put, data), object, taken)
            }
            Op::Allocate {
                ino,
                kind,
                off,
                len,
            } => {
                self.must_be_open(session, self.object(tx, ino)?, OpenFlags::WRITE)?;
                Ok(self.allocate(tx, by, ino, kind, off, len)?.into())
            }
            Op::Link { .. } | Op::Remove { .. } | Op::Rename { .. } | Op::Look { .. } => {
                self.run_name(tx, session, by, op)
            }
            Op::Return { ref pages } => {
                taken.pages(reserve, pages)?;
                // The operations of the batch need them.
                tx.stock(taken.pages.drain(..));
                Ok(().into())
            }
            _ => self.run_inode(tx, session, by, op),
        }
    }

    fn run_write(
        &self,
        tx: &mut Transaction<'_, P>,
        session: &mut Session,
        by: By<'_>,
        (ino, off): (Ino, u64),
        data: &Data<'_>,
        taken: &mut Taken,
    ) -> Run<Done> {
        let (len, chosen) = match data {
            Data::Bytes(bytes) => return Ok(self.write_bytes(tx, by, ino, off, bytes)?.into()),
            Data::Stored { len, pages } => (*len, pages),
        };
        take_stored(session, chosen, taken)?;
        let mut pages = Chosen::new(chosen);
        let written = self.write_stored(tx, by, ino, off, len, |tx, file, index| {
            Ok(tx.add_page_at(file, index, pages.next()?)?)
        });
        pages.used(written)?;
        Ok(().into())
    }

    fn run_put(
        &self,
        tx: &mut Transaction<'_, P>,
        session: &mut Session,
        by: By<'_>,
        (put, data): (Put<'_>, &Data<'_>),
        object: Option<ObjectId>,
        taken: &mut Taken,
    ) -> Run<Done> {
        let new = taken.object(&mut session.reserve, object, Kind::MFile)?;
        let chosen = match data {
            Data::Bytes(value) => {
                self.put_bytes(tx, by, put, new, value)?;
                return Ok(().into());
            }
            Data::Stored { pages, .. } => pages,
        };
        take_stored(session, chosen, taken)?;
        let mut pages = Chosen::new(chosen);
        let done = self.put_value(tx, by, put, new, |tx, file, index| {
            Ok(tx.add_page_at(file, index, pages.next()?)?)
        });
        pages.used(done)?;
        Ok(().into())
    }

    fn run_name(
        &self,
        tx: &mut Transaction<'_, P>,
        session: &Session,
        by: By<'_>,
        op: &Op<'_>,
    ) -> Run<Done> {
        match *op {
            Op::Link { ino, at } => {
                let attr = self.link_node(tx, by, ino, at.into())?;
                let after = match session.is_trusted {
                    true => After::Nothing,
                    false => After::Hold(self.object(tx, attr.ino)?),
                };
                let attr = Some(attr);
                Ok(Done { attr, after })
            }
            Op::Remove { at, which, holds } => {
                let removed = self.remove_name(tx, by, at.into(), which, holds)?;
                Ok(Done::after(kept(tx, Some(removed).filter(|_| holds))))
            }
            Op::Rename {
                from,
                to,
                flags,
                holds,
            } => {
                let names: [Name<'_>; 2] = [from.into(), to.into()];
                let renamed = self.rename_node(tx, by, names, flags, holds)?;
                Ok(Done::after(kept(tx, renamed.replaced.filter(|_| holds))))
            }
            Op::Look { at } => {
                let found = self.look_up(tx, by.cx, at.into())?;
                Ok(Done::after(After::Hold(found.object)))
            }
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn run_inode(
        &self,
        tx: &mut Transaction<'_, P>,
        session: &Session,
        by: By<'_>,
        op: &Op<'_>,
    ) -> Run<Done> {
        match *op {
            Op::SetAttr { ino, set } => {
                let ctime = set.ctime.filter(|_| session.is_trusted);
                let set = SetAttr { ctime, ..set };
                Ok(self.set_attr(tx, by, ino, &set)?.into())
            }
            Op::Open { ino, flags } => {
                let object = self.open_node(tx, by, ino, flags)?;
                Ok(Done::after(After::Open(object, flags)))
            }
            Op::SetXattr {
                ino,
                name,
                value,
                mode,
            } => {
                let change = XattrChange::set(name, value, mode)?;
                Ok(self.change_xattrs(tx, by, ino, &change)?.into())
            }
            Op::RemoveXattr { ino, name } => {
                let change = XattrChange::Remove { name };
                Ok(self.change_xattrs(tx, by, ino, &change)?.into())
            }
            Op::Access { ino } => {
                let inode = self.inode(tx, ino)?;
                if inode.attr.kind != vfs::FileType::Symlink && !session.is_trusted {
                    perm::access(by.cx, &inode.attr, perm::Access::READ)?;
                }
                Ok(Self::access(tx, by, inode.object)?.into())
            }
            Op::Touch { ino } => {
                if !session.is_trusted && !hit(Bug::StoredByAnyone) {
                    let why = "the client may not store contents itself";
                    return Err(refused(Errno::PERM, why));
                }
                Ok(self.touch_file(tx, by, ino)?.into())
            }
            Op::Hold { ino } => Ok(Done::after(After::Hold(self.object(tx, ino)?))),
            Op::Release { ino, count } => {
                let object = self.object(tx, ino)?;
                let held = session.holds.get(&object).copied().unwrap_or(0);
                // An operation of the same batch that was to hold it may have been refused.
                let count = count.min(held);
                if count == 0 {
                    return Err(refused(Errno::INVAL, format!("{object} is not held")));
                }
                // First: so no other batch takes a reference.
                tx.claim(object)?;
                if self.has_only(object, count) && self.load(tx, object)?.attr.nlink == 0 {
                    self.bury(tx, object)?;
                }
                Ok(Done::after(After::Release(object, count)))
            }
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Changes in memory what an accepted operation has changed.
    pub(crate) fn settle(&self, session: &mut Session, after: After) {
        match after {
            After::Nothing => {}
            After::Hold(object) => self.hold(session, object),
            After::Open(object, flags) => {
                self.hold(session, object);
                let opened = session.opened.entry(object);
                *opened.or_insert(OpenFlags::empty()) |= flags;
            }
            After::Release(object, count) => {
                self.unrefer(object, count);
                let left = session.holds.get(&object).map_or(0, |held| held - count);
                if left > 0 {
                    session.holds.insert(object, left);
                } else {
                    session.holds.remove(&object);
                    session.listed.remove(&object);
                    session.opened.remove(&object);
                }
            }
        }
    }

    pub(crate) fn hold(&self, session: &mut Session, object: ObjectId) {
        *session.holds.entry(object).or_default() += 1;
        session.listed.remove(&object);
        self.refer(object);
    }

    /// Demands that a client that is not trusted has opened the file.
    pub(crate) fn must_be_open(
        &self,
        session: &Session,
        object: ObjectId,
        access: OpenFlags,
    ) -> Run<()> {
        let opened = session.opened.get(&object);
        let is_open = opened.is_some_and(|opened| opened.contains(access));
        if session.is_trusted || is_open || hit(Bug::OpenNotAsked) {
            return Ok(());
        }
        let why = format!("the client has not opened {object} for this");
        Err(refused(Errno::BADF, why))
    }

    /// Demands that the client holds the inode, not only since it has listed a directory, or may search all
    /// directories above it.
    pub(crate) fn must_reach<M: Load>(
        &self,
        memory: &M,
        session: &Session,
        cx: &Ctx,
        ino: Ino,
    ) -> Run<()> {
        let mut object = self.object(memory, ino)?;
        let unchecked = cx.checked.then(|| session.who.ctx());
        let cx = unchecked.as_ref().unwrap_or(cx);
        for _ in 0..DEEP {
            let superblock = self.store.superblock();
            if object == superblock.root || session.has_reached(object) {
                return Ok(());
            }
            let above = parent(memory, object)?.filter(|above| *above != superblock.open);
            let Some(above) = above else {
                break;
            };
            let is_allowed = perm::may_search(cx, &self.load(memory, above)?.attr);
            if !hit(Bug::PathNotSearched) {
                is_allowed?;
            }
            object = above;
        }
        let why = format!("the client does not hold {object}, and its path is unknown");
        Err(refused(Errno::STALE, why))
    }
}

/// The hold of an object that has lost a name.
fn kept<M: Load>(memory: &M, object: Option<ObjectId>) -> After {
    let left = object.filter(|object| generation(memory, *object).is_ok());
    left.map_or(After::Nothing, After::Hold)
}

/// Whether the changes of an operation need a lock. Others are seen by nobody, or do not matter.
fn is_covered(op: &Op<'_>) -> bool {
    !matches!(
        op,
        Op::Access { .. } | Op::Touch { .. } | Op::Release { .. }
    )
}

/// Asks whether locks cover all changed objects that existed before.
fn covered<P: Pmem>(tx: &Transaction<'_, P>, mark: Mark, authority: &dyn Authority) -> Run<()> {
    let superblock = tx.superblock();
    let before = tx.before(mark);
    for object in tx.changed_since(mark) {
        let is_shared = object == superblock.open || object == superblock.attributes;
        // New objects, and files of extended attributes.
        if is_shared || !is_inode(&before, object) {
            continue;
        }
        let mut path = vec![object];
        let mut at = object;
        while let Some(above) = parent_before(tx, mark, at)?
            .filter(|above| *above != superblock.open)
            // One more than may be: it is refused, and not taken for a whole path.
            && path.len() <= DEEP
        {
            path.push(above);
            at = above;
        }
        if hit(Bug::CoverNotAsked) {
            continue;
        }
        authority
            .covers(&path)
            .map_err(|why| refused(Errno::PERM, format!("{object}: {why}")))?;
    }
    Ok(())
}

/// The collection that had an object at the mark. A look at the past takes longer.
fn parent_before<P: Pmem>(
    tx: &Transaction<'_, P>,
    mark: Mark,
    object: ObjectId,
) -> aerie_objects::Result<Option<ObjectId>> {
    match tx.has_changed(object, mark) {
        true => parent(&tx.before(mark), object),
        false => parent(tx, object),
    }
}

/// Whether the object exists and has a mode.
fn is_inode<M: Load>(memory: &M, object: ObjectId) -> bool {
    own(memory, object, 0).is_ok_and(|mode| mode != 0)
}
