//! What a crash may leave on a block device, and whether it is fit for use.
//!
//! - B1. The checker finds no more than leaks, before recovery under soft updates; after
//!   it, nothing at all in a journaled file system.
//! - B2. It opens.
//! - B3. What callers see is allowed: under soft updates by the rules of [`super::soft`];
//!   in a journaled file system it equals the state after some operation since the last
//!   sync, or since the last change of a file that was fsynced after it (for `fdatasync`, the
//!   last change of more than times, and of data where they are logged). Of that, metadata
//!   journals promise the metadata, and the data of files that did not change since they
//!   were synced; ordered ones also that data is no older than the metadata and no one
//!   else's.
//! - B4. It takes a write to every file, a new file, and the deletion of everything; synced,
//!   B1 holds again.

use super::device::StateDevice;
use super::soft::{Allowed, Floors, Known, bytes_fit};
use crate::BlockSystem;
use crate::choice::{Policy, mix};
use crate::handles::{Handle, Handles};
use crate::oracle::{Expected, RECOVERY_TIME, panic_text, same_but_contents, same_content, use_up};
use crate::walk::{Judge, Recovery, Verdict};
use crate::world::{Inode, Pieces, World};
use hashbrown::HashMap;
use medium::block::{BlockDevice, BlockEvent, RecordingDevice};
use oracle::Snapshot;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{
    Atomicity, Cookie, Ctx, Errno, FileSystem, FileType, Guarantees, Ino, ManualClock, Ordering,
};
use xxhash_rust::xxh3::xxh3_64;

/// What a file system promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    Soft,
    Journal(Data),
}

/// What a journaled file system promises of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    Nothing,
    /// Written before the metadata that points to it.
    Ordered,
    /// As metadata.
    Whole,
}

impl Promise {
    pub fn of(g: &Guarantees) -> Self {
        let ordered = |o: Ordering| o >= Ordering::PerThread;
        if g.metadata_atomic < Atomicity::Call || !ordered(g.metadata_ordered) {
            return Self::Soft;
        }
        Self::Journal(match g.data_atomic {
            _ if ordered(g.data_ordered) => Data::Whole,
            Atomicity::None | Atomicity::Word => Data::Nothing,
            Atomicity::Block | Atomicity::Call => Data::Ordered,
        })
    }

    /// The worst that the checker may find.
    pub fn worst(self) -> Option<Severity> {
        (self == Self::Soft).then_some(Severity::Leak)
    }
}

/// A state after an operation: as callers see it, and inode by inode.
pub(super) struct Past {
    pub expected: Expected,
    pub known: Known,
}

/// Judges crash states against the states from `floors` to `newest`.
pub(super) struct BlockJudge<'a> {
    pub system: &'a BlockSystem,
    pub promise: Promise,
    pub past: &'a [Past],
    pub floors: &'a Floors,
    pub newest: usize,
    /// Handles that callers had, up to a state.
    pub known: (&'a Handles, usize),
    /// Outcomes by what was there once the file system was open, where nothing was wrong:
    /// all that follows is the same.
    pub judged: HashMap<u64, u64>,
}

#[derive(Default)]
struct Seen {
    outcome: u64,
    recovery: Option<Recovery<BlockEvent>>,
    /// Hash of what was there when it was open.
    opened: Option<u64>,
}

impl Judge<StateDevice> for BlockJudge<'_> {
    fn judge(&mut self, device: &Arc<StateDevice>, _tail: Policy) -> Verdict<BlockEvent> {
        let mut seen = Seen::default();
        let result = catch_unwind(AssertUnwindSafe(|| self.evaluate(device, &mut seen)));
        if let (Ok(Ok(())), Some(opened)) = (&result, seen.opened) {
            self.judged.insert(opened, seen.outcome);
        }
        let wrong = result.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
        Verdict {
            wrong: wrong.err(),
            outcome: seen.outcome,
            recovery: seen.recovery,
        }
    }

    fn demands(&self) -> u64 {
        let Floors { files, times, .. } = self.floors;
        let files = files
            .iter()
            .chain(times)
            .fold(0, |h, (file, floor)| mix(h, mix(file.0.0, *floor as u64)));
        let all = mix(self.floors.all as u64, self.floors.data as u64);
        mix(mix(all, self.newest as u64), files)
    }
}

