//! The calls of `selvedge/files.h`: files of a store that a service serves, and keys and values there.

mod kv;
mod leaving;

use crate::errno::errno_of_file;
use crate::message::report;
use aerie_client::{Client, ConnectError, Files, OFlags, Options};
use libc::{c_char, c_int, c_void, mode_t, off_t, size_t, ssize_t};
use std::ffi::{CStr, OsStr};
use std::fmt::Display;
use std::io::SeekFrom;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::Arc;
use vfs::{Attr, Errno, FileSystem, SetAttr};

/// Permission bits.
const MODE: mode_t = 0o7777;

/// A connection.
pub(crate) struct Store {
    client: Arc<Client>,
    files: Files<Arc<Client>>,
}

/// An open file.
pub(crate) struct File(aerie_client::File<Arc<Client>>);

/// Receives the entries of a directory.
type Entry =
    unsafe extern "C" fn(name: *const c_char, kind: mode_t, argument: *mut c_void) -> c_int;

/// The object at a pointer of the program.
///
/// # Safety
/// It must be open.
unsafe fn of<'a, T>(pointer: *mut T) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &*pointer }
}

/// Drops the object at a pointer, which may be null.
///
/// # Safety
/// It must be open, and no thread uses it.
unsafe fn close<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise; this crate has made it from a box.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// A text of the program's.
///
/// # Safety
/// It must end with a zero byte.
unsafe fn text<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Bytes of the program's.
///
/// # Safety
/// They must be readable, and not change meanwhile.
unsafe fn bytes<'a>(start: *const c_void, len: size_t) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(start.cast(), len) },
    }
}

/// A buffer of the program's.
///
/// # Safety
/// It must be writable, and nobody else uses it meanwhile.
unsafe fn buffer<'a>(start: *mut c_void, len: size_t) -> &'a mut [u8] {
    match len {
        0 => &mut [],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts_mut(start.cast(), len) },
    }
}

/// The result of a call on `what`: an error is reported, and becomes `otherwise`.
fn answer<T>(otherwise: T, what: impl Display, done: vfs::Result<T>) -> T {
    done.unwrap_or_else(|errno| {
        report(errno.raw_os_error(), format_args!("{what}: {errno}"));
        otherwise
    })
}

/// As [`answer`], for a path.
fn at<T>(otherwise: T, path: &[u8], done: vfs::Result<T>) -> T {
    answer(otherwise, String::from_utf8_lossy(path), done)
}

/// As [`answer`], for a call that returns 0 or -1.
fn done(path: &[u8], done: vfs::Result<()>) -> c_int {
    at(-1, path, done.map(|()| 0))
}

fn errno_of_connect(why: &ConnectError) -> c_int {
    match why {
        ConnectError::NoService(_, why) => why.raw_os_error().unwrap_or(libc::EIO),
        ConnectError::Refused(_) => libc::ECONNREFUSED,
        ConnectError::Protocol(_) => libc::EPROTO,
        ConnectError::Map(why) => errno_of_file(why),
        ConnectError::Protected(_) | ConnectError::Store(_) => libc::EIO,
    }
}

/// Connects to a service; null after an error.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_connect(socket: *const c_char) -> *mut Store {
    // SAFETY: the program's promise.
    let socket = OsStr::from_bytes(unsafe { text(socket) });
    match Client::connect(socket.as_ref(), &Options::of_environment()) {
        Ok(client) => {
            let client = Arc::new(client);
            leaving::note(&client);
            let files = Files::new(Arc::clone(&client));
            Box::into_raw(Box::new(Store { client, files }))
        }
        Err(why) => {
            report(errno_of_connect(&why), why);
            null_mut()
        }
    }
}

/// Waits until all changes are durable. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_sync(store: *mut Store) -> c_int {
    // SAFETY: the program's promise.
    let client = unsafe { &of(store).client };
    done(b"the store", client.sync())
}

