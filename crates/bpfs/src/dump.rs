//! Shows the contents of an image as text: super block, inodes, trees, entries.
//!
//! Reads only, and shows the image as recovery would leave it. Shows damaged images as far as
//! their pointers lead. The output is bounded for every image: at most one line for each block
//! and each entry.

use crate::check::{Ground, Tree, ground};
use crate::dir;
use crate::error::Error;
use crate::format::{
    BLOCK, BlockNo, CTIME_ALONE, FANOUT, HeightAddr, INODE, Inode, MAX_HEIGHT, at, span,
};
use crate::super_block::{SuperInfo, probe};
use medium::{MediumError, Pmem};
use std::io::{self, Write};
use vfs::check::Report;
use vfs::{FileType, Ino, Timestamp};
use zerocopy::FromBytes;

/// The part of an image to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dump {
    /// The super block, the redo log, and the inode file.
    Super,
    /// The inode with this number, with or without a name.
    Inode(u64),
    /// The inode that this path names, from the root. Symbolic links are not followed.
    Path(Vec<u8>),
}

/// The reason why a dump stopped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The image is damaged or unreadable, or lacks the inode.
    #[error(transparent)]
    Image(#[from] Error),
    /// The output failed.
    #[error("writing the output: {0}")]
    Output(#[from] io::Error),
}

type Result<T> = std::result::Result<T, DumpError>;

/// Shows a part of an image.
///
/// # Errors
/// [`DumpError::Image`] if there is no BPFS, or no such inode; [`DumpError::Output`] if `out`
/// fails.
pub fn dump<P: Pmem + ?Sized>(pm: &P, what: &Dump, out: &mut dyn Write) -> Result<()> {
    let info = probe(pm)?;
    let ground = ground(pm, &mut Report::default()).ok_or(Error::NotBpfs)?;
    let inodes = inode_file(&ground)?;
    let mut dump = Dumper {
        budget: ground.blocks,
        ground,
        inodes,
        out,
    };
    match what {
        Dump::Super => dump.supers(&info),
        Dump::Inode(ino) => dump.inode(Ino(*ino)),
        Dump::Path(path) => {
            let ino = dump.resolve(path)?;
            dump.inode(ino)
        }
    }
}

fn medium(source: MediumError) -> DumpError {
    Error::medium("reading the image")(source).into()
}

fn corrupt(what: String) -> DumpError {
    Error::Corrupt(what).into()
}

fn inode_file<P: Pmem + ?Sized>(ground: &Ground<'_, P>) -> Result<Tree> {
    if !ground.has_block(ground.root) {
        return Err(corrupt("the super block has no root record".into()));
    }
    let word = |off| ground.image.word(ground.root.addr() + off).map_err(medium);
    Ok(Tree {
        ha: HeightAddr(word(0)?),
        size: word(at::ROOT_SIZE)?,
    })
}

/// Seconds since 1970, with nanoseconds.
fn time(t: Timestamp) -> String {
    let (secs, nanos) = t.parts();
    format!("{secs}.{nanos:09}")
}

/// Consecutive leaves that are consecutive on the medium too, or are all holes.
struct Run {
    first: u64,
    len: u64,
    block: BlockNo,
}

/// The state of a walk of one tree.
struct Walk {
    height: u32,
    /// Leaves that hold valid bytes.
    end: u64,
    run: Option<Run>,
}

impl Walk {
    fn indent(&self, height: u32) -> String {
        " ".repeat(2 + 2 * (self.height - height) as usize)
    }
}

fn range(one: &str, many: &str, first: u64, len: u64) -> String {
    match len {
        1 => format!("{one} {first}"),
        _ => format!("{many} {first}-{}", first.saturating_add(len - 1)),
    }
}

struct Dumper<'p, 'o, P: ?Sized> {
    ground: Ground<'p, P>,
    inodes: Tree,
    out: &'o mut dyn Write,
    /// Blocks of trees that may still be shown. A sound image has no more.
    budget: u64,
}

impl<P: Pmem + ?Sized> Dumper<'_, '_, P> {
    fn supers(&mut self, info: &SuperInfo) -> Result<()> {
        let uuid: String = info.uuid.iter().map(|b| format!("{b:02x}")).collect();
        writeln!(self.out, "super block")?;
        writeln!(self.out, "  version      {}", info.version)?;
        writeln!(self.out, "  uuid         {uuid}")?;
        writeln!(self.out, "  blocks       {} of {BLOCK} bytes", info.blocks)?;
        let end = info.log_start + info.log_blocks - 1;
        writeln!(
            self.out,
            "  redo log     blocks {} to {end}",
            info.log_start
        )?;
        writeln!(self.out, "  mode         {}", info.mode)?;
        writeln!(self.out, "  root record  block {}", self.ground.root.0)?;
        let patches = &self.ground.image.patches;
        writeln!(self.out, "redo log: {} committed records", patches.len())?;
        for p in patches {
            writeln!(self.out, "  byte {}: {} bytes", p.addr, p.bytes.len())?;
        }
        let (tree, inodes) = (self.inodes, self.inodes.size / INODE);
        writeln!(
            self.out,
            "inode file: {} bytes, inodes 1 to {inodes}",
            tree.size
        )?;
        self.tree(tree)
    }

    fn read_inode(&self, ino: Ino) -> Result<Inode> {
        let byte = ino.0.checked_sub(1).and_then(|n| n.checked_mul(INODE));
        let byte = byte.filter(|b| *b < self.inodes.size);
        let byte = byte.ok_or_else(|| Error::Option(format!("there is no inode {ino}")))?;
        let leaf = self.ground.leaf(self.inodes, byte / BLOCK);
        let leaf = leaf.ok_or_else(|| corrupt(format!("inode {ino} is missing")))?;
        let mut bytes = [0; INODE as usize];
        let read = self
            .ground
            .image
            .read(leaf.addr() + byte % BLOCK, &mut bytes);
        read.map_err(medium)?;
        Inode::read_from_bytes(&bytes).map_err(|_| corrupt(format!("inode {ino}")))
    }

    fn inode(&mut self, ino: Ino) -> Result<()> {
        let inode = self.read_inode(ino)?;
        let kind = FileType::from_mode(inode.mode.get());
        let kind_name = kind.map_or("unknown type".into(), |k| format!("{k:?}"));
        let alone = inode.ctime.get() & CTIME_ALONE != 0;
        let out = &mut self.out;
        writeln!(out, "inode {ino}")?;
        writeln!(out, "  generation   {}", inode.generation.get())?;
        writeln!(out, "  mode         {:o} ({kind_name})", inode.mode.get())?;
        writeln!(out, "  flags        {}", inode.flags.get())?;
        writeln!(
            out,
            "  owner        {}:{}",
            inode.uid.get(),
            inode.gid.get()
        )?;
        writeln!(out, "  size         {}", inode.size.get())?;
        writeln!(out, "  atime        {}", time(Timestamp(inode.atime.get())))?;
        writeln!(out, "  mtime        {}", time(Timestamp(inode.mtime.get())))?;
        let rule = if alone {
            "stands alone"
        } else {
            "the later of mtime and its own"
        };
        writeln!(out, "  ctime        {} ({rule})", time(inode.change_time()))?;
        writeln!(out, "  rdev         {}", inode.rdev.get())?;
        writeln!(out, "  attributes   block {}", inode.xattr.get())?;
        self.tree(inode.tree_of())?;
        match kind {
            Some(FileType::Directory) => self.list(inode.tree_of())?,
            Some(FileType::Symlink) => self.target(inode.tree_of())?,
            _ => {}
        }
        self.xattrs(BlockNo(inode.xattr.get()))
    }

    /// Shows a tree: a line for each inner block, and one for each run of leaves.
    fn tree(&mut self, tree: Tree) -> Result<()> {
        let (height, root, end) = (tree.ha.height(), tree.ha.block(), tree.leaves());
        if tree.size == 0 {
            writeln!(self.out, "tree: empty")?;
            return Ok(());
        }
        writeln!(
            self.out,
            "tree: height {height}, root block {}, {end} leaves",
            root.0
        )?;
        if height > MAX_HEIGHT {
            writeln!(self.out, "  no tree has this height")?;
            return Ok(());
        }
        let mut walk = Walk {
            height,
            end,
            run: None,
        };
        self.node(&mut walk, root, height, 0)?;
        if end > span(height) {
            self.leaves(&mut walk, span(height), end - span(height), BlockNo::NULL)?;
        }
        self.end_run(&mut walk)
    }

    fn node(&mut self, walk: &mut Walk, block: BlockNo, height: u32, base: u64) -> Result<()> {
        if block.is_null() || height == 0 {
            let len = span(height).min(walk.end - base);
            return self.leaves(walk, base, len, block);
        }
        self.end_run(walk)?;
        let (indent, number) = (walk.indent(height), block.0);
        if !self.ground.has_block(block) {
            writeln!(self.out, "{indent}block {number}: not in the file system")?;
            return Ok(());
        }
        if self.count_block() {
            writeln!(
                self.out,
                "{indent}block {number}: more blocks than there are"
            )?;
            return Ok(());
        }
        writeln!(self.out, "{indent}block {number}: height {height}")?;
        let step = span(height - 1);
        for slot in 0..FANOUT.min((walk.end - base).div_ceil(step)) {
            let word = self.ground.image.word(block.addr() + slot * 8);
            let child = BlockNo(word.map_err(medium)?);
            self.node(walk, child, height - 1, base + slot * step)?;
        }
        self.end_run(walk)
    }

    /// Adds leaves to the run, or starts another.
    fn leaves(&mut self, walk: &mut Walk, first: u64, len: u64, block: BlockNo) -> Result<()> {
        if !block.is_null() && self.count_block() {
            return Ok(());
        }
        if let Some(run) = &mut walk.run {
            let follows = match run.block {
                BlockNo::NULL => block.is_null(),
                BlockNo(n) => !block.is_null() && n.checked_add(run.len) == Some(block.0),
            };
            if follows {
                run.len += len;
                return Ok(());
            }
        }
        self.end_run(walk)?;
        walk.run = Some(Run { first, len, block });
        Ok(())
    }

    fn end_run(&mut self, walk: &mut Walk) -> Result<()> {
        let Some(run) = walk.run.take() else {
            return Ok(());
        };
        let indent = walk.indent(0);
        let leaves = range("leaf", "leaves", run.first, run.len);
        if run.block.is_null() {
            writeln!(self.out, "{indent}{leaves}: hole")?;
        } else {
            let blocks = range("block", "blocks", run.block.0, run.len);
            writeln!(self.out, "{indent}{leaves}: {blocks}")?;
        }
        Ok(())
    }

    /// Counts a block of a tree. Returns true once more blocks were counted than the medium
    /// has.
    fn count_block(&mut self) -> bool {
        let spent = self.budget == 0;
        self.budget = self.budget.saturating_sub(1);
        spent
    }

    /// Calls `each` for the entries of one block of a directory.
    fn entries(&self, tree: Tree, leaf: u64, each: &mut dyn FnMut(dir::Entry<'_>)) -> Result<()> {
        let block = self.ground.leaf(tree, leaf);
        let block = block.ok_or_else(|| corrupt(format!("directory block {leaf} is missing")))?;
        let mut bytes = [0; BLOCK as usize];
        let read = self.ground.image.read(block.addr(), &mut bytes);
        read.map_err(medium)?;
        let parsed = dir::parse(&bytes, leaf * BLOCK, &mut |entry| {
            each(entry);
            Ok(())
        });
        parsed.map_err(|f| f.at("reading a directory"))?;
        Ok(())
    }

    /// Leaves of a directory to show: a sound one has no more than the medium has blocks.
    fn directory_leaves(&self, tree: Tree) -> u64 {
        tree.leaves().min(self.ground.blocks)
    }

    fn resolve(&self, path: &[u8]) -> Result<Ino> {
        let mut ino = Ino::ROOT;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
            ino = self.find(ino, name)?;
        }
        Ok(ino)
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let inode = self.read_inode(dir)?;
        let mut found = None;
        if FileType::from_mode(inode.mode.get()) == Some(FileType::Directory) {
            let tree = inode.tree_of();
            for leaf in 0..self.directory_leaves(tree) {
                self.entries(tree, leaf, &mut |e| {
                    if e.ino != 0 && e.name == name {
                        found = Some(Ino(e.ino));
                    }
                })?;
            }
        }
        let name = name.escape_ascii();
        let none = || Error::Option(format!("inode {dir} has no entry '{name}'"));
        Ok(found.ok_or_else(none)?)
    }

    fn list(&mut self, tree: Tree) -> Result<()> {
        writeln!(self.out, "entries:")?;
        for leaf in 0..self.directory_leaves(tree) {
            let mut lines = String::new();
            let parsed = self.entries(tree, leaf, &mut |e| {
                let (pos, len, name) = (e.pos, e.rec_len, e.name.escape_ascii());
                lines += &match (e.ino, FileType::from_code(e.kind)) {
                    (0, _) => format!("  {pos:8}  {len:4}  hole\n"),
                    (ino, Some(kind)) => format!("  {pos:8}  {len:4}  {ino:8}  {kind:?}  {name}\n"),
                    (ino, None) => {
                        format!("  {pos:8}  {len:4}  {ino:8}  type {}  {name}\n", e.kind)
                    }
                };
            });
            self.out.write_all(lines.as_bytes())?;
            if let Err(DumpError::Image(e)) = parsed {
                writeln!(self.out, "  {e}")?;
                break;
            }
        }
        Ok(())
    }

    fn target(&mut self, tree: Tree) -> Result<()> {
        let mut bytes = [0; BLOCK as usize];
        let target = &mut bytes[..tree.size.min(BLOCK) as usize];
        if let Some(block) = self.ground.leaf(tree, 0) {
            let read = self.ground.image.read(block.addr(), target);
            read.map_err(medium)?;
        }
        writeln!(self.out, "target: {}", target.escape_ascii())?;
        Ok(())
    }

    fn xattrs(&mut self, block: BlockNo) -> Result<()> {
        if !self.ground.has_block(block) {
            return Ok(());
        }
        let mut bytes = [0; BLOCK as usize];
        let read = self.ground.image.read(block.addr(), &mut bytes);
        read.map_err(medium)?;
        writeln!(self.out, "attributes:")?;
        match vfs::xattr_block::decode(&bytes) {
            None => writeln!(self.out, "  malformed")?,
            Some(xattrs) => {
                for (name, value) in xattrs {
                    let (name, value) = (name.escape_ascii(), value.escape_ascii());
                    writeln!(self.out, "  {name} = {value}")?;
                }
            }
        }
        Ok(())
    }
}
