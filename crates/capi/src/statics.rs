//! Persistent variables (`pstatic`).
//!
//! # Guarantees
//!
//! 1. The variables of a program are in a region, which is mapped over their section before
//!    any code of the program runs. They have the values that the last run left; at the first
//!    run, those in the executable.
//! 2. They are known by the program's file name and their own names and sizes. A program that
//!    was built anew finds each where it is now, whatever else has changed. What is new has the
//!    value in the executable; what is not there any more is kept, for the day it comes back.
//! 3. A variable whose size has changed is refused.
//! 4. A crash leaves the variables as they were, or as they are to be.
//!
//! # Format of the region
//!
//! A *table*, then from a multiple of 4,096 on the bytes of the section, then those of
//! variables that the program has no more. The table is words: magic and version; a CRC32C of
//! what follows; bytes of the table; where the section's bytes are; how many they are; the
//! generation; how many variables; bytes of the program's name; then the name. Each variable
//! has three words, where it is from the section's start on, its length, and bytes of its name,
//! and the name. Of several regions of one program the last generation counts, and a crash has
//! left the others. A region's tag is a checksum of the program's name.

use crate::elf::{self, ElfError, Section, Variable};
use crate::program::{self, Memory};
use crate::space::set_alias;
use medium::{EffectiveDurability, MediumError, Pmem, WORD_BYTES};
use mnemosyne::store::{Region, RegionKind, StoreError};
use mnemosyne::tx::Space;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

/// "SELVSTA" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVSTA\x01");
const PAGE_BYTES: u64 = 4096;
/// Words in front of the program's name.
const HEAD_WORDS: usize = 8;
/// Words of the head that the checksum does not cover.
const UNCHECKED_WORDS: usize = 2;
/// Where variables that are kept begin: multiples of it.
const KEPT_ALIGN: u64 = 64;

/// What to do with what is there: `discard` it, and begin with the values in the executable.
const STATICS: &str = "SELVEDGE_STATICS";

/// Why the persistent variables cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StaticsError {
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error(
        "the program has persistent variables, but not in pages of their own: link it with \
         -Wl,-T,selvedge.ld"
    )]
    NotAligned,
    #[error(
        "the persistent variable {name} of {program} has {is} bytes, and had {was}: give the new \
         one another name, or begin anew with {STATICS}=discard"
    )]
    Size {
        program: String,
        name: String,
        was: u64,
        is: u64,
    },
    #[error("the persistent variables of {program}: {why}")]
    Store { program: String, why: StoreError },
    #[error("the persistent variables of {program} cannot be mapped from {}: {why}", path.display())]
    Map {
        program: String,
        path: PathBuf,
        why: std::io::Error,
    },
    #[error(
        "a power cut cannot be simulated for persistent variables, which the program stores to \
         in their section: keep what it needs in roots"
    )]
    Simulated,
    #[error("{STATICS}={0}: not 'discard'")]
    Unknown(String),
}

// Before the program's own constructors, which may use the variables.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    // A program that cannot be read is told when it uses the library.
    if matches!(elf::section(), Ok(Some(_))) {
        program::started();
    }
}

/// Asked for by the linker script, and by the header: so the library is there, with the
/// constructor above.
#[unsafe(no_mangle)]
pub static selvedge_anchor: u8 = 0;

type Variables = BTreeMap<String, Variable>;

/// What a region of variables holds.
struct Table {
    program: String,
    generation: u64,
    /// Where the section's bytes are, in the region, and how many.
    data: u64,
    section: u64,
    variables: Variables,
}

/// Maps the program's persistent variables, if it has some.
pub(crate) fn attach(memory: &Memory, is_simulated: bool) -> Result<(), StaticsError> {
    elf::check_libraries()?;
    let Some(section) = elf::section()? else {
        return Ok(());
    };
    if !section.address.is_multiple_of(PAGE_BYTES) || !section.len.is_multiple_of(PAGE_BYTES) {
        return Err(StaticsError::NotAligned);
    }
    // The section would be mapped from the file itself.
    if is_simulated {
        return Err(StaticsError::Simulated);
    }
    let variables = elf::variables()?;
    let program = elf::program_name()?;
    let failed = |why| {
        let program = program.clone();
        StaticsError::Store { program, why }
    };
    let mut found = find(memory, &program).map_err(failed)?;
    let latest = found.pop();
    for (old, _) in found {
        memory.unmap(old.start, |_| Ok(())).map_err(failed)?;
    }
    let discards = discards()?;
    let (region, data) = match latest {
        Some((region, table)) if !discards && table.is_for(&section, &variables) => {
            (region, table.data)
        }
        latest => {
            let old = latest.as_ref().filter(|_| !discards);
            let generation = latest.as_ref().map_or(0, |(_, table)| table.generation) + 1;
            let made = make(memory, &program, &section, variables, old, generation)?;
            if let Some((old, _)) = latest {
                memory.unmap(old.start, |_| Ok(())).map_err(failed)?;
            }
            made
        }
    };
    map(memory, &program, &region, data, &section)
}

