//! The requests of commands to an engine, and its answers.

use crate::{Error, Result};
use medium::EffectiveDurability;
use medium::Pmem;
use medium::block::BlockDevice;
use serde::Serialize;
use serde_json::{Map, Value};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Atime, FileSystem, Timestamp};

/// An image: a file or device, or a part of one.
#[derive(Debug, Clone)]
pub struct Image {
    /// The file or device.
    pub path: PathBuf,
    /// Offset in bytes of the image in the file or device.
    pub offset_bytes: u64,
    /// Accept that an idle loop device shows it.
    pub over_idle_loops: bool,
}

impl Image {
    /// Whether this is a socket: that of a service, in the place of an image.
    pub fn is_socket(&self) -> bool {
        let found = self.path.metadata();
        found.is_ok_and(|found| found.file_type().is_socket())
    }

    /// The whole of a file or device.
    pub fn whole(path: impl Into<PathBuf>) -> Self {
        Self::at(path, 0)
    }

    /// From a byte of it on.
    pub fn at(path: impl Into<PathBuf>, offset_bytes: u64) -> Self {
        Self {
            path: path.into(),
            offset_bytes,
            over_idle_loops: false,
        }
    }
}

/// Owner, UUID and time of a new file system.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// A random UUID.
    pub uuid: [u8; 16],
    /// Owner of the root directory.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The time.
    pub now: Timestamp,
}

/// A mount that is to be made.
#[derive(Debug, Clone)]
pub struct MountRequest {
    /// The image; its path is absolute.
    pub image: Image,
    /// Refuse all changes.
    pub read_only: bool,
    /// The condition for a read to update the access time.
    pub atime: Atime,
    /// `-o sync`: calls are durable when they return.
    pub sync: bool,
}

impl MountRequest {
    /// Refuses `-o sync`, for an engine whose calls are not durable when they return.
    ///
    /// # Errors
    /// The request has that option.
    pub fn without_sync(&self, engine: &str) -> Result<()> {
        let why = "here is durable at fsync only; leave it out";
        match self.sync {
            true => Err(Error::new(format_args!(
                "mount option 'sync': {engine} {why}"
            ))),
            false => Ok(()),
        }
    }
}

/// Puts something between an image and the file system, such as a switch for its power.
pub trait Interposer {
    /// Wraps persistent memory.
    ///
    /// # Errors
    /// If it cannot wrap this kind of medium.
    fn memory(&mut self, region: Box<dyn Pmem>) -> Result<Box<dyn Pmem>>;

    /// Wraps block devices, in place: the disk and its log.
    ///
    /// # Errors
    /// If it cannot wrap this kind of medium.
    fn blocks(&mut self, devices: Vec<&mut Arc<dyn BlockDevice>>) -> Result<()>;
}

/// A locked image whose superblock allows a mount.
pub struct Prepared {
    /// Its source in the mount table.
    pub source: String,
    /// Whether [`Opened::draw`] will be set.
    pub draws: bool,
    /// Whether others can change the file system while it is mounted.
    pub shared: bool,
    /// Opens the file system.
    pub open: Box<dyn FnOnce() -> Result<Opened>>,
}

/// A file system that is open, and notes for the user.
pub struct Opened {
    /// The file system to serve.
    pub fs: Arc<dyn FileSystem>,
    /// The durability in force, if the medium has such levels.
    pub durability: Option<EffectiveDurability>,
    /// Facts about the image for `info`.
    pub about: Map<String, Value>,
    /// Counters of the mount as JSON, if it has any.
    pub stats: Option<Stats>,
    /// Lines that are printed when it is mounted.
    pub notes: Vec<String>,
    /// Unmounts in good order, after the last use.
    pub close: Close,
    /// Draws what is not durable yet, as SVG.
    pub draw: Option<Draw>,
}

/// The type of [`Opened::stats`].
pub type Stats = Box<dyn Fn() -> String + Send + Sync>;

/// The type of [`Opened::close`]. The error is one line.
pub type Close = Box<dyn FnOnce() -> std::result::Result<(), String>>;

/// The type of [`Opened::draw`].
pub type Draw = Box<dyn Fn() -> String + Send>;

/// A service that is to be started for other programs.
#[derive(Debug, Clone)]
pub struct ServiceRequest {
    /// The image.
    pub image: Image,
    /// The socket at which programs connect.
    pub socket: PathBuf,
}

/// A running service.
pub struct Service {
    /// Facts about it, for programs.
    pub about: Map<String, Value>,
    /// Lines that are printed when it is ready.
    pub notes: Vec<String>,
    /// Ends it in good order.
    pub stop: Close,
}

/// The result of a check.
pub struct Checked {
    /// The journal that was replayed before the check.
    pub replayed: Option<Replayed>,
    /// The marks that were taken back.
    pub marks: Marks,
    /// Whether leaks were reclaimed before the check.
    pub reclaimed: bool,
    /// The findings.
    pub report: Report,
    /// The program that reclaims leaks, such as `e2fsck`.
    pub leaks_go_by: &'static str,
}

/// Marks that a check removed from the superblock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Marks {
    /// That errors were found.
    #[serde(rename = "cleared", skip_serializing_if = "std::ops::Not::not")]
    pub errors: bool,
    /// That the image was not unmounted.
    #[serde(rename = "marked_clean", skip_serializing_if = "std::ops::Not::not")]
    pub unclean: bool,
}

/// The target of the replay of a journal before a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replayed {
    /// On the medium.
    InPlace,
    /// In memory: the next mount replays it.
    InMemory,
}

/// A description of an image.
pub struct Info {
    /// The lines of a table: name and value.
    pub lines: Vec<(&'static str, String)>,
    /// The description and more, as JSON.
    pub json: Value,
}

/// Which structures to dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// The structures that the file system has once.
    Super,
    /// The inode of this number.
    Inode(u64),
    /// The inode that this path names.
    Path(Vec<u8>),
}

/// A drawing of changes that are not durable yet.
pub struct Graph {
    /// The graph as an SVG image.
    pub svg: String,
    /// For Graphviz.
    pub dot: String,
    /// For programs.
    pub json: Value,
}
