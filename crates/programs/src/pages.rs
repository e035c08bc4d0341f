//! A program whose pages are loaded into few frames and evicted, with the steps of the real pager.
//!
//! The file of its region is another part of the same memory. Writes to it are in flight until
//! they are synchronised, as on a disk.

use crate::marks::{count_of, hash, mark_of, text};
use ::paging::{Fault, Frames, PageId, PageStore, Residency};
use crash::program::{Memory, Program};
use fastrand::Rng;
use medium::{LINE_BYTES, MediumError, Pmem, Rule};
use std::io;

const PAGE_BYTES: u64 = 2 * LINE_BYTES;
/// Offsets of the used words of a page: one in each line.
const OFFSETS: [u64; 2] = [8, 64];
const SLOT: u16 = 5;

const BEGUN: u64 = 1;
const RETURNED: u64 = 2;

/// A seeded sequence of stores, evictions and replacements.
pub struct Paging {
    pub frames: u64,
    pub pages: u32,
    pub seed: u64,
    pub steps: usize,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A word is stored, flushed and fenced.
    Put(usize),
    /// A word is stored. Its page is evicted, and for some values loaded again. Then the word is
    /// flushed, if it is in a frame, and fenced.
    PutAcross(usize),
    /// A word is stored.
    Store(usize),
    /// Pages are evicted.
    Evict,
    /// Pages are evicted. During their write-back a word is put, perhaps in one of them.
    EvictInUse(usize),
    /// The region is removed, and one of zeros is made in its place.
    Replace,
}

impl Step {
    /// The word that it stores, and whether that is durable at return.
    fn word(self) -> Option<(usize, bool)> {
        match self {
            Self::Put(word) | Self::PutAcross(word) | Self::EvictInUse(word) => Some((word, true)),
            Self::Store(word) => Some((word, false)),
            Self::Evict | Self::Replace => None,
        }
    }
}

impl Paging {
    fn words(&self) -> usize {
        self.pages as usize * OFFSETS.len()
    }

    fn pool_bytes(&self) -> u64 {
        8192 + self.frames * PAGE_BYTES
    }

    fn steps(&self) -> Vec<Step> {
        let mut rng = Rng::with_seed(self.seed);
        let step = |_| {
            let word = rng.usize(..self.words());
            match rng.u8(..16) {
                0..4 => Step::Put(word),
                4..8 => Step::PutAcross(word),
                8..11 => Step::Store(word),
                11..13 => Step::Evict,
                13..15 => Step::EvictInUse(word),
                _ => Step::Replace,
            }
        };
        (0..self.steps).map(step).collect()
    }

    /// The allowed values of a word after some steps have begun, some of which have returned.
    fn allowed(&self, word: usize, begun: usize, returned: usize) -> Vec<u64> {
        let (mut ever, mut allowed) = (vec![0], vec![0]);
        for (n, step) in self.steps()[..begun].iter().enumerate() {
            let value = n as u64 + 1;
            match (step, step.word()) {
                (Step::Replace, _) if n < returned => allowed = vec![0],
                // Frames and the file may be of different regions.
                (Step::Replace, _) => allowed.clone_from(&ever),
                (_, Some((it, true))) if it == word && n < returned => allowed = vec![value],
                (_, Some((it, _))) if it == word => allowed.push(value),
                _ => continue,
            }
            ever.extend_from_slice(&allowed);
        }
        allowed
    }

    fn pool(&self, pm: &Memory) -> Part {
        Part {
            pm: pm.clone(),
            start: 0,
            len: self.pool_bytes(),
        }
    }
}

fn page_of(word: usize) -> PageId {
    PageId {
        slot: SLOT,
        page: (word / OFFSETS.len()) as u32,
    }
}

/// A part of memory.
pub struct Part {
    pm: Memory,
    start: u64,
    len: u64,
}

