//! A small file system with a log, for the explorer's own tests: `ModelFs` in memory, and on the
//! medium a log of the calls that changed it. A record is one call: its length in words, its
//! time, its kind, two numbers, and a string, padded.
//!
//! [`memory`] and [`blocks`] each put it on one medium, with bugs in the use of that medium.
//! [`slots`] puts it on both with any promise, and with bugs that break that promise.
//! [`grouped`] promises the order of groups alone.

mod block_tests;
pub(crate) mod blocks;
mod grouped;
mod grouped_tests;
pub(crate) mod memory;
mod memory_tests;
mod slots;
mod slots_tests;

use crate::sabotage::listed;
use hashbrown::HashMap;
use oracle::{ModelFs, ModelOptions};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use vfs::check::Finding;
use vfs::*;

listed! {
    /// A bug of the toy.
    pub(crate) enum ToyBug {
        Nothing,
        /// The record is not ordered before the commit.
        MissingFence,
        /// The record is fenced but never flushed.
        MissingFlush,
        /// Recovery assumes that end and count change together.
        WideStore,
        /// The commit is flushed and never fenced.
        NotDurable,
        /// Replay stamps the time of the recovery.
        ReplayDrift,
        /// Link counts are 1 after recovery.
        LinksForgotten,
        /// A write is logged in two halves.
        TornWrite,
        /// Recovery compacts the header without an order between its stores.
        RecoveryUnordered,
        /// The checker always finds a leak after a recovery of more than one record.
        Leaks,
    }
}

/// The time of a replayed call, else the outer clock's.
struct ToyClock {
    outer: Arc<dyn Clock>,
    replaying: AtomicBool,
    then: AtomicI64,
}

impl Clock for ToyClock {
    fn now(&self) -> Timestamp {
        match self.replaying.load(Relaxed) {
            true => Timestamp(self.then.load(Relaxed)),
            false => self.outer.now(),
        }
    }
}

/// The promise that calls are atomic and ordered.
fn calls(durable: Durability) -> Guarantees {
    Guarantees {
        name: "toy".into(),
        durable,
        metadata_atomic: Atomicity::Call,
        data_atomic: Atomicity::Call,
        metadata_ordered: Ordering::Global,
        data_ordered: Ordering::Global,
        times_atomic: true,
        notes: Vec::new(),
    }
}

/// One logged call.
#[derive(Clone)]
pub(crate) struct Record {
    time: i64,
    kind: u64,
    a: u64,
    b: u64,
    bytes: Vec<u8>,
}

impl Record {
    /// The record in place of a lost one.
    fn nothing() -> Self {
        Self {
            time: 0,
            kind: 0,
            a: 0,
            b: 0,
            bytes: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let words = 5 + (self.bytes.len() as u64).div_ceil(8);
        let kind = self.kind | (self.bytes.len() as u64) << 8;
        let head = [words, self.time as u64, kind, self.a, self.b];
        let mut all: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        all.extend_from_slice(&self.bytes);
        all.resize(words as usize * 8, 0);
        all
    }

    /// All records of a log.
    pub(crate) fn decode(log: &[u8]) -> std::result::Result<Vec<Self>, String> {
        let (mut records, mut at) = (Vec::new(), 0);
        while at < log.len() {
            let damaged = || format!("the record at {at} is damaged");
            let word = |i: usize| {
                let bytes = log.get(at + i * 8..at + i * 8 + 8).ok_or_else(damaged)?;
                let bytes = bytes.try_into().map_err(|_| damaged())?;
                Ok::<u64, String>(u64::from_le_bytes(bytes))
            };
            let words = Some(word(0)? as usize).filter(|n| (5..512).contains(n));
            let words = words.ok_or_else(damaged)?;
            let len = (word(2)? >> 8) as usize;
            let bytes = log.get(at + 40..at + words * 8).ok_or_else(damaged)?;
            records.push(Self {
                time: word(1)? as i64,
                kind: word(2)? & 0xff,
                a: word(3)?,
                b: word(4)?,
                bytes: bytes.get(..len).ok_or_else(damaged)?.to_vec(),
            });
            at += words * 8;
        }
        Ok(records)
    }
}

/// The store of a toy's records.
pub(crate) trait CallLog: Send + Sync {
    /// Its promise about calls.
    fn guarantees(&self) -> Guarantees;
    /// Whether a record may be lost while later ones survive. Each record then has a number of
    /// its own, and each inode too.
    fn is_sparse(&self) -> bool {
        false
    }
    /// Whether a write call becomes two records.
    fn splits(&self) -> bool {
        false
    }
    /// All records, repaired; `None` is a lost record.
    fn records(&self) -> std::result::Result<Vec<Option<Record>>, String>;
    /// Whether that many bytes fit.
    fn has_room(&self, bytes: u64) -> bool;
    /// Adds a record.
    fn append(&self, record: &Record) -> Result<()>;
    /// Adds a record whose call joins these sets.
    fn append_in(&self, _: &Sets, record: &Record) -> Result<()> {
        self.append(record)
    }
    /// Its order between sets.
    fn change_order(&self) -> Option<&dyn ChangeOrder> {
        None
    }
    /// Makes all records durable.
    fn sync(&self) -> Result<()>;
}

pub(crate) struct ToyFs {
    bug: ToyBug,
    log: Box<dyn CallLog>,
    clock: Arc<ToyClock>,
    model: ModelFs,
    recovered: bool,
    lock: Mutex<()>,
    /// Time at which each file was made. It is the generation, since a number may name another
    /// file after a crash.
    born: Mutex<HashMap<Ino, u64>>,
}

impl ToyFs {
    pub(crate) fn open(
        bug: ToyBug,
        log: Box<dyn CallLog>,
        outer: Arc<dyn Clock>,
    ) -> std::result::Result<Self, String> {
        let clock = Arc::new(ToyClock {
            outer,
            replaying: AtomicBool::new(true),
            then: AtomicI64::new(0),
        });
        let options = ModelOptions {
            capacity_bytes: 1 << 20,
            clock: clock.clone(),
            atime: Atime::Never,
            ..ModelOptions::default()
        };
        let mut fs = Self {
            bug,
            log,
            clock: clock.clone(),
            model: ModelFs::new(options),
            recovered: false,
            lock: Mutex::new(()),
            born: Mutex::default(),
        };
        let records = fs.log.records().map_err(|e| format!("recovery: {e}"))?;
        fs.recovered = !records.is_empty();
        for record in records {
            let replayed = record.map_or(Ok(None), |record| fs.replay(&record));
            let made = match fs.log.is_sparse() {
                // Records that it depends on may be lost.
                true => replayed.unwrap_or(None),
                false => replayed.map_err(|e| format!("recovery: {e}"))?,
            };
            fs.pass_number(made).map_err(|e| format!("recovery: {e}"))?;
        }
        clock.replaying.store(false, Relaxed);
        Ok(fs)
    }

