//! The checker of durable memory. It tests the invariants of `format.md`, M1 to M16, and of
//! [`paging`], P5. It also reports a crash of the machine before all was durable (`boot`).
//!
//! # Guarantees
//!
//! 1. Nothing on the medium changes. Logs are replayed on an overlay.
//! 2. Each finding names the invariant, the file, the structure, its offset, and the way out. The
//!    check continues after a finding wherever it can.
//! 3. Time and memory are bounded by the bytes of the files, whatever their contents: each record,
//!    slot and descriptor is read at most a few times. Heads after the end of a log that only look
//!    like those of records are read as well, at most as many bytes as four logs.
//! 4. Everything that [`DurableMemory::open`](super::DurableMemory::open) rejects has a finding. So
//!    has a directory that was open with durability `process` when the machine went down.

use super::boot::BootNote;
use super::files::SystemFiles;
use super::inspection::ReadOnly;
use super::names::{BOOT_NOTE, FRAMES, SYSTEM, file_name};
use super::repair::would_give_up;
use super::roots::{Targets, bad_roots};
use super::system::{FOREIGN, OVERLAP, State, System, overlap};
use super::{Backing, BackingError, DirectoryOptions, MemoryError, Region, RegionKind, heap_of};
use crate::heap::Segment;
use crate::statics::{Table, TableError};
use crate::tx::{Area, AreaError, Reading, Unrecovered};
use medium::{Pmem, WORD_BYTES};
use paging::{FramesError, PoolError};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use wordlog::LogError;

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The invariant, numbered as in `format.md`, or in [`paging`]. `boot`: the note of the boot is
    /// of an earlier boot of the machine.
    pub invariant: &'static str,
    /// The name of the file in its directory.
    pub file: String,
    /// The structure in it.
    pub structure: String,
    /// The offset of the structure from the start of the file, in bytes.
    pub offset: u64,
    /// The violation.
    pub what: String,
    /// The remedy.
    pub way_out: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            invariant,
            file,
            structure,
            offset,
            what,
            way_out,
        } = self;
        write!(
            f,
            "{invariant}: {file} at {offset:#x}, {structure}: {what}; {way_out}"
        )
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// All violations, or the first [`MAX_FINDINGS`](Self::MAX_FINDINGS).
    pub findings: Vec<Finding>,
    /// Whether there were more violations, which are not listed.
    pub is_truncated: bool,
    /// Whether structures were not checked because they depend on a damaged one.
    pub is_partial: bool,
}

impl Report {
    /// The maximum number of findings.
    pub const MAX_FINDINGS: usize = 1000;

    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Remedies of findings. `tests/hostile/ways_out.rs` tests the property that each promises.
mod way {
    pub(super) const COPY: &str = "restore the directory from a copy";
    pub(super) const REPAIR: &str =
        "see what `selvedge heap repair` would give up, or restore the directory from a copy";
    pub(super) const VERSION: &str =
        "open it with the version of selvedge that made it, or restore the directory from a copy";
    pub(super) const ADDRESSES: &str = "open it with more addresses (SELVEDGE_BYTES), or restore \
         the directory from a copy";
    pub(super) const FILE: &str =
        "put the file back as it was, or restore the directory from a copy";
    pub(super) const STRAY: &str = "move the file away if no program needs it";
    pub(super) const POOL: &str = "restore the directory and its pool from a copy";
    pub(super) const STATICS: &str =
        "begin anew with SELVEDGE_STATICS=discard, or restore the directory from a copy";
    pub(super) const CRASH: &str = "accept the loss with `selvedge heap repair --accept-loss` or \
         SELVEDGE_ACCEPT_LOSS=1, or restore the directory from a copy";
    pub(super) const LOG: &str =
        "have its program make the log anew, or restore the directory from a copy";
    pub(super) const RECORD: &str =
        "read the log with what wrote it, or have its program make it anew";
}

/// Checks the directory at `path`, which no program may have open.
///
/// # Errors
/// [`MemoryError`] if there is none, or it cannot be read.
pub fn check(path: impl AsRef<Path>) -> Result<Report, MemoryError> {
    check_within(path, DirectoryOptions::default().bytes)
}

/// As [`check`], with that many bytes of addresses.
///
/// # Errors
/// [`MemoryError`].
pub fn check_within(path: impl AsRef<Path>, bytes: u64) -> Result<Report, MemoryError> {
    let path = path.as_ref();
    let backing = ReadOnly::open(path, bytes)?;
    let files = backing.directory.files()?;
    let mut report = check_regions(&backing, &files);
    let has_crashed = BootNote::is_of_crash(&SystemFiles, backing.directory.path())?;
    drop(backing);
    report.findings.extend(has_crashed.then(crash));
    let repairs = |finding: &&mut Finding| finding.way_out == way::REPAIR;
    let mut repairable = report.findings.iter_mut().filter(repairs).peekable();
    // A repair is rejected if other damage is beyond it.
    if repairable.peek().is_some() && would_give_up(path, bytes).is_err() {
        repairable.for_each(|finding| finding.way_out = way::COPY);
    }
    Ok(report)
}

/// The finding for a directory whose boot note is of an earlier boot.
fn crash() -> Finding {
    Finding {
        invariant: "boot",
        file: BOOT_NOTE.to_owned(),
        structure: "note of the boot".to_owned(),
        offset: 0,
        what: "the machine went down while the directory was in use with durability 'process': \
               the last stores may be missing or incomplete, and programs cannot open it"
            .to_owned(),
        way_out: way::CRASH,
    }
}

/// Checks the regions of `backing`, which has mapped the system region. `files` are the slots that
/// have files. The logs are replayed on this memory: an [`Overlay`](medium::Overlay) keeps the
/// medium unchanged. Each way out is that of the finding alone: other findings may prevent a
/// repair.
pub fn check_regions<B: Backing>(backing: &B, files: &[u64]) -> Report {
    let mut checker = Checker {
        backing,
        report: Report::default(),
    };
    if checker.run(files).is_none() {
        checker.report.is_partial = true;
    }
    checker.report
}

fn file_of(region: &Region) -> String {
    file_name(region.slot)
}

/// Names a record of the log of that many bytes at `start` in a file, and its offset.
fn record(start: u64, bytes: u64, position: u64) -> (String, u64) {
    let structure = format!("record {position} of the log at {start:#x}");
    (structure, start + wordlog::byte_of(bytes, position))
}

struct Checker<'a, B> {
    backing: &'a B,
    report: Report,
}

