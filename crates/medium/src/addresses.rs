//! Ranges of addresses that one value owns.
//!
//! Guarantees: a [`Mapping`] ends when it is dropped. If it was moved into a [`Reservation`],
//! its addresses are reserved again at once, so that nothing else can be mapped there. A
//! mapping moves there whole or not at all.

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap_fixed, munmap,
};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

/// Bytes of a granule: mappings in a reservation start at multiples of it. A huge page.
pub(crate) const GRANULE_BYTES: u64 = 2 << 20;

/// Flags that reserve addresses: they take no memory and do not count against the system's
/// limit of commitments.
const RESERVED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// A range of mapped addresses, with its owner.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Whether the addresses belong to a reservation.
    reserved: bool,
}

// SAFETY: an address and a length; only `drop` uses them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Owns the `len` bytes that are mapped at `base`.
    ///
    /// # Safety
    /// The bytes must be a mapping that only this value ends, and that no code accesses after
    /// the value is dropped.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        let reserved = false;
        Self {
            base,
            len,
            reserved,
        }
    }

    /// Maps anonymous memory, without contents yet, at `place`.
    ///
    /// # Safety
    /// As for [`move_to`](Self::move_to).
    pub(crate) unsafe fn anonymous_at(place: NonNull<u8>, len: usize) -> Result<Self, Errno> {
        let flags = RESERVED | MapFlags::FIXED;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the caller vouches for the addresses.
        unsafe { mmap_anonymous(place.as_ptr().cast(), len, prot, flags) }?;
        Ok(Self {
            base: place,
            len,
            reserved: true,
        })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Moves the mapping to `place`.
    ///
    /// A mapping made at `place` directly could fail after the kernel has cleared the
    /// addresses. Anything else could then be mapped into the hole.
    ///
    /// # Safety
    /// The addresses from `place` on must belong to a [`Reservation`] that outlives the
    /// mapping. Nothing else may be mapped in them, and no code may have accessed the mapping
    /// yet.
    pub(crate) unsafe fn move_to(mut self, place: NonNull<u8>) -> Result<Self, Errno> {
        let (old, new) = (self.base.as_ptr().cast(), place.as_ptr().cast());
        // SAFETY: no code has the old addresses, and the caller vouches for the new ones.
        unsafe { mremap_fixed(old, self.len, self.len, MremapFlags::MAYMOVE, new) }?;
        self.base = place;
        self.reserved = true;
        Ok(self)
    }
}

impl Mapping {
    /// Ends the mapping, and reserves its addresses.
    ///
    /// # Safety
    /// No code may access the mapping any more.
    unsafe fn reserve(&self) -> Result<(), Errno> {
        let flags = RESERVED | MapFlags::FIXED;
        let base = self.base.as_ptr().cast();
        // SAFETY: the caller promises that no code accesses the mapping.
        unsafe { mmap_anonymous(base, self.len, ProtFlags::empty(), flags) }.map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no code accesses the mapping any more. If the call fails, the bytes stay
        // mapped, which is harmless.
        let _ = unsafe {
            match self.reserved {
                true => self.reserve(),
                false => munmap(self.base.as_ptr().cast(), self.len),
            }
        };
    }
}

/// Excludes the mappings in `start..start + len` from children made by `fork`. A child would
/// store to its parent's memory, and keep the file open with its lock.
///
/// # Errors
/// The error of `madvise(2)`.
pub fn keep_from_children(start: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: the call changes nothing for accesses of this process.
    unsafe { madvise(start as *mut c_void, len as usize, Advice::LinuxDontFork) }
}

/// Addresses in which the kernel places no other mapping. An access to one at which nothing was
/// mapped kills the process.
pub(crate) struct Reservation(Mapping);

