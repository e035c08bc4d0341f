//! Images that mke2fs and debugfs make, and a view of their bytes.

use medium::block::MemoryDevice;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A kind of image.
pub struct Kind {
    pub name: &'static str,
    pub options: &'static [&'static str],
    pub kib: u64,
}

pub const KINDS: [Kind; 9] = [
    Kind {
        name: "usual",
        options: &["-N", "64"],
        kib: 1024,
    },
    Kind {
        name: "small inodes",
        options: &["-N", "64", "-I", "128"],
        kib: 1024,
    },
    Kind {
        name: "2 KiB",
        options: &["-N", "64", "-b", "2048"],
        kib: 2048,
    },
    Kind {
        name: "4 KiB",
        options: &["-N", "64", "-b", "4096"],
        kib: 2048,
    },
    Kind {
        name: "revision 0",
        options: &["-N", "64", "-r", "0"],
        kib: 1024,
    },
    Kind {
        name: "bare",
        options: &["-N", "64", "-O", "none,sparse_super,ext_attr"],
        kib: 1024,
    },
    Kind {
        name: "groups",
        options: &["-N", "192", "-g", "512", "-I", "128"],
        kib: 1600,
    },
    Kind {
        name: "two copies",
        options: &["-N", "320", "-g", "512", "-O", "sparse_super2"],
        kib: 2600,
    },
    Kind {
        name: "no copies",
        options: &[
            "-N",
            "320",
            "-g",
            "512",
            "-O",
            "sparse_super2",
            "-E",
            "num_backup_sb=0",
        ],
        kib: 2600,
    },
];

/// The contents of each image: every type of file, holes, every height of tree, shared names.
const SCRIPT: &str = "
symlink fast target
write SMALL small
write SMALL gone
rm gone
mkdir a
cd a
symlink slow LONG
write LARGE large
ln /small other
sif /small links_count 2
mknod pipe p
mknod char c 5 1
mknod block b 8 300
mkdir b
cd b
write SPARSE sparse
mkdir c
cd /
";
const ATTRIBUTES: &str = "
ea_set small user.one value
ea_set -f BIG a/large user.big
";

/// Bytes of a populated image.
pub fn populated(kind: &Kind, dir: &Path) -> Vec<u8> {
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let image = dir.join("made");
    let _ = std::fs::remove_file(&image);
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-F", "-t", "ext2"])
        .args(kind.options)
        .arg(&image);
    let status = mke2fs
        .arg(format!("{}k", kind.kib))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("mke2fs").success(), "{}", kind.name);
    let sparse = dir.join("sparse");
    let at = std::fs::File::create(&sparse).unwrap();
    use std::os::unix::fs::FileExt;
    // Direct, single, double and, in blocks of 1 KiB, triple indirect.
    for offset in [0, 100_000, 1 << 20, 80 << 20] {
        at.write_all_at(b"data", offset).unwrap();
    }
    let mut script = SCRIPT.to_owned();
    if !kind.options.contains(&"0") {
        script += ATTRIBUTES;
    }
    let script = script
        .replace("SMALL", &file("small", b"small"))
        .replace("LARGE", &file("large", &[7; 30_000]))
        .replace("BIG", &file("big", &[b'v'; 600]))
        .replace("SPARSE", sparse.to_str().unwrap())
        .replace("LONG", &"long/".repeat(20));
    let mut debugfs = Command::new("debugfs");
    debugfs
        .args(["-w", "-f", "-"])
        .arg(&image)
        .stdin(Stdio::piped());
    debugfs.stdout(Stdio::null()).stderr(Stdio::null());
    let mut debugfs = debugfs.spawn().expect("debugfs");
    let mut stdin = debugfs.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).unwrap();
    drop(stdin);
    assert!(debugfs.wait().unwrap().success());
    std::fs::read(&image).unwrap()
}

/// The places of structures in an image.
pub struct Map {
    pub bytes: Vec<u8>,
    pub block: usize,
    inode_bytes: usize,
    inodes_per_group: u32,
}

impl Map {
    pub fn new(bytes: Vec<u8>) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        let inode_bytes = match word(1024 + 76) {
            0 => 128,
            _ => half(1024 + 88).into(),
        };
        Self {
            block: 1024 << word(1024 + 24),
            inodes_per_group: word(1024 + 40),
            inode_bytes,
            bytes,
        }
    }

    pub fn get(&self, at: usize, width: usize) -> u32 {
        let mut word = [0; 4];
        word[..width].copy_from_slice(&self.bytes[at..at + width]);
        u32::from_le_bytes(word)
    }

    /// The offset of a group's descriptor.
    pub fn descriptor(&self, group: u32) -> usize {
        let table = if self.block == 1024 { 2048 } else { self.block };
        table + 32 * group as usize
    }

    pub fn inode(&self, ino: u32) -> usize {
        let (group, index) = (
            (ino - 1) / self.inodes_per_group,
            (ino - 1) % self.inodes_per_group,
        );
        let table = self.get(self.descriptor(group) + 8, 4) as usize;
        table * self.block + index as usize * self.inode_bytes
    }

    /// The block of one of an inode's pointers.
    pub fn block_of(&self, ino: u32, slot: usize) -> usize {
        self.get(self.inode(ino) + 40 + 4 * slot, 4) as usize * self.block
    }

    /// Follows a path.
    pub fn find(&self, path: &str) -> u32 {
        path.split('/')
            .filter(|n| !n.is_empty())
            .fold(2, |dir, name| {
                let entries = self.entries(dir);
                let found = entries.iter().find(|(_, n)| n == name.as_bytes());
                self.get(found.unwrap_or_else(|| panic!("{path}")).0, 4)
            })
    }

    /// The entries in a directory's first block: their offsets and names.
    pub fn entries(&self, dir: u32) -> Vec<(usize, Vec<u8>)> {
        let block = self.block_of(dir, 0);
        let (mut at, mut all) = (0, Vec::new());
        while at < self.block {
            let start = block + at;
            let len = self.get(start + 6, 1) as usize;
            all.push((start, self.bytes[start + 8..start + 8 + len].to_vec()));
            at += self.get(start + 4, 2) as usize;
        }
        all
    }

    /// The image with one field changed.
    pub fn with(&self, at: usize, width: usize, value: u32) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        bytes
    }
}

pub fn device(bytes: &[u8]) -> MemoryDevice {
    MemoryDevice::from_bytes(512, bytes.to_vec())
}
