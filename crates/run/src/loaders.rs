//! Which programs load this library: those whose loader is that of glibc for x86-64, and that get no rights by being executed.

use crate::kernel;
use std::ffi::{CStr, CString};

/// The effect of `LD_PRELOAD` on a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loads {
    /// This library is loaded.
    Library,
    /// Nothing: the program is static, or gets rights.
    Nothing,
    /// Another loader would try, and fail.
    Other,
}

/// Bytes of a program that are looked at. The kernel reads fewer of a script.
const HEAD: usize = 4096;
/// Scripts whose interpreter is a script, as in the kernel.
const DEPTH: u32 = 4;
/// The start of the loader's file name.
const LOADER: &[u8] = b"ld-linux-x86-64.so";
/// The type of the program header that names the loader.
const PT_INTERP: u32 = 3;

/// Looks at the program at a path of the kernel. One that cannot be read is left to the kernel.
pub(crate) fn of_program(dir: i32, path: &CStr) -> Loads {
    of(dir, path, DEPTH).unwrap_or(Loads::Library)
}

fn of(dir: i32, path: &CStr, depth: u32) -> Option<Loads> {
    let mut head = [0_u8; HEAD];
    let (len, gets_rights) = kernel::program(dir, path, &mut head).ok()?;
    let head = &head[..len];
    if gets_rights {
        return Some(Loads::Nothing);
    }
    match head.strip_prefix(b"#!") {
        Some(line) if depth > 0 => {
            let line = line.split(|byte| *byte == b'\n').next()?;
            let mut words = line.split(|byte| b" \t".contains(byte));
            let interpreter = words.find(|word| !word.is_empty())?;
            of(libc::AT_FDCWD, &CString::new(interpreter).ok()?, depth - 1)
        }
        Some(_) => None,
        None if file_name(path.to_bytes()).starts_with(LOADER) => Some(Loads::Library),
        None => of_elf(head),
    }
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Looks at a program in the format ELF. Returns `None` for other formats.
fn of_elf(head: &[u8]) -> Option<Loads> {
    let elf64 = [0x7f, b'E', b'L', b'F', 2, 1];
    let number = |at: usize, bytes: usize| {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(head.get(at..at.checked_add(bytes)?)?);
        usize::try_from(u64::from_le_bytes(word)).ok()
    };
    if !head.starts_with(&elf64[..4]) {
        return None;
    }
    if !head.starts_with(&elf64) {
        return Some(Loads::Other);
    }
    let (table, bytes, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut headers = (0..count).filter_map(|n| table.checked_add(n * bytes));
    let Some(header) = headers.find(|at| number(*at, 4) == Some(PT_INTERP as usize)) else {
        return Some(Loads::Nothing);
    };
    let (start, len) = (number(header + 8, 8)?, number(header + 32, 8)?);
    let loader = head.get(start..start.checked_add(len)?)?;
    Some(match file_name(loader).starts_with(LOADER) {
        true => Loads::Library,
        false => Loads::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_decides() {
        let own = std::env::current_exe().unwrap();
        let own = CString::new(own.into_os_string().into_encoded_bytes()).unwrap();
        assert_eq!(of_program(libc::AT_FDCWD, &own), Loads::Library);
        assert_eq!(
            of_program(libc::AT_FDCWD, c"/lib64/ld-linux-x86-64.so.2"),
            Loads::Library
        );
        assert_eq!(
            of_program(libc::AT_FDCWD, c"/does/not/exist"),
            Loads::Library
        );
        assert_eq!(of_elf(b"echo text"), None);
        let mut elf = vec![0; 200];
        elf[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        assert_eq!(of_elf(&elf), Some(Loads::Nothing));
        (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 3);
        (elf[72], elf[96]) = (120, 30);
        for (loader, loads) in [
            ("/lib64/ld-linux-x86-64.so.2", Loads::Library),
            ("/lib/ld-musl-x86_64.so.1", Loads::Other),
        ] {
            let mut elf = elf.clone();
            elf[120..120 + loader.len()].copy_from_slice(loader.as_bytes());
            assert_eq!(of_elf(&elf), Some(loads));
            elf[4] = 1;
            assert_eq!(of_elf(&elf), Some(Loads::Other));
        }
        for len in 0..elf.len() {
            of_elf(&elf[..len]);
        }
    }
}
