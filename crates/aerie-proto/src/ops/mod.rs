//! Operations of a file system, as a client asks its service for them: in batches, or one by one as
//! remote calls.
//!
//! A client runs each call itself, on what it sees, and puts the call into its batch as an
//! [`Operation`], with the choices that it has made: the ids of new objects, and new pages whose
//! contents it has stored. The service runs the same call again, with the same choices. Clients that
//! cannot read the memory send a [`Call`] instead and get a [`Reply`].
//!
//! # Bytes
//! Messages are encoded by [postcard](https://docs.rs/postcard). A batch is a sequence of operations.
//! The number of an operation is that of the operations before it in its batch.
//!
//! # Guarantees
//! A decoder ends on any bytes. It takes little memory besides them, since names and contents are borrowed,
//! and lists have at most [`LIST_MAX`](crate::LIST_MAX) elements. It must not read memory that a client can change meanwhile: the service
//! copies a message first.

use crate::lists::bounded;
use aerie_objects::ObjectId;
use serde::{Deserialize, Serialize};
use vfs::{
    Attr, Cookie, Ctx, Errno, Fallocate, FileType, Ino, NewNode, OpenFlags, Removal, RenameFlags,
    SYMLINK_MAX, SeekKind, SetAttr, StatFs, Timestamp, XattrMode,
};

/// Most bytes of a batch.
pub const BATCH_MAX: usize = 64 << 20;

/// The reason why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message cannot be read: {0}")]
pub struct Malformed(pub postcard::Error);

/// A user on whose behalf an operation is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    #[serde(deserialize_with = "bounded")]
    pub groups: Vec<u32>,
    /// The kernel has checked permissions already; see [`Ctx::checked`]. From a client that is not trusted, the
    /// claim that a file which is open permits the call to the client's own user.
    pub checked: bool,
    /// See [`Ctx::drops_set_id`], which only takes rights away.
    pub drops_set_id: bool,
}

impl From<&Ctx> for Caller {
    fn from(cx: &Ctx) -> Self {
        Self {
            uid: cx.uid,
            gid: cx.gid,
            groups: cx.groups.clone(),
            checked: cx.checked,
            drops_set_id: cx.drops_set_id,
        }
    }
}

/// An operation of a file system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation<'a> {
    /// The caller, if it is not the user of the session. Only trusted clients can name one, others themselves with
    /// [`checked`](Caller::checked).
    pub caller: Option<Caller>,
    /// The client's time.
    pub time: Timestamp,
    /// The operation.
    #[serde(borrow)]
    pub op: Op<'a>,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name<'a> {
    /// The directory.
    pub dir: Ino,
    /// The name.
    #[serde(with = "serde_bytes", borrow)]
    pub name: &'a [u8],
}

impl<'a> From<Name<'a>> for vfs::Name<'a> {
    fn from(Name { dir, name }: Name<'a>) -> Self {
        Self { dir, name }
    }
}

impl<'a> From<vfs::Name<'a>> for Name<'a> {
    fn from(vfs::Name { dir, name }: vfs::Name<'a>) -> Self {
        Self { dir, name }
    }
}

/// A node to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node<'a> {
    /// Type.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Device number.
    pub rdev: u32,
    /// Target of a symbolic link.
    #[serde(with = "serde_bytes", borrow)]
    pub target: &'a [u8],
}

impl<'a> From<&NewNode<'a>> for Node<'a> {
    fn from(new: &NewNode<'a>) -> Self {
        Self {
            kind: new.kind(),
            mode: new.mode(),
            rdev: new.rdev(),
            target: new.target(),
        }
    }
}

impl<'a> Node<'a> {
    /// The node, after a check of its parts.
    ///
    /// # Errors
    /// Those of [`NewNode`].
    pub fn check(&self) -> vfs::Result<NewNode<'a>> {
        match self.kind {
            FileType::Directory => Ok(NewNode::directory(self.mode)),
            FileType::Symlink => NewNode::symlink(self.target),
            kind => NewNode::special(kind, self.mode, self.rdev),
        }
    }
}

