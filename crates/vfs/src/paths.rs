//! A cache of the directories to which paths lead.

use crate::sync::{Mutex, thread_number};
use crate::{Ctx, FileSystem, Ino, Name};
use crossbeam_utils::CachePadded;
use hashbrown::DefaultHashBuilder;
use std::hash::BuildHasher;

/// Paths that a part has at a time. One takes the place of another with the same hash.
const PLACES: usize = 256;
/// Parts, each for some threads, so that threads on several processors do not wait for each other's caches.
const PARTS: usize = 8;
/// Longer paths are not kept.
const LONGEST: usize = 512;

/// The directories to which paths have led a caller, while the file system says that they still do
/// ([`FileSystem::paths_version`](crate::FileSystem::paths_version)).
///
/// Directories in the cache have no reference. A call on one that was removed a moment ago fails with `ESTALE`, unless
/// another directory has its number: compare the version where the call has its locks, or after a call that reads.
#[derive(Debug, Default)]
pub struct Paths {
    parts: [CachePadded<Mutex<Known>>; PARTS],
    hashes: DefaultHashBuilder,
}

#[derive(Debug, Default)]
struct Known {
    /// Of all places.
    version: u64,
    caller: Option<Ctx>,
    places: Vec<Option<Place>>,
}

#[derive(Debug, Clone)]
struct Place {
    start: Ino,
    path: Box<[u8]>,
    dir: Ino,
}

impl Paths {
    /// Returns where the path of the directory ends that has the last name of `path`; `None` for one name only.
    pub fn end_of_directory(path: &[u8]) -> Option<usize> {
        let last = path.iter().rposition(|byte| *byte != b'/')?;
        let end = path[..last].iter().rposition(|byte| *byte == b'/');
        end.filter(|end| *end > 0)
    }

    /// Returns the directory to which `path` leads from `start`, if it is known. `version`: that of the file system
    /// now.
    pub fn get(&self, version: Option<u64>, cx: &Ctx, (start, path): (Ino, &[u8])) -> Option<Ino> {
        let known = self.part().lock();
        if version != Some(known.version) || known.caller.as_ref() != Some(cx) {
            return None;
        }
        let place = known.places.get(self.slot(start, path))?.as_ref()?;
        (place.start == start && *place.path == *path).then_some(place.dir)
    }

    /// As [`get`](Self::get), with a reference to the directory, which the caller gives back: its number stays its own.
    /// `version`: that of `fs` before the call.
    pub fn hold(
        &self,
        fs: &dyn FileSystem,
        version: Option<u64>,
        cx: &Ctx,
        place: (Ino, &[u8]),
    ) -> Option<Ino> {
        let dir = self.get(version, cx, place)?;
        fs.by_number(dir).ok()?;
        if fs.paths_version() == version {
            return Some(dir);
        }
        // The number may have become that of another directory before the reference was taken.
        fs.forget(dir, 1);
        None
    }

    /// Returns the name at the end of a path from `start`, in its directory, if that is known. `None` for a path that does
    /// not end with a name.
    pub fn name<'p>(
        &self,
        version: Option<u64>,
        cx: &Ctx,
        (start, path): (Ino, &'p [u8]),
    ) -> Option<Name<'p>> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let name = &path[slash.map_or(0, |slash| slash + 1)..];
        if matches!(name, b"" | b"." | b"..") {
            return None;
        }
        let dir = match slash {
            None => start,
            Some(slash) => self.get(version, cx, (start, &path[..slash]))?,
        };
        Some(Name::new(dir, name))
    }

    /// Notes that `path` led to `dir`. `version`: that of the file system before the first name of the path was
    /// looked up.
    pub fn put(&self, version: Option<u64>, cx: &Ctx, (start, path): (Ino, &[u8]), dir: Ino) {
        let Some(version) = version.filter(|_| path.len() <= LONGEST) else {
            return;
        };
        let known = &mut *self.part().lock();
        if known.version != version || known.caller.as_ref() != Some(cx) {
            known.version = version;
            known.caller = Some(cx.clone());
            known.places.clear();
        }
        known.places.resize(PLACES, None);
        known.places[self.slot(start, path)] = Some(Place {
            start,
            path: path.into(),
            dir,
        });
    }

    /// Forgets all.
    pub fn clear(&self) {
        for part in &self.parts {
            *part.lock() = Known::default();
        }
    }

    /// The part of this thread.
    fn part(&self) -> &Mutex<Known> {
        &self.parts[thread_number() % PARTS]
    }

    fn slot(&self, start: Ino, path: &[u8]) -> usize {
        self.hashes.hash_one((start, path)) as usize % PLACES
    }
}