impl Pmem for Part {
    fn len(&self) -> u64 {
        self.len
    }
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.pm.load(self.start + off)
    }
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.pm.read(self.start + off, buf)
    }
    fn store(&self, off: u64, bytes: &[u8]) {
        self.pm.store(self.start + off, bytes);
    }
    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.pm.store_nt(self.start + off, bytes);
    }
    fn flush(&self, off: u64, len: u64) {
        self.pm.flush(self.start + off, len);
    }
    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.pm.fence(rule)
    }
}

impl PageStore for Part {
    fn read_page(&self, page: u32, buf: &mut [u8]) -> io::Result<()> {
        let read = self.read(u64::from(page) * PAGE_BYTES, buf);
        read.map_err(io::Error::other)
    }
    fn write_page(&self, page: u32, bytes: &[u8]) -> io::Result<()> {
        self.store_nt(u64::from(page) * PAGE_BYTES, bytes);
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.fence(Rule::DurableBeforeReturn)
            .map_err(io::Error::other)
    }
}

/// The region, in use.
pub struct Using {
    frames: Frames<Part>,
    residency: Residency,
    file: Part,
}

impl Using {
    fn open(program: &Paging, pm: &Memory) -> Result<Self, String> {
        let (frames, there) = Frames::open(program.pool(pm)).map_err(text)?;
        let mut residency = Residency::new(&there);
        residency.attach(SLOT);
        if let Some(stray) = residency.stray(|slot| slot == SLOT) {
            return Err(format!("{stray:?} is not a page of the region"));
        }
        let file = Part {
            pm: pm.clone(),
            start: program.pool_bytes(),
            len: u64::from(program.pages) * PAGE_BYTES,
        };
        Ok(Self {
            frames,
            residency,
            file,
        })
    }

    /// Loads the page of a word if needed. Returns the place of the word in its frame.
    fn reach(&mut self, word: usize) -> Result<u64, String> {
        let page = page_of(word);
        let frame = loop {
            match self.residency.fault(page) {
                Fault::Mapped => break self.residency.frame_of(page).ok_or("no frame")?,
                Fault::Map(frame) => break frame,
                Fault::Load(frame) => {
                    let mut buf = [0; PAGE_BYTES as usize];
                    let loaded = self.frames.load(frame, page, &self.file, &mut buf);
                    self.residency.loaded(frame, Some(loaded.map_err(text)?));
                    break frame;
                }
                Fault::Later => self.evict(None)?,
                Fault::Never => return Err("no frame will be free".into()),
            }
        };
        Ok(self.place(frame, word))
    }

    fn place(&self, frame: u32, word: usize) -> u64 {
        self.frames.at(frame) + OFFSETS[word % OFFSETS.len()]
    }

    fn store(&mut self, word: usize, value: u64) -> Result<u64, String> {
        let at = self.reach(word)?;
        self.frames.pmem().store_word(at, value);
        Ok(at)
    }

    fn put(&mut self, word: usize, value: u64) -> Result<(), String> {
        let at = self.store(word, value)?;
        self.frames.pmem().flush(at, 8);
        self.frames
            .pmem()
            .fence(Rule::DurableBeforeReturn)
            .map_err(text)
    }

    fn put_across(&mut self, word: usize, value: u64) -> Result<(), String> {
        self.store(word, value)?;
        let page = page_of(word);
        while self.residency.frame_of(page).is_some() {
            self.evict(None)?;
        }
        if value.is_multiple_of(2) {
            self.reach(word)?;
        }
        if let Some(frame) = self.residency.frame_of(page) {
            self.frames.pmem().flush(self.place(frame, word), 8);
        }
        self.frames
            .pmem()
            .fence(Rule::DurableBeforeReturn)
            .map_err(text)
    }

