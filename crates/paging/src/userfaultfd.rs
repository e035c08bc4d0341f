//! Page faults that this process handles itself, with `userfaultfd(2)`.
//!
//! Guarantee: a thread that touches watched memory without contents, in the program or in a
//! system call, sleeps until it is woken, and then retries.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::io;

const GROUP: u8 = 0xaa;
const API: u64 = 0xaa;
/// Watched memory stays watched when it is moved; the move waits until its event was read.
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const REGISTER_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const NEW: libc::Ioctl = 0xaa00;
/// Bytes of a message, and the number of messages that are read at a time.
const MESSAGE_BYTES: usize = 32;
const MESSAGES: usize = 16;
/// Offset of the address in the message of a fault.
const AT_ADDRESS: usize = 16;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ZeroPage {
    range: Range,
    mode: u64,
    done: i64,
}

const AGREE: Opcode = opcode::read_write::<Api>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);
const WAKE: Opcode = opcode::read::<Range>(GROUP, 0x02);
const ZERO_PAGE: Opcode = opcode::read_write::<ZeroPage>(GROUP, 0x04);

/// The faults of all memory that is watched through one descriptor.
#[derive(Debug)]
pub(crate) struct Faults(OwnedFd);

impl Faults {
    /// # Errors
    /// The system does not have `userfaultfd`, or not for this user.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: only this module uses it, and its functions state their requirements.
        let fd = match unsafe { userfaultfd(flags) } {
            Ok(fd) => fd,
            // The call is for privileged users; the device is for users whom its permissions
            // admit.
            Err(_) => from_device(flags)?,
        };
        let mut api = Api {
            api: API,
            features: FEATURE_EVENT_REMAP,
            ioctls: 0,
        };
        // SAFETY: the structure is the one of the call.
        unsafe { ioctl(&fd, Updater::<AGREE, Api>::new(&mut api)) }?;
        Ok(Self(fd))
    }

    /// Watches anonymous and private memory.
    ///
    /// # Safety
    /// Every thread that touches the memory waits until another thread answers.
    pub(crate) unsafe fn watch(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut register = Register {
            range: Range { start, len },
            mode: REGISTER_MISSING,
            ioctls: 0,
        };
        // SAFETY: the structure is the one of the call; the caller vouches for the memory.
        unsafe { ioctl(&self.0, Updater::<REGISTER, Register>::new(&mut register)) }
    }

    /// Wakes threads that wait for memory in a range, which must consist of pages.
    pub(crate) fn wake(&self, start: u64, len: u64) {
        let mut range = Range { start, len };
        // SAFETY: the structure is the one of the call, which changes no memory.
        let _ = unsafe { ioctl(&self.0, Updater::<WAKE, Range>::new(&mut range)) };
    }

    /// Maps zeros where there are no contents, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// `EAGAIN`: watched memory is being moved; read the event and retry.
    pub(crate) fn zero(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut zero = ZeroPage {
            range: Range { start, len },
            mode: 0,
            done: 0,
        };
        // SAFETY: the structure is the one of the call, which changes no present contents.
        unsafe { ioctl(&self.0, Updater::<ZERO_PAGE, ZeroPage>::new(&mut zero)) }
    }

    /// Waits for faults, or until `other` can be read. Returns whether it can.
    pub(crate) fn wait(&self, other: impl AsFd) -> Result<bool, Errno> {
        let mut fds = [
            PollFd::new(&self.0, PollFlags::IN),
            PollFd::new(&other, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => Ok(!fds[1].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Calls `each` with the addresses of the present faults.
    pub(crate) fn read(&self, mut each: impl FnMut(u64)) -> Result<(), Errno> {
        let mut messages = [0; MESSAGES * MESSAGE_BYTES];
        let len = match read(&self.0, &mut messages) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(e) => return Err(e),
        };
        for message in messages[..len].chunks_exact(MESSAGE_BYTES) {
            // Other messages report that memory was moved.
            if message[0] == EVENT_PAGEFAULT {
                let mut address = [0; 8];
                address.copy_from_slice(&message[AT_ADDRESS..AT_ADDRESS + 8]);
                each(u64::from_ne_bytes(address));
            }
        }
        Ok(())
    }
}

fn from_device(flags: UserfaultfdFlags) -> io::Result<OwnedFd> {
    let device = open(
        "/dev/userfaultfd",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // SAFETY: the call takes flags and returns a descriptor or an error.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW, flags.bits()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
