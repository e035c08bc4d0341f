//! Memory of the program that a call names by address.
//!
//! A call with a bad address fails with `EFAULT`, as in the kernel: each page is probed before it is used,
//! and the signal handler ends a probe that faults. The program can change or unmap memory during a call,
//! as it can during one of the kernel. Changed bytes are read or written in either state. Memory that
//! another thread unmaps ends the process.

use crate::kernel::Result;
use crate::raw::probe;
use smallvec::SmallVec;
use vfs::Errno;

/// Longest path in bytes, with its 0.
const PATH_MAX: usize = libc::PATH_MAX as usize;
/// Most buffers of a call.
const BUFFERS_MAX: usize = 1024;
const PAGE: usize = 4096;

fn check(address: u64, len: usize, is_write: bool) -> Result<()> {
    let start = address as usize;
    let end = start
        .checked_add(len)
        .filter(|end| *end <= 1 << 47)
        .ok_or(Errno::FAULT)?;
    match probe(start, end, is_write.into()) {
        0 => Err(Errno::FAULT),
        _ => Ok(()),
    }
}

/// Bytes that a call reads.
pub(crate) fn bytes<'a>(address: u64, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(address, len, false)?;
    // SAFETY: all pages can be read, and stay mapped during the call (see the module). Bytes have no
    // invalid values.
    Ok(unsafe { std::slice::from_raw_parts(address as *const u8, len) })
}

/// Bytes that a call writes.
pub(crate) fn bytes_mut<'a>(address: u64, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(address, len, true)?;
    // SAFETY: as in `bytes`; all pages can be written, and no other reference of this library to the
    // program's memory exists while a call writes its result.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) })
}

/// Values without padding and without invalid bit patterns.
pub(crate) trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for i64 {}
impl Plain for u64 {}
impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Reads a value.
pub(crate) fn load<T: Plain>(address: u64) -> Result<T> {
    let bytes = bytes(address, size_of::<T>())?;
    // SAFETY: the bytes are as many as the value has, and every bit pattern is valid.
    Ok(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// Writes a value.
pub(crate) fn store<T: Copy>(address: u64, value: &T) -> Result<()> {
    let to = bytes_mut(address, size_of::<T>())?;
    // SAFETY: `to` has as many bytes as the value, which is plain memory of the kernel's interface.
    unsafe { std::ptr::write_unaligned(to.as_mut_ptr().cast(), *value) };
    Ok(())
}

/// A string of the program. Most paths need no allocation.
pub(crate) type Text = SmallVec<[u8; 128]>;

/// Reads a string that ends with 0, without the 0.
pub(crate) fn text(address: u64, max: usize) -> Result<Option<Text>> {
    let mut text = Text::new();
    while text.len() < max {
        let at = address.wrapping_add(text.len() as u64);
        let within = PAGE - at as usize % PAGE;
        let part = bytes(at, within.min(max - text.len()))?;
        match memchr::memchr(0, part) {
            Some(end) => {
                text.extend_from_slice(&part[..end]);
                return Ok(Some(text));
            }
            None => text.extend_from_slice(part),
        }
    }
    Ok(None)
}

/// Reads a path.
pub(crate) fn path(address: u64) -> Result<Text> {
    text(address, PATH_MAX)?.ok_or(Errno::NAMETOOLONG)
}

/// Reads the name of an extended attribute.
pub(crate) fn xattr_name(address: u64) -> Result<Text> {
    text(address, vfs::NAME_MAX + 1)?.ok_or(Errno::RANGE)
}

/// Address and length of each buffer of a call. Most calls have one.
pub(crate) type Buffers = SmallVec<[(u64, usize); 1]>;

/// The buffers of a call.
pub(crate) fn buffers(address: u64, count: u64) -> Result<Buffers> {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= BUFFERS_MAX);
    let count = count.ok_or(Errno::INVAL)?;
    let mut buffers = Buffers::with_capacity(count);
    let mut total = 0_usize;
    for n in 0..count as u64 {
        let [base, len] = load::<[u64; 2]>(address.wrapping_add(16 * n))?;
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        total = total
            .checked_add(len)
            .filter(|total| *total <= isize::MAX as usize)
            .ok_or(Errno::INVAL)?;
        buffers.push((base, len));
    }
    Ok(buffers)
}

/// Reads a list of addresses of strings that ends with 0.
pub(crate) fn pointers(address: u64) -> Result<Vec<u64>> {
    let mut pointers = Vec::new();
    if address == 0 {
        return Ok(pointers);
    }
    loop {
        match load::<u64>(address.wrapping_add(8 * pointers.len() as u64))? {
            0 => return Ok(pointers),
            pointer => pointers.push(pointer),
        }
    }
}
