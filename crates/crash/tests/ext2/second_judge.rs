//! e2fsck judges a part of the states, and must say what our checker says.

use super::{run, singles};
use crash::Options;
use ext2::Ext2System;
use ext2::fsck::{Verdict, judge};
use medium::block::{BlockDevice, Lba};
use patch::stack::Mode;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::check::Report;
use vfs::{CachedSystem, Clock, FileSystem, Still, System};

/// ext2, of which every so many checks are made twice.
struct Judged {
    system: Ext2System,
    every: u64,
    most: u64,
    seen: AtomicU64,
    judged: AtomicU64,
    corrupt: AtomicU64,
    file: PathBuf,
}

impl Judged {
    fn new(mode: Mode, every: u64, most: u64) -> Self {
        let dir = if std::path::Path::new("/dev/shm").is_dir() {
            PathBuf::from("/dev/shm")
        } else {
            std::env::temp_dir()
        };
        Self {
            system: Ext2System { mode },
            every,
            most,
            seen: AtomicU64::new(0),
            judged: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            file: dir.join(format!("selvedge-{}-{mode}", std::process::id())),
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
            panic!(
                "e2fsck says {:?} ({worst}), we say {ours:?} ({})",
                theirs.verdict,
                first.unwrap_or_default()
            );
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
    fn check(&self, device: &(dyn BlockDevice + 'static)) -> Report {
        let report = self.system.check(device);
        let turn = self.seen.fetch_add(1, Relaxed).is_multiple_of(self.every);
        if turn && self.judged.load(Relaxed) < self.most {
            self.second(device, &report).expect("e2fsck runs");
        }
        report
    }
}

impl CachedSystem<dyn BlockDevice> for Judged {
    fn block_bytes(&self) -> u32 {
        self.system.block_bytes()
    }
    fn atomic_bytes(&self) -> u32 {
        self.system.atomic_bytes()
    }
    fn open_still(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<Still, String> {
        self.system.open_still(device, clock, wave)
    }
}

fn has_e2fsck() -> bool {
    std::process::Command::new("e2fsck")
        .arg("-V")
        .output()
        .is_ok()
}

/// States of soft updates, and of no order at all, where both must see the damage.
#[test]
fn e2fsck_agrees() {
    if !has_e2fsck() {
        eprintln!("skipped: there is no e2fsck here");
        return;
    }
    let one_thread = Options {
        threads: 1,
        max_failures: usize::MAX,
        ..singles()
    };
    let soft = Judged::new(Mode::SoftUpdates, 16, 1600);
    let outcome = run(&soft, &one_thread);
    assert_eq!(outcome.violations, 0);
    let none = Judged::new(Mode::Async, 1, 600);
    let _found = run(&none, &one_thread);
    let judged = soft.judged.load(Relaxed) + none.judged.load(Relaxed);
    println!(
        "{judged} states judged twice, {} corrupt",
        none.corrupt.load(Relaxed)
    );
    assert!(judged >= 2000, "only {judged} states were judged twice");
    assert!(none.corrupt.load(Relaxed) > 0);
}
