//! Remote calls: those of clients that cannot read the memory. The service runs them for the session.
//!
//! A session that is not trusted names only inodes that it can reach, and reads only files that it has
//! opened.

use crate::apply::{After, Stop};
use crate::error::Fault;
use crate::fs::Pxfs;
use crate::inode::Inode;
use crate::session::Session;
use crate::values::Value;
use aerie_objects::{ObjectId, generation, version};
use aerie_proto::ops::{Call, Entry, Op, Operation, REPLY_MAX, Read, Reply};
use medium::Pmem;
use vfs::{
    Attr, Cookie, Ctx, FileFlags, FileSystem, Ino, Name, OpenFlags, Result, Timestamp, perm,
};

impl Stop {
    fn errno(self) -> vfs::Errno {
        match self {
            Self::Refused(errno, _) => errno,
            Self::Claimed => Fault::Store(aerie_objects::Error::Claimed).errno(),
            Self::Failed(error) => Fault::Store(error).errno(),
        }
    }
}

/// Whether the session holds objects after this.
fn takes_references(read: &Read<'_>) -> bool {
    match read {
        Read::Lookup(_) | Read::ByNumber(_) => true,
        Read::List {
            with_attributes, ..
        } => *with_attributes,
        _ => false,
    }
}

impl<P: Pmem> Pxfs<P> {
    /// Runs a remote call. A change is durable when this returns.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn call(&self, session: &mut Session, call: &Call<'_>) -> Result<Reply> {
        match call {
            Call::Change(operation) => self.call_change(session, operation),
            Call::Read { caller, read } => {
                let cx = self.caller(session, caller.as_ref()).map_err(Stop::errno)?;
                let run = |session: &mut Session| {
                    let cx = self.reader(session, cx.clone(), read)?;
                    self.call_read(session, &cx, read)
                };
                let done = if takes_references(read) {
                    let _referring = self.referring();
                    run(session)
                } else {
                    let _gate = self.gate.read();
                    run(session)
                };
                let (reply, accessed) = done.map_err(Stop::errno)?;
                if let Some(inode) = accessed {
                    self.accessed(&cx, inode);
                }
                Ok(reply)
            }
        }
    }

    fn call_change(&self, session: &mut Session, operation: &Operation<'_>) -> Result<Reply> {
        let _alone = self.alone();
        let mut tx = self.store.begin().map_err(|e| Fault::from(e).errno())?;
        let done = self
            .one(&mut tx, session, None, operation)
            .map_err(Stop::errno)?;
        tx.commit().map_err(|e| Fault::from(e).errno())?;
        let is_referring = matches!(operation.op, Op::Make { .. } | Op::Link { .. });
        let after = match (done.after, done.attr) {
            (After::Nothing, Some(attr)) if is_referring => {
                let object = self.object(self.store.memory(), attr.ino);
                object.map_or(After::Nothing, After::Hold)
            }
            (after, _) => after,
        };
        self.settle(session, after);
        Ok(done.attr.map_or(Reply::Done, Reply::Attr))
    }

    /// Also returns the inode if this is a read that counts as an access.
    fn call_read(
        &self,
        session: &mut Session,
        cx: &Ctx,
        read: &Read<'_>,
    ) -> std::result::Result<(Reply, Option<Inode>), Stop> {
        let reach = |ino: Ino| -> std::result::Result<ObjectId, Stop> {
            let memory = self.store.memory();
            if !session.is_trusted {
                self.must_reach(memory, session, cx, ino)?;
            }
            Ok(self.object(memory, ino)?)
        };
        let memory = self.store.memory();
        Ok(match *read {
            Read::Lookup(at) => {
                reach(at.dir)?;
                let found = self.look_up(memory, cx, at.into())?;
                self.hold(session, found.object);
                (Reply::Attr(found.attr), None)
            }
            Read::ByNumber(ino) => {
                let object = reach(ino)?;
                self.hold(session, object);
                (Reply::Attr(self.load(memory, object)?.attr), None)
            }
            Read::GetAttr(ino) => {
                let object = reach(ino)?;
                (Reply::Attr(self.load(memory, object)?.attr), None)
            }
            Read::List {
                dir,
                after,
                bytes,
                with_attributes,
            } => {
                reach(dir)?;
                let most = bytes.min(REPLY_MAX) as usize;
                let (entries, dir) =
                    self.call_list(session, cx, (dir, after), most, with_attributes)?;
                (Reply::Entries(entries), Some(dir))
            }
            Read::ReadLink(ino) => {
                reach(ino)?;
                let (target, link) = self.read_target(ino)?;
                (Reply::Bytes(target), Some(link))
            }
            Read::Read { ino, off, len } => {
                self.must_be_open(session, reach(ino)?, OpenFlags::READ)?;
                let mut bytes = vec![0; len.min(REPLY_MAX) as usize];
                let (len, file) = self.read_data(ino, off, &mut bytes)?;
                bytes.truncate(len);
                (Reply::Bytes(bytes), Some(file))
            }
            Read::Value { at, off, len } => {
                reach(at.dir)?;
                self.call_value(cx, at.into(), off, len)?
            }
            Read::Seek { ino, off, kind } => {
                self.must_be_open(session, reach(ino)?, OpenFlags::READ)?;
                (Reply::Offset(self.seek_data(ino, off, kind)?), None)
            }
            Read::GetXattr { ino, name } => {
                reach(ino)?;
                (Reply::Bytes(self.get_xattr(cx, ino, name)?), None)
            }
            Read::ListXattr(ino) => {
                reach(ino)?;
                (Reply::Names(self.list_xattrs(cx, ino)?), None)
            }
            Read::StatFs => (Reply::Space(self.statfs()?), None),
        })
    }

    /// A part of a directory, of entries that take at most `most` bytes, or of one. Also returns the directory.
    fn call_list(
        &self,
        session: &mut Session,
        cx: &Ctx,
        (dir, after): (Ino, Cookie),
        most: usize,
        with_attributes: bool,
    ) -> crate::error::Res<(Vec<Entry>, Inode)> {
        let (mut entries, dir) = self.entries(cx, dir, after, most)?;
        // The claim that the directory is open permits no search.
        let may_search = perm::may_search(&session.who.ctx(), &dir.attr).is_ok();
        let is_searched = session.is_trusted || may_search;
        if !is_searched {
            entries.iter_mut().for_each(hide_attributes);
        }
        if with_attributes {
            self.hold_entries(session, &entries, is_searched);
        }
        Ok((entries, dir))
    }

    /// A part of a value. Also returns its file.
    fn call_value(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        off: u64,
        len: u32,
    ) -> std::result::Result<(Reply, Option<Inode>), Stop> {
        let memory = self.store.memory();
        let file = self.value_file(memory, cx, at)?;
        let object = file.object;
        let version = [generation(memory, object)?, version(memory, object)?];
        let value = Value { memory, file };
        let left = value.len().saturating_sub(off);
        let mut bytes = vec![0; left.min(len.min(REPLY_MAX).into()) as usize];
        value.read(off, &mut bytes)?;
        let reply = Reply::Value {
            version,
            size: value.len(),
            bytes,
        };
        Ok((reply, Some(file)))
    }

    /// Entries of a directory that take at most `most` bytes, but at least one.
    fn entries(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        most: usize,
    ) -> crate::error::Res<(Vec<Entry>, Inode)> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let dir = self.read_dir(cx, dir, after, &mut |entry, inode| {
            bytes += size_of::<Entry>() + entry.name.len();
            if bytes > most && !entries.is_empty() {
                return false;
            }
            entries.push(Entry {
                ino: entry.ino,
                kind: entry.kind,
                name: entry.name.to_vec(),
                cookie: entry.cookie,
                attr: inode.ok().map(|inode| inode.attr),
            });
            true
        })?;
        Ok((entries, dir))
    }

    /// Holds the objects of entries with attributes, but for `.` and `..`. Without `is_searched` the client may use none
    /// that it has not reached by another call.
    fn hold_entries(&self, session: &mut Session, entries: &[Entry], is_searched: bool) {
        let memory = self.store.memory();
        for entry in entries {
            let is_dot = entry.cookie.0 <= crate::calls::COOKIES_OF_DOTS;
            if entry.attr.is_some()
                && !is_dot
                && let Ok(object) = self.object(memory, entry.ino)
            {
                let is_known = is_searched || session.has_reached(object);
                self.hold(session, object);
                if !is_known {
                    session.listed.insert(object);
                }
            }
        }
    }
}

/// Leaves of the attributes what an entry of a directory shows to all who may list it.
fn hide_attributes(entry: &mut Entry) {
    let time = Timestamp::default();
    entry.attr = entry.attr.map(|attr| Attr {
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        flags: FileFlags::empty(),
        ..attr
    });
}