impl<B: Backing> Checker<'_, B> {
    fn bad(
        &mut self,
        (invariant, way_out): (&'static str, &'static str),
        file: impl Into<String>,
        (structure, offset): (impl Into<String>, u64),
        what: impl fmt::Display,
    ) {
        if self.report.findings.len() == Report::MAX_FINDINGS {
            self.report.is_truncated = true;
            return;
        }
        self.report.findings.push(Finding {
            invariant,
            file: file.into(),
            structure: structure.into(),
            offset,
            what: what.to_string(),
            way_out,
        });
    }

    /// Checks everything. `None`: a structure on which the rest depends is damaged.
    fn run(&mut self, files: &[u64]) -> Option<()> {
        let system = self.system()?;
        let mut unrecovered = self.logs(&system)?;
        unrecovered.replay(|off| off < system.bytes);
        let there = self.table(&system, files);
        let heap = heap_of(there.iter());
        if let Err(error) = unrecovered.read_overflows(&heap, system.table(), None) {
            self.bad_in_area(error, system.area(), unrecovered.area.log_bytes);
            return None;
        }
        unrecovered
            .replay(|off| off < system.bytes || there.iter().any(|region| region.has_byte(off)));
        self.roots(&system, &there);
        for region in &there {
            match region.kind {
                RegionKind::Heap => self.segment(region),
                RegionKind::Static => self.statics(region),
                RegionKind::Program => self.program_log(region),
            }
        }
        Some(())
    }

    /// M1: the first line.
    fn system(&mut self) -> Option<System> {
        let pm = self.backing.pmem();
        let at = ("system region", 0);
        let system = match System::open(pm) {
            Ok(system) => system,
            Err(MemoryError::NotDurableMemory { what: FOREIGN }) => {
                self.bad(("M1", way::VERSION), SYSTEM, at, FOREIGN);
                return None;
            }
            Err(error) => {
                self.bad(("M1", way::COPY), SYSTEM, at, error);
                return None;
            }
        };
        if let Err(error) = pm.load(system.bytes - WORD_BYTES) {
            let what = format!("its {} bytes are not all there: {error}", system.bytes);
            self.bad(("M1", way::COPY), SYSTEM, at, what);
            return None;
        }
        Some(system)
    }

    // --- logs -----------------------------------------------------------------------

    /// M7 to M11: the logs of transactions.
    fn logs(&mut self, system: &System) -> Option<Unrecovered<B::Pmem>> {
        let pm = self.backing.pmem();
        let area = ("logs of transactions", system.area());
        let mut reading = match Reading::begin(pm, system.area(), system.bytes) {
            Ok(reading) => reading,
            Err(AreaError::NotAnArea { what, .. }) => {
                self.bad(("M7", way::COPY), SYSTEM, area, what);
                return None;
            }
            Err(error) => {
                self.bad_in_area(error, system.area(), 0);
                return None;
            }
        };
        let Area {
            logs, log_bytes, ..
        } = reading.area;
        for number in 0..logs {
            if let Err(error) = reading.read(pm, number) {
                self.bad_in_area(error, reading.area.log_start(number), log_bytes);
            }
        }
        if !self.report.is_clean() {
            return None;
        }
        match reading.finish(pm.clone()) {
            Ok(unrecovered) => Some(unrecovered),
            Err(error) => {
                self.bad_in_area(error, system.area(), log_bytes);
                None
            }
        }
    }

    /// Reports damage of the log at `start`, of that many bytes.
    fn bad_in_area(&mut self, error: AreaError, start: u64, bytes: u64) {
        match error {
            AreaError::NotAnArea { what, .. } => {
                self.bad(
                    ("M7", way::COPY),
                    SYSTEM,
                    ("logs of transactions", start),
                    what,
                );
            }
            AreaError::Unlike { .. } => {
                let what = "it is not like the first one";
                self.bad(("M8", way::COPY), SYSTEM, ("log", start), what);
            }
            AreaError::Record {
                start,
                position,
                what,
            } => {
                let at = record(start, bytes, position);
                self.bad(("M11", way::REPAIR), SYSTEM, at, format!("it {what}"));
            }
            AreaError::Log(error) => {
                let ways = [way::REPAIR, way::COPY];
                self.bad_log(SYSTEM, error, (start, bytes), ways);
            }
        }
    }

    /// Reports damage of the log of that many bytes at `start` in the file. There are two ways out:
    /// one for a damaged record, one for anything else.
    fn bad_log(
        &mut self,
        file: &str,
        error: LogError,
        (start, bytes): (u64, u64),
        [of_record, otherwise]: [&'static str; 2],
    ) {
        match error {
            LogError::NotALog { what, .. } => {
                self.bad(("M9", otherwise), file, ("log", start), what);
            }
            LogError::Damaged { position, .. } => {
                let what = "it has changed since it was durable";
                let at = record(start, bytes, position);
                self.bad(("M10", of_record), file, at, what);
            }
            error => self.bad(("M9", otherwise), file, ("log", start), error),
        }
    }

    // --- tables ---------------------------------------------------------------------

    /// M2 to M5, P5: the region table, the files and the pool. Returns the regions that were
    /// mapped.
    fn table(&mut self, system: &System, files: &[u64]) -> Vec<Region> {
        let pm = self.backing.pmem();
        let files: HashSet<u64> = files.iter().copied().collect();
        let (mut regions, mut owners) = (Vec::new(), HashSet::new());
        let before = self.report.findings.len();
        for slot in 0..system.slots {
            let at = (
                format!("slot {slot} of the region table"),
                system.slot(slot),
            );
            match system.region(pm, slot) {
                Ok(None) => continue,
                Ok(Some(region)) => regions.push(region),
                Err(MemoryError::Slot { what, .. }) => {
                    self.bad(("M2", way::COPY), SYSTEM, at, what);
                }
                Err(error @ MemoryError::Beyond { .. }) => {
                    self.bad(("M2", way::ADDRESSES), SYSTEM, at, error);
                }
                Err(error) => self.bad(("M2", way::COPY), SYSTEM, at, error),
            }
            owners.insert(slot);
        }
        // A page may belong to a slot that cannot be read.
        if self.report.findings.len() == before {
            self.pages(&regions);
        }
        let mut lonely: Vec<_> = files.difference(&owners).collect();
        lonely.sort_unstable();
        for slot in lonely {
            let what = "the region table has nothing for this slot";
            self.bad(("M5", way::STRAY), file_name(*slot), ("the file", 0), what);
        }
        if let Some((first, second)) = overlap(&regions) {
            let slot = second.slot;
            let at = (
                format!("slot {slot} of the region table"),
                system.slot(slot),
            );
            let what = format!("{OVERLAP}, that of slot {}", first.slot);
            self.bad(("M3", way::COPY), SYSTEM, at, what);
            return Vec::new();
        }
        regions.retain(|(state, _)| *state == State::There);
        let mut there: Vec<_> = regions.into_iter().map(|(_, region)| region).collect();
        there.retain(|region| self.can_map(region));
        there
    }

    /// P5: the pages of the pool belong to these regions.
    fn pages(&mut self, regions: &[(State, Region)]) {
        let all: Vec<_> = regions.iter().map(|(_, region)| *region).collect();
        let Err(error) = self.backing.no_others(&all) else {
            return;
        };
        let at = match error {
            BackingError::Pool(PoolError::Frames {
                why: FramesError::Entry { at, .. },
                ..
            }) => at,
            _ => 0,
        };
        self.bad(("P5", way::POOL), FRAMES, ("frame table", at), error);
    }

    /// M4: maps the bytes of a region. Returns false if they are unavailable.
    fn can_map(&mut self, region: &Region) -> bool {
        let why = match self.backing.open(region) {
            Ok(true) => return true,
            Ok(false) => format!("its {} bytes are missing or too few", region.len),
            Err(error) => error.to_string(),
        };
        self.bad(("M4", way::FILE), file_of(region), ("the file", 0), why);
        false
    }

    /// M6, M16: the roots. Dangling roots are not looked for if the heap is damaged, which has its
    /// own findings.
    fn roots(&mut self, system: &System, regions: &[Region]) {
        let pm = self.backing.pmem();
        let targets = Targets::read(pm, regions).ok();
        let found = match bad_roots(pm, system, targets.as_ref()) {
            Ok(found) => found,
            Err(error) => {
                let at = ("roots", system.root(0));
                return self.bad(("M6", way::COPY), SYSTEM, at, error);
            }
        };
        for bad in found {
            let way = match bad.may_be_base() {
                true => way::COPY,
                false => way::REPAIR,
            };
            let name = match bad.is_name_whole {
                true => format!(", {}", bad.shown_name()),
                false => String::new(),
            };
            let at = (format!("root {}{name}", bad.root), system.root(bad.root));
            self.bad((bad.invariant, way), SYSTEM, at, bad.what);
        }
    }

    // --- regions --------------------------------------------------------------------

    /// M12, M13: a segment of the heap.
    fn segment(&mut self, region: &Region) {
        let pm = self.backing.pmem();
        let file = file_of(region);
        let segment = match Segment::open(pm, region.start, region.len) {
            Ok(Some(segment)) => segment,
            Ok(None) => {
                let what = "it is not a part of the heap, or has another length";
                return self.bad(("M12", way::COPY), file, ("segment", 0), what);
            }
            Err(error) => return self.bad(("M12", way::COPY), file, ("segment", 0), error),
        };
        let found = match segment.damage(pm) {
            Ok(found) => found,
            Err(error) => {
                return self.bad(("M13", way::COPY), file, ("descriptors", 0), error);
            }
        };
        for damage in found {
            let way = match damage.mend {
                Some(_) => way::REPAIR,
                None => way::COPY,
            };
            let at = ("descriptor", damage.descriptor - region.start);
            self.bad(("M13", way), &*file, at, damage.what);
        }
    }

    /// M14: persistent variables.
    fn statics(&mut self, region: &Region) {
        match Table::read(self.backing.pmem(), region) {
            Ok(_) => {}
            Err(TableError::Damaged(what)) => {
                let what = format!("it {what}");
                self.bad(
                    ("M14", way::STATICS),
                    file_of(region),
                    ("table of variables", 0),
                    what,
                );
            }
            Err(error) => self.bad(
                ("M14", way::STATICS),
                file_of(region),
                ("table of variables", 0),
                error,
            ),
        }
    }

    /// M9, M10, M15: the log of a program, if the region has one.
    fn program_log(&mut self, region: &Region) {
        let (pm, start) = (self.backing.pmem(), region.start);
        if !wordlog::is_at(pm, start) {
            return;
        }
        let file = file_of(region);
        let mut log = match wordlog::Unrecovered::open(pm.clone(), start) {
            Ok(log) if log.bytes() <= region.len => log,
            Ok(_) => return self.bad(("M9", way::LOG), file, ("log", 0), "it leaves its region"),
            Err(error) => return self.bad_log(&file, error, (0, region.len), [way::LOG; 2]),
        };
        let (mut words, mut position) = (Vec::new(), log.position());
        loop {
            match log.next(&mut words) {
                Ok(None) => return,
                Ok(Some(end)) => {
                    let is_whole = words.split_first().is_some_and(|(bytes, rest)| {
                        bytes.div_ceil(WORD_BYTES) == rest.len() as u64
                    });
                    if !is_whole {
                        let what = "its length is not that of its bytes";
                        self.bad(
                            ("M15", way::RECORD),
                            &*file,
                            record(0, log.bytes(), position),
                            what,
                        );
                    }
                    position = end;
                }
                Err(error) => return self.bad_log(&file, error, (0, log.bytes()), [way::LOG; 2]),
            }
        }
    }
}
