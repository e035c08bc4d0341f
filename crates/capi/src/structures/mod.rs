//! Persistent structures: `persist::structures` of byte strings.
//!
//! A C program refers to a structure by its address. Inside a transaction, the program's strings,
//! buffers and cursors are read and written as a part of it, like any memory.

mod kinds;
mod memory;

use crate::call::{CallError, call, calls, text};
use crate::space::Machine;
use crate::thread::Thread;
use kinds::{Journal, Keyed, Step, Strings, Structure, Table, Tree, Waiting};
use libc::{c_char, c_int, c_void, ssize_t};
use memory::{Answer, Buffer, Entry, Pair, Stopped};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::Interrupted;
use persist::structures::Cursor;
use persist::{Layouts, Persist, Ptr, TypedTx};
use std::ops::Bound;
use std::ptr::null_mut;

// --- operations of all structures ---------------------------------------------------

/// Runs `body`, which uses an `M`, in the running transaction or as one by itself.
fn run<M: Structure, T>(
    thread: &mut Thread,
    mut body: impl FnMut(&mut Thread) -> Answer<T>,
) -> Result<T, CallError> {
    thread.run(|thread| match body(thread) {
        Ok(value) => Ok(Ok(value)),
        Err(Stopped::Refused(why)) => Ok(Err(why)),
        Err(Stopped::Interrupted(why)) => Err(damaged::<M>(why)),
    })?
}

/// Makes an error of the heap inside a structure a sign of damage. It ends the transaction, since
/// the call may be half done.
fn damaged<M: Structure>(why: Interrupted) -> Interrupted {
    match why {
        Interrupted::Heap(HeapError::Foreign { off } | HeapError::NotAllocated { off })
        | Interrupted::NoValue { off, .. } => {
            let what = M::SOUND;
            Interrupted::NoValue { off, what }
        }
        why => why,
    }
}

/// The structure at an address.
fn at<M: Structure>(thread: &Thread, made: *const c_void) -> Result<Ptr<M>, CallError> {
    let address = made as u64;
    Ptr::new(thread.offset(address)?).ok_or(CallError::NoStructure(address))
}

/// Runs a call that uses a structure.
fn on<M: Structure, T>(
    otherwise: T,
    made: *mut c_void,
    mut body: impl FnMut(&mut Thread, Ptr<M>) -> Answer<T>,
) -> T {
    call(otherwise, |thread| {
        let made = at(thread, made)?;
        run::<M, _>(thread, |thread| body(thread, made))
    })
}

fn root<M: Structure>(name: *const c_char) -> *mut c_void {
    call(null_mut(), |thread| {
        // SAFETY: the program passed a string.
        let name = unsafe { text(name) }?;
        let layout = Layouts::of::<M>().hash();
        let found = run::<M, _>(thread, |thread| {
            if let Some((was, off)) = thread.session.tx().root(name)? {
                thread.check_root(name, off)??;
                return Ok((was == layout).then_some(off));
            }
            let mut tx = thread.session.tx();
            let made = tx.create(&M::default())?;
            if tx.set_root(name, layout, made.off())? {
                return Ok(Some(made.off()));
            }
            tx.delete(made)?;
            Err(CallError::TooManyRoots.into())
        })?;
        let other = || CallError::Layout {
            name: name.to_owned(),
            wanted: M::NAME,
        };
        let off = found.ok_or_else(other)?;
        Ok((thread.program.base + off) as *mut c_void)
    })
}

fn create<M: Structure>(place: *mut c_void) -> *mut c_void {
    call(null_mut(), |thread| {
        let base = thread.program.base;
        run::<M, _>(thread, |thread| {
            let made = base + thread.session.tx().create(&M::default())?.off();
            if !place.is_null() {
                // SAFETY: the program passed this place.
                unsafe { thread.put(place as u64, made) }?;
            }
            Ok(made as *mut c_void)
        })
    })
}