    /// Evicts up to two pages. A word may be stored in between.
    fn evict(&mut self, word: Option<(usize, u64)>) -> Result<(), String> {
        for (frame, _) in self.residency.begin_unmap(2) {
            self.residency.unmapped(frame, true);
        }
        let mut buf = [0; PAGE_BYTES as usize];
        let mut written = Vec::new();
        for victim in self.residency.begin_write(2) {
            let (frame, page) = (victim.frame, victim.page.page);
            let frames = &self.frames;
            let done = frames.write_back(frame, page, victim.digest, &self.file, &mut buf);
            written.push((frame, done.map_err(text)?.1));
        }
        if let Some((word, value)) = word {
            self.put(word, value)?;
        }
        self.frames.sync(&self.file).map_err(text)?;
        written.retain(|(frame, digest)| self.residency.finish_write(*frame, *digest));
        let unused: Vec<u32> = written.iter().map(|(frame, ..)| *frame).collect();
        self.frames.release(&unused).map_err(text)?;
        self.residency.released(&unused);
        Ok(())
    }

    fn replace(&mut self) -> Result<(), String> {
        self.residency.end(SLOT);
        self.residency.detach(SLOT);
        let frames = self.residency.forget(SLOT);
        self.frames.release(&frames).map_err(text)?;
        self.residency.released(&frames);
        for line in (0..self.file.len).step_by(LINE_BYTES as usize) {
            self.file.store_nt(line, &[0; LINE_BYTES as usize]);
        }
        self.file.fence(Rule::DurableBeforeReturn).map_err(text)?;
        self.residency.attach(SLOT);
        Ok(())
    }

    fn step(&mut self, step: Step, value: u64) -> Result<(), String> {
        match step {
            Step::Replace => self.replace(),
            Step::Put(word) => self.put(word, value),
            Step::PutAcross(word) => self.put_across(word, value),
            Step::Store(word) => self.store(word, value).map(drop),
            Step::Evict => self.evict(None),
            Step::EvictInUse(word) => self.evict(Some((word, value))),
        }
    }

    /// The values of all words, by plain loads.
    fn words(&self, program: &Paging) -> Result<Vec<u64>, String> {
        let word = |word: usize| {
            let id = page_of(word);
            let off = u64::from(id.page) * PAGE_BYTES + OFFSETS[word % OFFSETS.len()];
            match self.residency.frame_of(id) {
                Some(frame) => self.frames.pmem().load(self.place(frame, word)),
                None => self.file.load(off),
            }
        };
        (0..program.words())
            .map(|n| word(n).map_err(text))
            .collect()
    }
}

impl Program for Paging {
    type Opened = (Using, Memory);

    fn bytes(&self) -> u64 {
        self.pool_bytes() + u64::from(self.pages) * PAGE_BYTES
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        Frames::format(&self.pool(&pm), PAGE_BYTES, self.frames, 77).map_err(text)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mut using = Using::open(self, &pm)?;
        for (n, step) in self.steps().into_iter().enumerate() {
            mark(mark_of(BEGUN, n + 1));
            using.step(step, n as u64 + 1)?;
            mark(mark_of(RETURNED, n + 1));
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        Ok((Using::open(self, &pm)?, pm))
    }

    fn check(&self, (using, _): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        let found = using.words(self)?;
        let (begun, returned) = (count_of(marks, BEGUN), count_of(marks, RETURNED));
        for (word, found) in found.iter().enumerate() {
            let allowed = self.allowed(word, begun, returned);
            if !allowed.contains(found) {
                return Err(format!("word {word} holds {found}, not of {allowed:?}"));
            }
        }
        Ok(hash(found))
    }

    fn go_on(&self, (mut using, pm): Self::Opened) -> Result<(), String> {
        let mut expected = using.words(self)?;
        for (n, step) in self.steps().into_iter().enumerate() {
            let value = 1000 + n as u64;
            using.step(step, value)?;
            match step.word() {
                Some((word, _)) => expected[word] = value,
                None if matches!(step, Step::Replace) => expected.fill(0),
                None => {}
            }
        }
        for using in [&using, &Using::open(self, &pm)?] {
            let found = using.words(self)?;
            if found != expected {
                return Err(format!("{found:?}, not {expected:?}"));
            }
        }
        Ok(())
    }
}
