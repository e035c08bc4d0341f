//! Checks that a recovered file system is fit for use. It accepts a write to every file and a new
//! file. The deletion of everything frees the space that the files were reported to take.

use crate::handles::Handle;
use crate::past::{failed, resolve};
use crate::world::World;
use oracle::snapshot::Snapshot;
use std::collections::{BTreeMap, HashMap, HashSet};
use vfs::{Cookie, Ctx, Errno, FileSystem, FileType, Ino};

/// Writes to every file, makes one, and deletes everything.
/// `is_new` refuses the handle of a removed file.
pub(crate) fn use_up(
    fs: &dyn FileSystem,
    snapshot: &Snapshot,
    is_new: &dyn Fn(Handle) -> Result<(), String>,
) -> Result<(), String> {
    let cx = Ctx::root();
    let stat = |what: &str| fs.statfs().map_err(|e| format!("statfs {what}: {e}"));
    let free = stat("after recovery")?.blocks_free;
    let taken = blocks_below_root(fs, snapshot)?;
    write_everywhere(fs, snapshot, is_new)?;
    delete_below(fs, &cx, Ino::ROOT, 0)?;
    let after = stat("after deleting everything")?;
    let taken = taken * 512 / u64::from(after.block_bytes).max(1);
    let now = after.blocks_free;
    if now + KEPT_BLOCKS < free + taken {
        return Err(format!(
            "space is lost: {now} blocks are free after deleting everything, {free} were \
             before, and the files took {taken}"
        ));
    }
    Ok(())
}

/// Blocks that may stay taken after the new file is removed. The root directory and a table of
/// inodes grow by a block and the blocks above it, and need not shrink.
const KEPT_BLOCKS: u64 = 8;

/// Space in units of 512 bytes that everything but the root directory takes.
fn blocks_below_root(fs: &dyn FileSystem, snapshot: &Snapshot) -> Result<u64, String> {
    let cx = Ctx::root();
    let mut inos = Vec::new();
    let mut blocks = 0;
    for (path, ..) in snapshot.iter().filter(|(path, ..)| *path != b"/") {
        let attr = resolve(fs, path).and_then(|ino| fs.getattr(&cx, ino));
        let attr = attr.map_err(|e| failed("stat", path, e))?;
        if !inos.contains(&attr.ino) {
            inos.push(attr.ino);
            blocks += attr.blocks;
        }
    }
    Ok(blocks)
}

/// Appends to every file and makes a new one. No space left is a legal answer.
fn write_everywhere(
    fs: &dyn FileSystem,
    snapshot: &Snapshot,
    is_new: &dyn Fn(Handle) -> Result<(), String>,
) -> Result<(), String> {
    let cx = Ctx::root();
    let probe = b"written after the crash";
    let files = snapshot
        .iter()
        .filter(|(_, node, _)| node.kind == FileType::Regular);
    for (path, node, _) in files {
        let ino = resolve(fs, path).map_err(|e| failed("look up", path, e))?;
        let mut back = [0; 23];
        match fs.write(&cx, ino, node.size, probe) {
            Err(Errno::NOSPC | Errno::FBIG) => continue,
            Err(e) => return Err(failed("write to", path, e)),
            Ok(_) => {}
        }
        let read = fs.read(&cx, ino, node.size, &mut back);
        // Two paths of one file store the same bytes in the same place.
        if read != Ok(back.len()) || back != *probe {
            return Err(format!(
                "{} does not hold what was written",
                path.escape_ascii()
            ));
        }
    }
    let name = b"made-after-the-crash";
    match fs.create(&cx, Ino::ROOT, name, 0o600) {
        Ok(attr) => {
            is_new((attr.ino, attr.generation))?;
            let written = fs.write(&cx, attr.ino, 0, &[7; 5000]);
            fs.forget(attr.ino, 1);
            written.map(drop)
        }
        Err(e) => Err(e),
    }
    .or_else(|e| match e {
        Errno::NOSPC => Ok(()),
        e => Err(failed("write to new file", name, e)),
    })
}

/// Deepest tree that is deleted; scripts make none deeper.
const MAX_DEPTH: usize = 64;

fn delete_below(fs: &dyn FileSystem, cx: &Ctx, dir: Ino, depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("directories are nested without end".to_string());
    }
    let mut names = Vec::new();
    let listed = fs.readdir(cx, dir, Cookie(0), &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    });
    listed.map_err(|e| format!("list before deleting: {e}"))?;
    for (name, ino, kind) in names {
        let gone = if kind == FileType::Directory {
            delete_below(fs, cx, ino, depth + 1)?;
            fs.rmdir(cx, dir, &name)
        } else {
            fs.unlink(cx, dir, &name)
        };
        gone.map_err(|e| failed("delete", &name, e))?;
    }
    Ok(())
}

/// [`use_up`] for a tree in which a directory may have two names, and space may be lost. `is_sound`
/// checks the state after each removal that leaves a directory another name.
pub(crate) fn use_world(
    fs: &dyn FileSystem,
    is_new: &dyn Fn(Handle) -> Result<(), String>,
    is_sound: &dyn Fn() -> Result<(), String>,
) -> Result<(), String> {
    let cx = Ctx::root();
    let world = World::read(fs)?;
    let full = |e: Errno| matches!(e, Errno::NOSPC | Errno::FBIG);
    for (ino, inode) in &world.nodes {
        if inode.attr.kind == FileType::Regular {
            let written = fs.write(&cx, *ino, inode.attr.size, b"written after the crash");
            if let Err(e) = written
                && !full(e)
            {
                return Err(format!("write to inode {ino}: {e}"));
            }
        }
    }
    match fs.create(&cx, Ino::ROOT, b"made-after-the-crash", 0o600) {
        Ok(attr) => {
            is_new((attr.ino, attr.generation))?;
            fs.forget(attr.ino, 1);
        }
        Err(e) if full(e) => {}
        Err(e) => return Err(format!("create: {e}")),
    }
    let mut left: HashMap<Ino, usize> = HashMap::new();
    for ino in world.names.values().flat_map(BTreeMap::values) {
        *left.entry(*ino).or_default() += 1;
    }
    let mut deletion = Deletion {
        fs,
        is_sound,
        left,
        done: HashSet::new(),
    };
    deletion.delete(Ino::ROOT)
}

/// The deletion of a tree.
struct Deletion<'a> {
    fs: &'a dyn FileSystem,
    is_sound: &'a dyn Fn() -> Result<(), String>,
    /// Names of each inode that are there.
    left: HashMap<Ino, usize>,
    /// Directories that are empty.
    done: HashSet<Ino>,
}

impl Deletion<'_> {
    fn delete(&mut self, dir: Ino) -> Result<(), String> {
        let (fs, cx) = (self.fs, Ctx::root());
        let mut names = Vec::new();
        let listed = fs.readdir(&cx, dir, Cookie(0), &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push((entry.name.to_vec(), entry.ino, entry.kind));
            }
            true
        });
        listed.map_err(|e| format!("list before deleting: {e}"))?;
        for (name, ino, kind) in names {
            let gone = if kind != FileType::Directory {
                fs.unlink(&cx, dir, &name)
            } else {
                if self.done.insert(ino) {
                    self.delete(ino)?;
                }
                fs.rmdir(&cx, dir, &name)
            };
            gone.map_err(|e| format!("delete {}: {e}", name.escape_ascii()))?;
            let names = self.left.entry(ino).or_default();
            *names = names.saturating_sub(1);
            if kind == FileType::Directory && *names > 0 {
                (self.is_sound)()?;
            }
        }
        Ok(())
    }
}