/// Makes all changes durable, and ends the connection. Returns 0 or -1. A null pointer has no effect.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_close(store: *mut Store) -> c_int {
    if store.is_null() {
        return 0;
    }
    // SAFETY: the program's promise.
    let synced = unsafe { of(store).client.sync() };
    // SAFETY: as above.
    unsafe { close(store) };
    done(b"the store", synced)
}

/// Opens a file; null after an error.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_open(
    store: *mut Store,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> *mut File {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    let flags = OFlags::from_bits_retain(flags as u32);
    let opened = files.open(path, flags, mode & MODE);
    let opened = opened.map(|file| Box::into_raw(Box::new(File(file))));
    at(null_mut(), path, opened)
}

/// Closes a file.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_close(file: *mut File) {
    // SAFETY: the program's promise.
    unsafe { close(file) };
}

/// Runs a call on an open file.
///
/// # Safety
/// It must be open.
unsafe fn on<T>(
    file: *mut File,
    otherwise: T,
    run: impl FnOnce(&aerie_client::File<Arc<Client>>) -> vfs::Result<T>,
) -> T {
    // SAFETY: the caller's promise.
    answer(otherwise, "an open file", run(&unsafe { of(file) }.0))
}

fn offset(off: off_t) -> vfs::Result<u64> {
    u64::try_from(off).map_err(|_| Errno::INVAL)
}

/// Reads at the offset. Returns the number of bytes, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_read(
    file: *mut File,
    start: *mut c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: the program's promise.
    unsafe {
        on(file, -1, |file| {
            Ok(file.read(buffer(start, len))? as ssize_t)
        })
    }
}

/// Writes at the offset. Returns the number of bytes, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_write(
    file: *mut File,
    data: *const c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: the program's promise.
    unsafe {
        on(
            file,
            -1,
            |file| Ok(file.write(bytes(data, len))? as ssize_t),
        )
    }
}

/// Reads at an offset. Returns the number of bytes, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_pread(
    file: *mut File,
    start: *mut c_void,
    len: size_t,
    off: off_t,
) -> ssize_t {
    // SAFETY: the program's promise.
    let buffer = unsafe { buffer(start, len) };
    // SAFETY: as above.
    unsafe {
        on(file, -1, |file| {
            Ok(file.read_at(buffer, offset(off)?)? as ssize_t)
        })
    }
}

/// Writes at an offset. Returns the number of bytes, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_pwrite(
    file: *mut File,
    data: *const c_void,
    len: size_t,
    off: off_t,
) -> ssize_t {
    // SAFETY: the program's promise.
    let data = unsafe { bytes(data, len) };
    // SAFETY: as above.
    unsafe {
        on(file, -1, |file| {
            Ok(file.write_at(data, offset(off)?)? as ssize_t)
        })
    }
}

/// Moves the offset. Returns it, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_seek(
    file: *mut File,
    off: off_t,
    whence: c_int,
) -> off_t {
    let seek = |file: &aerie_client::File<Arc<Client>>| -> vfs::Result<off_t> {
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(offset(off)?),
            libc::SEEK_CUR => SeekFrom::Current(off),
            libc::SEEK_END => SeekFrom::End(off),
            _ => return Err(Errno::INVAL),
        };
        Ok(file.seek(to)? as off_t)
    };
    // SAFETY: the program's promise.
    unsafe { on(file, -1, seek) }
}

/// Sets the size. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_truncate(file: *mut File, size: off_t) -> c_int {
    // SAFETY: the program's promise.
    unsafe { on(file, -1, |file| file.set_size(offset(size)?).map(|()| 0)) }
}

/// Returns the attributes at `place`. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_stat(
    file: *mut File,
    place: *mut libc::stat,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { on(file, -1, |file| Ok(show(&file.attributes()?, place))) }
}

/// Makes the file durable. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_file_sync(file: *mut File) -> c_int {
    // SAFETY: the program's promise.
    unsafe { on(file, -1, |file| file.sync().map(|()| 0)) }
}

