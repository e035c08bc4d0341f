//! Scripts over a small name space: two directories, two files, a symbolic link.
//!
//! [`setup`] makes them. [`all_ops`] holds every operation on them that crash tests run in all
//! sequences. [`random`] makes long scripts of all operations. [`Tree::Crowded`] has the same
//! names among many others, so that blocks are full. [`Tree::Names`] is about names only: its
//! operations make inodes, and rename, link and remove them. [`Tree::Large`] has directories of
//! several blocks.

mod large;
mod stretched;

pub use stretched::stretched;

use super::{LOG_MAGIC, Op, Script};
use fastrand::Rng;
use serde::Serialize;
use std::fmt::{self, Display, Formatter, Write};
use std::str::FromStr;
use std::sync::LazyLock;
use vfs::{Fallocate, FileType, RenameFlags, SetTime, Timestamp, XattrMode};

/// The initial tree of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tree {
    /// A new file system. It has no operations for sequences.
    Empty,
    /// The tree of [`setup`].
    Small,
    /// The same names among many others. On a file system with 32 inodes in a block and
    /// directory entries of 12 bytes and the name, in steps of 8, two blocks of inodes are
    /// full, and so are the blocks of the root and of `A`. `A` and `f` have inodes in one
    /// block, `B`, `A/g` and `s` in the other. `B` is empty and has one block of holes that are
    /// too short for long names.
    Crowded,
    /// Nested directories, and a symbolic link with a target of [`LONG_TARGET`] bytes.
    Names,
    /// A file `f` with data, pointers in the inode, in an indirect and in a double indirect
    /// block (of 1 KiB), and an empty file `g`. All operations are on their data.
    File,
    /// Directories with names of 255 bytes. On a file system with blocks of 1 KiB, and
    /// entries of 8 bytes and the name, in steps of 4, `A` has 4 blocks, `B` has 6, `C` has 3
    /// with a hole in each of the last two, and `D` has 2 and is empty. No further name of this
    /// length fits into `A` or `B`.
    Large,
}

/// Makes directories `A` and `B`, `f` of 8300 bytes (two blocks and a part), `A/g` of
/// 100 bytes with an extended attribute, and the symbolic link `s`.
const SETUP: &str = "
    mkdir A 755
    mkdir B 755
    create f 644
    write f 0 8300 1
    create A/g 644
    write A/g 0 100 2
    setxattr A/g user.x 10 3 set
    symlink f s
";

/// The operations on [`Tree::Small`]. The pattern of a write depends on its place; the last
/// number is unused.
const OPS: &str = "
    create n 644
    create A/n 600
    create f 644
    mkdir n 755
    mkdir B/n 700
    mknod n fifo 644 0
    symlink f n
    link f n
    link f B/n
    link A/g n
    unlink f
    unlink A/g
    unlink s
    rmdir B
    rmdir A

    rename f n replace
    rename f B/f replace
    rename f A/g replace
    rename A/g f replace
    rename A/g A/n replace
    rename s f replace
    rename A B replace
    rename A B/A replace
    rename B A replace
    rename B A/B replace
    rename A A/n replace
    rename f A/n noreplace
    rename f A/g noreplace
    rename f A/g exchange
    rename A B exchange
    rename A/g B exchange

    write f 0 8 0
    write f 4096 8 0
    write f 0 1 0
    write f 3 11 0
    write f 4090 11 0
    write f 0 4096 0
    write f 100 4096 0
    write f 0 12288 0
    write f 8296 8 0
    write f 20000 8 0
    write f 2097152 8 0
    write A/g 0 8 0
    write A/g 96 4096 0
    append f 1 0
    append f 8 0
    append f 4096 0
    append A/g 11 0
    append A/g 12288 0

    truncate f 0
    truncate f 50
    truncate f 4096
    truncate f 8301
    truncate f 1000000
    truncate A/g 5000
    fallocate f allocate 0 16384
    fallocate f allocate-keep 8192 8192
    fallocate f punch 0 4096
    fallocate f punch 100 5000
    fallocate f zero 4000 200

    setxattr f user.k 10 0 set
    setxattr A/g user.x 100 0 replace
    removexattr A/g user.x
    chmod f 600
    chown f 5 6
    utimens f 1000 2000
    fsync f
    fdatasync f
    fsyncdir A