    /// Has each record use up one inode number if other records may be lost.
    fn pass_number(&self, made: Option<Attr>) -> Result<()> {
        if self.log.is_sparse() && made.is_none() {
            let passed = self.model.tmpfile(&Ctx::root(), Ino::ROOT, 0o600)?;
            self.model.forget(passed.ino, 1);
        }
        Ok(())
    }

    fn replay(&self, record: &Record) -> Result<Option<Attr>> {
        let then = if self.bug == ToyBug::ReplayDrift {
            self.clock.outer.now().0
        } else {
            record.time
        };
        self.clock.then.store(then, Relaxed);
        let Record {
            kind, a, b, bytes, ..
        } = record;
        self.call(*kind, *a, *b, bytes)
    }

    /// Applies a call to the model.
    fn call(&self, kind: u64, a: u64, b: u64, bytes: &[u8]) -> Result<Option<Attr>> {
        let (cx, m, a) = (Ctx::root(), &self.model, Ino(a));
        let made = match kind {
            1 => m.create(&cx, a, bytes, b as u32),
            2 => m.mkdir(&cx, a, bytes, b as u32),
            3 => m.link(&cx, a, Ino(b), bytes),
            4 => return m.unlink(&cx, a, bytes).map(|()| None),
            5 => return m.rmdir(&cx, a, bytes).map(|()| None),
            6 => return m.write(&cx, a, b, bytes).map(|_| None),
            7 => return m.truncate(&cx, a, b).map(|()| None),
            8 => {
                let mut names = bytes.split(|b| *b == 0);
                let (from, to) = (names.next().unwrap_or(b""), names.next().unwrap_or(b""));
                let plain = RenameFlags::empty();
                return m
                    .rename(&cx, Name::new(a, from), Name::new(Ino(b), to), plain)
                    .map(|()| None);
            }
            _ => return Err(Errno::IO),
        }?;
        m.forget(made.ino, u64::from(self.clock.replaying.load(Relaxed)));
        let now = self.clock.then.load(Relaxed) as u64;
        self.born.lock().entry(made.ino).or_insert(now);
        Ok(Some(self.seen(made)))
    }

    /// Carries out a call and logs it.
    fn change(
        &self,
        cx: &Ctx,
        kind: u64,
        (a, b): (u64, u64),
        bytes: &[u8],
    ) -> Result<Option<Attr>> {
        let _log = self.lock.lock();
        // One reading of the clock for the model and the record.
        self.clock.then.store(self.clock.outer.now().0, Relaxed);
        let record = |b, bytes: &[u8]| Record {
            time: self.clock.then.load(Relaxed),
            kind,
            a,
            b,
            bytes: bytes.to_vec(),
        };
        if !self.log.has_room(record(b, bytes).encode().len() as u64) {
            return Err(Errno::NOSPC);
        }
        let made = self.call(kind, a, b, bytes)?;
        self.pass_number(made)?;
        let splits = self.bug == ToyBug::TornWrite || self.log.splits();
        if splits && kind == 6 && bytes.len() > 1 {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            self.log.append_in(&cx.sets, &record(b, first))?;
            self.log
                .append_in(&cx.sets, &record(b + first.len() as u64, second))?;
        } else {
            self.log.append_in(&cx.sets, &record(b, bytes))?;
        }
        Ok(made)
    }

