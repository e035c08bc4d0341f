//! A small image with every structure of the format, and the places of its metadata.

use bpfs::format::{
    BLOCK, BlockNo, DIRENT_HEAD, FANOUT, HeightAddr, INODE, LOG_SLOT, RootRecord, Super, at, span,
};
use bpfs::{Bpfs, MkfsOptions, Mode, MountOptions, mkfs};
use medium::{MemoryPmem, Pmem};
use std::mem::offset_of;
use std::sync::Arc;
use vfs::{
    Atime, Ctx, Fallocate, FileSystem, FileType, Ino, ManualClock, Name, Timestamp, XattrMode,
};

/// Bytes of the image.
pub const LEN: u64 = 1 << 20;

/// An image, as its blocks that are not zero.
pub struct Image {
    blocks: Vec<(u64, Vec<u8>)>,
}

impl Image {
    pub fn of(pm: &dyn Pmem) -> Self {
        let mut blocks = Vec::new();
        for off in (0..pm.len()).step_by(BLOCK as usize) {
            let mut bytes = vec![0; BLOCK as usize];
            pm.read(off, &mut bytes).expect("memory");
            if bytes.iter().any(|b| *b != 0) {
                blocks.push((off, bytes));
            }
        }
        Self { blocks }
    }

    pub fn copy(&self) -> MemoryPmem {
        let pm = MemoryPmem::new(LEN);
        for (off, bytes) in &self.blocks {
            pm.store(*off, bytes);
        }
        pm
    }
}

pub fn options() -> MountOptions {
    MountOptions {
        atime: Atime::Relative,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000), 1_000)),
        ..MountOptions::default()
    }
}

/// Makes the image: files of heights 0, 1, 2 and 5, holes, and directories of one and of two
/// blocks. It also has hard links, every special file, attributes, links of both kinds, and a
/// committed record in the redo log.
pub fn populated(mode: Mode) -> Image {
    let pm = MemoryPmem::new(LEN);
    let o = MkfsOptions {
        mode,
        ..MkfsOptions::default()
    };
    mkfs(&pm, &o).expect("mkfs");
    let fs = Bpfs::open(&pm as &dyn Pmem, options()).expect("open");
    fill(&fs).expect("populate");
    drop(fs);
    let root = RootOf(&pm);
    let record = (
        root.inode_addr(Ino::ROOT.0) + at::MTIME,
        77u64.to_le_bytes(),
    );
    commit_record(&pm, 0, record.0, 8, &record.1);
    Image::of(&pm)
}

fn fill(fs: &dyn FileSystem) -> vfs::Result<()> {
    let cx = &Ctx::root();
    let root = Ino::ROOT;
    for (name, off) in [
        (&b"small"[..], 0),
        (b"two", BLOCK),
        (b"three", 2 << 20),
        (b"huge", 1 << 55),
    ] {
        let ino = fs.create(cx, root, name, 0o644)?.ino;
        fs.write(cx, ino, 0, b"head")?;
        fs.write(cx, ino, off, &[7; 100])?;
    }
    let holes = fs.create(cx, root, b"holes", 0o600)?.ino;
    fs.write(cx, holes, 0, &[1; 5 * BLOCK as usize])?;
    fs.fallocate(cx, holes, Fallocate::PunchHole, BLOCK, 2 * BLOCK)?;
    let dir = fs.mkdir(cx, root, b"dir", 0o755)?.ino;
    let sub = fs.mkdir(cx, dir, b"sub", 0o700)?.ino;
    fs.link(cx, holes, sub, b"again")?;
    fs.symlink(cx, sub, b"link", b"../small")?;
    fs.mknod(
        cx,
        Name::new(sub, b"null"),
        FileType::CharDevice,
        0o666,
        0x103,
    )?;
    fs.mknod(cx, Name::new(sub, b"pipe"), FileType::Fifo, 0o666, 0)?;
    let wide = fs.mkdir(cx, root, b"wide", 0o755)?.ino;
    let linked = fs.create(cx, wide, b"linked", 0o644)?.ino;
    for n in 0..16 {
        fs.link(cx, linked, wide, format!("{n:0>250}").as_bytes())?;
    }
    fs.unlink(cx, wide, format!("{:0>250}", 3).as_bytes())?;
    fs.setxattr(cx, holes, b"user.one", b"value", XattrMode::Set)?;
    fs.setxattr(cx, holes, b"user.two", b"", XattrMode::Set)
}

