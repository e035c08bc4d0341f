//! Values: files of a directory that are read and replaced as a whole, by their names.
//!
//! - A put makes the file, or gives it new pages in place of all the old ones: an open file sees the new
//!   contents, other names of it too. It is one change, so that a crash leaves the old or the new value.
//! - A put checks what an open for writing with `O_TRUNC` and `O_CREAT` checks. A read checks what an open
//!   for reading does.

use crate::data::{ZEROS, parts, read_bytes};
use crate::error::{Fault, Res};
use crate::fs::{By, Pxfs};
use crate::inode::Inode;
use crate::names::touch;
use crate::seeded::{Bug, hit};
use aerie_objects::{Load, NewObject, ObjectId, PAGE, Transaction};
use aerie_proto::ops::{Condition, VALUE_MAX};
use medium::Pmem;
use vfs::{Ctx, Errno, Ino, Name, NewNode, OpenFlags, check_name, must_be_regular, perm};

/// A put, without its contents.
#[derive(Clone, Copy)]
pub(crate) struct Put<'a> {
    pub(crate) at: Name<'a>,
    /// Permission bits of a new file.
    pub(crate) mode: u32,
    /// Bytes of the value.
    pub(crate) len: u64,
    pub(crate) condition: Condition<'a>,
}

/// The file of a put.
pub(crate) struct PutFile {
    pub(crate) object: ObjectId,
    pub(crate) is_new: bool,
}

/// The value of a key, as a reader sees it.
pub struct Value<'a, M> {
    pub(crate) memory: &'a M,
    pub(crate) file: Inode,
}

impl<M: Pmem> Value<'_, M> {
    /// The file.
    pub fn ino(&self) -> Ino {
        self.file.attr.ino
    }

    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        self.file.attr.size
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `off` on. Returns their number.
    ///
    /// # Errors
    /// `EUCLEAN` or `EIO` if the store is damaged.
    pub fn read(&self, off: u64, buf: &mut [u8]) -> vfs::Result<usize> {
        let len = self.len().saturating_sub(off).min(buf.len() as u64) as usize;
        let read = read_bytes(self.memory, self.memory, &self.file, off, &mut buf[..len]);
        read.map_err(Fault::errno).map(|()| len)
    }
}

/// Whether a file has these contents.
fn has_contents<P: Pmem>(tx: &Transaction<'_, P>, file: &Inode, wanted: &[u8]) -> Res<bool> {
    if file.attr.size != wanted.len() as u64 {
        return Ok(false);
    }
    let mut buf = ZEROS;
    for (index, _, part) in parts(0, wanted.len()) {
        let buf = &mut buf[..part.len()];
        // No transaction keeps words of contents.
        read_bytes(tx, tx.memory(), file, index * PAGE, buf)?;
        if *buf != wanted[part] {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<P: Pmem> Pxfs<P> {
    /// The file of a name, which the caller may read.
    pub(crate) fn value_file<M: Load>(&self, memory: &M, cx: &Ctx, at: Name<'_>) -> Res<Inode> {
        let file = self.look_up(memory, cx, at)?;
        must_be_regular(file.attr.kind, Errno::INVAL)?;
        perm::may_open(cx, &file.attr, OpenFlags::READ)?;
        Ok(file)
    }

    /// Puts a value whose pages `add` adds, at the indices from 0 on. `chosen`: the object of a new file,
    /// which there must not be then.
    pub(crate) fn put_value(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        put: Put<'_>,
        chosen: Option<NewObject>,
        mut add: impl FnMut(&mut Transaction<'_, P>, ObjectId, u64) -> Res<()>,
    ) -> Res<PutFile> {
        if put.len > VALUE_MAX {
            return Err(Errno::FBIG.into());
        }
        let (mut file, is_new) = match self.replaced(tx, by, put, chosen.is_some())? {
            Some(file) => (file, false),
            None => {
                let new = NewNode::file(put.mode);
                let made = self.make_node(tx, by, put.at, &new, chosen)?;
                (self.inode(tx, made.ino)?, true)
            }
        };
        let object = file.object;
        (0..put.len.div_ceil(PAGE)).try_for_each(|index| add(tx, object, index))?;
        if file.attr.size != put.len {
            tx.set_size(object, put.len)?;
        }
        if !is_new {
            self.drop_privileges(tx, by, &mut file)?;
            touch(tx, &mut file, by.now())?;
        }
        Ok(PutFile { object, is_new })
    }

    /// The file that a put replaces, without its pages; `None` for a new name.
    fn replaced(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        put: Put<'_>,
        must_be_new: bool,
    ) -> Res<Option<Inode>> {
        check_name(put.at.name)?;
        let dir = self.inode(tx, put.at.dir)?;
        if !dir.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        perm::may_search(by.cx, &dir.attr)?;
        let Some(found) = self.find(tx, &dir, put.at.name)? else {
            return match put.condition {
                Condition::Is(_) => Err(Errno::CANCELED.into()),
                Condition::Always | Condition::Absent => Ok(None),
            };
        };
        let file = self.load(tx, found)?;
        must_be_regular(file.attr.kind, Errno::INVAL)?;
        let opened = perm::may_open(by.cx, &file.attr, OpenFlags::WRITE | OpenFlags::TRUNCATE);
        if !hit(Bug::PutOverAnything) {
            opened?;
        }
        let is_met = match put.condition {
            Condition::Always => true,
            Condition::Absent => false,
            Condition::Is(wanted) => {
                perm::may_open(by.cx, &file.attr, OpenFlags::READ)?;
                has_contents(tx, &file, wanted)?
            }
        };
        if !is_met {
            return Err(Errno::CANCELED.into());
        }
        if must_be_new {
            return Err(Errno::EXIST.into());
        }
        tx.cut_pages(found, 0)?;
        Ok(Some(file))
    }

    /// Puts a value.
    pub(crate) fn put_bytes(
        &self,
        tx: &mut Transaction<'_, P>,
        by: By<'_>,
        put: Put<'_>,
        chosen: Option<NewObject>,
        value: &[u8],
    ) -> Res<PutFile> {
        let mut parts = value.chunks(PAGE as usize);
        self.put_value(tx, by, put, chosen, |tx, file, index| {
            let page = tx.add_page(file, index)?;
            tx.store_contents(page, parts.next().unwrap_or_default());
            Ok(())
        })
    }
}
