//! Directory blocks and what their entries name: B10 to B15.

use super::{Checker, Name};
use crate::format::{BLOCK, BlockNo, DIRENT_HEAD, DIRENT_MAX, DIRENT_MIN, DirentHead};
use medium::Pmem;
use vfs::{FileType, Ino, NAME_MAX, check_name};
use zerocopy::FromBytes;

impl<P: Pmem + ?Sized> Checker<'_, P> {
    /// Checks the chain of entries in the block at byte `base` of a directory.
    pub(super) fn directory_block(&mut self, dir: Ino, base: u64, block: BlockNo) {
        let mut bytes = [0; BLOCK as usize];
        if !self.read(block.addr(), &mut bytes, format_args!("directory {dir}")) {
            return;
        }
        let mut off = 0;
        while off + DIRENT_MIN <= bytes.len() {
            let Ok((head, rest)) = DirentHead::read_from_prefix(&bytes[off..]) else {
                return;
            };
            let (len, pos) = (usize::from(head.rec_len.get()), base + off as u64);
            if len == 0 {
                if off == 0 && bytes.iter().all(|byte| *byte == 0) {
                    let what = format_args!("directory {dir}, block at {base}: it is all zeros");
                    self.bad("B14", what);
                }
                return;
            }
            let fits = len.is_multiple_of(8) && (DIRENT_MIN..=DIRENT_MAX).contains(&len);
            if !fits || off + len > bytes.len() {
                let what = format_args!("directory {dir}, entry at {pos}: length {len}");
                return self.bad("B14", what);
            }
            if head.ino.get() != 0 {
                let addr = block.addr() + off as u64;
                self.entry(dir, pos, addr, &head, &rest[..len - DIRENT_HEAD]);
            }
            off += len;
        }
    }

    /// Checks a valid entry. Its name is at the start of `room`.
    fn entry(&mut self, dir: Ino, pos: u64, addr: u64, head: &DirentHead, room: &[u8]) {
        let name_len = usize::from(head.name_len);
        match room.get(..name_len).filter(|n| !n.is_empty()) {
            None => {
                let what =
                    format_args!("directory {dir}, entry at {pos}: name of {name_len} bytes");
                self.bad("B14", what);
            }
            Some(name) if check_name(name).is_err() => {
                let name = name.escape_ascii();
                let what = format_args!("directory {dir}, entry at {pos}: the name '{name}'");
                self.bad("B15", what);
            }
            Some(name) => {
                let hash = crc32fast::hash(name);
                self.names.push(Name { hash, addr });
            }
        }
        self.named(dir, pos, Ino(head.ino.get()), head.kind);
    }

    /// Checks the inode that an entry names as a file of type `kind`. Its fields and contents
    /// are checked for the first entry that names it.
    fn named(&mut self, dir: Ino, pos: u64, ino: Ino, kind: u8) {
        let at = format_args!("directory {dir}, entry at {pos}");
        if ino.0 > self.inodes.size / crate::format::INODE {
            return self.bad("B10", format_args!("{at}: there is no inode {ino}"));
        }
        let first = self.named.add(ino.0);
        let Some(inode) = self.inode(ino) else {
            return self.bad("B10", format_args!("{at}: inode {ino} is missing"));
        };
        let mode = inode.mode.get();
        let real = FileType::from_mode(mode);
        if real.is_none() || real != FileType::from_code(kind) {
            self.bad(
                "B11",
                format_args!("{at}: type {kind}, but inode {ino} has mode {mode:o}"),
            );
        }
        let Some(real) = real else { return };
        match (first, real) {
            (false, FileType::Directory) => {
                self.bad(
                    "B12",
                    format_args!("{at}: directory {ino} has another name"),
                );
            }
            (false, _) => {}
            (true, FileType::Directory) => {
                self.fields(ino, &inode);
                self.dirs.push(ino);
            }
            (true, _) => {
                self.fields(ino, &inode);
                self.contents(ino, real, &inode);
            }
        }
    }

    /// Reports names that occur twice in the directory just read. Other names may have the same hash.
    pub(super) fn duplicates(&mut self, dir: Ino) {
        let mut names = std::mem::take(&mut self.names);
        names.sort_unstable_by_key(|n| n.hash);
        for run in names.chunk_by(|a, b| a.hash == b.hash) {
            if run.len() == 1 {
                continue;
            }
            let texts = run.iter().map(|name| self.text(dir, name.addr));
            let Some(mut texts) = texts.collect::<Option<Vec<_>>>() else {
                return;
            };
            texts.sort_unstable();
            for same in texts.chunk_by(|a, b| a == b).filter(|same| same.len() > 1) {
                let name = same[0].escape_ascii();
                self.bad(
                    "B15",
                    format_args!("directory {dir}: the name '{name}' is there more than once"),
                );
            }
        }
        self.names = names;
    }

    /// The name of the entry at an address; `None` if it cannot be read.
    fn text(&mut self, dir: Ino, addr: u64) -> Option<Vec<u8>> {
        let mut bytes = [0; DIRENT_HEAD + NAME_MAX];
        let room = (BLOCK - addr % BLOCK) as usize;
        let buf = &mut bytes[..room.min(DIRENT_HEAD + NAME_MAX)];
        if !self.read(addr, buf, format_args!("directory {dir}")) {
            return None;
        }
        let end = DIRENT_HEAD + usize::from(buf[DIRENT_HEAD - 1]);
        buf.get(DIRENT_HEAD..end).map(<[u8]>::to_vec)
    }
}