/// Puts a committed record into slot `slot` of the redo log.
pub fn commit_record(pm: &dyn Pmem, slot: u64, addr: u64, len: u64, bytes: &[u8]) {
    let mut payload = Vec::new();
    payload.extend(addr.to_le_bytes());
    payload.extend(len.to_le_bytes());
    payload.extend(bytes);
    payload.resize(payload.len().next_multiple_of(8), 0);
    let at = 2 * BLOCK + slot * LOG_SLOT;
    pm.store(at + 8, &payload);
    let header = u64::from(crc32fast::hash(&payload)) << 32 | payload.len() as u64;
    pm.store_word(at, header);
}

/// Stores the right checksum in the super block.
pub fn seal(pm: &dyn Pmem) {
    let mut bytes = [0; offset_of!(Super, crc)];
    pm.read(0, &mut bytes).expect("memory");
    pm.store(bytes.len() as u64, &crc32fast::hash(&bytes).to_le_bytes());
}

/// The contents of a field, by which wrong values are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any value is valid.
    Free,
    /// A number with a meaning.
    Number,
    /// A block number.
    Pointer,
    /// Height and root of a tree.
    Tree,
}

/// A field of the metadata.
pub struct Field {
    pub name: String,
    pub addr: u64,
    pub width: usize,
    pub kind: Kind,
}

impl Field {
    pub fn load(&self, pm: &dyn Pmem) -> u64 {
        let mut bytes = [0; 8];
        pm.read(self.addr, &mut bytes[..self.width])
            .expect("memory");
        u64::from_le_bytes(bytes)
    }

    pub fn store(&self, pm: &dyn Pmem, value: u64) {
        pm.store(self.addr, &value.to_le_bytes()[..self.width]);
    }

    /// Whether the checksum of the super block covers the field.
    pub fn is_sealed(&self) -> bool {
        self.addr < offset_of!(Super, crc) as u64
    }
}

/// The metadata of an image.
pub struct Layout {
    pub fields: Vec<Field>,
    /// Blocks in use, as targets of wrong pointers.
    pub blocks: Vec<u64>,
}

impl Layout {
    pub fn of(pm: &dyn Pmem) -> Self {
        let mut found = Self {
            fields: Vec::new(),
            blocks: vec![0, 1, 2],
        };
        found.supers();
        for slot in 0..2 {
            let at = 2 * BLOCK + slot * LOG_SLOT;
            for word in 0..4 {
                found.add(
                    format!("log slot {slot} word {word}"),
                    at + word * 8,
                    8,
                    Kind::Number,
                );
            }
        }
        let root = RootOf(pm);
        let record = root.record();
        found.blocks.push(record / BLOCK);
        found.add("root record ha".into(), record, 8, Kind::Tree);
        found.add(
            "root record size".into(),
            record + at::ROOT_SIZE,
            8,
            Kind::Number,
        );
        found.tree(
            pm,
            "inode file",
            root.ha(record),
            root.word(record + at::ROOT_SIZE),
        );
        for ino in 1..=root.word(record + at::ROOT_SIZE) / INODE {
            let addr = root.inode_addr(ino);
            if FileType::from_mode(root.word(addr + at::MODE) as u32).is_some() {
                found.inode(pm, ino, addr);
            }
        }
        found
    }

    fn add(&mut self, name: String, addr: u64, width: usize, kind: Kind) {
        let field = Field {
            name,
            addr,
            width,
            kind,
        };
        self.fields.push(field);
    }

    fn supers(&mut self) {
        for block in [0, BLOCK] {
            for (name, off, width, kind) in [
                ("magic", offset_of!(Super, magic), 8, Kind::Number),
                ("version", offset_of!(Super, version), 4, Kind::Number),
                (
                    "block_bytes",
                    offset_of!(Super, block_bytes),
                    4,
                    Kind::Number,
                ),
                ("uuid", offset_of!(Super, uuid), 8, Kind::Free),
                ("blocks", offset_of!(Super, blocks), 8, Kind::Number),
                ("log_start", offset_of!(Super, log_start), 8, Kind::Pointer),
                ("log_blocks", offset_of!(Super, log_blocks), 8, Kind::Number),
                ("crc", offset_of!(Super, crc), 4, Kind::Number),
                ("root", offset_of!(Super, root), 8, Kind::Pointer),
                ("mode", offset_of!(Super, mode), 8, Kind::Number),
                ("root_copy", offset_of!(Super, root_copy), 8, Kind::Pointer),
            ] {
                let name = format!("super block {} {name}", block / BLOCK);
                self.add(name, block + off as u64, width, kind);
            }
        }
    }

