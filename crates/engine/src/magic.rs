//! The contents of a device or file, by the magic numbers of engines and of well-known
//! formats of others.
//!
//! Enough to keep `mkfs` from destroying data by mistake, not a replacement for
//! blkid(8).

use crate::Engine;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// A magic number: bytes at an offset from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Magic {
    /// Offset in bytes from the start of the image.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'static [u8],
    /// The format, with its article, such as `an XFS file system`.
    pub name: &'static str,
}

const fn magic(offset: u64, bytes: &'static [u8], name: &'static str) -> Magic {
    Magic {
        offset,
        bytes,
        name,
    }
}

/// Formats in the order in which they are tried: file systems before the partition table whose
/// mark some of them also carry.
const KNOWN: &[Magic] = &[
    magic(0, b"XFSB", "an XFS file system"),
    magic(0x10040, b"_BHRfS_M", "a btrfs file system"),
    magic(0x400, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    magic(0x400, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS file system"),
    magic(0, b"hsqs", "a squashfs file system"),
    magic(0x8001, b"CD001", "an ISO 9660 file system"),
    magic(3, b"NTFS    ", "an NTFS file system"),
    magic(3, b"EXFAT   ", "an exFAT file system"),
    magic(0x36, b"FAT1", "a FAT file system"),
    magic(0x52, b"FAT32", "a FAT file system"),
    magic(0x1018, &[0xc6, 0x85, 0x73, 0xf6], "a bcachefs file system"),
    magic(0x10034, b"ReIsEr", "a ReiserFS file system"),
    magic(0x8000, b"JFS1", "a JFS file system"),
    magic(0, b"NOVA", "a NOVA file system"),
    magic(0xff6, b"SWAPSPACE2", "swap space"),
    magic(0xff6, b"SWAP-SPACE", "swap space"),
    magic(0, b"LUKS\xba\xbe", "an encrypted (LUKS) volume"),
    magic(0x218, b"LVM2 001", "an LVM physical volume"),
    magic(0x1000, &[0xfc, 0x4e, 0x2b, 0xa9], "a Linux RAID member"),
    magic(0x200, b"EFI PART", "a GPT partition table"),
    magic(0x1fe, &[0x55, 0xaa], "a partition table or boot sector"),
    magic(0, b"\x7fELF", "a program"),
    magic(0, b"PK\x03\x04", "a ZIP archive"),
    magic(0, &[0x1f, 0x8b], "a gzip archive"),
    magic(0, b"QFI\xfb", "a qcow2 disk image"),
    magic(0x101, b"ustar", "a tar archive"),
    magic(0, b"SQLite format 3\0", "an SQLite database"),
];

/// The format of an image.
#[derive(Clone, Copy)]
pub enum Held {
    /// A file system of this engine.
    Engine(&'static dyn Engine),
    /// Something else that is known: its description, with its article.
    Foreign(&'static str),
}

impl Held {
    /// The description, with its article.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine(engine) => engine.magic().map_or(engine.name(), |magic| magic.name),
            Self::Foreign(name) => name,
        }
    }
}

/// Finds the format of a file or block device from byte `base` on, if it is known. Engines are
/// tried before the formats of others, whose marks boot sectors carry as well.
///
/// # Errors
/// If it cannot be read.
pub fn find(engines: &[&'static dyn Engine], path: &Path, base: u64) -> io::Result<Option<Held>> {
    let kind = path.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    for engine in engines {
        if let Some(magic) = engine.magic()
            && stands(&mut file, base, magic)?
        {
            return Ok(Some(Held::Engine(*engine)));
        }
    }
    for known in KNOWN {
        if stands(&mut file, base, *known)? {
            return Ok(Some(Held::Foreign(known.name)));
        }
    }
    Ok(None)
}

/// Whether the bytes of a magic number are where they belong.
fn stands(file: &mut File, base: u64, magic: Magic) -> io::Result<bool> {
    let mut bytes = vec![0; magic.bytes.len()];
    file.seek(SeekFrom::Start(base.saturating_add(magic.offset)))?;
    match file.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes == magic.bytes),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn name_of(path: &Path) -> Option<&'static str> {
        find(&[], path, 0).unwrap().map(Held::name)
    }

    #[test]
    fn every_signature_is_found_where_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        for (i, known) in KNOWN.iter().enumerate() {
            let path = dir.path().join(i.to_string());
            let file = File::create(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            assert_eq!(name_of(&path), None);
            file.write_all_at(known.bytes, known.offset).unwrap();
            assert_eq!(name_of(&path), Some(known.name));
        }
    }

    #[test]
    fn short_files_hold_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        File::create(&path).unwrap();
        assert_eq!(name_of(&path), None);
    }
}
