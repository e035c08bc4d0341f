//! What commands ask of an engine, and what they get.

use crate::Result;
use medium::EffectiveDurability;
use medium::Pmem;
use medium::block::BlockDevice;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Atime, FileSystem, Timestamp};

/// An image: a file or device, or a part of one.
#[derive(Debug, Clone)]
pub struct Image {
    /// The file or device.
    pub path: PathBuf,
    /// Where in it the image begins, in bytes.
    pub offset_bytes: u64,
    /// Take a loop device over it that nobody uses for no obstacle.
    pub over_idle_loops: bool,
}

impl Image {
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

/// Who makes a file system, when, and what it is called by.
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
    /// When reads move access times.
    pub atime: Atime,
    /// `-o sync`: calls are durable when they return.
    pub sync: bool,
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

/// An image that is locked and known to be mountable as far as its superblock tells.
pub struct Prepared {
    /// What the mount table shows as its source.
    pub source: String,
    /// [`Opened::draw`] will be there.
    pub draws: bool,
    /// Opens the file system.
    pub open: Box<dyn FnOnce() -> Result<Opened>>,
}

/// A file system that is open, and what the user should know about it.
pub struct Opened {
    /// What to serve.
    pub fs: Arc<dyn FileSystem>,
    /// The durability in force, if the medium has such levels.
    pub durability: Option<EffectiveDurability>,
    /// What the mount tells `info` about the image.
    pub about: Map<String, Value>,
    /// What the mount has done so far, as JSON, if it counts that.
    pub stats: Option<Stats>,
    /// Lines that are printed when it is mounted.
    pub notes: Vec<String>,
    /// Unmounts in good order, when nobody uses it any more.
    pub close: Close,
    /// Draws what is not durable yet, as SVG.
    pub draw: Option<Draw>,
}

/// See [`Opened::stats`].
pub type Stats = Box<dyn Fn() -> String + Send + Sync>;

/// See [`Opened::close`]. The error is one line.
pub type Close = Box<dyn FnOnce() -> std::result::Result<(), String>>;

/// See [`Opened::draw`].
pub type Draw = Box<dyn Fn() -> String + Send>;

/// What a check found.
pub struct Checked {
    /// Where a journal was replayed before the check.
    pub replayed: Option<Replayed>,
    /// The marks that were taken back.
    pub marks: Marks,
    /// The findings.
    pub report: Report,
    /// What reclaims leaks, such as `e2fsck`.
    pub leaks_go_by: &'static str,
}

/// What the superblock no longer says after a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Marks {
    /// That errors were found.
    #[serde(rename = "cleared", skip_serializing_if = "std::ops::Not::not")]
    pub errors: bool,
    /// That the image was not unmounted.
    #[serde(rename = "marked_clean", skip_serializing_if = "std::ops::Not::not")]
    pub unclean: bool,
}

/// Where a journal was replayed before a check.
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
    /// The same and more, for programs.
    pub json: Value,
}

/// Which structures to dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// Those that the whole file system has once.
    Super,
    /// The inode of this number.
    Inode(u64),
    /// The inode that this path names.
    Path(Vec<u8>),
}

/// A drawing of changes that are not durable yet.
pub struct Graph {
    /// As an image.
    pub svg: String,
    /// For Graphviz.
    pub dot: String,
    /// For programs.
    pub json: Value,
}