impl BlockJudge<'_> {
    fn evaluate(&self, device: &Arc<StateDevice>, seen: &mut Seen) -> Result<(), String> {
        if self.promise == Promise::Soft {
            self.sound(&**device, "before recovery")?;
        }
        let decisions = crate::walk::CrashState::decisions(&**device);
        let recorded = Arc::new(RecordingDevice::new(device.clone()));
        let clock = Arc::new(ManualClock::new(RECOVERY_TIME, 1));
        let opened = self.system.open_still(recorded.clone(), clock, WAVE);
        let trace = recorded.take();
        let is_write = |e: &BlockEvent| matches!(e, BlockEvent::Issued { .. });
        if trace.iter().any(is_write) {
            // The same writes to the same end: what a crash between them leaves lies
            // between what was found first and that end.
            let events = trace.iter().map(hash_of);
            let key = Some(events.fold(device.essence(), mix));
            seen.recovery = Some(Recovery {
                decisions,
                trace,
                key,
            });
        }
        let fs = opened.map_err(|e| format!("does not open: {e}"))?.fs;
        let opened = device.essence();
        seen.opened = Some(opened);
        if let Some(outcome) = self.judged.get(&opened) {
            seen.outcome = *outcome;
            return Ok(());
        }
        match self.promise {
            Promise::Soft => self.soft(&*fs)?,
            Promise::Journal(data) => self.journaled(&*fs, data, seen)?,
        }
        audit(&*fs, "after recovery")?;
        fs.sync().map_err(|e| format!("sync after recovery: {e}"))?;
        self.sound(&*recorded, "after recovery")?;
        let (known, newest) = self.known;
        let is_new = |handle| known.refuse(handle, newest);
        match self.promise {
            Promise::Soft => use_world(&*fs, &is_new)?,
            Promise::Journal(_) => {
                let snapshot = Snapshot::take(&*fs).map_err(|e| e.to_string())?;
                use_up(&*fs, &snapshot, &is_new)?;
            }
        }
        let gone = "after deleting everything";
        audit(&*fs, gone)?;
        fs.sync().map_err(|e| format!("sync {gone}: {e}"))?;
        self.sound(&*recorded, gone)
    }

    /// B1.
    fn sound(&self, device: &(dyn BlockDevice + 'static), when: &str) -> Result<(), String> {
        let report = self.system.check(device);
        let bad = |f: &&vfs::check::Finding| Some(f.severity) > self.promise.worst();
        match report.findings.iter().find(bad) {
            Some(finding) => Err(format!("checker {when}: {finding}")),
            None => Ok(()),
        }
    }

    fn soft(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let seen = World::read(fs)?;
        let states: Vec<&Known> = self.past.iter().map(|past| &past.known).collect();
        let allowed = Allowed {
            states: &states,
            floors: self.floors,
            newest: self.newest,
        };
        allowed.violated_by(&seen).map_or(Ok(()), Err)
    }

    /// B3 for a journal.
    fn journaled(&self, fs: &dyn FileSystem, data: Data, seen: &mut Seen) -> Result<(), String> {
        let snapshot = Snapshot::take(fs).map_err(|e| format!("cannot be read: {e}"))?;
        seen.outcome = snapshot.hash() as u64;
        let window = self.floors.all..=self.newest;
        if data == Data::Whole {
            let same = |past: &Past| {
                let then = &past.expected.snapshot;
                same_content(&snapshot, then)
                    && snapshot.has_same_times(then)
                    && same_generations(fs, &past.known)
            };
            return match self.past[window].iter().any(same) {
                true => Ok(()),
                false => Err(self.differs(&snapshot)),
            };
        }
        let world = World::read(fs)?;
        let mut wrong = None;
        for state in window.rev() {
            let past = &self.past[state];
            if !same_metadata(&snapshot, &past.expected.snapshot)
                || !same_generations(fs, &past.known)
            {
                continue;
            }
            match self.data_fits(&world, state, data) {
                Ok(()) => return Ok(()),
                Err(e) => wrong = Some(e),
            }
        }
        Err(wrong.unwrap_or_else(|| self.differs(&snapshot)))
    }

    /// Data with the metadata of `state` may be newer, and nothing else.
    fn data_fits(&self, world: &World, state: usize, data: Data) -> Result<(), String> {
        if data == Data::Nothing {
            return self.synced_data_fits(world);
        }
        for (ino, inode) in &world.nodes {
            let file = self.past[state].known.files.get(ino);
            // An fdatasync waits for data, and not for the metadata of an overwrite.
            let synced = file.and_then(|file| self.floors.files.get(file));
            let oldest = synced.map_or(state, |own| state.max(*own));
            let since = self.past[oldest..=self.newest]
                .iter()
                .map(|past| &past.known);
            let same = since.filter(|known| known.files.get(ino) == file);
            let then: Vec<&Pieces> = same.map(|known| &known.world.nodes[ino].data).collect();
            bytes_fit(&inode.data, &then, false).map_err(|e| format!("inode {ino}: {e}"))?;
        }
        Ok(())
    }

    /// A file that no operation has changed since it was synced holds what it held then.
    fn synced_data_fits(&self, world: &World) -> Result<(), String> {
        for (ino, inode) in &world.nodes {
            let file = self.past[self.newest].known.files.get(ino);
            let synced = file.and_then(|file| self.floors.files.get(file));
            let floor = synced.map_or(self.floors.data, |own| self.floors.data.max(*own));
            let since = self.past[floor..=self.newest].iter();
            let mut then = since.map(|past| {
                let known = &past.known;
                let same = known.files.get(ino) == file;
                known.world.nodes.get(ino).filter(|_| same)
            });
            let Some(Some(first)) = then.next() else {
                continue;
            };
            // New zeros are a change that data do not show.
            let same = |now: &Inode| now.data == first.data && now.attr.ctime == first.attr.ctime;
            let is_first = |now: Option<&Inode>| now.is_some_and(same);
            if then.all(is_first) {
                bytes_fit(&inode.data, &[&first.data], false)
                    .map_err(|e| format!("inode {ino}, which was synced: {e}"))?;
            }
        }
        Ok(())
    }

    fn differs(&self, seen: &Snapshot) -> String {
        let oldest = &self.past[self.floors.all].expected.snapshot;
        let newest = &self.past[self.newest].expected.snapshot;
        let (mut from_old, mut from_new) = (oldest.diff(seen), newest.diff(seen));
        if from_old.is_empty() {
            from_old = oldest.diff_times(seen);
        }
        if from_new.is_empty() {
            from_new = newest.diff_times(seen);
        }
        format!(
            "the state after no operation since the last sync: from that: {}; from the newest: {}",
            from_old.join("; "),
            from_new.join("; ")
        )
    }
}

