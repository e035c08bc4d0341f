//! Compares the volatile maps and counts with a walk of the tree. The authors of BPFS found
//! most of their bugs this way (3.4.3).

use crate::dir;
use crate::error::{Fault, Res};
use crate::format::{BLOCK, BlockNo};
use crate::fs::Bpfs;
use medium::Pmem;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use vfs::check::{Report, Severity};
use vfs::{FileType, Ino};

/// Names, subdirectories and blocks of one inode, as the walk counts them.
#[derive(Default)]
struct Seen {
    names: u32,
    subdirs: u32,
    blocks: u64,
}

struct Audit<'f, P: Pmem> {
    fs: &'f Bpfs<P>,
    used: Vec<bool>,
    inodes: HashMap<u64, Seen>,
}

/// Reports every difference between the maps and the tree.
pub(crate) fn audit<P: Pmem>(fs: &Bpfs<P>, report: &mut Report) -> Res<()> {
    let mut audit = Audit {
        fs,
        used: vec![false; fs.vol.blocks as usize],
        inodes: HashMap::new(),
    };
    for block in 0..fs.info.log_start + fs.info.log_blocks {
        audit.used[block as usize] = true;
    }
    audit.used[(fs.vol.root_record()? / BLOCK) as usize] = true;
    let file = fs.vol.inode_file()?;
    fs.vol
        .walk(&file, &mut |block, _| audit_mark(&mut audit.used, block))?;
    // A list and not recursion: directories may be nested deeper than a stack.
    let mut dirs = vec![Ino::ROOT];
    while let Some(dir) = dirs.pop() {
        audit.directory(dir, &mut dirs)?;
    }
    audit.inodes.entry(Ino::ROOT.0).or_default().names += 1;
    audit.contents(Ino::ROOT)?;
    audit.orphans()?;
    audit.compare(report);
    Ok(())
}

fn audit_mark(used: &mut [bool], block: BlockNo) -> Res<bool> {
    if std::mem::replace(&mut used[block.0 as usize], true) {
        return Err(Fault::Corrupt(format!("block {} is used twice", block.0)));
    }
    Ok(true)
}

impl<P: Pmem> Audit<'_, P> {
    fn directory(&mut self, dir: Ino, dirs: &mut Vec<Ino>) -> Res<()> {
        let vol = &self.fs.vol;
        let tree = vol.tree(vol.inode_addr(dir)?)?;
        let mut found = Vec::new();
        dir::for_blocks(vol, &tree, 0, &mut |base, bytes| {
            dir::parse(bytes, base, &mut |e| {
                if e.ino != 0 {
                    found.push((Ino(e.ino), e.kind));
                }
                Ok(())
            })?;
            Ok(true)
        })?;
        for (ino, kind) in found {
            let seen = self.inodes.entry(ino.0).or_default();
            seen.names += 1;
            if seen.names == 1 {
                self.contents(ino)?;
                if kind == FileType::Directory as u8 {
                    self.inodes.entry(dir.0).or_default().subdirs += 1;
                    dirs.push(ino);
                }
            }
        }
        Ok(())
    }

    fn contents(&mut self, ino: Ino) -> Res<()> {
        let vol = &self.fs.vol;
        let addr = vol.inode_addr(ino)?;
        let (tree, inode) = (vol.tree(addr)?, vol.inode(addr)?);
        let mut blocks = 0;
        vol.walk(&tree, &mut |block, _| {
            blocks += 1;
            audit_mark(&mut self.used, block)
        })?;
        let xattr = vol.pointer(inode.xattr.get())?;
        if !xattr.is_null() {
            blocks += 1;
            audit_mark(&mut self.used, xattr)?;
        }
        self.inodes.entry(ino.0).or_default().blocks = blocks;
        Ok(())
    }

    /// Counts the blocks of inodes without a name that references keep.
    fn orphans(&mut self) -> Res<()> {
        for n in 1..self.fs.inodes.len() {
            let node = self.fs.table.node(Ino(n));
            if node.life.names.load(Relaxed) == 0 && node.life.refs.load(Relaxed) > 0 {
                self.contents(Ino(n))?;
            }
        }
        Ok(())
    }

    fn compare(&self, report: &mut Report) {
        let fs = self.fs;
        let mut say = |what: String| report.add("audit", Severity::Corrupt, what);
        for (block, used) in self.used.iter().enumerate() {
            let mapped = fs.vol.map.is_used(block as u64);
            if mapped != *used {
                say(format!(
                    "block {block}: the map says used={mapped}, the tree {used}"
                ));
            }
        }
        for n in 1..fs.inodes.len() {
            let none = Seen::default();
            let seen = self.inodes.get(&n).unwrap_or(&none);
            let node = fs.table.node(Ino(n));
            let refs = node.life.refs.load(Relaxed);
            let have = (node.life.names.load(Relaxed), node.subdirs.load(Relaxed));
            if have != (seen.names, seen.subdirs) {
                let want = (seen.names, seen.subdirs);
                say(format!(
                    "inode {n}: names and subdirectories {have:?}, in the tree {want:?}"
                ));
            }
            if node.blocks.load(Relaxed) != seen.blocks {
                let have = node.blocks.load(Relaxed);
                say(format!(
                    "inode {n}: {have} blocks, in the tree {}",
                    seen.blocks
                ));
            }
            if fs.inodes.is_used(n) != (seen.names > 0 || refs > 0) {
                say(format!("inode {n}: its number is marked wrongly"));
            }
        }
        let counted = self.used.iter().filter(|used| !**used).count() as u64;
        if counted != fs.vol.map.free() {
            say(format!(
                "{} blocks counted free, {counted} are",
                fs.vol.map.free()
            ));
        }
    }
}