";

/// Makes directories `A`, `B`, `C` and `C/D`, the files `f` and `A/g`, and the symbolic link
/// `s`. `T` stands for a long target.
const NAMES_SETUP: &str = "
    mkdir A 755
    mkdir B 755
    mkdir C 755
    mkdir C/D 755
    create f 644
    create A/g 644
    symlink T s
";

/// The operations on [`Tree::Names`]: first those that make inodes, then those on the old and
/// the new names. `T` as above.
const NAMES_OPS: &str = "
    create n 644
    create A/n 644
    create n/m 644
    mkdir n 755
    mkdir A/n 755
    mkdir C/D/n 755
    symlink T n
    symlink T A/n
    setxattr n user.x 100 0 set
    setxattr A/n user.x 100 0 set

    link f n
    link f A/n
    link A/g n
    link A/g m
    link f B/m
    link s A/n
    link n m
    link n B/m
    link A/n n
    link f n/m

    rename f n replace
    rename f A/n replace
    rename f n/m replace
    rename A/g f replace
    rename A/g A/n replace
    rename A/g n replace
    rename A/g A/n/m replace
    rename s A/n replace
    rename n m replace
    rename n f replace
    rename n A/g replace
    rename n B/m replace
    rename A/n n replace
    rename A/n B/m replace
    rename A/n f replace
    rename C/D A/n replace
    rename C/D n replace
    rename C/D n/m replace
    rename C/D B replace
    rename C/D B/m replace
    rename C A/n/m replace
    rename C n/m replace
    rename B C/D replace
    rename B/m C/D replace
    rename B C/D/n replace

    unlink f
    unlink A/g
    unlink s
    unlink n
    unlink m
    unlink A/n
    unlink B/m
    rmdir A
    rmdir B
    rmdir C
    rmdir C/D
    rmdir C/D/n
    rmdir n
    rmdir A/n
    rmdir B/m
    fsync f
    fsync n
    fsync A/n
    fsync n/m
    fsyncdir A
    fsyncdir n
    fsyncdir A/n
";

/// Bytes of the target of the long symbolic link of [`Tree::Names`]: more than an inode of
/// ext2 holds.
pub const LONG_TARGET: usize = 100;

fn names(text: &str) -> Vec<Op> {
    parse(&text.replace("symlink T", &format!("symlink {}", "t".repeat(LONG_TARGET))))
}

const FILE_SETUP: &str = "
    create f 644
    write f 0 14336 1
    write f 274432 1024 2
    create g 644
";

/// The operations on [`Tree::File`]. They cut, punch and fill the head of the file, the data
/// below the indirect block, or both.
const FILE_OPS: &str = "
    truncate f 0
    truncate f 5000
    truncate f 13000
    truncate f 300000
    write f 4000 2000 0
    write f 13000 1500 0
    fallocate f allocate 0 16384
    fallocate f punch 12288 262144
    fallocate f zero 4000 10000
    write g 0 3000 0
    fsync f
    fdatasync f
";

/// Bytes of the longer of the names that fill directories, 272 with their entry's head.
const LONG: usize = 255;
/// Bytes of the shorter, 72 with the head.
const SHORT: usize = 60;