/// Most bytes of the contents of a [`Op::Put`].
pub const VALUE_MAX: u64 = 16 << 20;
/// The byte offset of a write at the end of a file, wherever that is. The reply has the attributes after it.
pub const END: u64 = u64::MAX;

/// The contents of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Data<'a> {
    /// Bytes, which the service stores.
    #[serde(borrow)]
    Bytes(#[serde(with = "serde_bytes")] &'a [u8]),
    /// Bytes that the client has stored: in pages that the file has, and in these reserved pages, in
    /// their order, where it has none. Only trusted clients can do so.
    Stored {
        /// Number of bytes.
        len: u64,
        /// Byte offsets of the pages.
        #[serde(deserialize_with = "bounded")]
        pages: Vec<u64>,
    },
}

impl Data<'_> {
    /// Number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Data::Bytes(bytes) => bytes.len() as u64,
            Data::Stored { len, .. } => *len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The state of a file in which a [`Op::Put`] changes it. Otherwise the put fails with `ECANCELED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition<'a> {
    /// Any.
    Always,
    /// There is no file.
    Absent,
    /// It has these contents.
    Is(#[serde(with = "serde_bytes", borrow)] &'a [u8]),
}

/// The kinds of operations. But for [`Op::Put`], each is a call of [`vfs::FileSystem`] that changes something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op<'a> {
    /// Makes a node with a name.
    Make {
        /// The name.
        #[serde(borrow)]
        at: Name<'a>,
        /// The node.
        node: Node<'a>,
        /// The object; without it the service chooses one.
        object: Option<ObjectId>,
    },
    /// Makes a file without a name, and holds it.
    Tmpfile {
        /// The directory.
        dir: Ino,
        /// Permission bits.
        mode: u32,
        /// The object; without it the service chooses one.
        object: Option<ObjectId>,
    },
    /// Adds a name to a file.
    Link {
        /// The file.
        ino: Ino,
        /// The name.
        #[serde(borrow)]
        at: Name<'a>,
    },
    /// Removes a name.
    Remove {
        /// The name.
        #[serde(borrow)]
        at: Name<'a>,
        /// The types of nodes that lose it.
        which: Removal,
        /// The client has references to the node, and holds it.
        holds: bool,
    },
    /// Moves a name.
    Rename {
        /// The old name.
        #[serde(borrow)]
        from: Name<'a>,
        /// The new name.
        #[serde(borrow)]
        to: Name<'a>,
        /// `RENAME_NOREPLACE` and `RENAME_EXCHANGE`.
        flags: RenameFlags,
        /// The client has references to the replaced node, and holds it.
        holds: bool,
    },
    /// Changes attributes.
    SetAttr {
        /// The inode.
        ino: Ino,
        /// The attributes.
        set: SetAttr,
    },
    /// Opens a file for the session, which holds it.
    Open {
        /// The inode.
        ino: Ino,
        /// The access.
        flags: OpenFlags,
    },
    /// Writes.
    Write {
        /// The file.
        ino: Ino,
        /// Byte offset, or [`END`]: the end of the file.
        off: u64,
        /// The contents.
        #[serde(borrow)]
        data: Data<'a>,
    },
    /// Gives a file all its contents. A missing file is made.
    Put {
        /// The name.
        #[serde(borrow)]
        at: Name<'a>,
        /// Permission bits of a new file.
        mode: u32,
        /// The contents, at most [`VALUE_MAX`] bytes. Stored ones are in reserved pages only.
        #[serde(borrow)]
        data: Data<'a>,
        /// The object of a new file; there must be none then. Without it, the service chooses one.
        object: Option<ObjectId>,
        /// The condition.
        #[serde(borrow)]
        condition: Condition<'a>,
    },
    /// Allocates or zeroes a range.
    Allocate {
        /// The file.
        ino: Ino,
        /// The effect.
        kind: Fallocate,
        /// Byte offset.
        off: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The inode.
        ino: Ino,
        /// Name of the attribute.
        #[serde(with = "serde_bytes", borrow)]
        name: &'a [u8],
        /// Value.
        #[serde(with = "serde_bytes", borrow)]
        value: &'a [u8],
        /// The treatment of an existing or missing one.
        mode: XattrMode,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        ino: Ino,
        /// Name of the attribute.
        #[serde(with = "serde_bytes", borrow)]
        name: &'a [u8],
    },
    /// Sets the time of the last access to the time of the operation.
    Access {
        /// The inode.
        ino: Ino,
    },
    /// Keeps an object until it is released, or the session ends.
    Hold {
        /// The inode.
        ino: Ino,
    },
    /// Finds a name, and holds its object. So a session that is not trusted shows that it can reach a
    /// file that has several names.
    Look {
        /// The name.
        #[serde(borrow)]
        at: Name<'a>,
    },
    /// Ends holds of an object, and, with the last one, the access for which it was opened.
    Release {
        /// The inode.
        ino: Ino,
        /// Number of holds.
        count: u64,
    },
    /// Sets the times of change and modification of a file to the time of the operation, after a trusted
    /// client has overwritten contents in place.
    Touch {
        /// The inode.
        ino: Ino,
    },
    /// Gives back reserved pages, which are free. The service needs pages for the operations that follow, so
    /// that a client that reserves enough is not refused for want of space.
    Return {
        /// Byte offsets of the pages.
        #[serde(deserialize_with = "bounded")]
        pages: Vec<u64>,
    },
}

impl Op<'_> {
    /// The inodes that it names by their numbers.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> {
        let inodes = match self {
            Op::Return { .. } => [None, None],
            Op::Make { at, .. } | Op::Put { at, .. } | Op::Remove { at, .. } | Op::Look { at } => {
                [Some(at.dir), None]
            }
            Op::Link { ino, at } => [Some(*ino), Some(at.dir)],
            Op::Rename { from, to, .. } => [Some(from.dir), Some(to.dir)],
            Op::Tmpfile { dir, .. } => [Some(*dir), None],
            Op::SetAttr { ino, .. }
            | Op::Open { ino, .. }
            | Op::Write { ino, .. }
            | Op::Allocate { ino, .. }
            | Op::SetXattr { ino, .. }
            | Op::RemoveXattr { ino, .. }
            | Op::Access { ino }
            | Op::Touch { ino }
            | Op::Hold { ino }
            | Op::Release { ino, .. } => [Some(*ino), None],
        };
        inodes.into_iter().flatten()
    }
}

/// Builds a batch.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    count: u32,
}

impl Batch {
    /// Adds an operation.
    pub fn push(&mut self, operation: &Operation<'_>) {
        self.bytes = append(operation, std::mem::take(&mut self.bytes));
        self.count += 1;
    }

    /// Adds an operation before all others.
    pub fn push_front(&mut self, operation: &Operation<'_>) {
        let rest = std::mem::take(&mut self.bytes);
        self.push(operation);
        self.bytes.extend(rest);
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of operations.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Removes all operations.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

/// The operations of a batch. The iterator ends after an error.
pub fn operations(batch: &[u8]) -> impl Iterator<Item = Result<Operation<'_>, Malformed>> {
    let mut rest = batch;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        Some(match postcard::take_from_bytes(rest) {
            Ok((operation, next)) => {
                rest = next;
                Ok(operation)
            }
            Err(error) => {
                rest = &[];
                Err(Malformed(error))
            }
        })
    })
}

/// A refused operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Its number in the batch.
    pub number: u32,
    /// The error of its call, as a number of Linux.
    pub errno: i32,
    /// The reason, in words.
    pub why: String,
}

/// Refused operations of a batch, at most. The service does not run what follows the last one.
pub const REFUSED_MAX: usize = 1024;

/// The answer to a batch. The other operations up to `count` are durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// Number of operations that could be read and were run.
    pub count: u32,
    /// The refused ones, by their numbers.
    pub refused: Vec<Refused>,
}

/// A call of a client that does not run it itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Call<'a> {
    /// Runs an operation at once. The reply has the attributes of the node that it makes, names or
    /// changes. [`Op::Make`], [`Op::Tmpfile`] and [`Op::Link`] take a hold.
    Change(#[serde(borrow)] Operation<'a>),
    /// A call that reads.
    Read {
        /// The caller, as in [`Operation`].
        caller: Option<Caller>,
        /// The call.
        #[serde(borrow)]
        read: Read<'a>,
    },
}

/// The calls that read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read<'a> {
    /// Finds a name. Takes a hold.
    Lookup(#[serde(borrow)] Name<'a>),
    /// Finds an inode by its number. Takes a hold. Only for trusted clients.
    ByNumber(Ino),
    /// Returns the attributes.
    GetAttr(Ino),
    /// Lists a directory.
    List {
        /// The directory.
        dir: Ino,
        /// The place after which the listing continues.
        after: Cookie,
        /// Most bytes of memory that the entries take, with their names. The reply has one in any case.
        bytes: u32,
        /// Whether the entries come with attributes. Each of these takes a hold.
        with_attributes: bool,
    },
    /// Returns the target of a symbolic link.
    ReadLink(Ino),
    /// Reads a file.
    Read {
        /// The file.
        ino: Ino,
        /// Byte offset.
        off: u64,
        /// Most bytes.
        len: u32,
    },
    /// Reads a file by its name, without an open.
    Value {
        /// The name.
        #[serde(borrow)]
        at: Name<'a>,
        /// Byte offset.
        off: u64,
        /// Most bytes.
        len: u32,
    },
    /// Finds the next data or hole.
    Seek {
        /// The file.
        ino: Ino,
        /// Byte offset.
        off: u64,
        /// The target.
        kind: SeekKind,
    },
    /// Returns an extended attribute.
    GetXattr {
        /// The inode.
        ino: Ino,
        /// Its name.
        #[serde(with = "serde_bytes", borrow)]
        name: &'a [u8],
    },
    /// Lists extended attributes.
    ListXattr(Ino),
    /// Returns the space.
    StatFs,
}

/// Most bytes of the reply to one call.
pub const REPLY_MAX: u32 = 1 << 20;

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Inode number.
    pub ino: Ino,
    /// Type.
    pub kind: FileType,
    /// Name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// The place after it.
    pub cookie: Cookie,
    /// Its attributes, if they were asked for and can be read.
    pub attr: Option<Attr>,
}

/// The reply to a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The call has no result.
    Done,
    /// Attributes.
    Attr(Attr),
    /// Contents, a target, a value.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A part of the contents of a file, which is the same file with the same contents while `version` is.
    Value {
        /// The version.
        version: [u64; 2],
        /// Bytes of all contents.
        size: u64,
        /// The part.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Names of attributes.
    Names(Vec<Vec<u8>>),
    /// Entries of a directory; none at its end.
    Entries(Vec<Entry>),
    /// An offset.
    Offset(u64),
    /// Space.
    Space(StatFs),
}

/// The result of a call; the error is the number of the errno.
pub type Outcome = Result<Reply, i32>;

/// The errno of a number.
pub fn errno(number: i32) -> Errno {
    Errno::from_raw_os_error(number)
}

/// Encodes a message.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    append(message, Vec::new())
}

fn append(message: &impl Serialize, bytes: Vec<u8>) -> Vec<u8> {
    match postcard::to_extend(message, bytes) {
        Ok(bytes) => bytes,
        // Each type here says its length, and a vector takes all bytes.
        Err(error) => unreachable!("{error}"),
    }
}

/// Decodes a message, which takes all bytes.
///
/// # Errors
/// [`Malformed`].
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes).map_err(Malformed)? {
        (message, []) => Ok(message),
        _ => Err(Malformed(postcard::Error::DeserializeBadEncoding)),
    }
}

const _: () = assert!(SYMLINK_MAX < REPLY_MAX as usize);

#[cfg(test)]
mod tests;
