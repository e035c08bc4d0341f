//! The page in each frame, and its state.
//!
//! Guarantees:
//!
//! 1. A page is in one frame at most. A frame is used for another page only after
//!    [`released`](Residency::released) reports that its entry is durably cleared.
//! 2. A frame is released only if its page could not be reached from before the write-back
//!    until then.
//! 3. Frames are evicted in the order in which their pages were loaded: first in, first out,
//!    with a second chance. A page that is used between being unmapped and being released stays
//!    and counts as new. There are no bits that record the use of pages.

use crate::frames::{Digest, PageId};
use crate::seeded::{Bug, hit};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// The state of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// A page is being loaded into it.
    Loading,
    /// Its page is mapped.
    Mapped,
    /// Its page is being unmapped.
    Unmapping,
    /// Its page must be mapped again before use.
    Unmapped,
    /// Its page is being written back. If the page is used meanwhile, it is mapped again.
    Writing,
    /// Its entry is being cleared.
    Releasing,
}

/// The use of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Its pages are loaded and evicted.
    Open,
    /// The region is about to end: no more pages are evicted.
    Ending,
    /// Its pages cannot be written back.
    Failed,
}

#[derive(Debug)]
struct Frame {
    state: State,
    page: PageId,
    /// The digest of the file's durable contents, if known.
    digest: Option<Digest>,
    /// Its place in the queue of its state; places of earlier states are ignored.
    turn: u64,
}

/// The action for a page that is to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the page is mapped.
    Mapped,
    /// Map this frame, which has the page.
    Map(u32),
    /// Load the page into this frame, then call [`loaded`](Residency::loaded) and map the
    /// frame.
    Load(u32),
    /// Retry after a frame was released or unmapped.
    Later,
    /// Fail: no frame will be free again, because none can be written back.
    Never,
}

/// A frame that is to be written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// The frame.
    pub frame: u32,
    /// The page in the frame.
    pub page: PageId,
    /// The digest of the file's durable contents, if known.
    pub digest: Option<Digest>,
}

/// The frames of a pool.
#[derive(Debug)]
pub struct Residency {
    frames: Vec<Frame>,
    /// The frame of each page.
    resident: HashMap<PageId, u32>,
    free: VecDeque<u32>,
    mapped: Queue,
    unmapped: Queue,
    /// The regions in use.
    slots: HashMap<u16, Use>,
    turn: u64,
}

/// Frames, the oldest first. Frames whose turn has changed are ignored.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(u32, u64)>,
    /// The number of frames that are not ignored.
    len: usize,
}

impl Residency {
    /// The frames of a pool with these pages. No region is in use.
    pub fn new(frames: &[Option<PageId>]) -> Self {
        let nothing = PageId { slot: 0, page: 0 };
        let frame = |page: &Option<PageId>| Frame {
            state: page.map_or(State::Free, |_| State::Unmapped),
            page: page.unwrap_or(nothing),
            digest: None,
            turn: 0,
        };
        let numbered = || frames.iter().zip(0..);
        Self {
            resident: numbered()
                .filter_map(|(page, frame)| Some(((*page)?, frame)))
                .collect(),
            free: numbered()
                .filter_map(|(page, frame)| page.is_none().then_some(frame))
                .collect(),
            frames: frames.iter().map(frame).collect(),
            mapped: Queue::default(),
            unmapped: Queue::default(),
            slots: HashMap::new(),
            turn: 0,
        }
    }

    /// The number of free frames.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The number of pages that wait to be written back or used again.
    pub fn waiting(&self) -> usize {
        self.unmapped.len
    }

    /// The frame of a page, if it is in one.
    pub fn frame_of(&self, page: PageId) -> Option<u32> {
        self.resident.get(&page).copied()
    }

    /// The frames of a region.
    pub fn frames_of(&self, slot: u16) -> impl Iterator<Item = (u32, PageId)> {
        let frames = self.resident.iter();
        let of_slot = frames.filter(move |(page, _)| page.slot == slot);
        of_slot.map(|(page, frame)| (*frame, *page))
    }