/// Makes [`Tree::Crowded`]. The order of the calls is the order of the inodes.
fn crowded() -> Script {
    let mut text = String::new();
    let mut files = |range: std::ops::Range<usize>| {
        for i in range {
            let _ = writeln!(text, "mknod {i:0>SHORT$} fifo 600 0");
        }
        std::mem::take(&mut text)
    };
    let first = files(0..29);
    let second = files(29..56);
    for i in 0..15 {
        let _ = match i {
            0 | 1 => writeln!(text, "mknod A/{i:0>LONG$} fifo 600 0"),
            _ => writeln!(text, "link A/{:0>LONG$} A/{i:0>LONG$}", 0),
        };
    }
    for op in ["link f B", "unlink B"] {
        for i in 0..56 {
            let _ = writeln!(text, "{op}/{i:0>SHORT$}");
        }
    }
    parse(&format!(
        "mkdir A 755
        create f 644
        write f 0 8300 1
        {first}
        mkdir B 755
        create A/g 644
        write A/g 0 100 2
        setxattr A/g user.x 10 3 set
        symlink f s
        {second}
        {text}"
    ))
    .into()
}

/// Operations with a name too long for the holes in `B` of [`Tree::Crowded`]. It begins like
/// the name that was in the first hole: each word that is stored anew doubles the crash states,
/// although most of them are equivalent.
fn long_name_ops() -> Vec<Op> {
    let long = format!("{}{}", "0".repeat(40), "n".repeat(SHORT - 40 + 1));
    parse(&format!(
        "create B/{long} 644
        mkdir B/{long} 755
        symlink f B/{long}
        link A/g B/{long}
        rename f B/{long} replace
        rename A B/{long} noreplace
        rename A/g B/{long} replace"
    ))
}

impl Tree {
    /// The script that makes the tree.
    pub fn setup(self) -> Script {
        match self {
            Tree::Empty => Script::default(),
            Tree::Small => parse(SETUP).into(),
            Tree::Crowded => crowded(),
            Tree::Names => names(NAMES_SETUP).into(),
            Tree::File => parse(FILE_SETUP).into(),
            Tree::Large => large::setup(),
        }
    }

    /// Every operation that sequences are made of.
    pub fn ops(self) -> &'static [Op] {
        static SMALL: LazyLock<Vec<Op>> = LazyLock::new(|| {
            let seeded = parse(OPS).into_iter().zip(100..);
            seeded.map(|(op, seed)| op.with_seed(seed)).collect()
        });
        static CROWDED: LazyLock<Vec<Op>> =
            LazyLock::new(|| SMALL.iter().cloned().chain(long_name_ops()).collect());
        static NAMES: LazyLock<Vec<Op>> = LazyLock::new(|| names(NAMES_OPS));
        static FILE: LazyLock<Vec<Op>> = LazyLock::new(|| parse(FILE_OPS));
        static LARGE: LazyLock<Vec<Op>> = LazyLock::new(large::ops);
        match self {
            Tree::Empty => &[],
            Tree::Small => &SMALL,
            Tree::Crowded => &CROWDED,
            Tree::Names => &NAMES,
            Tree::File => &FILE,
            Tree::Large => &LARGE,
        }
    }

    /// Number of sequences of `len` operations.
    pub fn count(self, len: u32) -> u64 {
        (self.ops().len() as u64).saturating_pow(len)
    }

    /// The sequence of `len` operations with number `index`, below
    /// [`count`](Self::count). Equal operations at different places write different data.
    pub fn sequence(self, len: u32, mut index: u64) -> Script {
        let all = self.ops();
        let base = all.len() as u64;
        let mut ops = Vec::with_capacity(len as usize);
        for place in 0..len {
            let digit = (index % base) as usize;
            index /= base;
            let seed = 100 + 1000 * place + digit as u32;
            ops.push(all[digit].clone().with_seed(seed));
        }
        ops.reverse(); // the last operation changes fastest
        ops.into()
    }
}

impl FromStr for Tree {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let all = [
            Tree::Empty,
            Tree::Small,
            Tree::Crowded,
            Tree::Names,
            Tree::File,
            Tree::Large,
        ];
        let found = all.into_iter().find(|tree| tree.to_string() == s);
        let names = "empty, small, crowded, names, file, large";
        found.ok_or_else(|| format!("`{s}` is not a tree ({names})"))
    }
}

