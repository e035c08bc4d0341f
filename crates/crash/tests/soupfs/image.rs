//! Crash states of what is not a call: mkfs, the unmount, and a repair or mount after a kill.
//!
//! - I1. There is the old file system, none, or the new one, each of them whole; mkfs has returned
//!   only if it is the new one.
//! - I2. An image that is marked as clean has no leaks.
//! - I3. A repair, or an unmount without an earlier crash, that has returned left the mark.

use crash::program::{Memory, Named, Program};
use medium::layer::PmemLayer;
use medium::{MediumError, Pmem, Rule};
use oracle::script::{Script, State, run};
use oracle::snapshot::Snapshot;
use soupfs::format::{MIN_PAGES, PAGE};
use soupfs::{Atime, Error, MkfsOptions, MountOptions, SoupFs, check, mkfs, probe, repair};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use vfs::check::Severity;
use vfs::{Ctx, FileSystem, Ino, ManualClock, Timestamp};

/// The program has begun.
const BEGUN: u64 = 1;
/// The program has returned.
const DONE: u64 = 2;

/// UUIDs of the old and of the new file system.
const OLD: [u8; 16] = *b"the old one.....";
const NEW: [u8; 16] = *b"the new one.....";

const FILES: &str = "create a 644\nwrite a 0 9000 1\nmkdir d 755\ncreate d/b 644\n\
                     create d/a-name-that-is-too-long-for-its-dentry-and-needs-lines 644\nsync\n";
const CHANGES: &str = "unlink a\ncreate c 644\nwrite c 0 100 2\nunlink d/b\n\
                       rename d/a-name-that-is-too-long-for-its-dentry-and-needs-lines e replace\n\
                       write e 0 100 3\n\
                       create d/another-name-that-is-too-long-for-its-dentry-and-needs-lines 644\n";

/// Names that are made after a kill. Some come after those of the server in their chain.
const LATER: [&str; 6] = ["f", "g", "h", "i", "j", "k"];

/// The programs, and their names in ids.
pub fn programs() -> Vec<Named> {
    let mut all = vec![Named::new("mkfs", Mkfs), Named::new("unmount", Unmount)];
    for (fence, repairs) in (1..=4).flat_map(|fence| [(fence, true), (fence, false)]) {
        let name = if repairs { "repair" } else { "mount" };
        all.push(Named::new(
            format!("{name}-{fence}"),
            AfterKill { fence, repairs },
        ));
    }
    let repairs = (1..=5).map(|fence| Named::new(format!("repairs-{fence}"), Repairs { fence }));
    all.extend(repairs);
    all
}

/// Opens the image. The file system is compiled for this type of memory only.
fn opened(pm: Memory, boot: Option<u128>) -> Result<SoupFs<Memory>, String> {
    let options = MountOptions {
        read_only: false,
        atime: Atime::Never,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000), 0)),
        bound_s: None,
        boot,
        ..MountOptions::default()
    };
    SoupFs::open(pm, options).map_err(|e| e.to_string())
}

fn made(pm: &Memory, uuid: [u8; 16]) -> Result<(), String> {
    let options = MkfsOptions {
        uuid,
        ..MkfsOptions::default()
    };
    mkfs(&**pm, &options).map_err(|e| e.to_string())
}

fn calls(fs: &dyn FileSystem, script: &str) -> Result<(), String> {
    let script: Script = script.parse().map_err(|e| format!("{e}"))?;
    let mut done = run(fs, &mut State::default(), &script).into_iter();
    done.try_for_each(|done| done.map_err(|e| e.to_string()))
}

/// An old file system with some files, unmounted.
fn with_files(pm: &Memory) -> Result<(), String> {
    made(pm, OLD)?;
    let fs = opened(Arc::clone(pm), Some(1))?;
    calls(&fs, FILES)?;
    fs.close().map_err(|e| e.to_string())
}

/// A crash state before and after the mount.
struct Seen {
    /// Its UUID, and its files; `None`: there is no file system.
    found: Option<([u8; 16], SoupFs<Memory>)>,
    /// Whether it is marked as unmounted, and as clean.
    is_unmounted: bool,
    is_clean: bool,
    /// The first finding of the checker.
    finding: Option<(Severity, String)>,
}

