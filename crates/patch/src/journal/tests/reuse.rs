//! Modes `Ordered` and `Metadata`: blocks are freed and used again, as data and as metadata.
//! No crash state shows a block's contents from another use ("life") of it.

use super::device::{Crash, Event};
use super::*;
use crate::seeded::{self, Bug};
use crate::{Before, Change, Content, Op, PatchId, Store};
use medium::Rule;
use std::collections::HashMap;

/// Number of blocks with pointers. A pointer has 16 bytes: a life's number (0: none) and block.
const TABLE: u64 = 3;
const SLOTS: usize = 20;

#[derive(Clone)]
struct Life {
    kind: Content,
    lba: u64,
    born: usize,
    /// Contents by the operation that wrote them.
    values: Vec<(usize, u8)>,
    patch: PatchId,
}

struct World {
    bench: Bench,
    rng: fastrand::Rng,
    lives: HashMap<u64, Life>,
    /// The life of each slot.
    slots: [u64; SLOTS],
    free: Vec<u64>,
    next_life: u64,
    now: usize,
    last: Vec<PatchId>,
    /// Whether the last operation changed metadata.
    logged: bool,
    /// The life whose contents the last operation changed.
    touched: u64,
}

fn slot_place(slot: usize) -> (u64, u32) {
    (slot as u64 % TABLE, (slot as u64 / TABLE) as u32 * 16)
}

impl World {
    fn new(seed: u64, log_blocks: u64, mode: Mode) -> Self {
        Self {
            bench: open(formatted(log_blocks), log_blocks, mode),
            rng: fastrand::Rng::with_seed(seed),
            lives: HashMap::new(),
            slots: [0; SLOTS],
            free: (TABLE..TABLE + 14).collect(),
            next_life: 1,
            now: 0,
            last: Vec::new(),
            logged: false,
            touched: 0,
        }
    }

    fn fill(&self, op: &Op, lba: u64, kind: Content, value: u8, befores: &[Before]) -> PatchId {
        let bytes = [value; BLOCK];
        let change = Change::Bytes {
            at: 0,
            bytes: &bytes,
        };
        let patched = self
            .bench
            .journal
            .change(op, Lba(lba), kind, change, befores);
        patched.unwrap().id
    }

