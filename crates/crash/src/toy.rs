//! A small file system with a log, for the explorer's own tests: `ModelFs` in memory,
//! and on the medium a log of the calls that changed it. A record is one call: its length
//! in words, its time, its kind, two numbers, and a string, padded.
//!
//! In memory, word 0 is magic, word 1 the number of records, word 2 the end of the log (the
//! commit). For blocks see `block::toy`.

use hashbrown::HashMap;
use medium::{MediumError, Pmem, Rule};
use oracle::{ModelFs, ModelOptions};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use vfs::check::{Finding, Report, Severity};
use vfs::*;

const MAGIC: u64 = 0x0070_0079;
const COUNT: u64 = 8;
const TAIL: u64 = 16;
const LOG: u64 = 64;
const IMAGE_BYTES: u64 = 64 << 10;

/// What is wrong with the toy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToyBug {
    Nothing,
    /// The record is not ordered before the commit.
    MissingFence,
    /// The record is fenced but never flushed.
    MissingFlush,
    /// End and count are trusted to change together.
    WideStore,
    /// The commit is flushed and never fenced.
    NotDurable,
    /// Replay stamps the time of the recovery.
    ReplayDrift,
    /// Link counts are 1 after recovery.
    LinksForgotten,
    /// A write is logged in two halves.
    TornWrite,
    /// Recovery compacts the header without an order of its own.
    RecoveryUnordered,
    /// The checker always finds a leak after a recovery of more than one record.
    Leaks,
}

/// The toy as the explorer sees it.
pub(crate) struct Toy(pub ToyBug);

impl System<dyn Pmem> for Toy {
    fn id(&self) -> String {
        format!("toy-{:?}", self.0)
    }

    fn image_bytes(&self) -> u64 {
        IMAGE_BYTES
    }

    fn format(&self, pm: &dyn Pmem) -> std::result::Result<(), String> {
        pm.store_word(0, MAGIC);
        pm.store_word(TAIL, LOG);
        pm.flush(0, 64);
        pm.fence(Rule::DurableBeforeReturn)
            .map_err(|e| e.to_string())
    }