fn discards() -> Result<bool, StaticsError> {
    match std::env::var_os(STATICS) {
        None => Ok(false),
        Some(what) if what == "discard" => Ok(true),
        Some(what) => Err(StaticsError::Unknown(what.to_string_lossy().into_owned())),
    }
}

/// The regions of this program's variables, by generation.
fn find(memory: &Memory, program: &str) -> Result<Vec<(Region, Table)>, StoreError> {
    let mut found = Vec::new();
    for region in memory.regions()? {
        if region.kind == RegionKind::Static
            && region.tag == tag(program)
            && let Some(table) = Table::read(memory, &region)?
            && table.program == program
        {
            found.push((region, table));
        }
    }
    found.sort_by_key(|(_, table)| table.generation);
    Ok(found)
}

fn tag(program: &str) -> u64 {
    crc32c::crc32c(program.as_bytes()).into()
}

/// Makes a region with the variables as they are to be. The region, and where the section's
/// bytes are in it.
fn make(
    memory: &Memory,
    program: &str,
    section: &Section,
    variables: Variables,
    old: Option<&(Region, Table)>,
    generation: u64,
) -> Result<(Region, u64), StaticsError> {
    let failed = |why| {
        let program = program.to_owned();
        StaticsError::Store { program, why }
    };
    // SAFETY: the section, as the program was loaded, which nobody changes before its
    // constructors run.
    let image =
        unsafe { std::slice::from_raw_parts(section.address as *const u8, section.len as usize) };
    let mut bytes = image.to_vec();
    let mut table = Table {
        program: program.to_owned(),
        generation,
        data: 0,
        section: section.len,
        variables,
    };
    if let Some((region, before)) = old {
        table.take_over(memory, region, before, &mut bytes)?;
    }
    let encoded = table.encode();
    let data = table.data;
    let len = data + bytes.len() as u64;
    let pm = memory.memory().space().pmem();
    let fill = |_: &mut mnemosyne::tx::Transaction<'_, _>, start| {
        pm.store_nt(start, &encoded);
        pm.store_nt(start + data, &bytes);
        // Data before the commit that makes the region be there.
        Ok(pm.fence()?)
    };
    let made = memory.map(RegionKind::Static, len, tag(program), fill);
    Ok((made.map_err(failed)?, data))
}

impl Table {
    /// Whether the section has these variables, where they are now.
    fn is_for(&self, section: &Section, variables: &Variables) -> bool {
        let is_kept = |variable: &Variable| variable.start >= self.section;
        let there = self.variables.iter().filter(|(_, v)| !is_kept(v));
        self.section == section.len && there.eq(variables)
    }

    /// Takes the values of variables that there were, and keeps those that are gone.
    fn take_over(
        &mut self,
        memory: &Memory,
        region: &Region,
        before: &Self,
        bytes: &mut Vec<u8>,
    ) -> Result<(), StaticsError> {
        let pm = memory.memory().space().pmem();
        for (name, old) in &before.variables {
            let now = match self.variables.get(name) {
                Some(now) if now.len == old.len => *now,
                Some(now) => {
                    return Err(StaticsError::Size {
                        program: self.program.clone(),
                        name: name.clone(),
                        was: old.len,
                        is: now.len,
                    });
                }
                None => {
                    let start = (bytes.len() as u64).next_multiple_of(KEPT_ALIGN);
                    bytes.resize((start + old.len) as usize, 0);
                    let len = old.len;
                    let kept = Variable { start, len };
                    self.variables.insert(name.clone(), kept);
                    kept
                }
            };
            let to = &mut bytes[now.start as usize..][..now.len as usize];
            let from = region.start + before.data + old.start;
            pm.read(from, to).map_err(|why| StaticsError::Store {
                program: self.program.clone(),
                why: why.into(),
            })?;
        }
        Ok(())
    }