impl Display for Tree {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tree::Empty => "empty",
            Tree::Small => "small",
            Tree::Crowded => "crowded",
            Tree::Names => "names",
            Tree::File => "file",
            Tree::Large => "large",
        })
    }
}

fn parse(text: &str) -> Vec<Op> {
    text.parse::<Script>()
        .map(|script| script.ops)
        .unwrap_or_default()
}

/// Makes the small tree that most scripts of this module start from.
pub fn setup() -> Script {
    Tree::Small.setup()
}

/// Every operation on [`Tree::Small`] that sequences are made of.
pub fn all_ops() -> &'static [Op] {
    Tree::Small.ops()
}

/// Number of sequences of `len` operations on [`Tree::Small`].
pub fn count(len: u32) -> u64 {
    Tree::Small.count(len)
}

/// All sequences of `len` operations on [`Tree::Small`], in the order of their numbers.
#[cfg(test)]
pub(crate) fn sequences(len: u32) -> impl Iterator<Item = Script> {
    (0..count(len)).map(move |index| sequence(len, index))
}

/// [`Tree::sequence`] of [`Tree::Small`].
pub fn sequence(len: u32, index: u64) -> Script {
    Tree::Small.sequence(len, index)
}

/// A script of `len` operations, the same for the same `seed`; most of them succeed
/// after [`setup`]. Handles may stay open at its end.
pub fn random(seed: u64, len: usize) -> Script {
    let mut random = Random {
        rng: Rng::with_seed(seed),
    };
    let ops = (1000..).take(len).map(|data| random.op(data));
    ops.collect::<Vec<_>>().into()
}

const HANDLES: u32 = 3;

const FILES: [&str; 8] = ["f", "A/g", "n", "A/n", "B/n", "B/f", "A/B/n", "B/A/g"];
const DIRS: [&str; 6] = ["A", "B", "A/B", "B/A", "n", "A/n"];

struct Random {
    rng: Rng,
}