impl Seen {
    fn of(pm: Memory) -> Result<Self, String> {
        let info = match probe(&*pm) {
            Err(Error::NotSoupFs) => {
                return Ok(Self {
                    found: None,
                    is_unmounted: false,
                    is_clean: false,
                    finding: None,
                });
            }
            info => info.map_err(|e| e.to_string())?,
        };
        let report = check(&*pm);
        let worst = report.findings.iter().max_by_key(|f| f.severity);
        Ok(Self {
            is_unmounted: info.is_unmounted,
            is_clean: info.is_clean,
            finding: worst.map(|f| (f.severity, f.to_string())),
            found: Some((info.uuid, opened(pm, Some(1 << 64))?)),
        })
    }

    /// I2 and I3, and that there is no damage.
    fn is_marked_if_done(&self, marks: &[u64], leaves_nothing: bool) -> Result<u64, String> {
        let (_, fs) = self.found.as_ref().ok_or("there is no file system")?;
        if let Some((severity, what)) = &self.finding
            && (self.is_clean || *severity > Severity::Leak)
        {
            let clean = if self.is_clean { "is" } else { "is not" };
            return Err(format!("{what}, and it {clean} marked as clean"));
        }
        let is_marked = self.is_clean || (self.is_unmounted && !leaves_nothing);
        match marks.contains(&DONE) && !is_marked {
            true => Err("it is not marked as unmounted".into()),
            false => Ok(tree(fs)?.hash() as u64),
        }
    }

    /// Uses the file system.
    fn go_on(self) -> Result<(), String> {
        let Some((_, fs)) = self.found else {
            return Ok(());
        };
        calls(&fs, "create new 644\nwrite new 0 9000 3\nsync\n")
    }
}

fn tree(fs: &SoupFs<Memory>) -> Result<Snapshot, String> {
    Snapshot::take(fs).map_err(|e| format!("cannot be read: {e}"))
}

/// Makes a file system where another was.
struct Mkfs;

impl Program for Mkfs {
    type Opened = Seen;

    fn bytes(&self) -> u64 {
        MIN_PAGES * PAGE
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        with_files(&pm)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        mark(BEGUN);
        made(&pm, NEW)?;
        mark(DONE);
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Seen, String> {
        Seen::of(pm)
    }

    fn check(&self, seen: &mut Seen, marks: &[u64]) -> Result<u64, String> {
        let (uuid, fs) = match &seen.found {
            None if marks == [BEGUN] => return Ok(0),
            None => return Err("there is no file system".into()),
            Some(found) => (found.0, &found.1),
        };
        if let Some((_, what)) = &seen.finding {
            return Err(what.clone());
        }
        let names = tree(fs)?.iter().count();
        match (uuid, names) {
            (OLD, 5) if !marks.contains(&DONE) => Ok(1),
            (NEW, 1) if marks.contains(&BEGUN) && seen.is_clean => Ok(2),
            _ => Err(format!("after {marks:?}: {names} names, UUID {uuid:?}")),
        }
    }

    fn go_on(&self, seen: Seen) -> Result<(), String> {
        seen.go_on()
    }
}

/// Changes some files, and unmounts while one that is removed is open.
struct Unmount;

impl Program for Unmount {
    type Opened = Seen;

    fn bytes(&self) -> u64 {
        MIN_PAGES * PAGE
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        with_files(&pm)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let fs = opened(pm, Some(2))?;
        calls(&fs, &format!("open 0 a\n{CHANGES}"))?;
        mark(BEGUN);
        fs.close().map_err(|e| e.to_string())?;
        mark(DONE);
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Seen, String> {
        Seen::of(pm)
    }

    fn check(&self, seen: &mut Seen, marks: &[u64]) -> Result<u64, String> {
        let outcome = seen.is_marked_if_done(marks, true)?;
        let (_, fs) = seen.found.as_ref().ok_or("there is no file system")?;
        let has = |name: &[u8]| fs.lookup(&Ctx::root(), Ino::ROOT, name).is_ok();
        match marks.contains(&DONE) && (has(b"a") || !has(b"c")) {
            true => Err("changes before the unmount are lost".into()),
            false => Ok(outcome),
        }
    }

    fn go_on(&self, seen: Seen) -> Result<(), String> {
        seen.go_on()
    }
}

/// The server of an image without a known boot is killed. Then the image is repaired, or mounted and
/// changed.
struct AfterKill {
    /// The number of the fence before which it is killed, counted from the end of its mount.
    fence: u32,
    repairs: bool,
}

impl Program for AfterKill {
    type Opened = Seen;

