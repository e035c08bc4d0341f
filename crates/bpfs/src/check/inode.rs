//! Inodes, their contents and their attributes: B5, B9, B16 to B18.

use super::tree::{Owner, Tree};
use super::{Bits, Checker};
use crate::format::{BLOCK, BlockNo, HeightAddr, INODE, Inode, RootRecord};
use medium::Pmem;
use vfs::{FileType, Ino, NAME_MAX, SYMLINK_MAX};
use zerocopy::FromBytes;

impl Inode {
    /// The tree of the contents, as stored.
    pub(crate) fn tree_of(&self) -> Tree {
        Tree {
            ha: HeightAddr(self.ha.get()),
            size: self.size.get(),
        }
    }
}

impl<P: Pmem + ?Sized> Checker<'_, P> {
    /// Checks the root record and the inode file. Returns false if no inode can be found.
    pub(super) fn inode_file(&mut self) -> bool {
        let root = self.ground.root;
        let mut bytes = [0; size_of::<RootRecord>()];
        if !self.take(Owner::Super, root) || !self.read(root.addr(), &mut bytes, "root record") {
            return false;
        }
        let Ok(record) = RootRecord::read_from_bytes(&bytes) else {
            return false;
        };
        let size = record.size.get();
        if size == 0 || !size.is_multiple_of(BLOCK) || size / BLOCK >= self.ground.blocks {
            self.bad(
                "B5",
                format_args!("root record: inode file of {size} bytes"),
            );
            if size / BLOCK >= self.ground.blocks {
                return false;
            }
        }
        self.inodes = Tree {
            ha: HeightAddr(record.ha.get()),
            size,
        };
        self.named = Bits::new(size / INODE + 1);
        match self.tree(Owner::InodeFile, self.inodes, &mut |_, _, _| ()) {
            None => return false,
            Some(0) => {}
            Some(holes) => self.bad("B5", format_args!("inode file: {holes} blocks are missing")),
        }
        true
    }

    pub(super) fn root_inode(&mut self) {
        self.named.add(Ino::ROOT.0);
        let Some(inode) = self.inode(Ino::ROOT) else {
            return self.bad("B9", format_args!("inode 1: the root directory is missing"));
        };
        if FileType::from_mode(inode.mode.get()) == Some(FileType::Directory) {
            self.fields(Ino::ROOT, &inode);
            self.dirs.push(Ino::ROOT);
        } else {
            let mode = inode.mode.get();
            self.bad("B9", format_args!("inode 1: the root has mode {mode:o}"));
        }
    }

    /// Reads an inode; `None` if the path to it is damaged.
    pub(super) fn inode(&mut self, ino: Ino) -> Option<Inode> {
        let byte = (ino.0 - 1) * INODE;
        let leaf = self.ground.leaf(self.inodes, byte / BLOCK)?;
        let mut bytes = [0; INODE as usize];
        let sound = self.read(leaf.addr() + byte % BLOCK, &mut bytes, Owner::Inode(ino));
        sound.then(|| Inode::read_from_bytes(&bytes).ok())?
    }

    /// Checks the fields of an inode of any type, and its attribute block.
    pub(super) fn fields(&mut self, ino: Ino, inode: &Inode) {
        let (mode, flags) = (inode.mode.get(), inode.flags.get());
        if mode >> 16 != 0 || flags != 0 {
            self.bad(
                "B9",
                format_args!("inode {ino}: mode {mode:o}, flags {flags}"),
            );
        }
        let kind = FileType::from_mode(mode);
        let rdev = inode.rdev.get();
        let device = matches!(kind, Some(FileType::CharDevice | FileType::BlockDevice));
        if rdev > if device { u32::MAX.into() } else { 0 } {
            self.bad("B17", format_args!("inode {ino}: device number {rdev}"));
        }
        let xattr = BlockNo(inode.xattr.get());
        if !xattr.is_null() && self.take(Owner::Inode(ino), xattr) {
            self.xattrs(ino, xattr);
        }
    }

    /// Checks the tree of an inode that is not a directory.
    pub(super) fn contents(&mut self, ino: Ino, kind: FileType, inode: &Inode) {
        let (tree, size) = (inode.tree_of(), inode.size.get());
        let holes = self.tree(Owner::Inode(ino), tree, &mut |_, _, _| ());
        match kind {
            FileType::Regular | FileType::Directory => {}
            FileType::Symlink => {
                if !(1..=SYMLINK_MAX as u64).contains(&size) || holes != Some(0) {
                    self.bad(
                        "B16",
                        format_args!("inode {ino}: symbolic link of {size} bytes"),
                    );
                } else {
                    self.target(ino, tree);
                }
            }
            FileType::Fifo | FileType::CharDevice | FileType::BlockDevice | FileType::Socket
                if size == 0 => {}
            FileType::Fifo | FileType::CharDevice | FileType::BlockDevice | FileType::Socket => {
                self.bad("B17", format_args!("inode {ino}: {kind:?} of {size} bytes"))
            }
        }
    }

    /// Checks the target of a symbolic link whose tree is sound.
    fn target(&mut self, ino: Ino, tree: Tree) {
        let Some(leaf) = self.ground.leaf(tree, 0) else {
            return;
        };
        let mut target = vec![0; tree.size as usize];
        if self.read(leaf.addr(), &mut target, Owner::Inode(ino)) && target.contains(&0) {
            let what = format_args!("inode {ino}: the target of the symbolic link has a NUL byte");
            self.bad("B16", what);
        }
    }

    /// Checks the tree of a directory, and the entries in its blocks.
    pub(super) fn directory(&mut self, dir: Ino) {
        let Some(inode) = self.inode(dir) else { return };
        let (tree, size) = (inode.tree_of(), inode.size.get());
        if !size.is_multiple_of(BLOCK) {
            self.bad("B13", format_args!("directory {dir}: {size} bytes"));
        }
        self.names.clear();
        let holes = self.tree(Owner::Inode(dir), tree, &mut |c, leaf, block| {
            c.directory_block(dir, leaf * BLOCK, block);
        });
        if let Some(1..) = holes {
            self.bad("B13", format_args!("directory {dir}: it has holes"));
        }
        self.duplicates(dir);
    }

    fn xattrs(&mut self, ino: Ino, block: BlockNo) {
        let mut bytes = [0; BLOCK as usize];
        if !self.read(block.addr(), &mut bytes, Owner::Inode(ino)) {
            return;
        }
        if let Err(why) = xattr_block(&bytes) {
            self.bad("B18", format_args!("inode {ino}: attribute block: {why}"));
        }
    }
}

fn xattr_block(block: &[u8]) -> Result<(), &'static str> {
    let (len, _) = block.split_first_chunk::<8>().ok_or("it is cut off")?;
    let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
    let mut rest = block.get(16..len).ok_or("its length is wrong")?;
    let mut names: Vec<&[u8]> = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_first_chunk::<8>().ok_or("a head is cut off")?;
        let name_len = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let value_len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let name = tail.get(..name_len).ok_or("a name is cut off")?;
        if !(1..=NAME_MAX).contains(&name_len) {
            return Err("a name is not legal");
        }
        if names.contains(&name) {
            return Err("a name is there twice");
        }
        names.push(name);
        let next = (8 + name_len + value_len).next_multiple_of(8);
        rest = rest.get(next..).ok_or("a value is cut off")?;
    }
    Ok(())
}