fn free<M: Structure>(place: *mut c_void) -> c_int {
    call(-1, |thread| {
        if place.is_null() {
            return Err(CallError::NoPlace);
        }
        run::<M, _>(thread, |thread| {
            // SAFETY: the program passed this place.
            let made = unsafe { thread.address_at(place as u64) }?;
            if made == 0 {
                return Ok(0);
            }
            let made = at::<M>(thread, made as *const c_void)?;
            M::clear(made, &mut thread.session.tx())?;
            thread.session.tx().delete(made)?;
            // SAFETY: as above.
            unsafe { thread.put(place as u64, 0) }?;
            Ok(0)
        })
    })
}

fn clear<M: Structure>(made: *mut c_void, most: usize) -> c_int {
    on(-1, made, |thread, made: Ptr<M>| {
        let is_over = M::clear_some(made, &mut thread.session.tx(), most as u64)?;
        Ok(is_over.into())
    })
}

fn count<M: Structure>(made: *mut c_void) -> ssize_t {
    on(-1, made, |thread, made: Ptr<M>| {
        Ok(M::count(made, &mut thread.session.tx())? as ssize_t)
    })
}

// --- operations of some structures --------------------------------------------------

fn put<M: Keyed>(
    made: *mut c_void,
    key: (*const c_void, usize),
    value: (*const c_void, usize),
) -> c_int {
    on(-1, made, |thread, made: Ptr<M>| {
        let (key, value) = (
            thread.string(key.0, key.1)?,
            thread.string(value.0, value.1)?,
        );
        M::put(made, &mut thread.session.tx(), &key, &value)?;
        Ok(0)
    })
}

fn get<M: Keyed>(made: *mut c_void, key: (*const c_void, usize), to: Buffer) -> ssize_t {
    on(-1, made, |thread, made: Ptr<M>| {
        let key = thread.string(key.0, key.1)?;
        let found = M::get(made, &mut thread.session.tx(), &key)?;
        thread.copy_out(found, to)
    })
}

fn remove<M: Keyed>(made: *mut c_void, key: (*const c_void, usize)) -> c_int {
    on(-1, made, |thread, made: Ptr<M>| {
        let key = thread.string(key.0, key.1)?;
        match M::remove(made, &mut thread.session.tx(), &key)? {
            true => Ok(0),
            false => Err(CallError::Nothing.into()),
        }
    })
}

/// Moves a cursor to the entry that `find` finds, given the key that `from` reads. The key is read
/// once: a failed attempt may have moved the cursor.
fn go<M: Structure>(
    made: *mut c_void,
    entry: *mut c_void,
    from: impl FnOnce(&mut Thread, Entry) -> Answer<Vec<u8>>,
    mut find: impl FnMut(&mut Thread, Ptr<M>, &[u8]) -> Answer<Option<Pair>>,
) -> c_int {
    call(-1, |thread| {
        let made = at(thread, made)?;
        let entry = thread.entry(entry)?;
        let key = from(thread, entry)?;
        run::<M, _>(thread, |thread| {
            let found = find(thread, made, &key)?;
            thread.show(found, entry)
        })
    })
}

/// The key of a walk that needs none.
fn anywhere(_: &mut Thread, _: Entry) -> Answer<Vec<u8>> {
    Ok(Vec::new())
}

/// The first entry of a tree at or after a bound.
fn first_from(thread: &mut Thread, made: Ptr<Tree>, bound: Bound<&[u8]>) -> Answer<Option<Pair>> {
    let mut tx = thread.session.tx();
    let mut range = made.range(&mut tx, (bound, Bound::Unbounded));
    Ok(range.next().transpose()?)
}