    fn bytes(&self) -> u64 {
        MIN_PAGES * PAGE
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        with_files(&pm)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mortal = Mortal {
            pm: Arc::clone(&pm),
            // The mount has one.
            left: AtomicU32::new(self.fence + 1),
        };
        // A later fence covers no flush of the server: it is another thread.
        let server = thread::spawn(move || {
            calls(
                &opened(Arc::new(mortal), None)?,
                &format!("{CHANGES}sync\n"),
            )
        });
        let lived = server.join().map_err(|_| "the server panicked")?;
        if lived.is_ok() {
            return Err("the server was not killed".into());
        }
        mark(BEGUN);
        if self.repairs {
            repair(&*pm, None).map_err(|e| e.to_string())?;
        } else {
            let fs = opened(pm, Some(2))?;
            let mut later = LATER.iter();
            later.try_for_each(|name| calls(&fs, &format!("create {name} 644\n")))?;
            fs.close().map_err(|e| e.to_string())?;
        }
        mark(DONE);
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Seen, String> {
        Seen::of(pm)
    }

    fn check(&self, seen: &mut Seen, marks: &[u64]) -> Result<u64, String> {
        let outcome = seen.is_marked_if_done(marks, self.repairs)?;
        let (_, fs) = seen.found.as_ref().ok_or("there is no file system")?;
        let has = |name: &&str| fs.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes()).is_ok();
        match marks.contains(&DONE) && !self.repairs && !LATER.iter().all(has) {
            true => Err("changes after the kill are lost".into()),
            false => Ok(outcome),
        }
    }

    fn go_on(&self, seen: Seen) -> Result<(), String> {
        seen.go_on()
    }
}

/// A power failure leaves blocks past the end of a file. A repair is killed, and another one follows.
struct Repairs {
    /// The number of the fence before which the first one is killed.
    fence: u32,
}

impl Program for Repairs {
    type Opened = Seen;

    fn bytes(&self) -> u64 {
        MIN_PAGES * PAGE
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        with_files(&pm)?;
        let mortal = Mortal {
            pm: Arc::clone(&pm),
            // The third one is after the cut size, and before the pointers.
            left: AtomicU32::new(3),
        };
        let _failed = calls(
            &opened(Arc::new(mortal), Some(1))?,
            "truncate a 100\nsync\n",
        );
        Ok(())
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mortal = Mortal {
            pm: Arc::clone(&pm),
            left: AtomicU32::new(self.fence),
        };
        // A later fence covers no flush of the first repair: it is another thread.
        // It returns an error. With a seeded bug the image may be damaged, so that it changes nothing.
        let first = thread::spawn(move || drop(repair(&mortal, Some(2))));
        first.join().map_err(|_| "the repair panicked")?;
        mark(BEGUN);
        repair(&*pm, Some(2)).map_err(|e| e.to_string())?;
        mark(DONE);
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Seen, String> {
        Seen::of(pm)
    }

    fn check(&self, seen: &mut Seen, marks: &[u64]) -> Result<u64, String> {
        seen.is_marked_if_done(marks, true)
    }

    fn go_on(&self, seen: Seen) -> Result<(), String> {
        seen.go_on()
    }
}

/// Memory of a server that ends at a fence.
struct Mortal {
    pm: Memory,
    /// Fences that are left, with that of the end.
    left: AtomicU32,
}

impl Mortal {
    fn is_alive(&self) -> bool {
        self.left.load(Relaxed) > 0
    }
}

impl PmemLayer for Mortal {
    type Below = Memory;

    fn below(&self) -> &Memory {
        &self.pm
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        if self.is_alive() {
            self.pm.store(off, bytes);
        }
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        if self.is_alive() {
            self.pm.store_nt(off, bytes);
        }
    }

    fn flush(&self, off: u64, len: u64) {
        if self.is_alive() {
            self.pm.flush(off, len);
        }
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        let left = self.left.load(Relaxed).saturating_sub(1);
        self.left.store(left, Relaxed);
        match left {
            0 => Err(MediumError::PowerCut),
            _ => self.pm.fence(rule),
        }
    }
}
