//! The heap and the named roots.
//!
//! These calls, and the transaction that allocated a block, store to it in place. The stores are
//! durable before the transaction commits. Until then no other thread can reach the block, and no
//! recovery writes to it. So a block may be larger than a log.

use crate::call::{CallError, call, calls, text};
use crate::thread::Thread;
use libc::{c_char, c_int, c_void};
use medium::{LINE_BYTES, Pmem};
use mnemosyne::heap::usable_size;
use mnemosyne::tx::{Interrupted, Space};
use std::ptr::null_mut;

/// Bytes copied at a time.
const CHUNK: usize = 1024;

impl Thread {
    /// Allocates a block. `fill` receives its offset and fills it.
    fn alloc(
        &mut self,
        len: u64,
        place: u64,
        mut fill: impl FnMut(&mut Self, u64) -> Result<(), Interrupted>,
    ) -> Result<u64, CallError> {
        let base = self.program.base;
        self.run(|thread| {
            let off = thread.new_block(len)?;
            fill(thread, off)?;
            if place != 0 {
                // SAFETY: the program passed this place.
                unsafe { thread.put(place, base + off) }?;
            }
            Ok(base + off)
        })
    }

    /// Allocates a block. The rest of the running transaction stores to it in place.
    fn new_block(&mut self, len: u64) -> Result<u64, Interrupted> {
        let len = len.max(1);
        let off = self.session.tx().alloc(len)?;
        self.session.tx().may_fill()?;
        if self.depth > 0 {
            // The program may use the whole block: what was asked for may become longer in place.
            self.blocks.add(self.program.base + off, usable_size(len));
        }
        Ok(off)
    }

    /// Fills a block that this transaction allocated.
    fn fill_block(&mut self, off: u64, len: u64, byte: u8) {
        let pm = self.program.memory.memory().space().pmem();
        let bytes = [byte; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let part = (len - at).min(CHUNK as u64);
            pm.store_nt(off + at, &bytes[..part as usize]);
        }
        self.session.tx().note_filled(off, 0);
    }

    /// Copies a block into one that this transaction allocated.
    fn fill_from(&mut self, from: u64, to: u64, len: u64) -> Result<(), Interrupted> {
        let program = self.program;
        let pm = program.memory.memory().space().pmem();
        let mut bytes = [0; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let part = &mut bytes[..(len - at).min(CHUNK as u64) as usize];
            self.session.tx().read(program.base + from + at, part)?;
            pm.store_nt(to + at, part);
        }
        self.session.tx().note_filled(to, 0);
        Ok(())
    }
}

