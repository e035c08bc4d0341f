//! Keys and values (KVFS, paper section 4.3.2): the files of a directory, read and replaced as a whole.
//!
//! # Guarantees
//! - **K1** A put, an erase or a compare-and-put is one change: readers see the old value or the new one, and
//!   so does a restart after a crash. The changes of a client become durable in their order, at the latest
//!   after its period; [`Kv::sync`] waits for that.
//! - **K2** A get returns the value of the last put that has returned, of any client.
//! - **K3** A borrowed value does not change while the closure runs. Another client's change of it waits.
//!   If that takes longer than the lease of the service, the service ends the session of the borrower, and
//!   the borrow returns `ENODEV`. From then on the bytes may change under the closure, which must be short.
//!   Such changes are safe: the closure gets [`SharedBytes`], not a slice.
//! - **K4** A value is the contents of a file with the name of the key, for every client and mount of the
//!   store. A write to the file is not a put: a get meanwhile may return a part of it. A borrow waits.
//!
//! The client and the service run the operation [`Op::Put`](aerie_proto::ops::Op::Put), with the checks of an
//! open for writing. A get locks and finds the file once, and opens nothing.

use crate::client::{Client, Fs};
use aerie_proto::ops::{Condition, VALUE_MAX};
use medium::SharedBytes;
use std::borrow::Borrow;
use std::cell::Cell;
use vfs::{
    Cookie, Ctx, Errno, FileSystem, FileType, Ino, Name, NewNode, Removal, Result, check_name,
};

/// Keys that are listed at a time.
const LIST_PART: usize = 256;

thread_local! {
    /// Whether this thread runs the closure of a borrow.
    static IS_BORROWING: Cell<bool> = const { Cell::new(false) };
}

/// The keys and values of a directory.
///
/// A key is a name: 1 to 255 bytes without `/` and NUL, but not `.` and `..`. Other keys are refused with
/// `EINVAL` or `ENAMETOOLONG`. A value has at most [`Kv::VALUE_MAX`] bytes (`EFBIG`). Names of the directory
/// that are not regular files are not listed; a get or put of one fails with `EISDIR` or `EINVAL`.
///
/// `C` is a client, or a reference to one, such as `&Client` or `Arc<Client>`.
///
/// ```no_run
/// use aerie_client::{Client, Kv};
///
/// let client = Client::connect("store.socket".as_ref(), &Default::default())?;
/// let pages = Kv::create(&client, b"cache/pages")?;
/// pages.put(b"index.html", b"<p>Hello")?;
/// let len = pages.borrow(b"index.html", |page| page.len())?;
/// assert_eq!(len, Some(8));
/// pages.sync()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Kv<C: Borrow<Client>> {
    client: C,
    dir: Ino,
    mode: u32,
}

impl<C: Borrow<Client>> Kv<C> {
    /// Most bytes of a value.
    pub const VALUE_MAX: u64 = VALUE_MAX;

    /// Opens the directory at `path`, from the root of the store. Symbolic links are not followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`.
    pub fn open(client: C, path: &[u8]) -> Result<Self> {
        Self::walk(client, path, false)
    }

    /// Opens the directory at `path`, and makes it and those above it if they are missing.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and of `mkdir`.
    pub fn create(client: C, path: &[u8]) -> Result<Self> {
        Self::walk(client, path, true)
    }

    fn walk(client: C, path: &[u8], makes: bool) -> Result<Self> {
        let mode = 0o644;
        let dir = Ino::ROOT;
        let mut kv = Self { client, dir, mode };
        for name in path.split(|byte| *byte == b'/') {
            if name.is_empty() || name == b"." {
                continue;
            }
            let (client, cx) = (kv.client(), kv.cx());
            let found = match client.lookup(cx, kv.dir, name) {
                Err(Errno::NOENT) if makes => {
                    let at = Name::new(kv.dir, name);
                    match client.make(cx, at, &NewNode::directory(0o755)) {
                        Err(Errno::EXIST) => client.lookup(cx, kv.dir, name)?,
                        made => made?,
                    }
                }
                found => found?,
            };
            let above = std::mem::replace(&mut kv.dir, found.ino);
            kv.forget(above);
            if found.kind != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
        }
        Ok(kv)
    }

