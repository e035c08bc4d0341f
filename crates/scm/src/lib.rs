//! The manager of storage-class memory: partitions, extents that the kernel protects, and
//! descriptors for clients.
//!
//! Programs map the memory and use it with loads and stores. A trusted service owns a partition: it
//! decides which pages form an extent, and which clients may read or write them. This crate records
//! these decisions, makes the kernel enforce them, and has no other policy. It is the lowest layer of
//! Aerie (Volos, *Aerie: Flexible File-System Interfaces to Storage-Class Memory*, section 4.2.2), but
//! needs no change of the kernel.
//!
//! - A *partition* is a range of pages of a [`Store`], with a name, an owner and an access list.
//! - An *extent* is a run of pages with one [`Identity`]: a group of 30 bits, and whether the extent
//!   grants reading and writing. The caller chooses its place.
//! - An [`AccessList`] states which users and Unix groups may read or write the extents of a group.
//! - A [`Server`] gives descriptors to clients, by the credentials that the kernel reports of them.
//!
//! # Protection
//!
//! All pages of a partition with one identity are in one sparse file, the file of that *class*. Each
//! of these files has the size of the partition, and a page has the same offset in all of them. It has
//! contents in the file of its class, and is a hole in the others. A client maps each file that it may
//! open once, as a whole ([`Space`]), or uses all of them as one memory ([`Joined`]). So an object is named by its offset, which never changes. No
//! address is shared, and mappings are filled by page faults.
//!
//! A change of protection copies an extent to another file, at the same offset, commits the change,
//! and punches the old place. Mappings of the old file then show a hole there.
//!
//! | store | extents | clients |
//! |---|---|---|
//! | [`Directory`] on a DAX file system or tmpfs | all identities | map the classes for which they have a right |
//! | [`SingleFile`]: a file or a DAX device | one identity, without the right to write | map the file for reading, if they are in its group; all else goes through the service |
//!
//! # Example
//!
//! ```
//! use medium::{MapOptions, Pmem};
//! use scm::{
//!     AccessList, Client, Credentials, Directory, Geometry, Identity, Limits, PAGE_BYTES, Rights, Run,
//!     Server, Space, Store,
//! };
//!
//! let dir = tempfile::tempdir()?;
//! let options = MapOptions::default();
//! let geometry = Geometry { pages: 1024, slots: 64, only: None };
//! let store = Store::open(Directory::create(dir.path().join("store"), &geometry, &options)?)?;
//! // Group 7: one user may read and write, and the others of a Unix group may read.
//! let own = Credentials::own();
//! store.set_list(7, AccessList::of_mode(own.uid, own.gid, 0o640))?;
//! store.create_partition("home", 256, own.uid, 0)?;
//! let partition = store.partition("home", &own)?;
//! let identity = Identity::new(7, Rights::BOTH).expect("a group");
//! partition.create_extent(Run { first: 10, pages: 4 }, identity)?;
//!
//! let server = Server::start(store, dir.path().join("socket"), Limits::default())?;
//! let client = Client::connect(server.path())?;
//! let space = client.open("home", &options)?;
//! space.window(identity)?.memory().store(10 * PAGE_BYTES, b"contents");
//! let mut found = [0; 8];
//! space.read(10 * PAGE_BYTES, &mut found)?;
//! assert_eq!(&found, b"contents");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Hostile clients
//!
//! The client is a process of another user than the manager's, without privileges. A process of the
//! manager's user, or of the super-user, can do everything.
//!
//! It cannot open a file of the store by its name, nor open a descriptor again with other rights. It
//! gets a descriptor for a class only with the right to read it, and one for writing only with both
//! rights. It cannot make a mapping of a read-only descriptor writable. It reaches neither the table,
//! nor identities for writing, nor the contents of classes without a right. With a mapping of a class
//! to which an extent belonged before, it can neither read nor change what the extent has now.
//!
//! This is left:
//!
//! 1. **Right holders.** A client with the right to write a class can store anything in its extents,
//!    punch holes in its file, and change the file's size. Others that use the class then read zeros,
//!    or get [`MediumError::Unreadable`](medium::MediumError::Unreadable). A program that maps the file
//!    without [`Space`] gets SIGBUS. Other classes are not affected. [`Partition::scrub`] restores
//!    size and room, not the contents.
//! 2. **Moving extents.** A store of a former writer between the copy and the punch of a change of
//!    protection is lost, although the client saw it succeed. Later stores to the old place are visible
//!    to no one else, and never become part of an extent: a new extent is made of new zeros.
//! 3. **Memory.** Stores to pages of a class that belong to no extent of it take memory of the file
//!    system. On tmpfs loads do so too. With the right to write, a client can also enlarge the file.
//!    The bound is the size of the file system, or a quota for the directory. Extents have all their
//!    room from the start, so such a client cannot make stores to other classes fail. New extents and
//!    changes of protection fail with [`ScmError::NoRoom`], until [`Partition::scrub`] frees the room.
//! 4. **Data and descriptors.** A client keeps what it has read, and can pass its descriptors to other
//!    processes. A right that is removed from an access list, or a Unix group that a user leaves, does
//!    not end mappings. The service then changes the identity of the extents to a group with another
//!    list.
//! 5. **Connections.** A client can use all connections of its user, and requests of many users can
//!    use up those of the server ([`Limits`]). Clients that are connected, and mappings, go on.
//! 6. **Waits.** On a DAX file system, punching a page waits for I/O that uses it as its buffer. A client
//!    that passes a mapped page to such I/O, on a file that never completes it, delays a change of
//!    protection of that page, and all changes after it. Clients and look-ups go on.
//! 7. **One file.** In a [`SingleFile`] a client of the group also reads the table: names, owners and
//!    access lists. It can lock the file for reading, so that a manager which is not the super-user's
//!    cannot open it.
//!
//! Identities are not hidden: a client that may map a partition reads the identity of every page.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod change;
pub mod check;
mod client;
mod directory;
mod error;
mod extents;
pub mod files;
mod format;
mod identity;
mod intent;
mod joined;
mod piece;
mod private;
mod protocol;
mod records;
pub mod seeded;
mod server;
mod single;
mod space;
mod store;
mod table;
#[cfg(test)]
mod tests;

pub use client::{Client, Listed};
pub use directory::Directory;
pub use error::{Finding, ScmError};
pub use extents::{Partition, Scrubbed};
pub use files::{Files, Run};
pub use format::{Geometry, MOST_PAGES, MOST_SLOTS, NAME_BYTES, PAGE_BYTES, PartitionRecord};
pub use identity::{AccessList, Credentials, Entry, Identity, Rights, Subject};
pub use joined::Joined;
pub use piece::Piece;
pub use server::{Limits, Passed, Server};
pub use single::SingleFile;
pub use space::{Source, Space, Window};
pub use store::Store;
pub use table::format;
