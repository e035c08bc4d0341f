//! Kernel files on their way between the processes of a run.
//!
//! A description of the store is only a number to the kernel, until something needs an open file of the kernel for it
//! (`calls::backed`). The process that opens this file cannot give it to those which share the description: they may wait
//! in a call. So it gives it to the *custodian*, a thread of `selvedge run`, from which each of them gets it.
//!
//! Guarantees:
//!
//! 1. The custodian keeps a file until no process uses the description, or all that shared it have got the file.
//! 2. A lock of a process that was killed ends, if it had got the file: at once, or after [`LINGER`].
//! 3. A user gets no file that another one has opened, except for the super-user.
//! 4. A process that asks for a file, or gives one, waits for the answer, and not for other processes.

use crate::kernel::{self, Result};
use crate::shared::Shared;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::HashMap;
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use vfs::Errno;

/// A message to the custodian: one of these, the number of a description, its generation, and a count.
type Message = [u32; 4];
/// Keeps the file that comes with the message for `count` processes.
const PUT: u32 = 1;
/// Returns the file.
const GET: u32 = 2;
/// No process uses the description.
const DROP: u32 = 3;
/// The answer: the first word of a message that was not refused.
const DONE: u32 = 4;

/// The time for which a file is kept after all that shared the description have got it: a process that was made
/// meanwhile may ask, too.
const LINGER: Duration = Duration::from_millis(200);

/// The custodian's socket in the processes of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Custodian(pub(crate) u32);

/// A description at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

impl Custodian {
    /// Gives a file, which `sharers` other processes are to get.
    pub(crate) fn put(self, id: Id, file: u32, sharers: u32) -> Result<()> {
        self.ask(PUT, id, sharers, Some(file)).map(drop)
    }

    /// Gets the file of a description, if there is one. The new descriptor is closed at `execve`.
    pub(crate) fn get(self, id: Id) -> Result<Option<u32>> {
        self.ask(GET, id, 0, None)
    }

    /// The last process that used the description has closed it.
    pub(crate) fn drop(self, id: Id) {
        // Without a custodian there is no file.
        let _ = self.ask(DROP, id, 0, None);
    }

    fn ask(self, what: u32, id: Id, count: u32, file: Option<u32>) -> Result<Option<u32>> {
        let [own, other] = kernel::socket_pair()?;
        let message = [what, id.number, id.generation, count];
        let files: Vec<u32> = [other].into_iter().chain(file).collect();
        let sent = kernel::send(self.0, &message, &files, true);
        kernel::close(other)?;
        let mut answer = [0; 4];
        let received = sent.and_then(|()| kernel::receive(own, &mut answer));
        kernel::close(own)?;
        let (_, files) = received?;
        match answer[0] {
            DONE => Ok(files.first().copied()),
            _ => Err(Errno::NODEV),
        }
    }
}

/// A file that the custodian keeps.
struct Kept {
    generation: u32,
    file: OwnedFd,
    /// The user who has opened it. Others do not get it.
    user: u32,
    /// Processes that have not got it.
    waiting: u32,
    since: Instant,
}

/// A message of a process.
struct Request {
    message: Message,
    user: u32,
    reply: OwnedFd,
    file: Option<OwnedFd>,
}

/// Answers the processes of a run until its end.
pub(crate) fn serve(socket: &OwnedFd, shared: &Shared) {
    let mut all: HashMap<u32, Kept> = HashMap::new();
    loop {
        if can_receive(socket, !all.is_empty()) {
            match receive(socket) {
                Ok(Some(request)) => answer(&mut all, request),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
        all.retain(|number, kept| {
            let description = shared.description(*number);
            let is_used = description.is_used() && description.generation() == kept.generation;
            is_used && (kept.waiting > 0 || kept.since.elapsed() < LINGER)
        });
    }
}

/// Waits for a message or the end; for [`LINGER`] at most if there are files.
fn can_receive(socket: &OwnedFd, has_files: bool) -> bool {
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: LINGER.subsec_nanos().into(),
    };
    let mut place = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut place, has_files.then_some(&limit)) == Ok(1)
}

/// Receives a request. Returns `None` for other messages, and an error at the end.
fn receive(socket: &OwnedFd) -> std::io::Result<Option<Request>> {
    let mut bytes = [0; size_of::<Message>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let (mut files, mut user) = (Vec::new(), None);
    for part in control.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(more) => files.extend(more),
            RecvAncillaryMessage::ScmCredentials(sender) => user = Some(sender.uid.as_raw()),
            _ => {}
        }
    }
    if received.bytes == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let mut words = bytes.as_chunks().0.iter().copied();
    let message = std::array::from_fn(|_| words.next().map_or(0, u32::from_ne_bytes));
    let mut files = files.into_iter();
    let (reply, file) = (files.next(), files.next());
    Ok(reply.zip(user).map(|(reply, user)| Request {
        message,
        user,
        reply,
        file,
    }))
}

fn answer(all: &mut HashMap<u32, Kept>, request: Request) {
    let [what, number, generation, count] = request.message;
    let user = request.user;
    let known = all
        .get_mut(&number)
        .filter(|kept| kept.generation == generation);
    let is_refused = known
        .as_ref()
        .is_some_and(|kept| ![0, kept.user].contains(&user));
    let (mut given, mut is_done) = (None, true);
    match (what, known, request.file) {
        _ if is_refused => is_done = false,
        (PUT, _, Some(file)) => {
            let kept = Kept {
                generation,
                file,
                user,
                waiting: count,
                since: Instant::now(),
            };
            all.insert(number, kept);
        }
        (GET, Some(kept), _) => {
            kept.waiting = kept.waiting.saturating_sub(1);
            kept.since = Instant::now();
            given = Some(kept.file.as_raw_fd() as u32);
        }
        (DROP, Some(_), _) => drop(all.remove(&number)),
        (GET | DROP, None, _) => {}
        _ => is_done = false, // a file that did not arrive
    }
    // A process that does not wait any more gets no answer.
    let reply = request.reply.as_raw_fd() as u32;
    let first = if is_done { DONE } else { 0 };
    let _ = kernel::send(reply, &[first, 0, 0, 0], given.as_slice(), false);
}
