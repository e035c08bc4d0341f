//! The checker finds each violation of the format.

use super::{Memory, open};
use crate::{MkfsOptions, Pxfs, check, mkfs};
use aerie_objects::layout::header;
use aerie_objects::{Kind, ObjectId, Transaction};
use medium::{MemoryPmem, Pmem};
use std::collections::BTreeSet;
use std::sync::Arc;
use vfs::{Ctx, FileSystem, FileType, Ino, Name, NewNode, XattrMode};

/// A file system with all kinds of nodes, and the objects that tests damage.
struct World {
    memory: Memory,
    fs: Pxfs<Memory>,
    file: ObjectId,
    dir: ObjectId,
    link: ObjectId,
    device: ObjectId,
    /// Removed, and still referenced.
    open: ObjectId,
}

fn world() -> World {
    let memory = Arc::new(MemoryPmem::new(2 << 20));
    mkfs(&memory, &MkfsOptions::default()).unwrap();
    let fs = open(&memory);
    let cx = Ctx::root();
    let make = |name: &[u8], node: NewNode<'_>| {
        let attr = fs.make(&cx, Name::new(Ino::ROOT, name), &node).unwrap();
        ObjectId::from_bits(attr.ino.0).unwrap()
    };
    let file = make(b"file", NewNode::file(0o644));
    let dir = make(b"dir", NewNode::directory(0o755));
    let link = make(b"link", NewNode::symlink(b"target").unwrap());
    let device = make(
        b"device",
        NewNode::special(FileType::CharDevice, 0o600, 5).unwrap(),
    );
    let open = make(b"open", NewNode::file(0o644));
    fs.unlink(&cx, Ino::ROOT, b"open").unwrap();
    let ino = Ino(file.to_bits());
    fs.setxattr(&cx, ino, b"user.a", b"b", XattrMode::Set)
        .unwrap();
    fs.link(&cx, ino, Ino(dir.to_bits()), b"again").unwrap();
    World {
        memory,
        fs,
        file,
        dir,
        link,
        device,
        open,
    }
}

impl World {
    /// Changes a word of a header.
    fn set(&self, object: ObjectId, word: u64, change: impl Fn(u64) -> u64) {
        let at = object.header() + word * 8;
        self.memory
            .store_word(at, change(self.memory.load(at).unwrap()));
    }

    fn set_own(&self, object: ObjectId, n: u64, change: impl Fn(u64) -> u64) {
        self.set(object, header::OWN + n, change);
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Transaction<'_, Memory>) -> aerie_objects::Result<()>,
    ) {
        let mut tx = self.fs.store.begin().unwrap();
        change(&mut tx).unwrap();
        tx.commit().unwrap();
    }

    fn violated(&self) -> BTreeSet<String> {
        let found = check(&self.memory).findings;
        found.into_iter().map(|finding| finding.invariant).collect()
    }
}

#[test]
fn a_whole_file_system_has_no_findings() {
    assert_eq!(world().violated(), BTreeSet::new());
}

/// A damage that a test does to a file system.
type Damage = fn(&World);

#[test]
fn each_violation_is_found_by_its_number() {
    let damages: &[(&str, &str, Damage)] = &[
        ("P1", "a device is a directory by its mode", |w| {
            w.set_own(w.device, 0, |_| 0o040755);
        }),
        ("P1", "a directory is a file by its mode", |w| {
            w.set_own(w.dir, 0, |_| 0o100644);
        }),
        ("P1", "a mode without a type", |w| {
            w.set_own(w.device, 0, |_| 0o644)
        }),
        ("P2", "a name with a slash", |w| {
            w.set_own(w.file, 2, |links| links + 1);
            w.change(|tx| tx.add(w.dir, b"a/b", w.file));
        }),
        ("P3", "a link too many", |w| {
            w.set_own(w.file, 2, |links| links + 1)
        }),
        ("P3", "a link too few", |w| {
            w.set_own(w.file, 2, |links| links - 1)
        }),
        ("P3", "a directory with a link too many", |w| {
            w.set_own(w.dir, 2, |links| links + 1);
        }),
        ("P3", "a named directory without links", |w| {
            w.set_own(w.dir, 2, |_| 0)
        }),
        ("P4", "a symbolic link without a target", |w| {
            w.set(w.link, header::SIZE, |_| 0)
        }),
        ("P4", "a device with contents", |w| {
            w.set(w.device, header::SIZE, |_| 1)
        }),
        ("P5", "attributes without the flag", |w| {
            w.set_own(w.file, 2, |links| links & 0xffff_ffff);
        }),
        ("P5", "the flag without attributes", |w| {
            w.set_own(w.link, 2, |links| links | 1 << 32);
        }),
        ("P5", "attributes that cannot be decoded", |w| {
            let attributes = w.fs.store.superblock().attributes;
            w.change(|tx| {
                let file = tx.create(Kind::MFile)?;
                let page = tx.add_page(file, 0)?;
                tx.store_contents(page, &[0xff; 64]);
                tx.add(attributes, &w.link.to_bits().to_le_bytes(), file)
            });
            w.set_own(w.link, 2, |links| links | 1 << 32);
        }),
        ("P6", "an open object under another key", |w| {
            let open = w.fs.store.superblock().open;
            w.change(|tx| {
                tx.remove(open, &w.open.to_bits().to_le_bytes())?;
                tx.add(open, b"another", w.open)
            });
        }),
        ("P3", "an open object with a link", |w| {
            w.set_own(w.open, 2, |_| 1)
        }),
    ];
    for (invariant, what, damage) in damages {
        let world = world();
        damage(&world);
        let expected = BTreeSet::from([(*invariant).to_owned()]);
        assert_eq!(world.violated(), expected, "{what}");
    }
}
