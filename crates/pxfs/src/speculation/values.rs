//! Values on a speculation.

use super::{Access, Host, Speculation};
use crate::values::{Put, PutFile, Value};
use aerie_objects::{HEADER_BYTES, ObjectId, Overlay, PAGE, page};
use aerie_proto::ops::{Condition, Data, Op, VALUE_MAX};
use medium::Pmem;
use vfs::{Ctx, Errno, Name, Result};

impl<P: Pmem, H: Host> Speculation<P, H> {
    /// Gives a file all its contents. A missing file is made, with the permission bits `mode`.
    ///
    /// # Errors
    /// `ECANCELED` if the condition is not met. `EFBIG` over [`VALUE_MAX`] bytes. Those of an open.
    pub fn put(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        mode: u32,
        value: &[u8],
        condition: Condition<'_>,
    ) -> Result<()> {
        let put = Put {
            at,
            mode,
            len: value.len() as u64,
            condition,
        };
        if put.len > VALUE_MAX {
            return Err(Errno::FBIG);
        }
        match self.access {
            Access::ReadWrite => self.put_stored(cx, put, value),
            Access::ReadOnly | Access::Partial => self.put_sent(cx, put, value),
        }
    }

    /// Puts a value that the service stores.
    fn put_sent(&self, cx: &Ctx, put: Put<'_>, value: &[u8]) -> Result<()> {
        let _gate = self.fs.gate.write();
        self.refill([0, 1])?;
        self.record(
            cx,
            |tx, by| self.fs.put_bytes(tx, by, put, None, value),
            |_, file| op(put, file, Data::Bytes(value)),
        )
        .map(drop)
    }

    /// Stores a value in new pages. Other calls do not wait for that.
    fn put_stored(&self, cx: &Ctx, put: Put<'_>, value: &[u8]) -> Result<()> {
        loop {
            let Some(apart) = self.take_apart(put.len.div_ceil(PAGE) as usize)? else {
                let _gate = self.fs.gate.write();
                return self.put_apart(cx, put, &[]);
            };
            self.store_apart(&apart.pages, value);
            let _gate = self.fs.gate.write();
            if self.state.lock().session != apart.session {
                // The service has given the pages to others.
                continue;
            }
            let put = self.put_apart(cx, put, &apart.pages);
            if put.is_err() {
                self.put_back(apart);
            }
            return put;
        }
    }

    /// Stores a value in these pages. Its end is flushed with the batch, if it fills no page.
    fn store_apart(&self, pages: &[u64], value: &[u8]) {
        let (whole, end) = value.as_chunks();
        for (page, contents) in pages.iter().zip(whole) {
            self.fill(*page, contents);
        }
        if let Some(page) = pages.get(whole.len()) {
            // Bytes after the end of a file can have any value.
            self.overlay().base().store(*page, end);
        }
        if !whole.is_empty() {
            self.hand_over(&mut self.state.lock());
        }
    }

    /// Puts the value in these pages. Without them it fails, at last for want of space. The gate is held for a change.
    fn put_apart(&self, cx: &Ctx, put: Put<'_>, pages: &[u64]) -> Result<()> {
        self.refill([0, 1])?;
        self.record(
            cx,
            |tx, by| {
                self.fs.put_value(tx, by, put, None, |tx, file, index| {
                    let page = pages.get(index as usize).ok_or(Errno::NOSPC)?;
                    Ok(tx.add_page_at(file, index, *page)?)
                })
            },
            |state, file| {
                let end = pages.get((put.len / PAGE) as usize);
                state.dirty.pages.extend(end);
                let (len, pages) = (put.len, pages.to_vec());
                op(put, file, Data::Stored { len, pages })
            },
        )?;
        self.fs.store.used_apart(pages);
        Ok(())
    }

    /// Runs `run` with the value of a file. Calls that change something wait for its end.
    ///
    /// # Errors
    /// Those of an open for reading, and of `run`. `EFBIG` for a file of more than [`VALUE_MAX`] bytes.
    pub fn value<T>(
        &self,
        cx: &Ctx,
        at: Name<'_>,
        run: impl FnOnce(Value<'_, Overlay<P>>) -> Result<T>,
    ) -> Result<T> {
        let memory = self.overlay();
        self.fs.shared(|| {
            let file = self.fs.value_file(memory, cx, at)?;
            if file.attr.size > VALUE_MAX {
                return Err(Errno::FBIG.into());
            }
            Ok(run(Value { memory, file })?)
        })
    }
}

fn op<'a>(put: Put<'a>, file: &PutFile, data: Data<'a>) -> Op<'a> {
    Op::Put {
        at: put.at.into(),
        mode: put.mode,
        data,
        object: Some(file.object).filter(|_| file.is_new),
        condition: put.condition,
    }
}

impl<P: Pmem> Value<'_, Overlay<P>> {
    /// The place of the value in the shared memory, if it is all there in one piece, and no call that was
    /// not shipped has changed the file. Nobody stores there while the caller has the file locked.
    pub fn place(&self) -> Option<u64> {
        let object: ObjectId = self.file.object;
        let is_private = |off| self.memory.is_private_word(off);
        if (object.header()..object.header() + HEADER_BYTES)
            .step_by(medium::LINE_BYTES as usize)
            .any(is_private)
        {
            return None;
        }
        let page = |index| page(self.memory, object, index).ok().flatten();
        let first = page(0)?;
        let mut indices = 0..self.len().div_ceil(PAGE);
        let is_next = |index| page(index) == Some(first + index * PAGE);
        indices.all(is_next).then_some(first)
    }
}