    fn point(&mut self, op: &Op, slot: usize, life: u64, befores: &[Before]) -> crate::Patched {
        let lba = self.lives.get(&life).map_or(0, |l| l.lba);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&life.to_le_bytes());
        bytes[8..].copy_from_slice(&lba.to_le_bytes());
        let (block, at) = slot_place(slot);
        let change = Change::Bytes { at, bytes: &bytes };
        self.slots[slot] = life;
        self.logged = true;
        let journal = &self.bench.journal;
        let patched = journal.change(op, Lba(block), Content::Metadata, change, befores);
        let patched = patched.unwrap();
        self.last.push(patched.id);
        patched
    }

    /// Makes, overwrites or removes the life of a slot.
    fn step(&mut self) {
        self.now += 1;
        self.bench.device.note(Event::Began(self.now));
        let slot = self.rng.usize(..SLOTS);
        let op = self.bench.journal.begin(4, crate::Caller::SYSTEM).unwrap();
        let value = self.rng.u8(1..);
        self.last.clear();
        self.logged = false;
        self.touched = 0;
        match self.slots[slot] {
            0 => self.make(&op, slot, value),
            life if self.rng.bool() => self.remove(&op, slot, life),
            life => self.overwrite(&op, life, value),
        }
        self.bench.journal.end(op);
        self.bench.cache.verify().unwrap();
    }

    fn make(&mut self, op: &Op, slot: usize, value: u8) {
        // Usually the block freed last: the worst choice of an allocator.
        let Some(lba) = self.free.pop() else {
            return;
        };
        let kind = [Content::Data, Content::Metadata][self.rng.usize(..2)];
        let patch = self.fill(op, lba, kind, value, &[]);
        self.last.push(patch);
        let life = self.next_life;
        self.next_life += 1;
        let values = vec![(self.now, value)];
        let born = self.now;
        self.lives.insert(
            life,
            Life {
                kind,
                lba,
                born,
                values,
                patch,
            },
        );
        let init = Before {
            patch,
            rule: Rule::InitialiseBeforePoint,
        };
        let pointed = self.point(op, slot, life, &[init]);
        self.lives.get_mut(&life).unwrap().patch = pointed.id;
    }

    fn overwrite(&mut self, op: &Op, life: u64, value: u8) {
        let (lba, kind) = (self.lives[&life].lba, self.lives[&life].kind);
        // Sometimes after another change, as an application may request.
        let group = Before {
            patch: self.lives[&life].patch,
            rule: Rule::GroupAfterGroup,
        };
        let befores = if self.rng.u8(..4) == 0 {
            vec![group]
        } else {
            vec![]
        };
        let patch = self.fill(op, lba, kind, value, &befores);
        self.last.push(patch);
        self.touched = life;
        let now = self.now;
        self.lives.get_mut(&life).unwrap().values.push((now, value));
    }

    fn remove(&mut self, op: &Op, slot: usize, life: u64) {
        let Life { lba, patch, .. } = self.lives[&life];
        let gone = self.point(op, slot, 0, &[]);
        let unreachable = gone.merged && gone.id == patch;
        let gone = Before {
            patch: gone.id,
            rule: Rule::NullifyBeforeReuse,
        };
        let journal = &self.bench.journal;
        journal.freed(op, Lba(lba), &[gone], unreachable).unwrap();
        self.free.push(lba);
    }

    fn now_and_then(&mut self) {
        match self.rng.u8(..24) {
            0 => self.bench.journal.sync_all().unwrap(),
            1..=2 => {
                self.bench.journal.sync(&self.last).unwrap();
                self.bench.device.note(Event::Kept(self.touched, self.now));
                // Other operations are durable only if this sync committed their transaction.
                if self.bench.journal.mode() == Mode::Metadata || !self.logged {
                    return;
                }
            }
            3 => self.bench.journal.checkpoint().unwrap(),
            4 => return self.bench.reclaim(),
            5..9 => return self.bench.journal.commit().unwrap(),
            9..16 => {
                self.bench.cache.write_some().unwrap();
                return;
            }
            _ => return,
        }
        self.bench.cache.verify().unwrap();
        self.bench.device.note(Event::Synced(self.now));
    }

    /// Checks that a replayed image is the result of a prefix of the operations, and that
    /// contents are as the mode promises.
    fn check(&self, bytes: &[u8], tables: &[[u64; SLOTS]], crash: &Crash) -> Result<(), String> {
        let (synced, began) = (crash.synced, crash.began);
        let mut found = [0; SLOTS];
        for (slot, life) in found.iter_mut().enumerate() {
            let (block, at) = slot_place(slot);
            let at = block as usize * BLOCK + at as usize;
            *life = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        }
        let mut why = "no such table".to_string();
        for now in (synced..=began).filter(|now| tables[*now] == found) {
            let wrong = found.iter().filter(|life| **life != 0).find_map(|life| {
                let start = self.lives[life].lba as usize * BLOCK;
                let content = &bytes[start..start + BLOCK];
                self.content(*life, content, now, crash).err()
            });
            match wrong {
                None => return Ok(()),
                Some(what) => why = what,
            }
        }
        Err(why)
    }

    fn content(
        &self,
        number: u64,
        content: &[u8],
        now: usize,
        crash: &Crash,
    ) -> Result<(), String> {
        let (life, synced, began) = (&self.lives[&number], crash.synced, crash.began);
        let kept = crash.kept.get(&number).copied().unwrap_or(0).max(synced);
        let last = |until: usize| life.values.iter().rposition(|(at, _)| *at <= until);
        let (from, to) = match life.kind {
            Content::Metadata => (last(now), last(now)),
            Content::Data if self.bench.journal.mode() == Mode::Ordered || life.born <= kept => {
                (last(kept).or(Some(0)), last(began))
            }
            Content::Data => return Ok(()),
        };
        let allowed = &life.values[from.unwrap()..=to.unwrap()];
        let uniform = content.iter().all(|byte| *byte == content[0]);
        if uniform && allowed.iter().any(|(_, value)| *value == content[0]) {
            return Ok(());
        }
        Err(format!(
            "block {} ({:?}) holds {} at {now} ({synced}..={began}), values {:?}",
            life.lba, life.kind, content[0], life.values
        ))
    }
}

fn run(seed: u64, log_blocks: u64, mode: Mode) -> Result<(), String> {
    let mut world = World::new(seed, log_blocks, mode);
    let mut tables = vec![world.slots];
    for _ in 0..150 {
        world.step();
        tables.push(world.slots);
        world.now_and_then();
    }
    let events = world.bench.device.events.lock().len();
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..100 {
        let until = rng.usize(..=events);
        let mut crash = world.bench.device.crash(until, &mut rng, |lba| lba >= HOME);
        let bytes = std::mem::take(&mut crash.bytes);
        let bytes = replayed(bytes, log_blocks).map_err(|e| e.to_string())?;
        world
            .check(&bytes, &tables, &crash)
            .map_err(|e| format!("{mode:?}, seed {seed}, event {until}: {e}"))?;
    }
    Ok(())
}

#[test]
fn a_reused_block_shows_contents_of_one_life() {
    for seed in 0..40 {
        run(seed, 24 + seed % 40, Mode::Ordered).unwrap();
        run(seed, 24 + seed % 40, Mode::Metadata).unwrap();
        run(seed, 24 + seed % 40, Mode::Full).unwrap();
    }
}

#[test]
fn without_revokes_a_replay_restores_old_contents() {
    is_caught(Bug::NoRevoke);
}

#[test]
fn data_written_before_the_free_commits_show_in_the_old_life() {
    is_caught(Bug::ForgetEmptied);
}

fn is_caught(bug: Bug) {
    seeded::arm(Some(bug));
    let caught = (0..40).any(|seed| run(seed, 24 + seed % 40, Mode::Ordered).is_err());
    assert!(caught && seeded::fired() > 0, "{bug:?}");
    seeded::arm(None);
}