impl Reservation {
    /// Reserves `len` bytes at `base`, all of which must be free.
    ///
    /// # Errors
    /// `EEXIST` if some are not.
    pub(crate) fn at(base: u64, len: u64) -> Result<Self, Errno> {
        let wanted = base as usize as *mut c_void;
        if wanted.is_null() {
            return Err(Errno::INVAL);
        }
        let reservation = reserve(wanted, len, MapFlags::FIXED_NOREPLACE)?;
        // Before Linux 4.17 the kernel ignored the flag and took the address as a hint.
        if reservation.base().as_ptr() == wanted.cast() {
            Ok(reservation)
        } else {
            Err(Errno::EXIST)
        }
    }

    /// Reserves `len` bytes from a multiple of `align` on, which the kernel picks.
    /// Both must be multiples of a page.
    pub(crate) fn anywhere(len: u64, align: u64) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let enough = len.checked_add(align).ok_or(Errno::NOMEM)?;
        let Self(mut mapping) = reserve(std::ptr::null_mut(), enough, MapFlags::empty())?;
        let base = mapping.base.as_ptr();
        let skip = base.align_offset(align as usize);
        // SAFETY: `skip < align`, so this is inside.
        let aligned = unsafe { mapping.base.add(skip) };
        // SAFETY: both are page-aligned parts of our own mapping, and are given up here.
        unsafe {
            let end = aligned.add(len as usize);
            drop(Mapping::new(end, align as usize - skip));
            if skip > 0 {
                drop(Mapping::new(mapping.base, skip));
            }
        }
        (mapping.base, mapping.len) = (aligned, len as usize);
        Ok(Self(mapping))
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.0.len as u64
    }

    /// Ends all mappings in the reservation.
    ///
    /// # Safety
    /// No code may access them, nor use or drop their owners.
    pub(crate) unsafe fn clear(&self) -> Result<(), Errno> {
        // SAFETY: the caller promises that no code accesses the mappings.
        unsafe { self.0.reserve() }
    }
}

fn reserve(wanted: *mut c_void, len: u64, flags: MapFlags) -> Result<Reservation, Errno> {
    // SAFETY: a new mapping that replaces none.
    let base =
        unsafe { mmap_anonymous(wanted, len as usize, ProtFlags::empty(), RESERVED | flags) }?;
    let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
    // SAFETY: this is the mapping just made.
    Ok(Reservation(unsafe { Mapping::new(base, len as usize) }))
}

/// The first mapping of this process in `range`, as text: its addresses, and its file if it has
/// one.
pub(crate) fn occupant(range: &Range<u64>) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| described(line, range))
}

/// Describes the mapping in a line of `/proc/self/maps`, if it touches `range`.
fn described(line: &str, range: &Range<u64>) -> Option<String> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    // Permissions, offset, device and inode, and blanks up to a column.
    let name = rest.splitn(5, ' ').nth(4).map(str::trim_start);
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or("memory without a name");
    let touches = start < range.end && range.start < end;
    touches.then(|| format!("{name} at {start:#x} to {end:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_of_mappings_are_parsed() {
        let range = 0x2000..0x3000;
        let described = |line| described(line, &range);
        assert_eq!(
            described("2fff-4000 r-xp 00000000 fe:00 77                 /a b/c").as_deref(),
            Some("/a b/c at 0x2fff to 0x4000")
        );
        assert_eq!(
            described("1000-2001 rw-p 00000000 00:00 0 ").as_deref(),
            Some("memory without a name at 0x1000 to 0x2001")
        );
        assert_eq!(described("1000-2000 rw-p 00000000 00:00 0 [heap]"), None);
        assert_eq!(described("3000-4000 rw-p 00000000 00:00 0 [heap]"), None);
        assert_eq!(described(""), None);
    }

    #[test]
    fn a_reservation_anywhere_has_the_alignment_and_length() {
        let align = 64 << 20;
        for _ in 0..3 {
            let one = Reservation::anywhere(align, align).unwrap();
            let base = one.base().as_ptr() as u64;
            assert!(base.is_multiple_of(align));
            assert_eq!(one.len(), align);
            let last = base + align - 4096..base + align;
            assert!(occupant(&last).is_some());
            assert_eq!(Reservation::at(base, align).err(), Some(Errno::EXIST));
        }
    }
}
