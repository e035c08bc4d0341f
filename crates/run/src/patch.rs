//! Replaces `syscall` instructions of the loaded objects by jumps to trampolines.
//!
//! A trampoline executes the instructions that the jump replaced, calls [`entry`](crate::abi::entry), and
//! executes the `syscall` itself unless that call has answered. It lies within the reach of a jump.
//!
//! For the program and its libraries it happens once, before the program's own code runs, in the only thread
//! of the process. Objects that `dlopen` adds later are not changed; their calls of libc's functions are
//! answered all the same.

use crate::abi;
use crate::handler::is_of_interest;
use crate::kernel::{self, Result};
use crate::own;
use crate::raw;
use crate::shared::Shared;
use crate::sites::{self, ANY, JUMP_BYTES, Site};
use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

/// Room for a trampoline: 28 bytes and those of its site.
const ROOM: usize = 64;
const PAGE: usize = 4096;
/// The reach of a jump, less the size of any object.
const REACH: usize = (1 << 31) - (1 << 28);

/// Executable memory of an object.
#[derive(Debug)]
struct Text {
    start: usize,
    bytes: usize,
    /// The table of the object's functions, if there is one.
    table: Option<Table>,
    /// Whether the segment begins with the file, so that it has data, too.
    has_data: bool,
    /// The object's build id and the segment as one number; 0 if it has none.
    key: u64,
}

/// Replaces the instructions of the program's objects that can be about the store.
pub(crate) fn program(shared: &Shared) -> Result<()> {
    let texts = texts().into_iter().filter(|text| !text.is_own());
    for text in texts {
        text.replace_those(shared, is_of_interest)?;
    }
    Ok(())
}

/// Replaces those of this library that make or close descriptors, which are then recognised as its own.
/// Only the backend executes them: this happens before a process connects, and costs others nothing.
pub(crate) fn library(shared: &Shared) -> Result<()> {
    for text in texts().into_iter().filter(Text::is_own) {
        text.replace_those(shared, own::is_of_interest)?;
    }
    Ok(())
}

/// The executable segments of all objects but the kernel's.
fn texts() -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    // SAFETY: the callback gets the vector, which outlives the call, and nothing else uses it.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut texts).cast()) };
    texts
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: `texts` passes its vector, and the loader a valid description of an object.
    let (info, texts) = unsafe { (&*info, &mut *data.cast::<Vec<Text>>()) };
    // SAFETY: the loader's names end with 0.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) };
    if name.to_bytes().starts_with(b"linux-vdso") {
        return 0;
    }
    // SAFETY: the object has that many program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let mut notes = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE);
    let id = notes.find_map(|header| {
        let at = (info.dlpi_addr + header.p_vaddr) as *const u8;
        // SAFETY: the segment is loaded and can be read.
        build_id(unsafe { std::slice::from_raw_parts(at, header.p_memsz as usize) })
    });
    let is_text = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & (libc::PF_X | libc::PF_R) == libc::PF_X | libc::PF_R
    };
    let table = headers
        .iter()
        .find(|header| header.p_type == libc::PT_GNU_EH_FRAME)
        .and_then(|table| {
            let segment = headers.iter().find(|loaded| has_loaded(loaded, table))?;
            let address = |offset: u64| (info.dlpi_addr + offset) as usize;
            Some(Table {
                at: address(table.p_vaddr),
                bytes: table.p_memsz as usize,
                loaded: address(segment.p_vaddr)..address(segment.p_vaddr + segment.p_filesz),
            })
        });
    for header in headers.iter().filter(is_text) {
        texts.push(Text {
            start: (info.dlpi_addr + header.p_vaddr) as usize,
            bytes: header.p_filesz as usize,
            table: table.clone(),
            has_data: header.p_offset == 0,
            key: id.map_or(0, |id| {
                id ^ header.p_vaddr.rotate_left(32) ^ header.p_filesz
            }),
        });
    }
    0
}

/// Whether a segment is readable, and has the bytes of another one from its file.
fn has_loaded(segment: &libc::Elf64_Phdr, other: &libc::Elf64_Phdr) -> bool {
    let end = |header: &libc::Elf64_Phdr, bytes: u64| header.p_vaddr.saturating_add(bytes);
    segment.p_type == libc::PT_LOAD
        && segment.p_flags & libc::PF_R != 0
        && segment.p_vaddr <= other.p_vaddr
        && end(other, other.p_memsz) <= end(segment, segment.p_filesz)
}

