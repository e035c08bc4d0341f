//! The executable of this process: its persistent variables, read from its symbol table.

use mnemosyne::statics::{Variable, Variables};
use object::read::elf::ElfFile64;
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, ReadCache, SectionIndex, SymbolKind,
};
use std::ffi::{CStr, OsStr, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The section of persistent variables.
const SECTION: &str = ".persistent";
const EXECUTABLE: &str = "/proc/self/exe";

/// The reason why the executable cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    #[error("cannot read {EXECUTABLE}: {0}")]
    Unreadable(#[from] std::io::Error),
    #[error("cannot read the symbols of {EXECUTABLE}: {0}")]
    Malformed(#[from] object::Error),
    #[error(
        "the program has persistent variables without symbols: do not strip it, or with \
         --strip-debug --keep-file-symbols only, and do not build it with -flto"
    )]
    Stripped,
    #[error(
        "the library {} has persistent variables: only programs can have them", .0.display()
    )]
    Library(PathBuf),
    #[error(
        "{} has persistent variables, and was started through {}: start the program itself",
        program.display(), loader.display()
    )]
    Loader { program: PathBuf, loader: PathBuf },
    #[error("two persistent variables have the name {0}: rename one")]
    Ambiguous(String),
    #[error(
        "the persistent variable at byte {0:#x} of the section begins with an address that \
         changes in the next run: initialise it with 0, or link with -no-pie"
    )]
    Relocated(u64),
}

/// The section of persistent variables in memory.
#[derive(Debug)]
pub(crate) struct Section {
    pub address: u64,
    pub len: u64,
}

type Cache = ReadCache<File>;
type Elf<'a> = ElfFile64<'a, Endianness, &'a Cache>;

/// The section, if the program has one that is not empty.
///
/// # Errors
/// [`ElfError`]. It is [`ElfError::Loader`] if the program was started through the dynamic loader.
pub(crate) fn section() -> Result<Option<Section>, ElfError> {
    let Some(section) = section_of(EXECUTABLE.as_ref())? else {
        return check_loader().map(|()| None);
    };
    Ok(Some(Section {
        address: load_bias().wrapping_add(section.address),
        ..section
    }))
}

/// Refuses a program with persistent variables that was started through another program, such as
/// the dynamic loader.
fn check_loader() -> Result<(), ElfError> {
    let Some(program) = mapped_program() else {
        return Ok(());
    };
    // A program whose file was removed was not started that way.
    match section_of(&program) {
        Ok(Some(_)) => {
            let loader = std::fs::read_link(EXECUTABLE)?;
            Err(ElfError::Loader { program, loader })
        }
        _ => Ok(()),
    }
}

/// The file in which the program's own headers are mapped.
fn mapped_program() -> Option<PathBuf> {
    let headers = first_object().1;
    let maps = std::fs::read("/proc/self/maps").ok()?;
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        let at = line.iter().position(|byte| *byte == b'/')?;
        let (start, end) = std::str::from_utf8(line.split(|byte| *byte == b' ').next()?)
            .ok()?
            .split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16));
        let has = (start.ok()?..end.ok()?).contains(&headers);
        has.then(|| PathBuf::from(OsStr::from_bytes(&line[at..])))
    })
}

/// Whether the program is at another address in each run.
pub(crate) fn is_moved() -> bool {
    load_bias() != 0
}

/// The section of an executable or library, with the address in the file.
fn section_of(path: &Path) -> Result<Option<Section>, ElfError> {
    let cache = ReadCache::new(File::open(path)?);
    let elf: Elf<'_> = ElfFile64::parse(&cache)?;
    let found = elf.section_by_name(SECTION).filter(|s| s.size() > 0);
    Ok(found.map(|section| Section {
        address: section.address(),
        len: section.size(),
    }))
}

/// Refuses libraries with such variables: they would not be durable.
pub(crate) fn check_libraries() -> Result<(), ElfError> {
    for path in libraries() {
        // A library whose file was removed, or that has no file, was not built for this.
        if matches!(section_of(&path), Ok(Some(_))) {
            return Err(ElfError::Library(path));
        }
    }
    Ok(())
}

