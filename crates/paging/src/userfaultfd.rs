//! Page faults that this process answers itself, with `userfaultfd(2)`.
//!
//! Guarantee: a thread that touches watched memory at which nothing is, in the program or in
//! a system call, sleeps until it is woken, and then tries again.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::io;

const GROUP: u8 = 0xaa;
const API: u64 = 0xaa;
/// Watched memory stays watched when it is moved; whoever moves it waits until that was read.
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const REGISTER_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const NEW: libc::Ioctl = 0xaa00;
/// Bytes of a message, and how many are read at a time.
const MESSAGE_BYTES: usize = 32;
const MESSAGES: usize = 16;
/// Where the address of a fault is in its message.
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

/// The faults of all memory that is watched through it.
#[derive(Debug)]
pub(crate) struct Faults(OwnedFd);

impl Faults {
    /// # Errors
    /// The system has no such thing, or not for this user.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: only this module uses it, and says to its callers what to mind.
        let fd = match unsafe { userfaultfd(flags) } {
            Ok(fd) => fd,
            // Not for everybody; the device is for whom its permissions name.
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

    /// Watches memory that is anonymous and private.
    ///
    /// # Safety
    /// Whoever touches it waits until somebody answers.
    pub(crate) unsafe fn watch(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut register = Register {
            range: Range { start, len },
            mode: REGISTER_MISSING,
            ioctls: 0,
        };
        // SAFETY: the structure is the one of the call; the rest is the caller's promise.
        unsafe { ioctl(&self.0, Updater::<REGISTER, Register>::new(&mut register)) }
    }

    /// Wakes who waits for memory in a range. (It fails for no range that is made of pages.)
    pub(crate) fn wake(&self, start: u64, len: u64) {
        let mut range = Range { start, len };
        // SAFETY: the structure is the one of the call, which changes no memory.
        let _ = unsafe { ioctl(&self.0, Updater::<WAKE, Range>::new(&mut range)) };
    }

    /// Puts zeros where nothing is, and wakes who waits for them.
    ///
    /// # Errors
    /// `EAGAIN`: watched memory is being moved; read, and try again.
    pub(crate) fn zero(&self, start: u64, len: u64) -> Result<(), Errno> {
        let mut zero = ZeroPage {
            range: Range { start, len },
            mode: 0,
            done: 0,
        };
        // SAFETY: the structure is the one of the call, which changes no memory that is there.
        unsafe { ioctl(&self.0, Updater::<ZERO_PAGE, ZeroPage>::new(&mut zero)) }
    }

    /// Waits for faults, or until `other` can be read. Whether it can.
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

    /// Calls `each` with the addresses of faults that there are.
    pub(crate) fn read(&self, mut each: impl FnMut(u64)) -> Result<(), Errno> {
        let mut messages = [0; MESSAGES * MESSAGE_BYTES];
        let len = match read(&self.0, &mut messages) {
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(e) => return Err(e),
        };
        for message in messages[..len].chunks_exact(MESSAGE_BYTES) {
            // Others only tell that memory was moved.
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
