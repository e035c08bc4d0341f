//! What a crash may leave, and whether a recovered file system is fit for use.
//!
//! Demands on every crash state:
//! - O1. it opens (recovery succeeds, nothing panics);
//! - O2. what callers see is one of the states that the declared [`Guarantees`] allow,
//!   and so are the times (each by itself where times are not atomic);
//! - O3. volatile state agrees with what is stored (`audit`), the checker finds nothing;
//! - O4. it takes a write to every file and a new file, the deletion of everything gives
//!   back the space that the files were said to take, and O3 holds again.

use crate::choice::{Policy, mix};
use crate::handles::{Handle, Handles};
use crate::sabotage::{Sabotage, hit};
use crate::state::StatePmem;
use crate::system::PmemSystem;
use crate::walk::{Judge, Recovery, Verdict};
use medium::Pmem;
use medium::recording::Event;
use oracle::script::State;
use oracle::snapshot::{Content, Node, Snapshot, Times};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vfs::{
    Atomicity, Clock, Cookie, Ctx, Durability, Errno, FileSystem, FileType, Guarantees, Ino,
    ManualClock, Ordering, Timestamp,
};

/// When recoveries happen: later than anything that a script does, so that a time that
/// recovery stamps is noticed.
pub(crate) const RECOVERY_TIME: Timestamp = Timestamp(4_000_000_000_000_000_000);

/// What the model shows after an operation.
pub(crate) struct Expected {
    pub snapshot: Snapshot,
    pub hash: u64,
    /// The inode of each path, in order.
    pub inos: Vec<Ino>,
    /// What names each path's file on the file system, in order; empty where that is not compared.
    pub handles: Vec<Handle>,
    /// The times of what is open, which may have no name.
    open: Vec<(Ino, Times)>,
}

impl Expected {
    /// `state`: what the script has open.
    pub(crate) fn of(model: &dyn FileSystem, state: &State) -> Result<Self, String> {
        let snapshot = Snapshot::take(model).map_err(|e| format!("model: {e}"))?;
        let inos: Result<_, Errno> = snapshot.iter().map(|(p, ..)| resolve(model, p)).collect();
        let inos = inos.map_err(|e| format!("model: {e}"))?;
        let open = state.open_inodes().map(|ino| {
            let attr = model.getattr(&state.cx, ino)?;
            Ok((ino, Times::of(&attr)))
        });
        let open: Result<_, Errno> = open.collect();
        let open = open.map_err(|e| format!("model: {e}"))?;
        let hash = snapshot.hash() as u64;
        Ok(Self {
            snapshot,
            hash,
            inos,
            handles: Vec::new(),
            open,
        })
    }

    fn times_of(&self, ino: Ino) -> Option<&Times> {
        if let Some(at) = self.inos.iter().position(|i| *i == ino) {
            return self.snapshot.iter().nth(at).map(|(_, _, times)| times);
        }
        let open = self.open.iter().find(|(open, _)| *open == ino);
        open.map(|(_, times)| times)
    }
}

pub(crate) fn resolve(fs: &dyn FileSystem, path: &[u8]) -> Result<Ino, Errno> {
    let cx = Ctx::root();
    let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(Ino::ROOT, |dir, name| {
        let attr = fs.lookup(&cx, dir, name)?;
        fs.forget(attr.ino, 1);
        Ok(attr.ino)
    })
}

/// The handle of each path.
pub(crate) fn handles_of(fs: &dyn FileSystem, seen: &Snapshot) -> Result<Vec<Handle>, String> {
    let handle = |path: &[u8]| {
        let attr = fs.getattr(&Ctx::root(), resolve(fs, path)?)?;
        Ok((attr.ino, attr.generation))
    };
    let paths = seen.iter().map(|(path, ..)| path);
    let all = paths.map(|path| handle(path).map_err(|e| failed("stat", path, e)));
    all.collect()
}

