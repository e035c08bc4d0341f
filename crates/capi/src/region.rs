//! Dynamic regions (`pmap`, `punmap`). Not inside transactions: files are made and removed.

use crate::errno::errno_of_store;
use crate::message::report;
use crate::open_logs;
use crate::program::{self, Program, StartError};
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_int, c_void};
use medium::WORD_BYTES;
use mnemosyne::memory::{MemoryError, Region, RegionKind};
use mnemosyne::tx::{Interrupted, Space, Transaction};
use std::ptr::null_mut;

/// The only protection of a region.
const READ_AND_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The reason why a call on a region fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegionError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("regions are not made or removed inside a transaction")]
    InTransaction,
    #[error("the address of the pointer to the region is NULL")]
    NoPlace,
    #[error(
        "the pointer at {0:#x} to the region is not in durable memory: after a crash, nothing would \
         lead to the region"
    )]
    Volatile(u64),
    #[error("a region needs a length, PROT_READ | PROT_WRITE, and no flags")]
    Arguments,
    #[error("no region begins at {0:#x}")]
    None(u64),
    #[error("the log in the region is open: call selvedge_log_close first")]
    Open,
    #[error("the region at {at:#x} has {len} bytes, and is removed as a whole")]
    Part { at: u64, len: u64 },
}

impl RegionError {
    /// The closest errno.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::Start(why) => why.errno(),
            Self::Memory(why) => errno_of_store(why),
            Self::InTransaction => libc::EDEADLK,
            Self::Open => libc::EBUSY,
            Self::NoPlace
            | Self::Volatile(_)
            | Self::Arguments
            | Self::None(_)
            | Self::Part { .. } => libc::EINVAL,
        }
    }
}

/// The durable memory, for a call that is not allowed inside a transaction.
pub(crate) fn outside() -> Result<&'static Program, RegionError> {
    let program = program::start()?;
    // SAFETY: the program called; the reference is dropped at once.
    let is_inside = unsafe { Thread::get(program) }.depth > 0;
    match is_inside {
        true => Err(RegionError::InTransaction),
        false => Ok(program),
    }
}

/// Makes a region of `len` bytes, which `fill` fills. The transaction that creates the region
/// stores its address at `place`.
pub(crate) fn map(
    place: *mut c_void,
    len: usize,
    mut fill: impl FnMut(&Program, u64) -> Result<(), Interrupted>,
) -> Result<u64, RegionError> {
    let program = outside()?;
    if place.is_null() {
        return Err(RegionError::NoPlace);
    }
    let (given, place) = (place as u64, canonical(place as u64));
    let space = program.memory.memory().space();
    let off = space.offset(place);
    off.filter(|off| space.pmem().has(*off, WORD_BYTES))
        .ok_or(RegionError::Volatile(given))?;
    let link = |tx: &mut Transaction<'_, _>, start: u64| {
        fill(program, start)?;
        tx.write(place, &(program.base + start).to_le_bytes())
    };
    let made = program
        .memory
        .map(RegionKind::Program, len as u64, 0, link)?;
    Ok(program.base + made.start)
}

/// The region whose address is at `place`, if there is one.
fn region_at(program: &Program, place: *mut c_void) -> Result<Option<Region>, RegionError> {
    // SAFETY: the program passed this place.
    let at = unsafe { place.cast::<u64>().read_unaligned() };
    if at == 0 {
        return Ok(None);
    }
    let regions = program.memory.regions()?;
    let is_it =
        |region: &Region| region.kind == RegionKind::Program && program.base + region.start == at;
    let region = regions.into_iter().find(is_it);
    region.map(Some).ok_or(RegionError::None(at))
}

/// Removes the region whose address is at `place`, and stores null there.
fn unmap(place: *mut c_void, len: usize) -> Result<(), RegionError> {
    let program = outside()?;
    if place.is_null() {
        return Err(RegionError::NoPlace);
    }
    let Some(region) = region_at(program, place)? else {
        return Ok(());
    };
    if len != 0 && len.next_multiple_of(4096) as u64 != region.len {
        let (at, len) = (program.base + region.start, region.len);
        return Err(RegionError::Part { at, len });
    }
    let place = canonical(place as u64);
    let unlink = |tx: &mut Transaction<'_, _>| tx.write(place, &0_u64.to_le_bytes());
    // No log in the region is opened until the region is removed.
    let open = open_logs::lock();
    if open.has_any_in(region.start..region.start + region.len) {
        return Err(RegionError::Open);
    }
    Ok(program.memory.unmap(region.start, unlink)?)
}

/// Makes a region. Returns null, with `errno` and a message, if that fails.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_pmap(
    place: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
) -> *mut c_void {
    let is_possible = len > 0 && protection == READ_AND_WRITE && flags == 0;
    let made = match is_possible {
        true => map(place, len, |_, _| Ok(())),
        false => Err(RegionError::Arguments),
    };
    match made {
        Ok(at) => at as *mut c_void,
        Err(why) => {
            report(why.errno(), why);
            null_mut()
        }
    }
}

/// Removes a region. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_punmap(place: *mut c_void, len: usize) -> c_int {
    match unmap(place, len) {
        Ok(()) => 0,
        Err(why) => {
            report(why.errno(), why);
            -1
        }
    }
}
