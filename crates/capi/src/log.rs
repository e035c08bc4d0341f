//! Logs of the program's own, each in a region: `wordlog` with records of bytes.
//!
//! A record is a word with the number of its bytes, then the bytes, padded to words. One thread may
//! append while another reads and truncates. Several appenders take turns, and so do several
//! readers. An appender flushes before another thread appends: a fence covers the stores of its
//! own thread only.

use crate::message::{report, set_errno};
use crate::open_logs;
use crate::program::Program;
use crate::region::{self, RegionError, outside};
use crate::space::canonical;
use libc::{c_int, c_void, ssize_t};
use medium::{Arena, MediumError, WORD_BYTES};
use mnemosyne::tx::{Interrupted, Space};
use parking_lot::Mutex;
use std::ptr::null_mut;
use std::sync::Arc;
use wordlog::{Appender, Consumer, Kind, LogError, Unrecovered};

/// An open log.
pub(crate) struct Log {
    /// The offset of the log.
    off: u64,
    tail: Mutex<Tail>,
    head: Mutex<Head>,
}

struct Tail {
    /// The thread whose records are appended and not flushed.
    unflushed: Option<libc::pthread_t>,
    appender: Appender<Arc<Arena>>,
    words: Vec<u64>,
}

struct Head {
    consumer: Consumer<Arc<Arena>>,
    /// The record read last, if it did not fit the reader's buffer.
    unread: Option<Vec<u64>>,
    words: Vec<u64>,
    /// The end of the last record that the program has received.
    given: u64,
    /// The end of the record in `unread`.
    next: u64,
}

/// The reason why a call on a log fails.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("{0:#x} is not in durable memory")]
    Volatile(u64),
    #[error("a log needs a length of at least 4096 and a kind that is known")]
    Arguments,
    #[error("a record has {0} bytes, more than the buffer")]
    Buffer(u64),
    #[error("the log is open already")]
    Twice,
    #[error(
        "another thread has appended records that are not flushed: it must flush them before \
         this one appends or flushes"
    )]
    Unflushed,
    #[error("the log has a record that was not made by selvedge_log_append")]
    Foreign,
}

impl RecordError {
    fn errno(&self) -> c_int {
        match self {
            Self::Region(why) => why.errno(),
            Self::Log(LogError::Full { .. }) => libc::ENOSPC,
            Self::Log(LogError::TooLong { .. }) => libc::E2BIG,
            Self::Log(LogError::NotALog { .. }) => libc::EINVAL,
            Self::Buffer(_) => libc::EMSGSIZE,
            Self::Twice | Self::Unflushed => libc::EBUSY,
            Self::Log(LogError::Damaged { .. } | LogError::Medium(_)) | Self::Foreign => libc::EIO,
            Self::Volatile(_) | Self::Arguments => libc::EINVAL,
        }
    }
}

fn create(place: *mut c_void, len: usize, kind: c_int) -> Result<*mut Log, RecordError> {
    let kind = match kind {
        0 => Kind::TornBit,
        1 => Kind::Base,
        _ => return Err(RecordError::Arguments),
    };
    if len < 4096 {
        return Err(RecordError::Arguments);
    }
    let bytes = len
        .checked_next_multiple_of(4096)
        .ok_or(RecordError::Arguments)? as u64;
    let format = |program: &Program, start: u64| {
        let pm = program.memory.memory().space().pmem();
        wordlog::format(pm, start, bytes, kind).map_err(|why| match why {
            LogError::Medium(why) => why.into(),
            LogError::Full { .. }
            | LogError::TooLong { .. }
            | LogError::NotALog { .. }
            | LogError::Damaged { .. } => no_room(start, bytes),
        })
    };
    let at = region::map(place, len, format)?;
    open(at as *const c_void)
}

/// The error for a region too small or not aligned, which [`region::map`] does not make.
fn no_room(off: u64, len: u64) -> Interrupted {
    MediumError::OutOfRange { off, len }.into()
}

fn open(at: *const c_void) -> Result<*mut Log, RecordError> {
    let program = outside()?;
    let space = program.memory.memory().space();
    let off = space.offset(canonical(at as u64));
    let off = off.ok_or(RecordError::Volatile(at as u64))?;
    let mut open = open_logs::lock();
    if open.is_open(off) {
        return Err(RecordError::Twice);
    }
    let regions = program.memory.regions().map_err(RegionError::from)?;
    let mut regions = regions.iter().filter(|region| region.start == off);
    let region = regions.next().ok_or(RegionError::None(at as u64))?;
    let log = Unrecovered::open(space.pmem().clone(), off)?;
    if log.bytes() > region.len {
        let what = format!("it has more than the {} bytes of its region", region.len);
        return Err(LogError::NotALog { start: off, what }.into());
    }
    let (appender, consumer) = log.keep()?;
    let given = consumer.position();
    open.insert(off);
    let log = Log {
        off,
        tail: Mutex::new(Tail {
            unflushed: None,
            appender,
            words: Vec::new(),
        }),
        head: Mutex::new(Head {
            consumer,
            unread: None,
            words: Vec::new(),
            given,
            next: given,
        }),
    };
    Ok(Box::into_raw(Box::new(log)))
}