/// Which of the states after each operation a crash may show.
pub(crate) struct Demand<'a> {
    /// `states[0]` is what was there before the last operation that matters.
    pub states: &'a [Expected],
    pub times_atomic: bool,
    /// When the operation ran.
    pub now: Timestamp,
}

/// The oldest state that a crash in operation `op` (or, with `returned`, after it) may
/// show, counted from the one before the first operation; the newest is always the one
/// after `op`. Weaker guarantees belong here: they move it back, to the last sync.
///
/// # Errors
/// Guarantees that the explorer cannot judge.
pub(crate) fn oldest_allowed(g: &Guarantees, op: usize, returned: bool) -> Result<usize, String> {
    let whole = g.metadata_atomic == Atomicity::Call && g.data_atomic == Atomicity::Call;
    let ordered =
        g.metadata_ordered >= Ordering::PerThread && g.data_ordered >= Ordering::PerThread;
    if g.durable == Durability::AtReturn && whole && ordered {
        return Ok(op + usize::from(returned));
    }
    Err(format!(
        "{}: only calls that are atomic, ordered, and durable at return can be judged",
        g.name
    ))
}

impl Demand<'_> {
    /// What is wrong with the recovered state, if anything.
    pub(crate) fn violated_by(&self, seen: &Snapshot) -> Option<String> {
        let same = |e: &&Expected| same_content(seen, &e.snapshot);
        let matching: Vec<&Expected> = self.states.iter().filter(same).collect();
        if matching.is_empty() {
            return Some(self.describe(seen));
        }
        if matching.iter().any(|e| self.times_allowed(seen, e)) {
            return None;
        }
        let lines = matching[0].snapshot.diff_times(seen);
        Some(format!(
            "times are neither old nor new: {}",
            lines.join("; ")
        ))
    }

    /// Whether files have the numbers and generations that they had.
    pub(crate) fn handles_fit(&self, fs: &dyn FileSystem, seen: &Snapshot) -> Result<(), String> {
        let handles = handles_of(fs, seen)?;
        let same = |e: &&Expected| same_content(seen, &e.snapshot);
        let mut matching = self.states.iter().filter(same);
        if matching.any(|e| e.handles == handles) {
            return Ok(());
        }
        Err("an inode has another number or generation than it had".to_string())
    }

    fn times_allowed(&self, seen: &Snapshot, matched: &Expected) -> bool {
        if seen.has_same_times(&matched.snapshot) {
            return true;
        }
        if self.times_atomic {
            return false;
        }
        let paths = seen.iter().zip(matched.snapshot.iter());
        paths.zip(&matched.inos).all(|(((_, _, seen), own), ino)| {
            let mut all = vec![*own.2];
            for state in self.states {
                // An inode without a name may live on, unseen, with the time of the call.
                let unseen = Times {
                    mtime: self.now,
                    ctime: self.now,
                    ..*own.2
                };
                all.push(state.times_of(*ino).copied().unwrap_or(unseen));
            }
            all.iter().any(|t| t.atime == seen.atime)
                && all.iter().any(|t| t.mtime == seen.mtime)
                && all.iter().any(|t| t.ctime == seen.ctime)
        })
    }

    fn describe(&self, seen: &Snapshot) -> String {
        let against = |e: &Expected| e.snapshot.diff(seen).join("; ");
        match self.states {
            [only] => format!("what returned is not there: {}", against(only)),
            [old, .., new] => format!(
                "neither old nor new: from old: {}; from new: {}",
                against(old),
                against(new)
            ),
            [] => "no state is allowed".to_string(),
        }
    }
}

/// Whether callers see the same, times apart.
pub(crate) fn same_content(a: &Snapshot, b: &Snapshot) -> bool {
    if hit(Sabotage::LinkCountIgnored) {
        return same_without_links(a, b);
    }
    a.is_same_except_times(b)
}

/// Whether callers see the same, times and link counts apart.
pub(crate) fn same_without_links(a: &Snapshot, b: &Snapshot) -> bool {
    let without_links = |(path, node, _): (&[u8], &Node, &Times)| {
        let node = node.clone();
        (path.to_vec(), Node { nlink: 0, ..node })
    };
    a.iter().map(without_links).eq(b.iter().map(without_links))
}

