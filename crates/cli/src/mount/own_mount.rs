//! The mount of this server, as distinct from other mounts on its directory.
//!
//! A mount can be unmounted by its directory only, and by then the directory may show another
//! one: mounted over it, or after `umount --lazy` in its place. Nothing here unmounts that.

use super::table::{self, Entry, Rest};
use super::write_back::write_back;
use fuse::{Error, Unmounter};
use std::fmt;
use std::io;
use std::path::Path;

/// A mount of this process, found again in the table of mounts.
#[derive(Debug, Clone)]
pub(crate) struct OwnMount {
    unmounter: Unmounter,
    /// The entry in the table of mounts. `None` if it has none: then the directory is trusted.
    entry: Option<Entry>,
}

/// The result of an unmount.
pub(crate) enum Unmounted {
    /// The file system is mounted nowhere and not in use: the connection of the server ends.
    Everywhere,
    /// The file system is still mounted or in use.
    Not(Why),
}

/// The reason why a file system is still mounted or in use.
pub(crate) enum Why {
    /// It was unmounted from its directory now, and is still mounted or in use elsewhere.
    Also(Rest),
    /// Files are open, or the working directory of a process is inside.
    Busy,
    /// Another file system is mounted over it.
    Covered,
    /// It was unmounted from its directory before, and is still mounted or in use elsewhere.
    Gone(Rest),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Also(rest) => write!(f, "is also {rest}"),
            Self::Busy => f.write_str("is in use"),
            Self::Covered => f.write_str("is covered by another mount"),
            Self::Gone(rest) => write!(f, "was unmounted, is still {rest}"),
        }
    }
}

impl OwnMount {
    /// The mount that was just made with this source.
    pub(crate) fn new(unmounter: Unmounter, source: &Path) -> Self {
        let entry = table::find_ours(unmounter.dir(), source).ok().flatten();
        Self { unmounter, entry }
    }

    /// The directory of the mount.
    pub(crate) fn dir(&self) -> &Path {
        self.unmounter.dir()
    }

    /// Unmounts the file system from its directory.
    ///
    /// # Errors
    /// If the kernel refuses for another reason than that it is in use.
    pub(crate) fn unmount(&self) -> Result<Unmounted, Error> {
        if !self.is_on_top(self.dir()) {
            return Ok(match self.rest() {
                Some(Rest::Mounted(dir)) if dir == self.dir() => Unmounted::Not(Why::Covered),
                Some(rest) => Unmounted::Not(Why::Gone(rest)),
                None if self.can_tell_open() => Unmounted::Everywhere,
                // The server still has its connection.
                None => Unmounted::Not(Why::Gone(Rest::Open)),
            });
        }
        match self.unmounter.unmount() {
            Ok(()) => Ok(match self.rest() {
                Some(rest) => Unmounted::Not(Why::Also(rest)),
                None => Unmounted::Everywhere,
            }),
            Err(Error::Busy { .. }) => Ok(Unmounted::Not(Why::Busy)),
            Err(e) => Err(e),
        }
    }

    /// Has the kernel send all changes in its caches, unless another mount covers this one.
    ///
    /// # Errors
    /// Those of the kernel and of the writes.
    pub(crate) fn write_back(&self) -> io::Result<()> {
        if self.is_on_top(self.dir()) {
            write_back(std::fs::File::open(self.dir())?)?;
        }
        Ok(())
    }

    /// Takes it out of the tree wherever this process sees it, in use or not: nobody is
    /// going to answer its users.
    pub(crate) fn detach(&self) {
        let seen = match &self.entry {
            Some(own) => table::places_of(own).unwrap_or_default(),
            None => vec![self.dir().to_owned()],
        };
        // The topmost first.
        for dir in seen.into_iter().rev() {
            if self.is_on_top(&dir)
                && let Err(e) = Unmounter::of(dir).detach()
            {
                tracing::error!("{e}");
            }
        }
    }

    /// Whether the path leads to this mount and not to another one.
    fn is_on_top(&self, dir: &Path) -> bool {
        let Some(own) = &self.entry else {
            return true;
        };
        let top = table::find(dir).ok().flatten();
        top.is_some_and(|top| top.device == own.device)
    }

    /// Whether the table distinguishes a mount with open files from a removed one: where fusectl
    /// is mounted.
    fn can_tell_open(&self) -> bool {
        self.entry
            .as_ref()
            .is_none_or(|own| own.connection.is_some())
    }

    fn rest(&self) -> Option<Rest> {
        self.entry.as_ref().and_then(table::rest_of)
    }
}
