//! Persistent variables (`pstatic`).
//!
//! # Guarantees
//!
//! 1. The variables of a program are in a region, which is mapped over their section before any
//!    code of the program runs. In the first run they have the values in the executable, later
//!    the values that the last run left.
//! 2. A variable is found by the program's name, its own name and its size, also after the program
//!    was rebuilt. New variables have the values in the executable. Variables that the program does
//!    not have any more are kept.
//! 3. The program's name is that of its file, unless the environment or the program sets another. A
//!    program prints a note if its variables begin anew while another name has the same ones.
//! 4. A program is refused if the size of a variable has changed.
//! 5. After a crash during a takeover, the variables are those of the old region or of the new one.
//! 6. An atomic block fails if it stores the address of a variable in durable memory and that
//!    address changes in the next run.
//! 7. A damaged table of variables is refused, and not taken for a first run.

use crate::elf::{self, ElfError, Section};
use crate::space::{Memory, set_alias};
use medium::{EffectiveDurability, Pmem, Rule};
use mnemosyne::memory::{MemoryError, Region, RegionKind};
use mnemosyne::statics::{Table, TableError, Variable, Variables, tag};
use mnemosyne::tx::Space;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char};
use std::io::Write;
use std::path::PathBuf;

const PAGE_BYTES: u64 = 4096;
/// The alignment, in bytes, of kept variables.
const KEPT_ALIGN: u64 = 64;

/// The environment variable that discards the variables: `discard` begins with the values in the
/// executable.
const STATICS: &str = "SELVEDGE_STATICS";

/// The environment variable with the name of the program.
const NAME: &str = "SELVEDGE_STATICS_NAME";

/// The reason why the persistent variables are unavailable.
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
    #[error(
        "the persistent variables of {program}: {why} (region {slot}); restore them from a copy, \
         or begin anew with {STATICS}=discard"
    )]
    Table {
        program: String,
        slot: u64,
        why: TableError,
    },
    #[error("the persistent variables of {program} need a table that is too long")]
    TooMany { program: String },
    #[error("the persistent variables of {program}: {why}")]
    Memory { program: String, why: MemoryError },
    #[error("the persistent variables of {program} cannot be mapped from {}: {why}", path.display())]
    Map {
        program: String,
        path: PathBuf,
        why: std::io::Error,
    },
    #[error("{STATICS}={0}: not 'discard'")]
    Unknown(String),
    #[error("{NAME}: the name of a program is text that is not empty")]
    Name,
}

/// The program's name: from the environment, from the program itself (`SELVEDGE_PROGRAM`), or
/// that of its file.
fn name() -> Result<String, StaticsError> {
    let name = match (std::env::var_os(NAME), own_name()) {
        (Some(name), _) => name.into_string().map_err(|_| StaticsError::Name)?,
        (None, Some(name)) => name.to_str().map_err(|_| StaticsError::Name)?.to_owned(),
        (None, None) => elf::program_name()?,
    };
    match name.is_empty() {
        true => Err(StaticsError::Name),
        false => Ok(name),
    }
}

/// The name that the program's code sets.
fn own_name() -> Option<&'static CStr> {
    #[unsafe(naked)]
    extern "C" fn address() -> *const c_char {
        naked_asm!(
            ".weak selvedge_program_name",
            "mov rax, qword ptr [rip + selvedge_program_name@GOTPCREL]",
            "ret",
        )
    }
    let name = address();
    // SAFETY: null, or the string that the header's macro defines.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