/// Whether callers see the same, times and contents of files apart.
pub(crate) fn same_but_contents(a: &Snapshot, b: &Snapshot) -> bool {
    let bare = |(path, node, _): (&[u8], &Node, &Times)| {
        let content = match node.kind {
            FileType::Regular => Content::None,
            _ => node.content.clone(),
        };
        let node = node.clone();
        (path.to_vec(), Node { content, ..node })
    };
    a.iter().map(bare).eq(b.iter().map(bare))
}

/// Judges crash states of one system against one demand.
pub(crate) struct FsJudge<'a> {
    pub system: &'a PmemSystem,
    pub demand: Demand<'a>,
    /// Handles that callers had, up to a state.
    pub known: (&'a Handles, usize),
}

/// What one evaluation came to, panics apart.
#[derive(Default)]
struct Seen {
    outcome: u64,
    recovery: Option<Recovery<Event>>,
}

impl Judge<StatePmem> for FsJudge<'_> {
    fn judge(&mut self, pm: &Arc<StatePmem>, tail: Policy) -> Verdict<Event> {
        let mut seen = Seen::default();
        let result = catch_unwind(AssertUnwindSafe(|| self.evaluate(pm, tail, &mut seen)));
        let wrong = result.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
        Verdict {
            wrong: wrong.err(),
            outcome: seen.outcome,
            recovery: seen.recovery,
        }
    }

    fn demands(&self) -> u64 {
        let states = self.demand.states.iter();
        states.fold(0, |h, e| mix(h, e.hash))
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("of unknown type")
}

impl FsJudge<'_> {
    fn evaluate(&self, pm: &Arc<StatePmem>, tail: Policy, seen: &mut Seen) -> Result<(), String> {
        pm.record();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(RECOVERY_TIME, 1));
        let opened = self.system.open(pm.clone(), clock);
        let (decisions, trace) = (pm.decisions(), pm.recorded());
        // Flushes and fences alone make no state that a crash could not leave before.
        let stores = |e: &Event| matches!(e, Event::Store(_) | Event::StoreNt(_));
        if trace.iter().any(stores) {
            seen.recovery = Some(Recovery {
                decisions,
                trace,
                key: None,
            });
        }
        let fs = opened.map_err(|e| format!("does not open: {e}"))?;
        let snapshot = Snapshot::take(&*fs).map_err(|e| format!("cannot be read: {e}"))?;
        seen.outcome = snapshot.hash() as u64;
        if let Some(wrong) = self.demand.violated_by(&snapshot) {
            return Err(wrong);
        }
        self.demand.handles_fit(&*fs, &snapshot)?;
        sound(self.system, &*fs, pm, "after recovery")?;
        pm.start_tail(tail);
        let (known, newest) = self.known;
        use_up(&*fs, &snapshot, &|new| known.refuse(new, newest))?;
        sound(self.system, &*fs, pm, "after deleting everything")
    }
}