    /// A frame and its page of a region in a slot that is not `known`.
    pub fn stray(&self, known: impl Fn(u16) -> bool) -> Option<(u32, PageId)> {
        let mut frames = self.resident.iter();
        let stray = frames.find(|(page, _)| !known(page.slot));
        stray.map(|(page, frame)| (*frame, *page))
    }

    /// Starts the use of a region: its frames can be written back.
    pub fn attach(&mut self, slot: u16) {
        self.slots.insert(slot, Use::Open);
        let mut frames: Vec<u32> = self.frames_of(slot).map(|(frame, _)| frame).collect();
        frames.sort_unstable();
        for frame in frames {
            self.queue(frame, State::Unmapped);
        }
    }

    /// Records that the use of a region is about to end, so that it does not stay busy.
    pub fn end(&mut self, slot: u16) {
        self.slots.insert(slot, Use::Ending);
    }

    /// Whether a frame of a region is between two states.
    pub fn is_busy(&self, slot: u16) -> bool {
        self.frames_of(slot).any(|(frame, _)| {
            let state = self.frames[frame as usize].state;
            !matches!(state, State::Mapped | State::Unmapped)
        })
    }

    /// Ends the use of a region that is not [busy](Self::is_busy). Its pages stay.
    pub fn detach(&mut self, slot: u16) {
        self.slots.remove(&slot);
        let frames: Vec<u32> = self.frames_of(slot).map(|(frame, _)| frame).collect();
        for frame in frames {
            self.leave_queue(frame);
            self.frames[frame as usize].state = State::Unmapped;
        }
    }

    /// Starts to release all frames of a region that is not in use.
    pub fn forget(&mut self, slot: u16) -> Vec<u32> {
        let frames: Vec<u32> = self.frames_of(slot).map(|(frame, _)| frame).collect();
        for frame in &frames {
            self.frames[*frame as usize].state = State::Releasing;
        }
        frames
    }

    /// Stops write-backs for a region, because its file fails.
    pub fn fail(&mut self, slot: u16) {
        if let Some(used) = self.slots.get_mut(&slot) {
            *used = Use::Failed;
        }
    }

    /// Returns the action for a page that is to be reached.
    pub fn fault(&mut self, page: PageId) -> Fault {
        let Some(frame) = self.frame_of(page) else {
            return self.place(page);
        };
        match self.frames[frame as usize].state {
            State::Mapped => Fault::Mapped,
            State::Unmapped => {
                self.queue(frame, State::Mapped);
                Fault::Map(frame)
            }
            State::Writing if hit(Bug::UsedAgainNotSeen) => Fault::Map(frame),
            State::Writing => {
                self.queue(frame, State::Mapped);
                Fault::Map(frame)
            }
            State::Free | State::Loading | State::Unmapping | State::Releasing => Fault::Later,
        }
    }

    /// Chooses a frame for a page that is in none.
    fn place(&mut self, page: PageId) -> Fault {
        let Some(frame) = self.free.pop_front() else {
            return match self.frames.iter().any(|frame| self.may_be_free(frame)) {
                true => Fault::Later,
                false => Fault::Never,
            };
        };
        let it = &mut self.frames[frame as usize];
        (it.state, it.page) = (State::Loading, page);
        self.resident.insert(page, frame);
        Fault::Load(frame)
    }

    /// Whether a frame can become free.
    fn may_be_free(&self, frame: &Frame) -> bool {
        let used = self.slots.get(&frame.page.slot);
        matches!(used, Some(Use::Open | Use::Ending))
    }

    /// Records that a page was loaded and is mapped; `None`: it cannot be loaded.
    pub fn loaded(&mut self, frame: u32, digest: Option<Digest>) {
        match digest {
            Some(_) => {
                self.frames[frame as usize].digest = digest;
                self.queue(frame, State::Mapped);
            }
            None => self.released(&[frame]),
        }
    }

    /// Records that a page was loaded but cannot be mapped.
    pub fn not_mapped(&mut self, frame: u32) {
        self.queue(frame, State::Unmapped);
    }

    /// Starts to unmap the oldest mapped pages.
    pub fn begin_unmap(&mut self, most: usize) -> Vec<(u32, PageId)> {
        let frames = self.begin(State::Mapped, State::Unmapping, most);
        let page = |frame: u32| (frame, self.frames[frame as usize].page);
        frames.into_iter().map(page).collect()
    }