/// The table `.eh_frame_hdr` of an object, and the loaded memory around it, with the frames to which it leads. The Linux
/// Standard Base describes both.
#[derive(Debug, Clone)]
struct Table {
    at: usize,
    bytes: usize,
    loaded: Range<usize>,
}

impl Table {
    /// The addresses of functions, sorted by their starts. `None` for a table of another form than linkers make.
    fn functions(&self) -> Option<Vec<Range<usize>>> {
        /// Version; encodings of the pointer to the frames, of the count (32 bits) and of the entries, which are two
        /// distances of 32 bits from the table.
        const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let table = self.read(self.at, self.bytes)?;
        let entries = table.strip_prefix(&FORM)?.get(8..)?;
        let count = number(&table[8..])? as u32 as usize;
        let entries = entries.chunks_exact(8).take(count);
        let functions: Vec<Range<usize>> =
            entries.filter_map(|entry| self.function(entry)).collect();
        functions
            .is_sorted_by_key(|one| one.start)
            .then_some(functions)
    }

    /// The function of an entry, whose frame says how long it is.
    fn function(&self, entry: &[u8]) -> Option<Range<usize>> {
        let start = self.at.checked_add_signed(number(entry)? as isize)?;
        let frame = self.at.checked_add_signed(number(&entry[4..])? as isize)?;
        // After its length and its common part: a distance to the start, and the bytes of the function.
        let [place, bytes] = [8, 12].map(|skip| frame.checked_add(skip));
        let distance = number(self.read(place?, 4)?)?;
        let bytes = number(self.read(bytes?, 4)?)? as u32 as usize;
        let is_same = place?.checked_add_signed(distance as isize) == Some(start);
        is_same.then(|| start..start.saturating_add(bytes))
    }

    fn read(&self, at: usize, bytes: usize) -> Option<&[u8]> {
        let end = at.checked_add(bytes)?;
        let is_loaded = self.loaded.start <= at && end <= self.loaded.end;
        // SAFETY: these bytes of the object are loaded, can be read, and nobody changes them.
        is_loaded.then(|| unsafe { std::slice::from_raw_parts(at as *const u8, bytes) })
    }
}

fn number(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(*bytes.first_chunk()?))
}

/// The first 8 bytes of the build id (a digest) among notes.
fn build_id(mut notes: &[u8]) -> Option<u64> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while let Some((header, rest)) = notes.split_first_chunk::<12>() {
        let word = |n: usize| u32::from_ne_bytes(header[4 * n..][..4].try_into().expect("4 bytes"));
        let (name, len) = (word(0) as usize, word(1) as usize);
        let value = rest.get(name.next_multiple_of(4)..)?;
        if word(2) == NT_GNU_BUILD_ID && rest.starts_with(b"GNU\0") && len >= 8 {
            return value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        }
        notes = value.get(len.next_multiple_of(4)..)?;
    }
    None
}

impl Text {
    /// Whether it is code of this library.
    fn is_own(&self) -> bool {
        (self.start..self.start + self.bytes).contains(&raw::own_code())
    }

    /// Replaces the instructions whose number is computed or of interest.
    fn replace_those(&self, shared: &Shared, is_of_interest: fn(u16) -> bool) -> Result<()> {
        let sites = match shared.sites(self.key).filter(|_| self.key != 0) {
            Some(sites) => sites,
            None => {
                let found = sites::find(self.code(), &self.functions());
                if self.key != 0 {
                    shared.keep_sites(self.key, &found);
                }
                found.sites
            }
        };
        let wanted = |site: &Site| {
            let at = self.start + site.start as usize + usize::from(site.before);
            !raw::must_stay(at) && (site.number == ANY || is_of_interest(site.number))
        };
        let sites: Vec<Site> = sites.into_iter().filter(wanted).collect();
        match sites.is_empty() {
            true => Ok(()),
            false => self.replace(&sites),
        }
    }

    /// Offsets of the functions, in order. Without a table, all is one, unless there are data beside it.
    fn functions(&self) -> Vec<Range<u32>> {
        let offset = |at: usize| u32::try_from(at.checked_sub(self.start)?).ok();
        match self.table.as_ref().and_then(Table::functions) {
            Some(functions) => functions
                .into_iter()
                .filter(|one| one.end <= self.start + self.bytes)
                .filter_map(|one| Some(offset(one.start)?..offset(one.end)?))
                .collect(),
            None if self.has_data => Vec::new(),
            None => {
                let end = offset(self.start + self.bytes);
                end.map(|end| 0..end).into_iter().collect()
            }
        }
    }

    fn code(&self) -> &[u8] {
        // SAFETY: the segment is loaded, can be read, and no thread changes it.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.bytes) }
    }

