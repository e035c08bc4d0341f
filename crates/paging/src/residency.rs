//! Which page is in which frame, and what is being done with it.
//!
//! Guarantees:
//!
//! 1. A page is in one frame at most, and a frame is given to another page only once
//!    [`released`](Residency::released) says that its entry is durably gone.
//! 2. A frame is released only if nobody could reach its page from before it was written back
//!    until then.
//! 3. Frames go in the order in which their pages came, except that a page that is used
//!    between being unmapped and being released stays, and counts as new: there are no bits
//!    that say which pages are used (first in, first out, with a second chance).

use crate::frames::{Digest, PageId};
use crate::seeded::{Bug, hit};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// What is being done with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// A page is on its way into it.
    Loading,
    /// Its page can be reached.
    Mapped,
    /// It is being taken away.
    Unmapping,
    /// To use it, it has to be mapped again.
    Unmapped,
    /// It is being written back. If it is used meanwhile, it is mapped again.
    Writing,
    /// Its entry is being cleared.
    Releasing,
}

/// How a region is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Its pages come and go.
    Open,
    /// It is about to end: no more pages go.
    Ending,
    /// Its pages cannot be written back.
    Failed,
}

#[derive(Debug)]
struct Frame {
    state: State,
    page: PageId,
    /// Of what the file durably has, if that is known.
    digest: Option<Digest>,
    /// Its place in the queue of its state; older ones do not count.
    turn: u64,
}

/// What to do about a page that is to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: it can be.
    Mapped,
    /// Map this frame: the page is in it.
    Map(u32),
    /// Load it into this frame, then say that it is [`loaded`](Residency::loaded), and map it.
    Load(u32),
    /// Ask again when something was released or unmapped.
    Later,
    /// No frame will be free again: none can be written back.
    Never,
}

/// A frame that is to be written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// The frame.
    pub frame: u32,
    /// What is in it.
    pub page: PageId,
    /// Of what the file durably has, if that is known.
    pub digest: Option<Digest>,
}

/// The frames of a pool.
#[derive(Debug)]
pub struct Residency {
    frames: Vec<Frame>,
    /// Where pages are.
    resident: HashMap<PageId, u32>,
    free: VecDeque<u32>,
    mapped: Queue,
    unmapped: Queue,
    /// The regions in use.
    slots: HashMap<u16, Use>,
    turn: u64,
}

/// Frames, the oldest first. Those with another turn by now do not count.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(u32, u64)>,
    /// Those that count.
    len: usize,
}

impl Residency {
    /// What a pool has in its frames. No region is in use.
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

    /// How many frames are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How many pages wait to be written back, or used again.
    pub fn waiting(&self) -> usize {
        self.unmapped.len
    }

    /// Where a page is, if it is in a frame.
    pub fn frame_of(&self, page: PageId) -> Option<u32> {
        self.resident.get(&page).copied()
    }

    /// The frames of a region.
    pub fn frames_of(&self, slot: u16) -> impl Iterator<Item = (u32, PageId)> {
        let frames = self.resident.iter();
        let of_slot = frames.filter(move |(page, _)| page.slot == slot);
        of_slot.map(|(page, frame)| (*frame, *page))
    }

    /// A frame, and its page, of a region in a slot that is not `known`.
    pub fn stray(&self, known: impl Fn(u16) -> bool) -> Option<(u32, PageId)> {
        let mut frames = self.resident.iter();
        let stray = frames.find(|(page, _)| !known(page.slot));
        stray.map(|(page, frame)| (*frame, *page))
    }

    /// Begins to use a region: its frames can be written back.
    pub fn attach(&mut self, slot: u16) {
        self.slots.insert(slot, Use::Open);
        let mut frames: Vec<u32> = self.frames_of(slot).map(|(frame, _)| frame).collect();
        frames.sort_unstable();
        for frame in frames {
            self.queue(frame, State::Unmapped);
        }
    }

    /// Says that the use of a region is about to end, so that it does not stay busy.
    pub fn end(&mut self, slot: u16) {
        self.slots.insert(slot, Use::Ending);
    }

    /// Whether something is being done with a frame of a region.
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

    /// Begins to release all frames of a region that is not in use.
    pub fn forget(&mut self, slot: u16) -> Vec<u32> {
        let frames: Vec<u32> = self.frames_of(slot).map(|(frame, _)| frame).collect();
        for frame in &frames {
            self.frames[*frame as usize].state = State::Releasing;
        }
        frames
    }

    /// Frames of the region are not written back any more: its file fails.
    pub fn fail(&mut self, slot: u16) {
        if let Some(used) = self.slots.get_mut(&slot) {
            *used = Use::Failed;
        }
    }

    /// What to do about a page that somebody wants to reach.
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

    /// A frame for a page that is in none.
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

    /// Whether a frame is to be free, or can be.
    fn may_be_free(&self, frame: &Frame) -> bool {
        let used = self.slots.get(&frame.page.slot);
        matches!(used, Some(Use::Open | Use::Ending))
    }

    /// The page is in the frame, and can be reached; `None`: it cannot be loaded.
    pub fn loaded(&mut self, frame: u32, digest: Option<Digest>) {
        match digest {
            Some(_) => {
                self.frames[frame as usize].digest = digest;
                self.queue(frame, State::Mapped);
            }
            None => self.released(&[frame]),
        }
    }

    /// The page is in the frame, but cannot be mapped.
    pub fn not_mapped(&mut self, frame: u32) {
        self.queue(frame, State::Unmapped);
    }

    /// Begins to take away the oldest pages that can be reached.
    pub fn begin_unmap(&mut self, most: usize) -> Vec<(u32, PageId)> {
        let frames = self.begin(State::Mapped, State::Unmapping, most);
        let page = |frame: u32| (frame, self.frames[frame as usize].page);
        frames.into_iter().map(page).collect()
    }

    /// They cannot be reached any more; those that still can be, for all that is known, stay.
    pub fn unmapped(&mut self, frame: u32, done: bool) {
        let state = match done {
            true => State::Unmapped,
            false => State::Mapped,
        };
        self.queue(frame, state);
    }

    /// Begins to write back the pages that were unmapped first.
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

    /// The oldest frames of one state, in another from now on. Those that are to stay leave the
    /// queue.
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

    /// A page was written back, durably: its digest. Whether its frame can be released, which
    /// is then to be done; if not, the page is in use again.
    pub fn written(&mut self, frame: u32, digest: Digest) -> bool {
        let it = &mut self.frames[frame as usize];
        it.digest = Some(digest);
        let unused = it.state == State::Writing;
        if unused {
            it.state = State::Releasing;
        }
        unused
    }

    /// A page cannot be written back.
    pub fn not_written(&mut self, frame: u32) {
        let it = &mut self.frames[frame as usize];
        // What the file has, is not known any more.
        it.digest = None;
        if it.state == State::Writing {
            self.queue(frame, State::Unmapped);
        }
    }

    /// Their entries are durably gone: the frames are free.
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
        // Of those that do not count, there are never more than of frames.
        if queue.frames.len() > 2 * self.frames.len() {
            self.tidy(state);
        }
    }

    /// Its place in a queue does not count any more.
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
            _ => &mut self.unmapped,
        }
    }
}