    fn inode(&mut self, pm: &dyn Pmem, ino: u64, addr: u64) {
        for (name, off, width, kind) in [
            ("generation", 0, 8, Kind::Free),
            ("uid", at::OWNER, 4, Kind::Free),
            ("gid", at::OWNER + 4, 4, Kind::Free),
            ("mode", at::MODE, 4, Kind::Number),
            ("flags", at::MODE + 4, 4, Kind::Number),
            ("ha", at::HA, 8, Kind::Tree),
            ("size", at::SIZE, 8, Kind::Number),
            ("mtime", at::MTIME, 8, Kind::Free),
            ("ctime", at::CTIME, 8, Kind::Free),
            ("atime", at::ATIME, 8, Kind::Free),
            ("rdev", at::RDEV, 8, Kind::Number),
            ("xattr", at::XATTR, 8, Kind::Pointer),
        ] {
            self.add(format!("inode {ino} {name}"), addr + off, width, kind);
        }
        let root = RootOf(pm);
        let (ha, size) = (root.ha(addr + at::HA), root.word(addr + at::SIZE));
        let leaves = self.tree(pm, &format!("inode {ino}"), ha, size);
        let kind = FileType::from_mode(root.word(addr + at::MODE) as u32);
        if kind == Some(FileType::Directory) {
            for leaf in leaves {
                self.entries(pm, ino, leaf);
            }
        }
        let xattr = root.word(addr + at::XATTR);
        if xattr != 0 {
            self.blocks.push(xattr);
            let name = format!("attributes of inode {ino}");
            let at = xattr * BLOCK;
            self.add(format!("{name} length"), at, 8, Kind::Number);
            self.add(format!("{name} name length"), at + 16, 2, Kind::Number);
            self.add(format!("{name} value length"), at + 18, 2, Kind::Number);
            self.add(format!("{name} name"), at + 24, 1, Kind::Number);
        }
    }

    /// Adds the slots of a tree; returns its leaves.
    fn tree(&mut self, pm: &dyn Pmem, name: &str, ha: HeightAddr, size: u64) -> Vec<BlockNo> {
        let mut leaves = Vec::new();
        let mut todo = vec![(ha.block(), ha.height(), 0)];
        while let Some((block, height, base)) = todo.pop() {
            if block.is_null() || size == 0 {
                continue;
            }
            self.blocks.push(block.0);
            if height == 0 {
                leaves.push(block);
                continue;
            }
            let step = span(height - 1);
            for slot in 0..FANOUT {
                let addr = block.addr() + slot * 8;
                let child = BlockNo(pm.load(addr).expect("memory"));
                // Every pointer, and a hole or two; other holes are alike.
                if !child.is_null() || slot < 3 {
                    self.add(
                        format!("{name} block {} slot {slot}", block.0),
                        addr,
                        8,
                        Kind::Pointer,
                    );
                }
                let first = base + slot * step;
                if first < size.div_ceil(BLOCK) {
                    todo.push((child, height - 1, first));
                }
            }
        }
        leaves
    }

    fn entries(&mut self, pm: &dyn Pmem, dir: u64, block: BlockNo) {
        let mut off = 0;
        while off + DIRENT_HEAD as u64 <= BLOCK {
            let at = block.addr() + off;
            let len = pm.load(at + 8).expect("memory") & 0xffff;
            let name = format!("directory {dir} block {} entry at {off}", block.0);
            self.add(format!("{name} ino"), at, 8, Kind::Number);
            self.add(format!("{name} rec_len"), at + 8, 2, Kind::Number);
            self.add(format!("{name} kind"), at + 10, 1, Kind::Number);
            self.add(format!("{name} name_len"), at + 11, 1, Kind::Number);
            self.add(format!("{name} name"), at + 12, 1, Kind::Number);
            if len == 0 {
                return;
            }
            off += len;
        }
    }
}

/// Finds inodes in a sound image.
struct RootOf<'p>(&'p dyn Pmem);

impl RootOf<'_> {
    fn word(&self, addr: u64) -> u64 {
        self.0.load(addr).expect("memory")
    }

    fn ha(&self, addr: u64) -> HeightAddr {
        HeightAddr(self.word(addr))
    }

    fn record(&self) -> u64 {
        self.word(at::SUPER_ROOT) * BLOCK + offset_of!(RootRecord, ha) as u64
    }

    fn inode_addr(&self, ino: u64) -> u64 {
        let byte = (ino - 1) * INODE;
        let ha = self.ha(self.record());
        let mut block = ha.block();
        for height in (0..ha.height()).rev() {
            let slot = byte / BLOCK / span(height) % FANOUT;
            block = BlockNo(self.word(block.addr() + slot * 8));
        }
        block.addr() + byte % BLOCK
    }
}
