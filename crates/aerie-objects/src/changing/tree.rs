//! Changes of the pages of objects.

use crate::ObjectId;
use crate::error::{Error, Result};
use crate::layout::{FANOUT, MAX_HEIGHT, PAGE, header};
use crate::load::Load;
use crate::reading::tree::{BITS, Root, page, slot};
use crate::transaction::Transaction;
use medium::Pmem;

impl<P: Pmem> Transaction<'_, P> {
    /// Adds a page of zeros at this index, where there is none. Returns its byte offset.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full), errors of the memory and of a damaged tree.
    pub fn add_page(&mut self, object: ObjectId, index: u64) -> Result<u64> {
        let page = self.page_for(object)?;
        self.map_page(object, index, page)?;
        Ok(page)
    }

    /// Adds a page with these contents, as [`add_page`](Self::add_page) does.
    ///
    /// # Errors
    /// As [`add_page`](Self::add_page).
    pub fn add_contents(
        &mut self,
        object: ObjectId,
        index: u64,
        contents: &[u8; PAGE as usize],
    ) -> Result<()> {
        let readers = self.readers(object)?;
        let page = self.take_unfilled(readers)?;
        self.store_contents(page, contents);
        self.add_page_at(object, index, page)
    }

    /// Adds a page that the caller has [reserved](crate::Store::reserve), as [`add_page`](Self::add_page)
    /// does. Its contents stay.
    ///
    /// # Errors
    /// As [`add_page`](Self::add_page).
    pub fn add_page_at(&mut self, object: ObjectId, index: u64, page: u64) -> Result<()> {
        self.count_pages(object, 1)?;
        self.map_page(object, index, page)
    }

    /// Adds a page of the reserve of a speculation, as [`add_page`](Self::add_page) does. Its contents
    /// stay.
    ///
    /// # Errors
    /// As [`add_page`](Self::add_page).
    pub fn add_reserved(&mut self, object: ObjectId, index: u64) -> Result<u64> {
        let page = self.take_reserved()?;
        self.add_page_at(object, index, page)?;
        Ok(page)
    }

    /// Frees the page at this index. Returns its byte offset, or `None` if there is none.
    ///
    /// # Errors
    /// Errors of the memory and of a damaged tree.
    pub fn remove_page(&mut self, object: ObjectId, index: u64) -> Result<Option<u64>> {
        let Some(found) = page(self, object, index)? else {
            return Ok(None);
        };
        self.map_page(object, index, 0)?;
        self.free_page(object, found)?;
        Ok(Some(found))
    }

    /// Makes `page` the one at this index. Any page there must have been removed.
    fn map_page(&mut self, object: ObjectId, index: u64, page: u64) -> Result<()> {
        let mut root = match Root::load(self, object)? {
            Some(root) => root,
            None if index == 0 => {
                self.set_header(object, header::ROOT, page)?;
                return Ok(());
            }
            None => Root {
                page: self.page_for(object)?,
                height: 1,
            },
        };
        while !root.covers(index) {
            if root.height == MAX_HEIGHT {
                return Err(Error::NoIndex(index));
            }
            let above = self.page_for(object)?;
            self.set(above, root.page)?;
            root = Root {
                page: above,
                height: root.height + 1,
            };
        }
        if root.height == 0 {
            return self.set_header(object, header::ROOT, page);
        }
        if self.load(object.header() + header::ROOT * 8)? != root.word() {
            self.set_header(object, header::ROOT, root.word())?;
        }
        let mut node = root.page;
        for level in (2..=root.height).rev() {
            let at = slot(node, level, index);
            node = match self.load(at)? {
                0 => {
                    let below = self.page_for(object)?;
                    self.set(at, below)?;
                    below
                }
                below => self.page(below, at)?,
            };
        }
        self.set(slot(node, 1, index), page)?;
        Ok(())
    }

    /// Takes a page of zeros, and counts it as one of the object.
    pub(crate) fn page_for(&mut self, object: ObjectId) -> Result<u64> {
        let readers = self.readers(object)?;
        let page = self.take_page(readers)?;
        self.count_pages(object, 1)?;
        Ok(page)
    }

    /// Frees a page of the object.
    pub(crate) fn free_page(&mut self, object: ObjectId, page: u64) -> Result<()> {
        self.give_page(page);
        self.count_pages(object, -1)
    }

    fn count_pages(&mut self, object: ObjectId, change: i64) -> Result<()> {
        let pages = self.load(object.header() + header::PAGES * 8)?;
        self.set_header(object, header::PAGES, pages.wrapping_add_signed(change))?;
        Ok(())
    }

    /// Frees all pages from index `from` on.
    ///
    /// # Errors
    /// Errors of the memory and of a damaged tree.
    pub fn cut_pages(&mut self, object: ObjectId, from: u64) -> Result<()> {
        let Some(root) = Root::load(self, object)? else {
            return Ok(());
        };
        let mut cut = Cut {
            from,
            pages: self.load(object.header() + header::PAGES * 8)?,
            freed: 0,
        };
        if self.cut_below(root, 0, &mut cut)? {
            self.set_header(object, header::ROOT, 0)?;
        }
        match cut.freed {
            0 => Ok(()),
            freed => self.count_pages(object, -freed),
        }
    }

    /// Returns whether nothing is left.
    fn cut_below(&mut self, root: Root, first: u64, cut: &mut Cut) -> Result<bool> {
        let span = 1 << (BITS * root.height);
        if first + span <= cut.from {
            return Ok(false);
        }
        cut.pages = cut.pages.saturating_sub(1);
        let mut is_empty = true;
        let mut empty = Vec::new();
        for n in 0..if root.height == 0 { 0 } else { FANOUT } {
            if cut.pages == 0 {
                break;
            }
            let at = root.page + n * 8;
            let next = self.load(at)?;
            if next == 0 {
                continue;
            }
            let page = self.page(next, at)?;
            let height = root.height - 1;
            let below = first + (n << (BITS * height));
            match self.cut_below(Root { page, height }, below, cut)? {
                true => empty.push(at),
                false => is_empty = false,
            }
        }
        if is_empty {
            self.give_page(root.page);
            cut.freed += 1;
        } else {
            empty.into_iter().try_for_each(|at| self.set(at, 0))?;
        }
        Ok(is_empty)
    }
}

/// The state of a walk that frees pages.
struct Cut {
    /// The first index to free.
    from: u64,
    /// Most pages of the object that the walk has not seen: the rest of a page of pointers is empty if there are
    /// none.
    pages: u64,
    freed: i64,
}