/// Prints a note if another program has variables of the same names and sizes.
fn note_others(memory: &Memory, program: &str, variables: &Variables) {
    let Ok(regions) = memory.regions() else {
        return;
    };
    let pm = memory.memory().space().pmem();
    let is_same = |name: &String, len: u64| variables.get(name).is_some_and(|new| new.len == len);
    let mut others = regions
        .iter()
        .filter(|region| region.kind == RegionKind::Static)
        .filter_map(|region| Table::read(pm, region).ok())
        .filter(|table| table.program != program)
        .filter(|table| table.variables.iter().any(|(name, v)| is_same(name, v.len)));
    if let Some(Table { program: other, .. }) = others.next() {
        let line = format!(
            "selvedge: note: the persistent variables of {program} begin anew; {} has those of \
             {other}: if the program was renamed, set {NAME}={other} or use SELVEDGE_PROGRAM\n",
            memory.backing().path().display()
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// A symbol to which the linker script and the header refer. It links the library, and with it
/// the constructor that opens the memory before `main`.
#[unsafe(no_mangle)]
pub(crate) static selvedge_anchor: u8 = 0;

/// Maps the program's persistent variables, if it has any.
pub(crate) fn attach(memory: &Memory) -> Result<(), StaticsError> {
    elf::check_libraries()?;
    let Some(section) = elf::section()? else {
        return Ok(());
    };
    if !section.address.is_multiple_of(PAGE_BYTES) || !section.len.is_multiple_of(PAGE_BYTES) {
        return Err(StaticsError::NotAligned);
    }
    let variables = elf::variables()?;
    let program = name()?;
    let failed = |why| {
        let program = program.clone();
        StaticsError::Memory { program, why }
    };
    let discards = should_discard()?;
    let mut found = find(memory, &program, discards)?;
    let latest = found.pop();
    if latest.is_none() && !discards {
        note_others(memory, &program, &variables);
    }
    for (old, _) in found {
        memory.unmap(old.start, |_| Ok(())).map_err(failed)?;
    }
    let (region, data) = match latest {
        Some((region, table)) if !discards && is_for(&table, &section, &variables) => {
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

fn should_discard() -> Result<bool, StaticsError> {
    match std::env::var_os(STATICS) {
        None => Ok(false),
        Some(what) if what == "discard" => Ok(true),
        Some(what) => Err(StaticsError::Unknown(what.to_string_lossy().into_owned())),
    }
}

/// The regions of this program's variables, by generation. If the program `discards` its
/// variables, regions with a damaged table are removed.
fn find(
    memory: &Memory,
    program: &str,
    discards: bool,
) -> Result<Vec<(Region, Table)>, StaticsError> {
    let failed = |why| {
        let program = program.to_owned();
        StaticsError::Memory { program, why }
    };
    let mut found = Vec::new();
    let of_program =
        |region: &Region| region.kind == RegionKind::Static && region.tag == tag(program);
    let regions = memory.regions().map_err(failed)?.into_iter();
    for region in regions.filter(of_program) {
        match Table::read(memory.memory().space().pmem(), &region) {
            Ok(table) if table.program == program => found.push((region, table)),
            Ok(_) => {}
            Err(TableError::Damaged(_)) if discards => {
                memory.unmap(region.start, |_| Ok(())).map_err(failed)?;
            }
            Err(why) => {
                return Err(StaticsError::Table {
                    program: program.to_owned(),
                    slot: region.slot,
                    why,
                });
            }
        }
    }
    found.sort_by_key(|(_, table)| table.generation);
    Ok(found)
}

/// Makes a region with the variables of this run. Returns the region, and the offset of the
/// section's bytes in it.
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
        StaticsError::Memory { program, why }
    };
    // SAFETY: the section of the loaded program, which no code changes before the program's
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
        take_over(&mut table, memory, region, before, &mut bytes)?;
    }
    let encoded = table.encode().ok_or_else(|| StaticsError::TooMany {
        program: program.to_owned(),
    })?;
    let data = table.data;
    let len = data + bytes.len() as u64;
    let pm = memory.memory().space().pmem();
    let fill = |_: &mut mnemosyne::tx::Transaction<'_, _>, start| {
        pm.store_nt(start, &encoded);
        pm.store_nt(start + data, &bytes);
        // The commit creates the region.
        Ok(pm.fence(Rule::DataBeforeCommit)?)
    };
    let made = memory.map(RegionKind::Static, len, tag(program), fill);
    Ok((made.map_err(failed)?, data))
}

/// Whether the table has exactly these variables of the section, at the same places.
fn is_for(table: &Table, section: &Section, variables: &Variables) -> bool {
    let is_kept = |variable: &Variable| variable.start >= table.section;
    let there = table.variables.iter().filter(|(_, v)| !is_kept(v));
    table.section == section.len && there.eq(variables)
}

/// Copies the values of the earlier run, and keeps variables that the program has no longer.
fn take_over(
    table: &mut Table,
    memory: &Memory,
    region: &Region,
    before: &Table,
    bytes: &mut Vec<u8>,
) -> Result<(), StaticsError> {
    let pm = memory.memory().space().pmem();
    for (name, old) in &before.variables {
        let now = match table.variables.get(name) {
            Some(now) if now.len == old.len => *now,
            Some(now) => {
                return Err(StaticsError::Size {
                    program: table.program.clone(),
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
                table.variables.insert(name.clone(), kept);
                kept
            }
        };
        let to = &mut bytes[now.start as usize..][..now.len as usize];
        let from = region.start + before.data + old.start;
        pm.read(from, to).map_err(|why| StaticsError::Memory {
            program: table.program.clone(),
            why: why.into(),
        })?;
    }
    Ok(())
}

/// Maps the variables over their section.
fn map(
    memory: &Memory,
    program: &str,
    region: &Region,
    data: u64,
    section: &Section,
) -> Result<(), StaticsError> {
    let is_dax = memory.backing().durability() == EffectiveDurability::Dax;
    let flags = match is_dax {
        true => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        false => MapFlags::SHARED,
    };
    let file = memory.backing().arena().shared_file(region.start);
    let mapped = file
        .ok_or(std::io::ErrorKind::NotFound.into())
        .and_then(|file| {
            // SAFETY: the section is whole pages with these variables only, and no code uses them
            // yet.
            let mapped = unsafe {
                rustix::mm::mmap(
                    section.address as *mut _,
                    section.len as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags | MapFlags::FIXED,
                    &*file,
                    data,
                )
            };
            let mapped = mapped?;
            // Without this, a child made by `fork` would store to its parent's variables.
            // SAFETY: the advice changes no access of this process.
            unsafe { madvise(mapped, section.len as usize, Advice::LinuxDontFork) }?;
            Ok(())
        });
    if let Err(why) = mapped {
        let program = program.to_owned();
        let path = memory.backing().file(region);
        return Err(StaticsError::Map { program, path, why });
    }
    let space = memory.memory().space();
    let target = space.address(region.start + data);
    set_alias(section.address, section.len, target, elf::is_moved());
    Ok(())
}