/// Stores attributes at an address of the program. Returns 0.
///
/// # Safety
/// `place` must be writable.
unsafe fn show(attr: &Attr, place: *mut libc::stat) -> c_int {
    // SAFETY: it consists of integers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_ino = attr.ino.0;
    stat.st_mode = attr.mode();
    stat.st_nlink = attr.nlink.into();
    (stat.st_uid, stat.st_gid) = (attr.uid, attr.gid);
    stat.st_rdev = attr.rdev.into();
    stat.st_size = attr.size as off_t;
    stat.st_blksize = attr.blksize.into();
    stat.st_blocks = attr.blocks as i64;
    let parts = |time: vfs::Timestamp| {
        let (seconds, nanos) = time.parts();
        (seconds, i64::from(nanos))
    };
    (stat.st_atime, stat.st_atime_nsec) = parts(attr.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = parts(attr.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = parts(attr.ctime);
    // SAFETY: the caller's promise.
    unsafe { place.write(stat) };
    0
}

/// Returns the attributes of a path at `place`. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_stat(
    store: *mut Store,
    path: *const c_char,
    place: *mut libc::stat,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    let found = files.attributes(path);
    // SAFETY: as above.
    let shown = found.map(|attr| unsafe { show(&attr, place) });
    at(-1, path, shown)
}

/// As [`selvedge_store_stat`], for a symbolic link itself.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_lstat(
    store: *mut Store,
    path: *const c_char,
    place: *mut libc::stat,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    let found = files.link_attributes(path);
    // SAFETY: as above.
    let shown = found.map(|attr| unsafe { show(&attr, place) });
    at(-1, path, shown)
}

/// Makes a directory. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_mkdir(
    store: *mut Store,
    path: *const c_char,
    mode: mode_t,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    done(path, files.make_directory(path, mode & MODE))
}

/// Removes a directory. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_rmdir(
    store: *mut Store,
    path: *const c_char,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    done(path, files.remove_directory(path))
}

/// Removes a name. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_unlink(
    store: *mut Store,
    path: *const c_char,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    done(path, files.unlink(path))
}

/// Moves a name. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_rename(
    store: *mut Store,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, from, to) = unsafe { (&of(store).files, text(from), text(to)) };
    done(from, files.rename(from, to))
}

/// Gives a file another name. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_link(
    store: *mut Store,
    existing: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, existing, path) = unsafe { (&of(store).files, text(existing), text(path)) };
    done(path, files.link(existing, path))
}

/// Makes a symbolic link. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_symlink(
    store: *mut Store,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, target, path) = unsafe { (&of(store).files, text(target), text(path)) };
    done(path, files.symlink(target, path))
}

/// Copies the target of a symbolic link. Returns its length, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_readlink(
    store: *mut Store,
    path: *const c_char,
    start: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: the program's promise.
    let (files, path, buffer) =
        unsafe { (&of(store).files, text(path), buffer(start.cast(), len)) };
    let copied = files.read_link(path).map(|target| {
        let len = target.len().min(buffer.len());
        buffer[..len].copy_from_slice(&target[..len]);
        len as ssize_t
    });
    at(-1, path, copied)
}

/// Sets permission bits. Returns 0 or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_chmod(
    store: *mut Store,
    path: *const c_char,
    mode: mode_t,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    let set = SetAttr {
        perm: Some(mode & MODE),
        ..SetAttr::default()
    };
    done(path, files.set_attributes(path, &set))
}

/// Lists a directory. Returns 0, the result of `entry` that ends the list, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_store_list(
    store: *mut Store,
    path: *const c_char,
    entry: Entry,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the program's promise.
    let (files, path) = unsafe { (&of(store).files, text(path)) };
    let mut end = 0;
    let listed = files.list(path, |found| {
        let name = [found.name, b"\0"].concat();
        // SAFETY: the program's promise; the name ends with a zero byte, and outlives the call.
        end = unsafe { entry(name.as_ptr().cast(), found.kind.mode_bits(), argument) };
        end == 0
    });
    at(-1, path, listed.map(|()| end))
}