impl Random {
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(..from.len())].clone()
    }

    /// True one time in `n`.
    fn rarely(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    /// One of `names`. Earlier ones, which mostly exist, are more frequent.
    fn name(&mut self, names: &[&str]) -> String {
        let below = self.rng.usize(1..=names.len());
        names[self.rng.usize(..below)].into()
    }

    fn file(&mut self) -> String {
        match self.rng.u32(..10) {
            0 => format!("@{}", self.rng.u32(..HANDLES)),
            1 => "s".into(),
            2 => self.name(&DIRS),
            _ => self.name(&FILES),
        }
    }

    fn dir(&mut self) -> String {
        self.name(&DIRS)
    }

    fn any(&mut self) -> String {
        if self.rarely(3) {
            self.dir()
        } else {
            self.file()
        }
    }

    /// A name that is mostly free.
    fn new_name(&mut self) -> String {
        if self.rarely(4) {
            return self.any();
        }
        self.pick(&["n", "A/n", "B/n", "f", "A/g", "B/f", "A/B", "B/A"])
            .into()
    }

    fn off(&mut self) -> u64 {
        match self.rng.u32(..8) {
            0 => 0,
            1 => self.rng.u64(..4) * 4096,
            2 => self.rng.u64(1..4) * 4096 - self.rng.u64(1..12),
            3 if self.rarely(4) => 2 << 20,
            4 if self.rarely(8) => 1 << 30,
            _ => self.rng.u64(..20_000),
        }
    }

    fn len(&mut self) -> u32 {
        match self.rng.u32(..5) {
            0 => 8,
            1 => self.rng.u32(1..12),
            2 => 4096 * self.rng.u32(1..4),
            _ => self.rng.u32(1..10_000),
        }
    }

    fn op(&mut self, seed: u32) -> Op {
        match self.rng.u32(..100) {
            0..30 => self.op_on_data(seed),
            30..70 => self.op_on_names(),
            70..85 => self.op_on_attributes(seed),
            85..95 => self.op_on_handles(),
            _ => match self.rng.u32(..3) {
                0 => Op::Sync,
                1 => Op::Fsyncdir { path: self.dir() },
                _ => Op::Fsync {
                    path: self.file(),
                    data_only: self.rng.bool(),
                },
            },
        }
    }

    fn op_on_data(&mut self, seed: u32) -> Op {
        let path = self.file();
        let seed = if self.rarely(8) { LOG_MAGIC } else { seed };
        match self.rng.u32(..10) {
            0..4 => Op::Write {
                path,
                off: self.off(),
                len: self.len(),
                seed,
            },
            4..6 => Op::Append {
                path,
                len: self.len(),
                seed,
            },
            6..8 => Op::Truncate {
                path,
                size: self.off(),
            },
            _ => Op::Fallocate {
                path,
                kind: self.pick(&[
                    Fallocate::Allocate { keep_size: false },
                    Fallocate::Allocate { keep_size: true },
                    Fallocate::PunchHole,
                    Fallocate::ZeroRange { keep_size: false },
                    Fallocate::ZeroRange { keep_size: true },
                ]),
                off: self.off(),
                len: self.len().into(),
            },
        }
    }

    fn op_on_names(&mut self) -> Op {
        let path = self.new_name();
        match self.rng.u32(..20) {
            0..4 => Op::Create { path, mode: 0o644 },
            4..7 => Op::Mkdir { path, mode: 0o755 },
            7 => Op::Mknod {
                path,
                kind: self.pick(&[FileType::Fifo, FileType::Socket]),
                mode: 0o640,
                rdev: 0,
            },
            8 => Op::Symlink {
                target: self.any(),
                path,
            },
            9..11 => Op::Link {
                from: self.any(),
                to: path,
            },
            11..13 => Op::Unlink { path: self.any() },
            13 => Op::Rmdir { path: self.any() },
            _ => Op::Rename {
                from: self.any(),
                to: path,
                flags: match self.rng.u32(..6) {
                    0 => RenameFlags::NO_REPLACE,
                    1 => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                },
            },
        }
    }

    fn op_on_attributes(&mut self, seed: u32) -> Op {
        let path = self.any();
        let name = self.pick(&["user.x", "user.y", "user.longer"]).into();
        match self.rng.u32(..6) {
            0..2 => Op::SetXattr {
                path,
                name,
                len: self.rng.u32(..300),
                seed,
                mode: self.pick(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]),
            },
            2 => Op::RemoveXattr { path, name },
            3 => Op::Chmod {
                path,
                mode: self.pick(&[0o600, 0o755, 0o1777, 0o2755, 0o6755]),
            },
            4 => Op::Chown {
                path,
                uid: self.pick(&[None, Some(0), Some(7)]),
                gid: self.pick(&[None, Some(0), Some(8)]),
            },
            _ => Op::Utimens {
                path,
                atime: self.time(),
                mtime: self.time(),
            },
        }
    }

    fn time(&mut self) -> Option<SetTime> {
        match self.rng.u32(..3) {
            0 => None,
            1 => Some(SetTime::Now),
            _ => Some(SetTime::At(Timestamp(self.rng.i64(..1 << 60)))),
        }
    }

    fn op_on_handles(&mut self) -> Op {
        let handle = self.rng.u32(..HANDLES);
        match self.rng.u32(..5) {
            0 => Op::Tmpfile {
                handle,
                dir: self.dir(),
                mode: 0o644,
            },
            1..3 => Op::Open {
                handle,
                path: self.any(),
            },
            3 => Op::Link {
                from: format!("@{handle}"),
                to: self.new_name(),
            },
            _ => Op::Close { handle },
        }
    }
}
