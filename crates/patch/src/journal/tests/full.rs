//! Mode `Full`: after any crash the home blocks are the result of a prefix of the operations,
//! which includes all synced ones.

use super::device::Event;
use super::*;
use crate::seeded::{self, Bug};
use crate::{Change, Content, PatchId, Store};

const HOME_BYTES: usize = HOME as usize * BLOCK;

/// One operation on the journal and on the model.
fn step(bench: &Bench, model: &mut [u8], rng: &mut fastrand::Rng) -> Vec<PatchId> {
    let journal = &bench.journal;
    let changes = rng.usize(1..5);
    let op = journal
        .begin(changes as u32, crate::Caller::SYSTEM)
        .unwrap();
    let mut patches = Vec::new();
    for _ in 0..changes {
        // Some blocks are changed often.
        let lba = if rng.bool() {
            rng.u64(..3)
        } else {
            rng.u64(..HOME)
        };
        let start = lba as usize * BLOCK;
        let mut bytes = vec![0; BLOCK];
        rng.fill(&mut bytes);
        let change = match rng.u8(..4) {
            0 => {
                if rng.bool() {
                    bytes[..4].copy_from_slice(&super::super::format::MAGIC.to_be_bytes());
                }
                model[start..start + BLOCK].copy_from_slice(&bytes);
                Change::Bytes {
                    at: 0,
                    bytes: &bytes,
                }
            }
            1 => {
                let (at, mask) = (rng.u32(..256) * 4, rng.u32(1..));
                for (i, byte) in mask.to_le_bytes().iter().enumerate() {
                    model[start + at as usize + i] ^= byte;
                }
                Change::Flip { at, mask }
            }
            _ => {
                let at = rng.usize(..BLOCK - 16);
                let bytes = &bytes[..rng.usize(1..16)];
                model[start + at..start + at + bytes.len()].copy_from_slice(bytes);
                Change::Bytes {
                    at: at as u32,
                    bytes,
                }
            }
        };
        let content = [Content::Data, Content::Metadata][rng.usize(..2)];
        let patched = journal.change(&op, Lba(lba), content, change, &[]).unwrap();
        patches.push(patched.id);
    }
    journal.end(op);
    patches
}

/// Runs random operations, crashes in random states, and compares. Returns the difference.
fn run(seed: u64, log_blocks: u64, below: Below) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let bench = open_on(
        formatted(log_blocks),
        log_blocks,
        Mode::Full,
        (below, DIRTY_LIMIT),
    );
    let mut model = vec![0; HOME_BYTES];
    let mut prefixes = vec![model.clone()];
    for n in 1..=120 {
        bench.device.note(Event::Began(n));
        let patches = step(&bench, &mut model, &mut rng);
        prefixes.push(model.clone());
        bench.cache.verify()?;
        match rng.u8(..24) {
            0 => bench.journal.sync_all().unwrap(),
            1 => {
                let id = patches[rng.usize(..patches.len())];
                bench.journal.sync(&[id]).unwrap();
            }
            2 => bench.journal.checkpoint().unwrap(),
            3..6 => {
                bench.journal.commit().unwrap();
                continue;
            }
            6 => {
                bench.reclaim();
                continue;
            }
            7..16 => {
                bench.cache.write_some().unwrap();
                continue;
            }
            _ => continue,
        }
        bench.device.note(Event::Synced(n));
        bench.cache.verify()?;
    }
    bench.cache.verify()?;
    assert!(bench.journal.stats().commits > 10);
    let events = bench.device.events.lock().len();
    for _ in 0..60 {
        let until = rng.usize(..=events);
        let in_log = |lba| lba >= HOME;
        let crash = bench.device.crash(until, &mut rng, in_log);
        let prefixes = &prefixes[crash.synced..=crash.began];
        check(crash.bytes, prefixes, log_blocks, &mut rng)
            .map_err(|e| format!("seed {seed}, event {until}: {e}"))?;
    }
    Ok(())
}

/// Replays a crash state, and again after a crash during the replay.
fn check(
    bytes: Vec<u8>,
    prefixes: &[Vec<u8>],
    log_blocks: u64,
    rng: &mut fastrand::Rng,
) -> Result<(), String> {
    let device = Recorder::new(bytes);
    let place = place(log_blocks);
    super::super::replay(&device, &device, &place).map_err(|e| e.to_string())?;
    let home = device.bytes()[..HOME_BYTES].to_vec();
    if !prefixes.contains(&home) {
        return Err("the home blocks are not the result of a prefix of the operations".into());
    }
    let events = device.events.lock().len();
    let crash = device.crash(rng.usize(..=events), rng, |lba| lba >= HOME);
    let again = replayed(crash.bytes, log_blocks).map_err(|e| e.to_string())?;
    if again[..HOME_BYTES] != home {
        return Err("a crash within the replay changed the outcome".into());
    }
    Ok(())
}

#[test]
fn any_crash_leaves_a_prefix_of_the_operations() {
    for seed in 0..40 {
        run(seed, 24 + seed % 40, Below::DeviceStore).unwrap();
    }
}

#[test]
fn a_journal_stands_on_any_store() {
    for seed in 0..20 {
        run(seed, 24 + seed % 40, Below::Layers).unwrap();
    }
}

#[test]
fn seeded_bugs_are_found() {
    for bug in [
        Bug::CommitWithoutBody,
        Bug::ReplayUncommitted,
        Bug::TailBeforeHome,
    ] {
        seeded::arm(Some(bug));
        let caught = (0..40).any(|seed| run(seed, 24 + seed % 40, Below::DeviceStore).is_err());
        assert!(seeded::fired() > 0 && caught, "{bug:?}");
        seeded::arm(None);
    }
}