    /// New values get these permission bits, in place of 644 (octal). The umask has no effect.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    fn client(&self) -> &Client {
        self.client.borrow()
    }

    fn cx(&self) -> &Ctx {
        self.client().own()
    }

    fn forget(&self, dir: Ino) {
        if dir != Ino::ROOT {
            self.client().forget(dir, 1);
        }
    }

    /// The place of a key.
    fn at<'k>(&self, key: &'k [u8]) -> Result<Name<'k>> {
        if IS_BORROWING.get() {
            return Err(Errno::DEADLK);
        }
        match key.is_empty() {
            true => Err(Errno::INVAL),
            false => check_name(key).map(|()| Name::new(self.dir, key)),
        }
    }

    /// Returns the value of a key; `None` if the key has no value.
    ///
    /// # Errors
    /// Those of an open for reading; `EFBIG` for a file that is larger than a value; `ENODEV` after the end of
    /// the session. The latter is possible for each of the calls below.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let at = self.at(key)?;
        present(match &self.client().fs {
            Fs::Mapped(fs) => fs.get(self.cx(), at),
            Fs::Protected(fs) => fs.get(self.cx(), at),
            Fs::Remote(fs) => fs.get(at),
        })
    }

    /// Copies the value of a key, as much as `buf` takes. Returns its whole length.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_into(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>> {
        let at = self.at(key)?;
        present(match &self.client().fs {
            Fs::Mapped(fs) => fs.get_into(self.cx(), at, buf),
            Fs::Protected(fs) => fs.get_into(self.cx(), at, buf),
            Fs::Remote(fs) => fs.get_into(at, buf),
        })
    }

    /// Runs `run` on the value of a key, which stays locked for readers meanwhile (K3). It is not copied if
    /// the client maps the store, the pages of the value are adjacent, and no change of it is unshipped.
    ///
    /// `run` must not wait for other threads of this client, nor call it. Calls of this type inside of `run`
    /// fail with `EDEADLK`.
    ///
    /// # Errors
    /// As [`get`](Self::get). After `ENODEV` the result of `run` is void.
    pub fn borrow<T>(
        &self,
        key: &[u8],
        run: impl FnOnce(SharedBytes<'_>) -> T,
    ) -> Result<Option<T>> {
        let at = self.at(key)?;
        let run = |value: SharedBytes<'_>| {
            let _borrowing = Borrowing::begin();
            run(value)
        };
        present(match &self.client().fs {
            Fs::Mapped(fs) => fs.with_value(self.cx(), at, run),
            Fs::Protected(fs) => fs.with_value(self.cx(), at, run),
            Fs::Remote(fs) => fs.get(at).map(|value| run(value[..].into())),
        })
    }

    /// Gives a key a value, in place of any it has.
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC`, those of an open for writing.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_if(key, value, Condition::Always)
    }

    /// Gives a key a new value if it has the value `old`, or none if that is `None`. Returns whether it did.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn compare_and_put(&self, key: &[u8], old: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        let condition = old.map_or(Condition::Absent, Condition::Is);
        match self.put_if(key, new, condition) {
            Err(Errno::CANCELED) => Ok(false),
            done => done.map(|()| true),
        }
    }

    fn put_if(&self, key: &[u8], value: &[u8], condition: Condition<'_>) -> Result<()> {
        let at = self.at(key)?;
        if value.len() as u64 > VALUE_MAX {
            return Err(Errno::FBIG);
        }
        match &self.client().fs {
            Fs::Mapped(fs) => fs.put(self.cx(), at, self.mode, value, condition),
            Fs::Protected(fs) => fs.put(self.cx(), at, self.mode, value, condition),
            Fs::Remote(fs) => fs.put(at, self.mode, value, condition),
        }
    }

    /// Removes a key and its value. Returns whether there was one.
    ///
    /// # Errors
    /// Those of `unlink`.
    pub fn erase(&self, key: &[u8]) -> Result<bool> {
        let at = self.at(key)?;
        let removed = self.client().remove(self.cx(), at, Removal::Unlink);
        Ok(present(removed)?.is_some())
    }

    /// Calls `sink` for each key, in no order, until it returns false. Keys that are put or erased meanwhile
    /// may be left out. `sink` can use the client.
    ///
    /// # Errors
    /// Those of an open of the directory.
    pub fn list(&self, mut sink: impl FnMut(&[u8]) -> bool) -> Result<()> {
        if IS_BORROWING.get() {
            return Err(Errno::DEADLK);
        }
        let mut after = Cookie(0);
        loop {
            let mut part: Vec<(FileType, Vec<u8>)> = Vec::new();
            let from = after;
            self.client()
                .readdir(self.cx(), self.dir, from, &mut |entry| {
                    let is_accepted = part.len() < LIST_PART;
                    if is_accepted {
                        part.push((entry.kind, entry.name.to_vec()));
                        after = entry.cookie;
                    }
                    is_accepted
                })?;
            if part.is_empty() {
                return Ok(());
            }
            let mut files = part.iter().filter(|(kind, _)| *kind == FileType::Regular);
            if !files.all(|(_, key)| sink(key)) {
                return Ok(());
            }
        }
    }

    /// Waits until all changes of the client that have returned are durable.
    ///
    /// # Errors
    /// That of the first change that the service has refused since the last call of this kind.
    pub fn sync(&self) -> Result<()> {
        self.client().sync()
    }
}

impl<C: Borrow<Client>> Drop for Kv<C> {
    fn drop(&mut self) {
        self.forget(self.dir);
    }
}

fn present<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(Errno::NOENT) => Ok(None),
        found => found.map(Some),
    }
}

/// Marks a thread that runs the closure of a borrow.
struct Borrowing;

impl Borrowing {
    fn begin() -> Self {
        IS_BORROWING.set(true);
        Self
    }
}

impl Drop for Borrowing {
    fn drop(&mut self) {
        IS_BORROWING.set(false);
    }
}