/// O3.
pub(crate) fn sound(
    system: &PmemSystem,
    fs: &dyn FileSystem,
    pm: &(dyn Pmem + 'static),
    when: &str,
) -> Result<(), String> {
    let findings = fs.audit();
    if let Some(first) = findings.first() {
        return Err(format!("audit {when}: {first}"));
    }
    let report = system.check(pm);
    match report.findings.first() {
        Some(first) => Err(format!("checker {when}: {first}")),
        None => Ok(()),
    }
}

/// O4: writes to every file, makes one, and deletes everything.
/// `is_new` refuses the handle of a file that is gone.
pub(crate) fn use_up(
    fs: &dyn FileSystem,
    snapshot: &Snapshot,
    is_new: &dyn Fn(Handle) -> Result<(), String>,
) -> Result<(), String> {
    let cx = Ctx::root();
    let stat = |what: &str| fs.statfs().map_err(|e| format!("statfs {what}: {e}"));
    let free = stat("after recovery")?.blocks_free;
    let taken = blocks_below_root(fs, snapshot)?;
    write_everywhere(fs, snapshot, is_new)?;
    delete_below(fs, &cx, Ino::ROOT, 0)?;
    let after = stat("after deleting everything")?;
    let taken = taken * 512 / u64::from(after.block_bytes).max(1);
    let now = after.blocks_free;
    if now + KEPT_BLOCKS < free + taken {
        return Err(format!(
            "space is lost: {now} blocks are free after deleting everything, {free} were \
             before, and the files took {taken}"
        ));
    }
    Ok(())
}

/// Blocks that the new file may leave taken when it is gone: the root directory and a
/// table of inodes grow, by a block and the blocks above it, and need not shrink.
const KEPT_BLOCKS: u64 = 8;

/// Space in units of 512 bytes that everything but the root directory takes.
fn blocks_below_root(fs: &dyn FileSystem, snapshot: &Snapshot) -> Result<u64, String> {
    let cx = Ctx::root();
    let mut inos = Vec::new();
    let mut blocks = 0;
    for (path, ..) in snapshot.iter().filter(|(path, ..)| *path != b"/") {
        let attr = resolve(fs, path).and_then(|ino| fs.getattr(&cx, ino));
        let attr = attr.map_err(|e| failed("stat", path, e))?;
        if !inos.contains(&attr.ino) {
            inos.push(attr.ino);
            blocks += attr.blocks;
        }
    }
    Ok(blocks)
}

fn failed(what: &str, path: &[u8], e: Errno) -> String {
    format!("{what} {}: {e}", path.escape_ascii())
}

/// Appends to every file and makes a new one. No space left is a legal answer.
fn write_everywhere(
    fs: &dyn FileSystem,
    snapshot: &Snapshot,
    is_new: &dyn Fn(Handle) -> Result<(), String>,
) -> Result<(), String> {
    let cx = Ctx::root();
    let probe = b"written after the crash";
    let files = snapshot
        .iter()
        .filter(|(_, node, _)| node.kind == FileType::Regular);
    for (path, node, _) in files {
        let ino = resolve(fs, path).map_err(|e| failed("look up", path, e))?;
        let mut back = [0; 23];
        match fs.write(&cx, ino, node.size, probe) {
            Err(Errno::NOSPC | Errno::FBIG) => continue,
            Err(e) => return Err(failed("write to", path, e)),
            Ok(_) => {}
        }
        let read = fs.read(&cx, ino, node.size, &mut back);
        // Two paths of one file store the same bytes in the same place.
        if read != Ok(back.len()) || back != *probe {
            return Err(format!(
                "{} holds not what was written",
                path.escape_ascii()
            ));
        }
    }
    let name = b"made-after-the-crash";
    match fs.create(&cx, Ino::ROOT, name, 0o600) {
        Ok(attr) => {
            is_new((attr.ino, attr.generation))?;
            let written = fs.write(&cx, attr.ino, 0, &[7; 5000]);
            fs.forget(attr.ino, 1);
            written.map(drop)
        }
        Err(e) => Err(e),
    }
    .or_else(|e| match e {
        Errno::NOSPC => Ok(()),
        e => Err(failed("write to new file", name, e)),
    })
}

/// Deepest tree that is deleted; scripts make none deeper.
const MAX_DEPTH: usize = 64;

fn delete_below(fs: &dyn FileSystem, cx: &Ctx, dir: Ino, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("directories are nested without end".to_string());
    }
    let mut names = Vec::new();
    let listed = fs.readdir(cx, dir, Cookie(0), &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    });
    listed.map_err(|e| format!("list before deleting: {e}"))?;
    for (name, ino, kind) in names {
        let gone = if kind == FileType::Directory {
            delete_below(fs, cx, ino, depth + 1)?;
            fs.rmdir(cx, dir, &name)
        } else {
            fs.unlink(cx, dir, &name)
        };
        gone.map_err(|e| failed("delete", &name, e))?;
    }
    Ok(())
}