/// The libraries that are loaded.
fn libraries() -> Vec<PathBuf> {
    unsafe extern "C" fn each(
        object: *mut libc::dl_phdr_info,
        _len: usize,
        paths: *mut c_void,
    ) -> libc::c_int {
        // SAFETY: the system passes a valid object with a name; `paths` is our own vector.
        let (name, paths) = unsafe {
            let name = CStr::from_ptr((*object).dlpi_name);
            (name, &mut *paths.cast::<Vec<PathBuf>>())
        };
        let path = Path::new(OsStr::from_bytes(name.to_bytes()));
        if path.is_absolute() {
            paths.push(path.to_owned());
        }
        0
    }
    let mut paths = Vec::new();
    // SAFETY: `each` casts the pointer back to its type.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut paths).cast()) };
    paths
}

/// The variables, by name. The name of a local variable has its source file in front.
pub(crate) fn variables() -> Result<Variables, ElfError> {
    let cache = ReadCache::new(File::open(EXECUTABLE)?);
    let elf: Elf<'_> = ElfFile64::parse(&cache)?;
    let Some(section) = elf.section_by_name(SECTION) else {
        return Ok(Variables::new());
    };
    let (address, len) = (section.address(), section.size());
    check_relocations(&elf, address, len)?;
    let variables = variables_of(&elf, section.index(), address)?;
    match variables.is_empty() {
        true => Err(ElfError::Stripped),
        false => Ok(variables),
    }
}

fn variables_of(elf: &Elf<'_>, section: SectionIndex, address: u64) -> Result<Variables, ElfError> {
    let mut variables = Variables::new();
    // The symbol of a source file precedes its local symbols.
    let mut file = String::new();
    for symbol in elf.symbols() {
        if symbol.kind() == SymbolKind::File {
            file = symbol.name()?.to_owned();
        }
        let is_variable = symbol.kind() == SymbolKind::Data && symbol.size() > 0;
        if !is_variable || symbol.section_index() != Some(section) {
            continue;
        }
        if symbol.is_local() && file.is_empty() {
            return Err(ElfError::Stripped);
        }
        let name = match symbol.is_local() {
            true => format!("{file}:{}", without_number(symbol.name()?)),
            false => symbol.name()?.to_owned(),
        };
        let variable = Variable {
            start: symbol.address() - address,
            len: symbol.size(),
        };
        match variables.insert(name.clone(), variable) {
            Some(other) if other != variable => return Err(ElfError::Ambiguous(name)),
            _ => {}
        }
    }
    Ok(variables)
}

/// The name of a variable without the number that the compiler adds to variables of functions.
/// The number depends on other code.
fn without_number(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((front, number)) if number.bytes().all(|b| b.is_ascii_digit()) => front,
        _ => name,
    }
}

/// Refuses variables with relocations: the loader stores addresses there that differ in each run.
fn check_relocations(elf: &Elf<'_>, address: u64, len: u64) -> Result<(), ElfError> {
    let Some(relocations) = elf.dynamic_relocations() else {
        return Ok(());
    };
    let mut places = relocations.map(|(place, _)| place.wrapping_sub(address));
    match places.find(|place| *place < len) {
        Some(place) => Err(ElfError::Relocated(place)),
        None => Ok(()),
    }
}

/// The default name of the program, by which its variables are found: the name of its file.
pub(crate) fn program_name() -> Result<String, ElfError> {
    let path: PathBuf = std::fs::read_link(EXECUTABLE)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The link ends so if the file was replaced.
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    Ok(name.to_owned())
}

/// The distance from the program's addresses in its file to those in memory.
fn load_bias() -> u64 {
    first_object().0
}

/// The load bias of the program, and the address of its headers.
fn first_object() -> (u64, u64) {
    unsafe extern "C" fn first(
        object: *mut libc::dl_phdr_info,
        _len: usize,
        found: *mut c_void,
    ) -> libc::c_int {
        // SAFETY: the system passes a valid object; `found` points to our own pair.
        unsafe {
            let headers = (*object).dlpi_phdr as u64;
            found
                .cast::<(u64, u64)>()
                .write(((*object).dlpi_addr, headers));
        }
        1 // The first object is the program.
    }
    let mut found = (0_u64, 0_u64);
    // SAFETY: `first` writes a pair there.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut found).cast()) };
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_number_of_the_compiler() {
        assert_eq!(without_number("count.17"), "count");
        assert_eq!(without_number("count"), "count");
        assert_eq!(without_number("count.x1"), "count.x1");
    }

    #[test]
    fn this_program_has_no_persistent_variables() {
        assert!(section().unwrap().is_none());
        assert!(variables().unwrap().is_empty());
    }
}