    fn open(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> std::result::Result<Arc<dyn FileSystem>, String> {
        let bug = self.0;
        let log = MemoryLog { bug, pm };
        let fs = ToyFs::open(bug, Box::new(log), clock)?;
        Ok(Arc::new(fs))
    }

    fn check(&self, pm: &dyn Pmem) -> Report {
        let mut report = Report::default();
        if self.0 == ToyBug::Leaks && pm.load(COUNT).is_ok_and(|n| n > 1) {
            report.add("T1", Severity::Leak, "a record too many");
        }
        report
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

/// One logged call.
pub(crate) struct Record {
    time: i64,
    kind: u64,
    a: u64,
    b: u64,
    bytes: Vec<u8>,
}

impl Record {
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

/// Where a toy keeps its records.
pub(crate) trait Log: Send + Sync {
    /// When a record is durable.
    fn durable(&self) -> Durability;
    /// What is there, repairs included.
    fn records(&self) -> std::result::Result<Vec<Record>, String>;
    /// Whether so many bytes fit.
    fn has_room(&self, bytes: u64) -> bool;
    /// Adds a record.
    fn append(&self, record: &Record) -> Result<()>;
    /// Makes all records durable.
    fn sync(&self) -> Result<()>;
}

struct MemoryLog {
    bug: ToyBug,
    pm: Arc<dyn Pmem>,
}

impl Log for MemoryLog {
    fn durable(&self) -> Durability {
        Durability::AtReturn
    }

    fn records(&self) -> std::result::Result<Vec<Record>, String> {
        let word = |off| self.pm.load(off).map_err(|e| e.to_string());
        if word(0)? != MAGIC {
            return Err("no magic".to_string());
        }
        let tail = word(TAIL)?;
        let len = tail.checked_sub(LOG).filter(|_| tail <= self.pm.len());
        let mut log = vec![0; len.ok_or("the end is damaged")? as usize];
        self.pm.read(LOG, &mut log).map_err(|e| e.to_string())?;
        let records = Record::decode(&log)?;
        let count = records.len() as u64;
        if self.bug == ToyBug::WideStore && word(COUNT)? != count {
            return Err("end and count differ".to_string());
        }
        if self.bug == ToyBug::RecoveryUnordered && word(COUNT)? != count {
            // "Repairs" the count by way of a broken end.
            self.pm.store_word(TAIL, LOG);
            self.pm.store_word(COUNT, count);
            self.pm.flush(0, 64);
            self.pm
                .fence(Rule::DurableBeforeReturn)
                .map_err(|e| e.to_string())?;
            self.pm.store_word(TAIL, tail);
            self.pm.flush(0, 64);
            self.pm
                .fence(Rule::DurableBeforeReturn)
                .map_err(|e| e.to_string())?;
        }
        Ok(records)
    }

    fn has_room(&self, bytes: u64) -> bool {
        let tail = self.pm.load(TAIL).unwrap_or(u64::MAX);
        tail.saturating_add(bytes) <= self.pm.len()
    }

    fn append(&self, record: &Record) -> Result<()> {
        let at = self.pm.load(TAIL).map_err(io)?;
        let bytes = record.encode();
        self.pm.store(at, &bytes);
        if self.bug != ToyBug::MissingFlush {
            self.pm.flush(at, bytes.len() as u64);
        }
        if self.bug != ToyBug::MissingFence {
            self.pm.fence(Rule::DurableBeforeReturn).map_err(io)?;
        }
        let count = self.pm.load(COUNT).map_err(io)? + 1;
        let mut header = [0; 16];
        header[..8].copy_from_slice(&count.to_le_bytes());
        header[8..].copy_from_slice(&(at + bytes.len() as u64).to_le_bytes());
        self.pm.store(COUNT, &header);
        self.pm.flush(COUNT, 16);
        match self.bug {
            ToyBug::NotDurable => Ok(()),
            _ => self.pm.fence(Rule::DurableBeforeReturn).map_err(io),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

pub(crate) struct ToyFs {
    bug: ToyBug,
    log: Box<dyn Log>,
    clock: Arc<ToyClock>,
    model: ModelFs,
    recovered: bool,
    lock: Mutex<()>,
    /// When each file was made: its generation, since a crash gives its number to another.
    born: Mutex<HashMap<Ino, u64>>,
}

fn io(_: MediumError) -> Errno {
    Errno::IO
}

impl ToyFs {
    pub(crate) fn open(
        bug: ToyBug,
        log: Box<dyn Log>,
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
            fs.replay(&record).map_err(|e| format!("recovery: {e}"))?;
        }
        clock.replaying.store(false, Relaxed);
        Ok(fs)
    }

    fn replay(&self, record: &Record) -> Result<()> {
        let then = match self.bug {
            ToyBug::ReplayDrift => self.clock.outer.now().0,
            _ => record.time,
        };
        self.clock.then.store(then, Relaxed);
        let Record {
            kind, a, b, bytes, ..
        } = record;
        self.call(*kind, *a, *b, bytes).map(drop)
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
    fn change(&self, kind: u64, a: u64, b: u64, bytes: &[u8]) -> Result<Option<Attr>> {
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
        if self.bug == ToyBug::TornWrite && kind == 6 && bytes.len() > 1 {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            self.log.append(&record(b, first))?;
            self.log.append(&record(b + first.len() as u64, second))?;
        } else {
            self.log.append(&record(b, bytes))?;
        }
        Ok(made)
    }

    fn seen(&self, attr: Attr) -> Attr {
        let born = self.born.lock().get(&attr.ino).copied();
        let attr = Attr {
            generation: born.unwrap_or(attr.generation),
            ..attr
        };
        match self.bug == ToyBug::LinksForgotten && self.recovered {
            true if attr.kind == FileType::Regular => Attr { nlink: 1, ..attr },
            _ => attr,
        }
    }
}

impl FileSystem for ToyFs {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            name: "toy".into(),
            durable: self.log.durable(),
            metadata_atomic: Atomicity::Call,
            data_atomic: Atomicity::Call,
            metadata_ordered: Ordering::Global,
            data_ordered: Ordering::Global,
            times_atomic: true,
            notes: Vec::new(),
        }
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
                self.change(7, ino.0, size, b"")?;
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
    fn make(&self, _: &Ctx, at: Name<'_>, new: &NewNode<'_>) -> Result<Attr> {
        let kind = match new.kind() {
            FileType::Regular => 1,
            FileType::Directory => 2,
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharDevice
            | FileType::BlockDevice => return Err(Errno::NOSYS),
        };
        let made = self.change(kind, at.dir.0, new.mode().into(), at.name)?;
        made.ok_or(Errno::IO)
    }
    fn readlink(&self, cx: &Ctx, ino: Ino) -> Result<Vec<u8>> {
        self.model.readlink(cx, ino)
    }
    fn link(&self, _: &Ctx, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.change(3, ino.0, dir.0, name)?.ok_or(Errno::IO)
    }
    fn remove(&self, _: &Ctx, at: Name<'_>, which: Removal) -> Result<()> {
        let kind = match which {
            Removal::Unlink => 4,
            Removal::Rmdir => 5,
        };
        self.change(kind, at.dir.0, 0, at.name).map(drop)
    }
    fn rename(&self, _: &Ctx, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<()> {
        if !flags.is_empty() {
            return Err(Errno::NOSYS);
        }
        let names = [from.name, to.name].join(&0);
        self.change(8, from.dir.0, to.dir.0, &names).map(drop)
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
    fn write(&self, _: &Ctx, ino: Ino, off: u64, data: &[u8]) -> Result<usize> {
        self.change(6, ino.0, off, data).map(|_| data.len())
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
