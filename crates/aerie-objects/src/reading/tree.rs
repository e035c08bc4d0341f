//! The pages of an object: a radix tree of pointers to pages, each pointer 0 or the byte offset of a
//! page. Readers visit at most [`MAX_HEIGHT`](crate::layout::MAX_HEIGHT) pages of pointers.

use crate::ObjectId;
use crate::error::{Result, damaged};
use crate::layout::{FANOUT, MAX_HEIGHT, PAGE, header};
use crate::load::Load;

pub(crate) const BITS: u64 = FANOUT.trailing_zeros() as u64;

/// The root of a tree: a page, and the number of levels of pointers between it and the contents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    pub(crate) page: u64,
    pub(crate) height: u64,
}

impl Root {
    pub(crate) fn load<M: Load + ?Sized>(memory: &M, object: ObjectId) -> Result<Option<Self>> {
        let at = object.header() + header::ROOT * 8;
        let word = memory.load(at)?;
        if word == 0 {
            return Ok(None);
        }
        let height = word % PAGE;
        if height > MAX_HEIGHT {
            return Err(damaged("header", at, format!("a tree of height {height}")));
        }
        let page = memory.page(word - height, at)?;
        Ok(Some(Self { page, height }))
    }

    pub(crate) fn covers(self, index: u64) -> bool {
        index >> (BITS * self.height) == 0
    }

    pub(crate) fn word(self) -> u64 {
        self.page | self.height
    }
}

/// Byte offset of the pointer for page `index` in a page of pointers at `level` above the contents.
pub(crate) fn slot(page: u64, level: u64, index: u64) -> u64 {
    page + (index >> (BITS * (level - 1))) % FANOUT * 8
}

/// The page of this index; `None` if there is none.
///
/// # Errors
/// Errors of the memory, and of a damaged tree.
pub fn page<M: Load + ?Sized>(memory: &M, object: ObjectId, index: u64) -> Result<Option<u64>> {
    let root = Root::load(memory, object)?.filter(|root| root.covers(index));
    let Some(Root { mut page, height }) = root else {
        return Ok(None);
    };
    for level in (1..=height).rev() {
        let at = slot(page, level, index);
        match memory.load(at)? {
            0 => return Ok(None),
            next => page = memory.page(next, at)?,
        }
    }
    Ok(Some(page))
}

/// The first index from `from` on that has a page; `None` if there is none.
///
/// # Errors
/// Errors of the memory, and of a damaged tree.
pub fn next_page<M: Load + ?Sized>(memory: &M, object: ObjectId, from: u64) -> Result<Option<u64>> {
    match Root::load(memory, object)? {
        Some(root) => next_below(memory, root, 0, from),
        None => Ok(None),
    }
}

fn next_below<M: Load + ?Sized>(
    memory: &M,
    Root { page, height }: Root,
    first: u64,
    from: u64,
) -> Result<Option<u64>> {
    if height == 0 {
        return Ok((first >= from).then_some(first));
    }
    let span = 1 << (BITS * (height - 1));
    let skipped = from.saturating_sub(first) / span;
    for n in skipped..FANOUT {
        let at = page + n * 8;
        let next = memory.load(at)?;
        if next == 0 {
            continue;
        }
        let below = Root {
            page: memory.page(next, at)?,
            height: height - 1,
        };
        let found = next_below(memory, below, first + n * span, from)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// A page of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visited {
    /// A page of pointers.
    Pointers(u64),
    /// The page of this index.
    Contents(u64, u64),
}

/// Calls `f` for each page of the tree, a page of pointers before what it leads to.
pub(crate) fn visit<M: Load + ?Sized>(
    memory: &M,
    object: ObjectId,
    f: &mut dyn FnMut(Visited) -> Result<()>,
) -> Result<()> {
    match Root::load(memory, object)? {
        Some(root) => visit_below(memory, root, 0, f),
        None => Ok(()),
    }
}

fn visit_below<M: Load + ?Sized>(
    memory: &M,
    Root { page, height }: Root,
    first: u64,
    f: &mut dyn FnMut(Visited) -> Result<()>,
) -> Result<()> {
    if height == 0 {
        return f(Visited::Contents(first, page));
    }
    f(Visited::Pointers(page))?;
    for n in 0..FANOUT {
        let at = page + n * 8;
        let next = memory.load(at)?;
        if next != 0 {
            let page = memory.page(next, at)?;
            let height = height - 1;
            visit_below(
                memory,
                Root { page, height },
                first + (n << (BITS * height)),
                f,
            )?;
        }
    }
    Ok(())
}