calls! {
    /// Allocates a block. The same transaction stores its address at `place`.
    selvedge_pmalloc / "_ZGTt16selvedge_pmalloc"
        (len: usize, place: *mut c_void) -> *mut c_void
    {
        call(null_mut(), |thread| {
            let block = thread.alloc(len as u64, place as u64, |_, _| Ok(()))?;
            Ok(block as *mut c_void)
        })
    }

    /// Allocates a block and sets all its bytes.
    selvedge_pmalloc_set / "_ZGTt20selvedge_pmalloc_set"
        (len: usize, place: *mut c_void, byte: c_int) -> *mut c_void
    {
        call(null_mut(), |thread| {
            let len = len as u64;
            let block = thread.alloc(len, place as u64, |thread, off| {
                thread.fill_block(off, len, byte as u8);
                Ok(())
            })?;
            Ok(block as *mut c_void)
        })
    }

    /// Allocates an array of zeros.
    selvedge_pcalloc / "_ZGTt16selvedge_pcalloc"
        (count: usize, len: usize, place: *mut c_void) -> *mut c_void
    {
        match count.checked_mul(len) {
            // SAFETY: the caller's promise.
            Some(len) => unsafe { selvedge_pmalloc_set(len, place, 0) },
            None => call(null_mut(), |_| Err(CallError::TooMuch(count, len))),
        }
    }

    /// Resizes the block whose address is at `place`, and may move it.
    selvedge_prealloc / "_ZGTt17selvedge_prealloc"
        (len: usize, place: *mut c_void) -> *mut c_void
    {
        call(null_mut(), |thread| resize(thread, len as u64, place as u64))
    }

    /// Frees the block whose address is at `place`, and stores null there. Returns 0 or -1.
    selvedge_pfree / "_ZGTt14selvedge_pfree"
        (place: *mut c_void) -> c_int
    {
        call(-1, |thread| {
            if place.is_null() {
                return Err(CallError::NoPlace);
            }
            thread.run(|thread| {
                // SAFETY: the program passed this place.
                let block = unsafe { thread.address_at(place as u64) }?;
                if block == 0 {
                    return Ok(Ok(0));
                }
                let off = match thread.offset(block) {
                    Ok(off) => off,
                    Err(why) => return Ok(Err(why)),
                };
                thread.session.tx().free(off)?;
                // SAFETY: as above.
                unsafe { thread.put(place as u64, 0) }?;
                Ok(Ok(0))
            })?
        })
    }

    /// The bytes of a block, at least as many as were asked for; 0 if there is no such block.
    selvedge_pmalloc_usable_size / "_ZGTt28selvedge_pmalloc_usable_size"
        (block: *const c_void) -> usize
    {
        call(0, |thread| {
            let off = thread.offset(block as u64)?;
            let len = thread.run(|thread| thread.session.tx().size_of(off))?;
            Ok(len as usize)
        })
    }

    /// The root of a name, of `len` bytes. A new root is zeros. With length 0, no root is made:
    /// null if there is none.
    selvedge_root / "_ZGTt13selvedge_root"
        (name: *const c_char, len: usize) -> *mut c_void
    {
        call(null_mut(), |thread| root(thread, name, len as u64))
    }

    /// Frees the root of a name. Returns 0, or -1 if there is none.
    selvedge_root_remove / "_ZGTt20selvedge_root_remove"
        (name: *const c_char) -> c_int
    {
        call(-1, |thread| {
            // SAFETY: the program passed a string.
            let name = unsafe { text(name) }?;
            let is_removed = thread.run(|thread| {
                let mut tx = thread.session.tx();
                let Some((_, off)) = tx.root(name)? else {
                    return Ok(false);
                };
                tx.free(off)?;
                tx.remove_root(name)
            })?;
            let none = || CallError::NoRoot(name.to_owned());
            is_removed.then_some(0).ok_or_else(none)
        })
    }
}

fn root(thread: &mut Thread, name: *const c_char, len: u64) -> Result<*mut c_void, CallError> {
    // SAFETY: the program passed a string.
    let name = unsafe { text(name) }?;
    let found = thread.run(|thread| {
        if let Some((was, off)) = thread.session.tx().root(name)? {
            let is_there = thread.check_root(name, off)?;
            return Ok(is_there.map(|()| Some((was, off))));
        }
        if len == 0 {
            return Ok(Ok(Some((0, 0))));
        }
        let off = thread.new_block(len)?;
        thread.fill_block(off, len, 0);
        let mut tx = thread.session.tx();
        if tx.set_root(name, len, off)? {
            return Ok(Ok(Some((len, off))));
        }
        tx.free(off)?;
        Ok(Ok(None))
    })??;
    match found {
        None => Err(CallError::TooManyRoots),
        Some((_, 0)) => Ok(null_mut()),
        Some((was, off)) if len == 0 || was == len => {
            Ok((thread.program.base + off) as *mut c_void)
        }
        Some((was, _)) => {
            let (name, wanted) = (name.to_owned(), len);
            Err(CallError::Size { name, was, wanted })
        }
    }
}

fn resize(thread: &mut Thread, len: u64, place: u64) -> Result<*mut c_void, CallError> {
    if place == 0 {
        return Err(CallError::NoPlace);
    }
    let base = thread.program.base;
    thread.run(|thread| {
        // SAFETY: the program passed this place.
        let block = unsafe { thread.address_at(place) }?;
        let mut was = 0;
        let mut old = None;
        if block != 0 {
            let off = match thread.offset(block) {
                Ok(off) => off,
                Err(why) => return Ok(Err(why)),
            };
            was = thread.session.tx().size_of(off)?;
            // A block that keeps at least half of its bytes stays where it is, if the new size permits the place.
            let is_aligned = !len.is_multiple_of(LINE_BYTES) || off.is_multiple_of(LINE_BYTES);
            if len <= was && len >= was / 2 && is_aligned {
                return Ok(Ok(block as *mut c_void));
            }
            old = Some(off);
        }
        let new = thread.new_block(len)?;
        if let Some(old) = old {
            thread.fill_from(old, new, len.min(was))?;
            thread.session.tx().free(old)?;
        }
        // SAFETY: as above.
        unsafe { thread.put(place, base + new) }?;
        Ok(Ok((base + new) as *mut c_void))
    })?
}