    /// As bytes. Finds out where the section's bytes are to be.
    fn encode(&mut self) -> Vec<u8> {
        let mut body = self.program.as_bytes().to_vec();
        for (name, variable) in &self.variables {
            for word in [variable.start, variable.len, name.len() as u64] {
                body.extend_from_slice(&word.to_le_bytes());
            }
            body.extend_from_slice(name.as_bytes());
        }
        let len = (HEAD_WORDS * WORD_BYTES as usize + body.len()) as u64;
        self.data = len.next_multiple_of(PAGE_BYTES);
        let head = [
            len,
            self.data,
            self.section,
            self.generation,
            self.variables.len() as u64,
            self.program.len() as u64,
        ];
        let mut checked: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        checked.extend(body);
        let crc = u64::from(crc32c::crc32c(&checked));
        let mut bytes = [MAGIC, crc].map(u64::to_le_bytes).concat();
        bytes.extend(checked);
        bytes
    }

    /// The table of a region; `None`: it has none that is whole.
    fn read(memory: &Memory, region: &Region) -> Result<Option<Self>, MediumError> {
        let pm = memory.memory().space().pmem();
        let word = |n: usize| pm.load(region.start + n as u64 * WORD_BYTES);
        let (magic, crc, len) = (word(0)?, word(1)?, word(2)?);
        let unchecked = (UNCHECKED_WORDS as u64) * WORD_BYTES;
        if magic != MAGIC || len > region.len || len < HEAD_WORDS as u64 * WORD_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; (len - unchecked) as usize];
        pm.read(region.start + unchecked, &mut bytes)?;
        if u64::from(crc32c::crc32c(&bytes)) != crc {
            return Ok(None);
        }
        Ok(Self::decode(&bytes).filter(|table| table.fits(region)))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut take = |len: usize| {
            let (part, more) = rest.split_at_checked(len)?;
            rest = more;
            Some(part)
        };
        let mut words = [0; HEAD_WORDS - UNCHECKED_WORDS];
        for word in &mut words {
            *word = u64::from_le_bytes(take(WORD_BYTES as usize)?.try_into().ok()?);
        }
        let [_, data, section, generation, count, name_len] = words;
        let program = String::from_utf8(take(name_len as usize)?.to_vec()).ok()?;
        let mut variables = Variables::new();
        for _ in 0..count {
            let mut words = [0; 3];
            for word in &mut words {
                *word = u64::from_le_bytes(take(WORD_BYTES as usize)?.try_into().ok()?);
            }
            let [start, len, name_len] = words;
            let name = String::from_utf8(take(name_len as usize)?.to_vec()).ok()?;
            variables.insert(name, Variable { start, len });
        }
        Some(Self {
            program,
            generation,
            data,
            section,
            variables,
        })
    }

    /// Whether all of it is inside the region.
    fn fits(&self, region: &Region) -> bool {
        let room = region.len.checked_sub(self.data);
        let is_inside = |variable: &Variable| {
            let end = variable.start.checked_add(variable.len);
            end.is_some_and(|end| room.is_some_and(|room| end <= room))
        };
        let aligned = self.data.is_multiple_of(PAGE_BYTES) && self.data > 0;
        aligned
            && room.is_some_and(|room| self.section <= room)
            && self.variables.values().all(is_inside)
    }
}

/// Maps the variables over their section.
fn map(
    memory: &Memory,
    program: &str,
    region: &Region,
    data: u64,
    section: &Section,
) -> Result<(), StaticsError> {
    let path = memory.backing().file(region.slot);
    let is_dax = memory.backing().durability() == EffectiveDurability::Dax;
    let flags = match is_dax {
        true => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        false => MapFlags::SHARED,
    };
    let mapped = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .and_then(|file| {
            // SAFETY: the section is whole pages, and has nothing but variables that are to be
            // here; nobody uses them yet.
            let mapped = unsafe {
                rustix::mm::mmap(
                    section.address as *mut _,
                    section.len as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags | MapFlags::FIXED,
                    &file,
                    data,
                )
            };
            Ok(mapped?)
        });
    if let Err(why) = mapped {
        let program = program.to_owned();
        return Err(StaticsError::Map { program, path, why });
    }
    let space = memory.memory().space();
    set_alias(
        section.address,
        section.len,
        space.address(region.start + data),
    );
    Ok(())
}