    fn seen(&self, attr: Attr) -> Attr {
        let born = self.born.lock().get(&attr.ino).copied();
        let attr = Attr {
            generation: born.unwrap_or(attr.generation),
            ..attr
        };
        let forgotten = self.bug == ToyBug::LinksForgotten && self.recovered;
        if forgotten && attr.kind == FileType::Regular {
            return Attr { nlink: 1, ..attr };
        }
        attr
    }
}

impl FileSystem for ToyFs {
    fn guarantees(&self) -> Guarantees {
        self.log.guarantees()
    }
    fn change_order(&self) -> Option<&dyn ChangeOrder> {
        self.log.change_order()
    }
    fn audit(&self) -> Vec<Finding> {
        self.model.audit()
    }
    fn lookup(&self, cx: &Ctx, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.model.lookup(cx, dir, name).map(|a| self.seen(a))
    }
    fn by_number(&self, ino: Ino) -> Result<Attr> {
        self.model.by_number(ino).map(|a| self.seen(a))
    }
    fn forget(&self, ino: Ino, count: u64) {
        self.model.forget(ino, count);
    }
    fn getattr(&self, cx: &Ctx, ino: Ino) -> Result<Attr> {
        self.model.getattr(cx, ino).map(|a| self.seen(a))
    }
    fn setattr(&self, cx: &Ctx, ino: Ino, set: &SetAttr) -> Result<Attr> {
        match set.size {
            Some(size) if (SetAttr { size: None, ..*set }) == SetAttr::default() => {
                self.change(cx, 7, (ino.0, size), b"")?;
                self.getattr(cx, ino)
            }
            _ => Err(Errno::NOSYS),
        }
    }
    fn readdir(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.model.readdir(cx, dir, after, sink)
    }
    fn readdirplus(
        &self,
        cx: &Ctx,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<()> {
        let mut seen =
            |e: &DirEntry<'_>, a: Option<&Attr>| sink(e, a.map(|a| self.seen(*a)).as_ref());
        self.model.readdirplus(cx, dir, after, &mut seen)
    }
    fn make(&self, cx: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let kind = match new.kind() {
            FileType::Regular => 1,
            FileType::Directory => 2,
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharDevice
            | FileType::BlockDevice => return Err(Errno::NOSYS),
        };
        let made = self.change(cx, kind, (at.dir.0, new.mode().into()), at.name)?;
        made.ok_or(Errno::IO)
    }
    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        self.model.readlink(cx, ino)
    }
    fn link(&self, cx: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.change(cx, 3, (ino.0, dir.0), name)?.ok_or(Errno::IO)
    }
    fn remove(&self, cx: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let kind = match which {
            Removal::Unlink => 4,
            Removal::Rmdir => 5,
        };
        self.change(cx, kind, (at.dir.0, 0), at.name).map(drop)
    }
    fn rename(&self, cx: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        if !flags.is_empty() {
            return Err(Errno::NOSYS);
        }
        let names = [from.name, to.name].join(&0);
        self.change(cx, 8, (from.dir.0, to.dir.0), &names).map(drop)
    }
    fn tmpfile(&self, _: &Ctx, _: Ino, _: u32) -> Result<Attr> {
        Err(Errno::NOSYS)
    }
    fn open(&self, cx: &Ctx, ino: Ino, flags: OpenFlags) -> Result<()> {
        self.model.open(cx, ino, flags)
    }
    fn read(&self, cx: &Ctx, ino: Ino, off: u64, buf: &mut [u8]) -> Result<usize> {
        self.model.read(cx, ino, off, buf)
    }
    fn write(&self, cx: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.change(cx, 6, (ino.0, off), data).map(|_| data.len())
    }
    fn fallocate(&self, _: &Ctx, _: Ino, _: Fallocate, _: u64, _: u64) -> Result<()> {
        Err(Errno::NOSYS)
    }
    fn seek(&self, cx: &Ctx, ino: Ino, off: u64, kind: SeekKind) -> Result<u64> {
        self.model.seek(cx, ino, off, kind)
    }
    fn fsync(&self, _: &Ctx, _: Ino, _: bool) -> Result<()> {
        self.log.sync()
    }
    fn fsyncdir(&self, _: &Ctx, _: Ino, _: bool) -> Result<()> {
        self.log.sync()
    }
    fn sync(&self) -> Result<()> {
        self.log.sync()
    }
    fn statfs(&self) -> Result<StatFs> {
        self.model.statfs()
    }
    fn getxattr(&self, cx: &Ctx, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.model.getxattr(cx, ino, name)
    }
    fn setxattr(&self, _: &Ctx, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        Err(Errno::NOSYS)
    }
    fn listxattr(&self, cx: &Ctx, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.model.listxattr(cx, ino)
    }
    fn removexattr(&self, _: &Ctx, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }
}