    /// Records that a page was unmapped. If not `done`, it may still be mapped, and stays.
    pub fn unmapped(&mut self, frame: u32, done: bool) {
        let state = match done {
            true => State::Unmapped,
            false => State::Mapped,
        };
        self.queue(frame, state);
    }

    /// Starts to write back the pages that were unmapped first.
    pub fn begin_write(&mut self, most: usize) -> Vec<Victim> {
        let frames = self.begin(State::Unmapped, State::Writing, most);
        let victim = |frame: u32| {
            let it = &self.frames[frame as usize];
            Victim {
                frame,
                page: it.page,
                digest: it.digest,
            }
        };
        frames.into_iter().map(victim).collect()
    }

    /// Moves the oldest frames of one state to another. Frames that must stay leave the queue.
    fn begin(&mut self, from: State, to: State, most: usize) -> Vec<u32> {
        let mut frames = Vec::new();
        while frames.len() < most {
            let queue = self.queue_of(from);
            let Some((frame, turn)) = queue.frames.pop_front() else {
                break;
            };
            let it = &self.frames[frame as usize];
            if it.state != from || it.turn != turn {
                continue;
            }
            let is_open = self.slots.get(&it.page.slot) == Some(&Use::Open);
            self.queue_of(from).len -= 1;
            self.frames[frame as usize].turn = 0;
            if is_open {
                self.frames[frame as usize].state = to;
                frames.push(frame);
            }
        }
        frames
    }

    /// Records that a page was written back durably, with its digest. True if its frame must
    /// now be released; otherwise the page is in use again.
    pub fn finish_write(&mut self, frame: u32, digest: Digest) -> bool {
        let it = &mut self.frames[frame as usize];
        it.digest = Some(digest);
        let unused = it.state == State::Writing;
        if unused {
            it.state = State::Releasing;
        }
        unused
    }

    /// Records that a page cannot be written back.
    pub fn fail_write(&mut self, frame: u32) {
        let it = &mut self.frames[frame as usize];
        // The contents of the file are unknown now.
        it.digest = None;
        if it.state == State::Writing {
            self.queue(frame, State::Unmapped);
        }
    }

    /// Records that entries are durably cleared: the frames are free.
    pub fn released(&mut self, frames: &[u32]) {
        for frame in frames {
            let it = &mut self.frames[*frame as usize];
            it.state = State::Free;
            it.digest = None;
            self.resident.remove(&it.page);
            self.free.push_back(*frame);
        }
    }

    /// Puts a frame into a state, at the end of its queue.
    fn queue(&mut self, frame: u32, state: State) {
        self.leave_queue(frame);
        self.turn += 1;
        let turn = self.turn;
        let it = &mut self.frames[frame as usize];
        (it.state, it.turn) = (state, turn);
        let queue = self.queue_of(state);
        queue.frames.push_back((frame, turn));
        queue.len += 1;
        // Ignored places are never more than the frames.
        if queue.frames.len() > 2 * self.frames.len() {
            self.tidy(state);
        }
    }

    /// Makes the frame's place in its queue ignored.
    fn leave_queue(&mut self, frame: u32) {
        let it = &mut self.frames[frame as usize];
        if std::mem::take(&mut it.turn) != 0 {
            let state = it.state;
            self.queue_of(state).len -= 1;
        }
    }

    fn tidy(&mut self, state: State) {
        let mut queue = std::mem::take(&mut self.queue_of(state).frames);
        let counts = |(frame, turn): &(u32, u64)| {
            let it = &self.frames[*frame as usize];
            it.state == state && it.turn == *turn
        };
        queue.retain(counts);
        self.queue_of(state).frames = queue;
    }

    fn queue_of(&mut self, state: State) -> &mut Queue {
        match state {
            State::Mapped => &mut self.mapped,
            State::Unmapped => &mut self.unmapped,
            State::Free | State::Loading | State::Unmapping | State::Writing | State::Releasing => {
                unreachable!("frames in {state:?} are not queued")
            }
        }
    }
}
