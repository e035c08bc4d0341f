//! e2fsck judges a part of the states, and must agree with our checker.

use super::{MORE_SCHEDULES, run, singles};
use crash::Options;
use ext2::Ext2System;
use ext2::fsck::{Verdict, judge};
use medium::block::{BlockDevice, Lba};
use patch::stack::Mode;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use vfs::check::Report;
use vfs::{BlockSystem, Clock, FileSystem, Still, System};

/// ext2 with a second check by e2fsck after each `every` checks, at most `most` times.
struct Judged {
    system: Ext2System,
    every: u64,
    most: u64,
    seen: AtomicU64,
    judged: AtomicU64,
    corrupt: AtomicU64,
    file: PathBuf,
    disagreements: Mutex<Vec<String>>,
}

impl Judged {
    fn new(mode: Mode, every: u64, most: u64) -> Self {
        let dir = if std::path::Path::new("/dev/shm").is_dir() {
            PathBuf::from("/dev/shm")
        } else {
            std::env::temp_dir()
        };
        Self {
            system: Ext2System::with_usual_journal(mode),
            every,
            most,
            seen: AtomicU64::new(0),
            judged: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            file: dir.join(format!("selvedge-{}-{mode}", std::process::id())),
            disagreements: Mutex::default(),
        }
    }

    fn second(&self, device: &dyn BlockDevice, report: &Report) -> std::io::Result<()> {
        let mut bytes = vec![0; device.geometry().bytes() as usize];
        device
            .read(Lba(0), &mut bytes)
            .map_err(std::io::Error::other)?;
        std::fs::write(&self.file, &bytes)?;
        let theirs = judge(&self.file)?;
        let ours = Verdict::of(report);
        self.judged.fetch_add(1, Relaxed);
        self.corrupt
            .fetch_add(u64::from(ours == Verdict::Corrupt), Relaxed);
        if (ours == Verdict::Corrupt) != (theirs.verdict == Verdict::Corrupt) {
            let worst = theirs.worst.unwrap_or_default();
            let first = report.findings.first().map(ToString::to_string);
            let wrong = format!(
                "e2fsck says {:?} ({worst}), we say {ours:?} ({})",
                theirs.verdict,
                first.unwrap_or_default()
            );
            self.disagreements.lock().expect("not poisoned").push(wrong);
        }
        Ok(())
    }
}

impl Drop for Judged {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file); // it may never have been made
    }
}

impl System<dyn BlockDevice> for Judged {
    fn id(&self) -> String {
        self.system.id()
    }
    fn image_bytes(&self) -> u64 {
        self.system.image_bytes()
    }
    fn format(&self, device: &(dyn BlockDevice + 'static)) -> Result<(), String> {
        self.system.format(device)
    }
    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        self.system.open(device, clock)
    }
    fn has_cache(&self) -> bool {
        self.system.has_cache()
    }
    fn open_still(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<Still, String> {
        self.system.open_still(device, clock, wave)
    }
    fn check(&self, device: &(dyn BlockDevice + 'static)) -> Report {
        let turn = self.seen.fetch_add(1, Relaxed).is_multiple_of(self.every);
        if !turn || self.judged.load(Relaxed) >= self.most {
            return self.system.check(device);
        }
        match self.system.replayed(device) {
            Ok(image) => {
                let report = ext2::check(&*image);
                self.second(&*image, &report).expect("e2fsck runs");
                report
            }
            Err(_) => self.system.check(device),
        }
    }
}

impl BlockSystem<dyn BlockDevice> for Judged {
    fn block_bytes(&self) -> u32 {
        self.system.block_bytes()
    }
    fn atomic_bytes(&self) -> u32 {
        self.system.atomic_bytes()
    }
    fn scratch(&self, device: Arc<dyn BlockDevice>) -> Result<Vec<u64>, String> {
        self.system.scratch(device)
    }
}

fn has_e2fsck() -> bool {
    std::process::Command::new("e2fsck")
        .arg("-V")
        .output()
        .is_ok()
}

/// Judges states of `mode` twice; how many, and how many of them were corrupt.
fn judged(mode: Mode, scripts: Option<u64>, every: u64, most: u64) -> Option<(u64, u64)> {
    if !has_e2fsck() {
        skip::test("e2fsck is not installed");
        return None;
    }
    let system = Judged::new(mode, every, most);
    let options = Options {
        threads: 1,
        sample: scripts,
        schedules: MORE_SCHEDULES.to_vec(),
        max_failures: usize::MAX,
        shrunk: 0,
        states_per_point: 64,
        samples: 16,
        ..singles()
    };
    let outcome = run(&system, &options);
    assert!(mode == Mode::Async || outcome.violations == 0);
    let wrong = std::mem::take(&mut *system.disagreements.lock().expect("not poisoned"));
    assert_eq!(wrong.first(), None, "{} disagreements", wrong.len());
    let (judged, corrupt) = (system.judged.load(Relaxed), system.corrupt.load(Relaxed));
    println!("{mode}: {judged} states judged twice, {corrupt} corrupt");
    Some((judged, corrupt))
}

/// At least 2000 states in all: of soft updates, of a journal after its replay, and without any
/// order, where both judges must report damage.
#[test]
fn e2fsck_agrees() {
    let modes = [
        (Mode::SoftUpdates, None, 16, 1000),
        (Mode::Journal, Some(12), 2, 1000),
        (Mode::Async, None, 1, 600),
    ];
    let each: Vec<(u64, u64)> = modes
        .into_iter()
        .filter_map(|(mode, scripts, every, most)| judged(mode, scripts, every, most))
        .collect();
    if let [(soft, _), (journal, _), (none, corrupt)] = each[..] {
        assert!(soft + journal + none >= 2000, "too few were judged twice");
        assert!(soft >= 500 && journal >= 500, "of some modes too few");
        assert!(corrupt > 0);
    }
}
