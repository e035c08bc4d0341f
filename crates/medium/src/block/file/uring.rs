//! Writes through io_uring: many are under way, and end in any order.
//!
//! Any thread may submit and reap. One of the waiting threads is the *leader*. It sleeps in the
//! kernel without the lock. Only the leader takes from the completion queue meanwhile, so no
//! other thread can take the completion for which it waits.

use super::request::{Next, Request};
use crate::block::Completion;
use io_uring::{IoUring, opcode, types};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use slab::Slab;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The largest number of requests under way; further ones wait.
const DEPTH: u32 = 256;

/// `IORING_ENTER_GETEVENTS`: wait for completions.
const GET_EVENTS: u32 = 1;

pub(super) struct Uring {
    ring: IoUring,
    device: Arc<str>,
    file: Arc<File>,
    /// `RWF_*` flags of every write.
    flags: i32,
    state: Mutex<State>,
    /// Notified when the leader has taken completions, or resigns.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    /// By the number that the kernel returns with the completion.
    under_way: Slab<Flight>,
    done: Vec<Completion>,
    led: bool,
}

/// A request in the kernel, and all memory that the kernel reads for it.
struct Flight {
    request: Request,
    _parts: Parts,
}

/// The list of pieces that the kernel reads.
struct Parts(Box<[libc::iovec]>);

// SAFETY: the pointers lead into buffers that the `Request` beside it keeps. Only the kernel
// uses them, and only reads.
unsafe impl Send for Parts {}

impl Uring {
    /// Sets a ring up and sends an empty request through it.
    ///
    /// # Errors
    /// The system's, if it has no io_uring or does not permit it to this process.
    pub(super) fn new(device: Arc<str>, file: Arc<File>, flags: i32) -> io::Result<Self> {
        let mut ring = IoUring::builder().dontfork().build(DEPTH)?;
        // SAFETY: an empty operation refers to no memory.
        unsafe { ring.submission().push(&opcode::Nop::new().build()) }
            .map_err(|_| io::Error::from(Errno::NOSPC))?;
        ring.submit_and_wait(1)?;
        ring.completion().for_each(drop);
        Ok(Self {
            ring,
            device,
            file,
            flags,
            state: Mutex::default(),
            progress: Condvar::new(),
        })
    }

    /// Starts requests. `ended` are completions of writes that need none.
    pub(super) fn submit(&self, requests: Vec<Request>, ended: Vec<Completion>) {
        let mut state = self.state.lock();
        state.waiting.extend(requests);
        state.done.extend(ended);
        self.start(&mut state);
        self.progress.notify_all();
    }

    /// Takes completions, as [`BlockDevice::reap`](crate::block::BlockDevice::reap) does.
    pub(super) fn reap(&self, min: usize) -> Vec<Completion> {
        let mut state = self.state.lock();
        if !state.led {
            self.collect(&mut state);
        }
        while state.done.len() < min && !state.is_idle() {
            self.wait(&mut state);
        }
        std::mem::take(&mut state.done)
    }

    /// Waits until something may have changed.
    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        if state.led {
            return self.progress.wait(state);
        }
        state.led = true;
        MutexGuard::unlocked(state, || {
            // SAFETY: no argument is passed. The call submits nothing, so it does not touch the
            // submission queue that others may be filling.
            let entered = unsafe {
                let submitter = self.ring.submitter();
                submitter.enter::<libc::sigset_t>(0, 1, GET_EVENTS, None)
            };
            // An error is a signal or short memory: completions are in the queue regardless.
            if entered.is_err() {
                std::thread::yield_now();
            }
        });
        state.led = false;
        self.collect(state);
        self.progress.notify_all();
    }

    /// Takes completions, and starts requests that are left over or waiting.
    fn collect(&self, state: &mut State) {
        // SAFETY: the only use of the completion queue, under the lock, and not while another
        // thread leads.
        let ended = unsafe { self.ring.completion_shared() };
        for entry in ended {
            let Some(flight) = state.under_way.try_remove(entry.user_data() as usize) else {
                continue;
            };
            let result = usize::try_from(entry.result())
                .map_err(|_| Errno::from_raw_os_error(-entry.result()));
            match flight.request.after(result, &self.device) {
                Next::Finished(done) => state.done.extend(done),
                Next::Again(requests) => state.waiting.extend(requests),
            }
        }
        self.start(state);
    }

    /// Submits as many requests to the kernel as may be under way.
    fn start(&self, state: &mut State) {
        while state.under_way.len() < DEPTH as usize {
            let Some(request) = state.waiting.pop_front() else {
                break;
            };
            self.push(&mut state.under_way, request);
        }
        // An entry that is refused for the moment (a signal, short memory) stays in the queue.
        while !self.is_all_taken() && self.ring.submit().is_err() {
            std::thread::yield_now();
        }
    }

    fn is_all_taken(&self) -> bool {
        // SAFETY: as in `push`.
        unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Queues a request. There is room: the queue has `DEPTH` places, and is empty whenever the
    /// lock is free.
    fn push(&self, under_way: &mut Slab<Flight>, request: Request) {
        let part = |part: io::IoSlice<'_>| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        };
        let parts = Parts(request.rest().map(part).collect());
        let dsync = if request.is_durable() {
            libc::RWF_DSYNC
        } else {
            0
        };
        let fd = types::Fd(self.file.as_raw_fd());
        let place = under_way.vacant_entry();
        let entry = opcode::Writev::new(fd, parts.0.as_ptr(), parts.0.len() as u32)
            .offset(request.offset())
            .rw_flags(self.flags | dsync)
            .build()
            .user_data(place.key() as u64);
        place.insert(Flight {
            request,
            _parts: parts,
        });
        // SAFETY: the only use of the submission queue, under the lock. The table of `Flight`s
        // owns or shares the list, its buffers and the file. They stay until the completion is
        // taken: `drop` waits until the table is empty. The buffers are shared, so that nothing
        // writes to them. Moving a `Flight` moves neither list nor buffers.
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        debug_assert!(pushed.is_ok(), "the submission queue holds all under way");
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.reap(usize::MAX);
    }
}