/// Of a recovery's trace, what it leaves on the device.
fn hash_of(event: &BlockEvent) -> u64 {
    match event {
        BlockEvent::Issued { lba, data, .. } => mix(lba.0, xxh3_64(data)),
        BlockEvent::FlushEnded { .. } => 1,
        _ => 0,
    }
}

/// Most blocks on their way at a time after a recovery.
const WAVE: usize = 1024;

fn same_metadata(a: &Snapshot, b: &Snapshot) -> bool {
    same_but_contents(a, b) && a.has_same_times(b)
}

/// Whether inodes have the generations that they had then. Snapshots leave them out.
fn same_generations(fs: &dyn FileSystem, then: &Known) -> bool {
    let cx = Ctx::root();
    then.world.nodes.iter().all(|(ino, inode)| {
        let now = fs.getattr(&cx, *ino);
        now.is_ok_and(|attr| attr.generation == inode.attr.generation)
    })
}

pub(super) fn audit(fs: &dyn FileSystem, when: &str) -> Result<(), String> {
    match fs.audit().first() {
        Some(first) => Err(format!("audit {when}: {first}")),
        None => Ok(()),
    }
}

/// B4 where a directory may have two names.
fn use_world(
    fs: &dyn FileSystem,
    is_new: &dyn Fn(Handle) -> Result<(), String>,
) -> Result<(), String> {
    let cx = Ctx::root();
    let world = World::read(fs)?;
    let full = |e: Errno| matches!(e, Errno::NOSPC | Errno::FBIG);
    for (ino, inode) in &world.nodes {
        if inode.attr.kind == FileType::Regular {
            let written = fs.write(&cx, *ino, inode.attr.size, b"written after the crash");
            if let Err(e) = written
                && !full(e)
            {
                return Err(format!("write to inode {ino}: {e}"));
            }
        }
    }
    match fs.create(&cx, Ino::ROOT, b"made-after-the-crash", 0o600) {
        Ok(attr) => {
            is_new((attr.ino, attr.generation))?;
            fs.forget(attr.ino, 1);
        }
        Err(e) if full(e) => {}
        Err(e) => return Err(format!("create: {e}")),
    }
    delete(fs, Ino::ROOT, &mut HashSet::new())
}

fn delete(fs: &dyn FileSystem, dir: Ino, done: &mut HashSet<Ino>) -> Result<(), String> {
    let cx = Ctx::root();
    let mut names = Vec::new();
    let listed = fs.readdir(&cx, dir, Cookie(0), &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    });
    listed.map_err(|e| format!("list before deleting: {e}"))?;
    for (name, ino, kind) in names {
        let gone = if kind != FileType::Directory {
            fs.unlink(&cx, dir, &name)
        } else {
            if done.insert(ino) {
                delete(fs, ino, done)?;
            }
            fs.rmdir(&cx, dir, &name)
        };
        gone.map_err(|e| format!("delete {}: {e}", name.escape_ascii()))?;
    }
    Ok(())
}
