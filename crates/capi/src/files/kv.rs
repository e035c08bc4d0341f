//! Keys and values.

use super::{MODE, Store, answer, at, buffer, bytes, close, of, text};
use aerie_client::{Client, Kv};
use libc::{c_char, c_int, c_void, mode_t, size_t, ssize_t};
use std::ptr::null_mut;
use std::sync::Arc;
use vfs::Errno;

/// A directory of keys.
pub(crate) struct Keys(Kv<Arc<Client>>);

/// Receives a value.
type Reader = unsafe extern "C" fn(value: *const c_void, len: size_t, argument: *mut c_void);

/// Receives the keys of a directory.
type Entry = unsafe extern "C" fn(key: *const c_void, len: size_t, argument: *mut c_void) -> c_int;

/// Opens a directory; null after an error.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_open(
    store: *mut Store,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> *mut Keys {
    // SAFETY: the program's promise.
    let (store, path) = unsafe { (of(store), text(path)) };
    let client = Arc::clone(&store.client);
    let opened = match flags {
        0 => Kv::open(client, path),
        libc::O_CREAT => Kv::create(client, path),
        _ => Err(Errno::INVAL),
    };
    let opened = opened.map(|kv| Keys(kv.with_mode(mode & MODE)));
    at(
        null_mut(),
        path,
        opened.map(|keys| Box::into_raw(Box::new(keys))),
    )
}

/// Closes it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_close(keys: *mut Keys) {
    // SAFETY: the program's promise.
    unsafe { close(keys) };
}

/// Runs a call on a key.
///
/// # Safety
/// The directory must be open, and the key readable.
unsafe fn on<T>(
    keys: *mut Keys,
    (key, len): (*const c_void, size_t),
    otherwise: T,
    run: impl FnOnce(&Kv<Arc<Client>>, &[u8]) -> vfs::Result<T>,
) -> T {
    // SAFETY: the caller's promise.
    let (keys, key) = unsafe { (of(keys), bytes(key, len)) };
    at(otherwise, key, run(&keys.0, key))
}

/// Copies a value. Returns its length, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_get(
    keys: *mut Keys,
    key: *const c_void,
    key_len: size_t,
    start: *mut c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: the program's promise.
    let buffer = unsafe { buffer(start, len) };
    // SAFETY: as above.
    unsafe {
        on(keys, (key, key_len), -1, |kv, key| {
            let found = kv.get_into(key, buffer)?.ok_or(Errno::NOENT)?;
            Ok(found as ssize_t)
        })
    }
}

/// Calls `reader` with a value. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_borrow(
    keys: *mut Keys,
    key: *const c_void,
    key_len: size_t,
    reader: Reader,
    argument: *mut c_void,
) -> c_int {
    let borrow = |kv: &Kv<Arc<Client>>, key: &[u8]| -> vfs::Result<c_int> {
        let read = kv.borrow(key, |value| {
            // SAFETY: the program's promise; the value outlives the call.
            unsafe { reader(value.as_ptr().cast(), value.len(), argument) };
        });
        read?.ok_or(Errno::NOENT).map(|()| 0)
    };
    // SAFETY: as above.
    unsafe { on(keys, (key, key_len), -1, borrow) }
}

/// Puts a value. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_put(
    keys: *mut Keys,
    key: *const c_void,
    key_len: size_t,
    value: *const c_void,
    len: size_t,
) -> c_int {
    // SAFETY: the program's promise.
    let value = unsafe { bytes(value, len) };
    // SAFETY: as above.
    unsafe {
        on(keys, (key, key_len), -1, |kv, key| {
            kv.put(key, value).map(|()| 0)
        })
    }
}

/// Puts a value if the old one is as expected. Returns 1, 0, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_compare_and_put(
    keys: *mut Keys,
    key: *const c_void,
    key_len: size_t,
    old: *const c_void,
    old_len: size_t,
    value: *const c_void,
    len: size_t,
) -> c_int {
    // SAFETY: the program's promise.
    let old = (!old.is_null()).then(|| unsafe { bytes(old, old_len) });
    // SAFETY: as above.
    let value = unsafe { bytes(value, len) };
    let put = |kv: &Kv<Arc<Client>>, key: &[u8]| {
        let put = kv.compare_and_put(key, old, value);
        put.map(c_int::from)
    };
    // SAFETY: as above.
    unsafe { on(keys, (key, key_len), -1, put) }
}

/// Removes a key. Returns 1, 0, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_erase(
    keys: *mut Keys,
    key: *const c_void,
    key_len: size_t,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        on(keys, (key, key_len), -1, |kv, key| {
            kv.erase(key).map(c_int::from)
        })
    }
}

/// Lists the keys. Returns 0, the result of `entry` that ends the list, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_kv_list(
    keys: *mut Keys,
    entry: Entry,
    argument: *mut c_void,
) -> c_int {
    let mut end = 0;
    // SAFETY: the program's promise.
    let listed = unsafe { of(keys) }.0.list(|key| {
        // SAFETY: as above; the key outlives the call.
        end = unsafe { entry(key.as_ptr().cast(), key.len(), argument) };
        end == 0
    });
    answer(-1, "a directory of keys", listed.map(|()| end))
}