    /// Makes the trampolines of the sites, then the jumps to them.
    fn replace(&self, sites: &[Site]) -> Result<()> {
        let room = (PAGE + sites.len() * ROOM).next_multiple_of(PAGE);
        let Some(island) = self.island(room)? else {
            return Ok(()); // no memory within reach: these calls go to the kernel
        };
        // SAFETY: `island` has just made this mapping, of `room` bytes, for this object.
        let memory = unsafe { std::slice::from_raw_parts_mut(island as *mut u8, room) };
        memory[..8].copy_from_slice(&(abi::entry as *const () as u64).to_ne_bytes());
        let places = (0..).map(|n| PAGE + n * ROOM);
        for (site, place) in sites.iter().zip(places.clone()) {
            let code = self.trampoline(site, island, place);
            memory[place..place + code.len()].copy_from_slice(&code);
        }
        protect(island, room, libc::PROT_READ | libc::PROT_EXEC)?;
        let start = self.start & !(PAGE - 1);
        let bytes = self.start + self.bytes - start;
        protect(
            start,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        )?;
        for (site, place) in sites.iter().zip(places) {
            let at = self.start + site.start as usize;
            let mut jump = [0xe9; JUMP_BYTES];
            jump[1..].copy_from_slice(&distance(at + JUMP_BYTES, island + place));
            // SAFETY: the bytes are those of whole instructions of a site, which only this thread could
            // execute; no branch leads into them except to the first.
            unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), at as *mut u8, JUMP_BYTES) };
        }
        protect(start, bytes, libc::PROT_READ | libc::PROT_EXEC)
    }

    /// Memory near the object.
    fn island(&self, bytes: usize) -> Result<Option<usize>> {
        for hint in [
            0,
            self.start + self.bytes + (64 << 20),
            self.start.saturating_sub(64 << 20),
        ] {
            let hint = hint & !(PAGE - 1);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let args = [hint as u64, bytes as u64, 3, flags as u64, u64::MAX, 0];
            // SAFETY: a new mapping at an address of the kernel's choice.
            let at = kernel::result(unsafe { raw::syscall(libc::SYS_mmap, args) })? as usize;
            if at.abs_diff(self.start) < REACH {
                return Ok(Some(at));
            }
            // SAFETY: the mapping was made above, and nothing uses it.
            unsafe { raw::syscall(libc::SYS_munmap, [at as u64, bytes as u64, 0, 0, 0, 0]) };
        }
        Ok(None)
    }

    /// The code for a site, at `place` in the island, whose first word is the address of `entry`.
    fn trampoline(&self, site: &Site, island: usize, place: usize) -> Vec<u8> {
        let code = self.code();
        let before = site.start as usize..site.start as usize + usize::from(site.before);
        let after = before.end + 2..before.end + 2 + usize::from(site.after);
        let mut out = code[before].to_vec();
        out.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp, [rsp - 128]: the red zone
        out.extend([0xff, 0x15]); // call [rip + ...]
        out.extend(distance(island + place + out.len() + 4, island));
        out.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp, [rsp + 128]
        out.extend([0x72, 0x02]); // jc: over the next instruction
        out.extend([0x0f, 0x05]); // syscall
        out.extend(&code[after.clone()]);
        out.push(0xe9); // jmp
        out.extend(distance(
            island + place + out.len() + 4,
            self.start + after.end,
        ));
        out
    }
}

/// The distance that an instruction which ends at `from` has to `to`.
fn distance(from: usize, to: usize) -> [u8; 4] {
    (to.wrapping_sub(from) as u32).to_le_bytes()
}

fn protect(start: usize, bytes: usize, protection: c_int) -> Result<()> {
    let args = [start as u64, bytes as u64, protection as u64, 0, 0, 0];
    // SAFETY: the memory is an island, or code that stays executable while it is written.
    kernel::result(unsafe { raw::syscall(libc::SYS_mprotect, args) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions with a call and those beside them are enough for all sites of libc, and no other object has more.
    #[test]
    fn functions_of_an_object_are_decoded_as_its_whole_code() {
        let mut has_libc = false;
        for text in texts() {
            let functions = text.functions();
            let some = sites::find(text.code(), &functions);
            let whole = 0..text.bytes as u32;
            let all = sites::find(text.code(), std::slice::from_ref(&whole));
            assert!(some.sites.len() <= all.sites.len());
            if functions.len() > 1000 && some.sites.len() > 400 {
                has_libc = true;
                assert_eq!(some, all);
            }
        }
        assert!(has_libc, "no object has the functions of libc");
    }
}