/// Removes the element that `peek` finds and `pop` removes, if there is room for it.
fn pop<M: Structure>(
    made: *mut c_void,
    to: Buffer,
    peek: impl Fn(Ptr<M>, &mut Tx<'_, Machine>) -> Step<Option<Vec<u8>>>,
    pop: impl Fn(Ptr<M>, &mut Tx<'_, Machine>) -> Step<Option<Vec<u8>>>,
) -> ssize_t {
    on(-1, made, |thread, made: Ptr<M>| {
        let found = peek(made, &mut thread.session.tx())?.ok_or(CallError::Nothing)?;
        let is_wanted = !to.0.is_null();
        if is_wanted && found.len() > to.1 {
            return Err(CallError::Buffer(found.len()).into());
        }
        pop(made, &mut thread.session.tx())?;
        let room = if is_wanted { to.1 } else { 0 };
        thread.copy_out(Some(found), Buffer(to.0, room))
    })
}

// --- calls --------------------------------------------------------------------------

/// The calls of every structure.
macro_rules! of_all {
    ($(
        $type:ident:
            $root:ident / $root_clone:tt,
            $create:ident / $create_clone:tt,
            $free:ident / $free_clone:tt,
            $clear:ident / $clear_clone:tt,
            $count:ident / $count_clone:tt;
    )*) => {calls! {$(
        /// The structure of a name, which is made if there is none.
        $root / $root_clone (name: *const c_char) -> *mut c_void {
            root::<$type>(name)
        }

        /// Makes a structure, and stores its address at `place`.
        $create / $create_clone (place: *mut c_void) -> *mut c_void {
            create::<$type>(place)
        }

        /// Frees the structure whose address is at `place`.
        $free / $free_clone (place: *mut c_void) -> c_int {
            free::<$type>(place)
        }

        /// Removes up to `most` elements. Returns 1 if nothing is left.
        $clear / $clear_clone (made: *mut c_void, most: usize) -> c_int {
            clear::<$type>(made, most)
        }

        /// The number of elements.
        $count / $count_clone (made: *mut c_void) -> ssize_t {
            count::<$type>(made)
        }
    )*}};
}

of_all! {
    Table:
        selvedge_table_root / "_ZGTt19selvedge_table_root",
        selvedge_table_create / "_ZGTt21selvedge_table_create",
        selvedge_table_free / "_ZGTt19selvedge_table_free",
        selvedge_table_clear / "_ZGTt20selvedge_table_clear",
        selvedge_table_count / "_ZGTt20selvedge_table_count";
    Tree:
        selvedge_tree_root / "_ZGTt18selvedge_tree_root",
        selvedge_tree_create / "_ZGTt20selvedge_tree_create",
        selvedge_tree_free / "_ZGTt18selvedge_tree_free",
        selvedge_tree_clear / "_ZGTt19selvedge_tree_clear",
        selvedge_tree_count / "_ZGTt19selvedge_tree_count";
    Strings:
        selvedge_vector_root / "_ZGTt20selvedge_vector_root",
        selvedge_vector_create / "_ZGTt22selvedge_vector_create",
        selvedge_vector_free / "_ZGTt20selvedge_vector_free",
        selvedge_vector_clear / "_ZGTt21selvedge_vector_clear",
        selvedge_vector_count / "_ZGTt21selvedge_vector_count";
    Waiting:
        selvedge_queue_root / "_ZGTt19selvedge_queue_root",
        selvedge_queue_create / "_ZGTt21selvedge_queue_create",
        selvedge_queue_free / "_ZGTt19selvedge_queue_free",
        selvedge_queue_clear / "_ZGTt20selvedge_queue_clear",
        selvedge_queue_count / "_ZGTt20selvedge_queue_count";
    Journal:
        selvedge_journal_root / "_ZGTt21selvedge_journal_root",
        selvedge_journal_create / "_ZGTt23selvedge_journal_create",
        selvedge_journal_free / "_ZGTt21selvedge_journal_free",
        selvedge_journal_clear / "_ZGTt22selvedge_journal_clear",
        selvedge_journal_count / "_ZGTt22selvedge_journal_count";
}

/// The calls of structures with keys.
macro_rules! of_keyed {
    ($(
        $type:ident:
            $put:ident / $put_clone:tt,
            $get:ident / $get_clone:tt,
            $remove:ident / $remove_clone:tt;
    )*) => {calls! {$(
        /// Sets the value of a key.
        $put / $put_clone
            (
                made: *mut c_void,
                key: *const c_void,
                key_size: usize,
                value: *const c_void,
                size: usize
            ) -> c_int
        {
            put::<$type>(made, (key, key_size), (value, size))
        }

        /// The value of a key.
        $get / $get_clone
            (
                made: *mut c_void,
                key: *const c_void,
                key_size: usize,
                to: *mut c_void,
                room: usize
            ) -> ssize_t
        {
            get::<$type>(made, (key, key_size), Buffer(to, room))
        }

        /// Removes a key.
        $remove / $remove_clone
            (made: *mut c_void, key: *const c_void, key_size: usize) -> c_int
        {
            remove::<$type>(made, (key, key_size))
        }
    )*}};
}

of_keyed! {
    Table:
        selvedge_table_put / "_ZGTt18selvedge_table_put",
        selvedge_table_get / "_ZGTt18selvedge_table_get",
        selvedge_table_remove / "_ZGTt21selvedge_table_remove";
    Tree:
        selvedge_tree_put / "_ZGTt17selvedge_tree_put",
        selvedge_tree_get / "_ZGTt17selvedge_tree_get",
        selvedge_tree_remove / "_ZGTt20selvedge_tree_remove";
}

calls! {
    /// Moves a cursor to any entry, the first one of a walk.
    selvedge_table_first / "_ZGTt20selvedge_table_first"
        (made: *mut c_void, entry: *mut c_void) -> c_int
    {
        go(made, entry, anywhere, |thread, table: Ptr<Table>, _| {
            Ok(table.iter(&mut thread.session.tx()).next().transpose()?)
        })
    }

    /// Moves a cursor to the next entry of a walk.
    selvedge_table_next / "_ZGTt19selvedge_table_next"
        (made: *mut c_void, entry: *mut c_void) -> c_int
    {
        go(made, entry, Thread::key_of, |thread, table: Ptr<Table>, key| {
            let next = table.next(&mut thread.session.tx(), key)?;
            Ok(next.ok_or(CallError::Nothing)?)
        })
    }

    /// Moves a cursor to the entry with the smallest key.
    selvedge_tree_first / "_ZGTt19selvedge_tree_first"
        (made: *mut c_void, entry: *mut c_void) -> c_int
    {
        go(made, entry, anywhere, |thread, tree, _| first_from(thread, tree, Bound::Unbounded))
    }

    /// Moves a cursor to the entry with the largest key.
    selvedge_tree_last / "_ZGTt18selvedge_tree_last"
        (made: *mut c_void, entry: *mut c_void) -> c_int
    {
        go(made, entry, anywhere, |thread, tree: Ptr<Tree>, _| {
            Ok(tree.last(&mut thread.session.tx())?)
        })
    }

    /// Moves a cursor to the first entry whose key is not less than the given one.
    selvedge_tree_seek / "_ZGTt18selvedge_tree_seek"
        (made: *mut c_void, key: *const c_void, key_size: usize, entry: *mut c_void) -> c_int
    {
        let from = |thread: &mut Thread, _: Entry| thread.string(key, key_size);
        go(made, entry, from, |thread, tree, key| {
            first_from(thread, tree, Bound::Included(key))
        })
    }

    /// Moves a cursor to the entry with the next larger key.
    selvedge_tree_next / "_ZGTt18selvedge_tree_next"
        (made: *mut c_void, entry: *mut c_void) -> c_int
    {
        go(made, entry, Thread::key_of, |thread, tree, key| {
            first_from(thread, tree, Bound::Excluded(key))
        })
    }

    /// Appends an element. Returns its index.
    selvedge_vector_push / "_ZGTt20selvedge_vector_push"
        (made: *mut c_void, element: *const c_void, size: usize) -> ssize_t
    {
        on(-1, made, |thread, vector: Ptr<Strings>| {
            let element = thread.string(element, size)?;
            Ok(vector.push(&mut thread.session.tx(), &element)? as ssize_t)
        })
    }

    /// The `n`-th element.
    selvedge_vector_get / "_ZGTt19selvedge_vector_get"
        (made: *mut c_void, n: usize, to: *mut c_void, room: usize) -> ssize_t
    {
        on(-1, made, |thread, vector: Ptr<Strings>| {
            let found = vector.get(&mut thread.session.tx(), n as u64)?;
            thread.copy_out(found, Buffer(to, room))
        })
    }

    /// Replaces the `n`-th element.
    selvedge_vector_set / "_ZGTt19selvedge_vector_set"
        (made: *mut c_void, n: usize, element: *const c_void, size: usize) -> c_int
    {
        on(-1, made, |thread, vector: Ptr<Strings>| {
            let element = thread.string(element, size)?;
            let old = vector.set(&mut thread.session.tx(), n as u64, &element)?;
            old.ok_or(CallError::Nothing)?;
            Ok(0)
        })
    }

    /// Removes the last element, and copies it to a buffer.
    selvedge_vector_pop / "_ZGTt19selvedge_vector_pop"
        (made: *mut c_void, to: *mut c_void, room: usize) -> ssize_t
    {
        let last = |vector: Ptr<Strings>, tx: &mut Tx<'_, Machine>| {
            let last = vector.len(tx)?.checked_sub(1);
            last.map_or(Ok(None), |last| vector.get(tx, last))
        };
        pop(made, Buffer(to, room), last, |vector, tx| vector.pop(tx))
    }

    /// Removes all elements from the `len`-th on.
    selvedge_vector_truncate / "_ZGTt24selvedge_vector_truncate"
        (made: *mut c_void, len: usize) -> c_int
    {
        on(-1, made, |thread, vector: Ptr<Strings>| {
            vector.truncate(&mut thread.session.tx(), len as u64)?;
            Ok(0)
        })
    }

    /// Appends an element.
    selvedge_queue_push / "_ZGTt19selvedge_queue_push"
        (made: *mut c_void, element: *const c_void, size: usize) -> c_int
    {
        on(-1, made, |thread, queue: Ptr<Waiting>| {
            let element = thread.string(element, size)?;
            queue.push(&mut thread.session.tx(), &element)?;
            Ok(0)
        })
    }

    /// Copies the first element to a buffer.
    selvedge_queue_peek / "_ZGTt19selvedge_queue_peek"
        (made: *mut c_void, to: *mut c_void, room: usize) -> ssize_t
    {
        on(-1, made, |thread, queue: Ptr<Waiting>| {
            let found = queue.peek(&mut thread.session.tx())?;
            thread.copy_out(found, Buffer(to, room))
        })
    }

    /// Removes the first element, and copies it to a buffer.
    selvedge_queue_pop / "_ZGTt18selvedge_queue_pop"
        (made: *mut c_void, to: *mut c_void, room: usize) -> ssize_t
    {
        let first = |queue: Ptr<Waiting>, tx: &mut Tx<'_, Machine>| queue.peek(tx);
        pop(made, Buffer(to, room), first, |queue, tx| queue.pop(tx))
    }

    /// Appends a record. Returns its number.
    selvedge_journal_append / "_ZGTt23selvedge_journal_append"
        (made: *mut c_void, record: *const c_void, size: usize) -> i64
    {
        on(-1, made, |thread, journal: Ptr<Journal>| {
            let record = thread.string(record, size)?;
            Ok(journal.append(&mut thread.session.tx(), &record)? as i64)
        })
    }

    /// Copies the record at a cursor to a buffer, and moves the cursor to the next record.
    selvedge_journal_read / "_ZGTt21selvedge_journal_read"
        (made: *mut c_void, cursor: *mut c_void, to: *mut c_void, room: usize) -> ssize_t
    {
        call(-1, |thread| {
            let journal: Ptr<Journal> = at(thread, made)?;
            // Read once: a failed attempt may have moved the cursor.
            let mut bytes = [0; Cursor::SIZE as usize];
            thread.fetch(cursor, &mut bytes)?;
            let start = Cursor::decode(&bytes).ok_or(CallError::Cursor)?;
            run::<Journal, _>(thread, |thread| {
                let mut next = start;
                let found = journal.read(&mut thread.session.tx(), &mut next)?;
                let len = thread.copy_out(found, Buffer(to, room))?;
                next.encode(&mut bytes);
                thread.deliver(cursor, &bytes)?;
                Ok(len)
            })
        })
    }

    /// Removes all records before the one of this number.
    selvedge_journal_truncate / "_ZGTt25selvedge_journal_truncate"
        (made: *mut c_void, number: u64) -> c_int
    {
        on(-1, made, |thread, journal: Ptr<Journal>| {
            journal.truncate(&mut thread.session.tx(), number)?;
            Ok(0)
        })
    }
}