impl Tail {
    /// Checks that this thread may append or flush.
    fn take_turn(&self) -> Result<libc::pthread_t, RecordError> {
        // SAFETY: the call has no preconditions.
        let this = unsafe { libc::pthread_self() };
        match self.unflushed {
            Some(other) if other != this => Err(RecordError::Unflushed),
            _ => Ok(this),
        }
    }

    fn flush(&mut self) -> Result<(), RecordError> {
        self.take_turn()?;
        self.appender.flush()?;
        self.unflushed = None;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        let this = self.take_turn()?;
        self.words.clear();
        self.words.push(bytes.len() as u64);
        for chunk in bytes.chunks(WORD_BYTES as usize) {
            let mut word = [0; WORD_BYTES as usize];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u64::from_le_bytes(word));
        }
        self.appender.append(&self.words)?;
        self.unflushed = Some(this);
        Ok(())
    }
}

impl Head {
    /// Copies the next record into `buf`. Returns its length, or `None` if there is none.
    fn read(&mut self, buf: &mut [u8]) -> Result<Option<u64>, RecordError> {
        let words = match self.unread.take() {
            Some(words) => words,
            None => {
                let mut words = std::mem::take(&mut self.words);
                match self.consumer.next(&mut words)? {
                    Some(end) => self.next = end,
                    None => return Ok(None),
                }
                words
            }
        };
        let Some((&len, rest)) = words.split_first() else {
            return Err(RecordError::Foreign);
        };
        if len > rest.len() as u64 * WORD_BYTES {
            return Err(RecordError::Foreign);
        }
        if len > buf.len() as u64 {
            self.unread = Some(words);
            return Err(RecordError::Buffer(len));
        }
        let bytes = rest.iter().flat_map(|word| word.to_le_bytes());
        for (to, from) in buf.iter_mut().zip(bytes.take(len as usize)) {
            *to = from;
        }
        self.words = words;
        self.given = self.next;
        Ok(Some(len))
    }

    /// Drops the records that the program has received.
    fn drop_read(&mut self) -> Result<(), LogError> {
        self.consumer.truncate(self.given)
    }

    /// Drops all flushed records.
    fn truncate(&mut self) -> Result<(), LogError> {
        self.unread = None;
        while let Some(end) = self.consumer.next(&mut self.words)? {
            self.next = end;
        }
        self.given = self.next;
        self.consumer.truncate(self.given)
    }
}

/// The log of a handle.
///
/// # Safety
/// `log` must be open.
unsafe fn of<'a>(log: *mut Log) -> &'a Log {
    // SAFETY: the caller's promise.
    unsafe { &*log }
}

/// The result of a call: an error is reported and becomes `otherwise`.
fn reported<T>(otherwise: T, done: Result<T, RecordError>) -> T {
    done.unwrap_or_else(|why| {
        report(why.errno(), why);
        otherwise
    })
}

/// Makes a log in a region of its own, stores the region's address at `place`, and opens the log.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_create(
    place: *mut c_void,
    len: usize,
    kind: c_int,
) -> *mut Log {
    reported(null_mut(), create(place, len, kind))
}

/// Opens the log in the region at `at`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_open(at: *const c_void) -> *mut Log {
    reported(null_mut(), open(at))
}

/// Appends a record. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_append(
    log: *mut Log,
    record: *const c_void,
    len: usize,
) -> c_int {
    let bytes = match len {
        0 => &[],
        // SAFETY: the program passed `len` bytes.
        _ => unsafe { std::slice::from_raw_parts(record.cast(), len) },
    };
    // SAFETY: the program's promise.
    let appended = unsafe { of(log) }.tail.lock().append(bytes);
    reported(-1, appended.map(|()| 0))
}

/// Makes all appended records durable. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_flush(log: *mut Log) -> c_int {
    // SAFETY: the program's promise.
    let flushed = unsafe { of(log) }.tail.lock().flush();
    reported(-1, flushed.map(|()| 0))
}

/// Copies the next durable record into a buffer. Returns its length; -1 with `ENOMSG` if there is
/// none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_read(
    log: *mut Log,
    buffer: *mut c_void,
    len: usize,
) -> ssize_t {
    let buffer = match len {
        0 => &mut [],
        // SAFETY: the program passed a buffer of `len` bytes.
        _ => unsafe { std::slice::from_raw_parts_mut(buffer.cast(), len) },
    };
    // The lock is released before the message hook runs.
    // SAFETY: the program's promise.
    let read = unsafe { of(log) }.head.lock().read(buffer);
    match read {
        Ok(Some(len)) => len as ssize_t,
        Ok(None) => {
            set_errno(libc::ENOMSG);
            -1
        }
        Err(why) => reported(-1, Err(why)),
    }
}

/// Drops all durable records. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_truncate(log: *mut Log) -> c_int {
    // SAFETY: the program's promise.
    let truncated = unsafe { of(log) }.head.lock().truncate();
    reported(-1, truncated.map(|()| 0).map_err(RecordError::from))
}

/// Drops the records that were read. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_drop_read(log: *mut Log) -> c_int {
    // SAFETY: the program's promise.
    let dropped = unsafe { of(log) }.head.lock().drop_read();
    reported(-1, dropped.map(|()| 0).map_err(RecordError::from))
}

/// Closes a log. Its region and its records stay.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_log_close(log: *mut Log) {
    if !log.is_null() {
        // SAFETY: `open` made it from a box, and the program does not use it any more.
        let log = unsafe { Box::from_raw(log) };
        open_logs::lock().remove(log.off);
    }
}
