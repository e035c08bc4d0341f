//! The order between groups of changes, on any medium. It holds besides the promise of the engine.
//!
//! - G1. If a change of an operation is visible, all changes of the operations for which it waits
//!   are.
//! - G2. All changes that a sync of a group covers are visible after its return.
//!
//! *Visible.* A place is a name in a directory, a byte of a file, or an attribute. Its values after
//! each operation are known. The value after a crash shows which of the operations that changed the
//! place came last. It is *visible* if no other operation left the same value at this place. An
//! operation is *missing* if all operations that left this value are older. A value that none of
//! them left shows nothing, and neither does a place in a file that is unreachable. The name that
//! leads to the file shows its loss.
//!
//! *Stale values.* Where a promise lets a file show what its blocks held before, an operation that
//! is partly there may show an older value of the place. It then hides the older operations at this place.

use super::{Data, Kind, Window};
use crate::handles::{FileId, Handle};
use crate::past::Past;
use crate::world::{PIECE, World};
use oracle::script::{Order, Script};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use vfs::{FileSystem, Ino};

/// The order of a script, and the values that its operations leave.
pub(crate) struct Ordered {
    order: Order,
    /// Text of each operation, for messages.
    ops: Vec<String>,
    /// The file of each handle.
    files: BTreeMap<Handle, FileId>,
    /// The values of each place that changes, with the states that have them first.
    places: BTreeMap<Place, Vec<(usize, Vec<u8>)>>,
}

/// A place that operations change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The file of a name in a directory. Without a file the value is empty.
    Name(FileId, Vec<u8>),
    /// A piece of data.
    Data(FileId, u64),
    /// An extended attribute.
    Xattr(FileId, Vec<u8>),
    /// Another attribute.
    Attr(FileId, &'static str),
}

impl Place {
    fn file(&self) -> FileId {
        match self {
            Self::Name(file, _) | Self::Data(file, _) | Self::Xattr(file, _) => *file,
            Self::Attr(file, _) => *file,
        }
    }

    /// The value if the file is there and the place is not.
    fn nothing(&self) -> Vec<u8> {
        match self {
            Self::Data(..) => vec![0; PIECE as usize],
            Self::Name(..) | Self::Xattr(..) | Self::Attr(..) => Vec::new(),
        }
    }

    /// Whether each byte is a place of its own.
    fn is_of_bytes(&self) -> bool {
        matches!(self, Self::Data(..))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(dir, name) => {
                write!(f, "the name {} in file {dir}", name.escape_ascii())
            }
            Self::Data(file, piece) => write!(f, "the data of file {file} from {}", piece * PIECE),
            Self::Xattr(file, name) => {
                write!(f, "the attribute {} of file {file}", name.escape_ascii())
            }
            Self::Attr(file, what) => write!(f, "the {what} of file {file}"),
        }
    }
}

/// The values of a state.
#[derive(Default)]
struct Values {
    /// The files that are there.
    files: BTreeSet<FileId>,
    /// Directories whose names can be read.
    listed: BTreeSet<FileId>,
    values: BTreeMap<Place, Vec<u8>>,
}

impl Values {
    /// The values of a state in which `file_of` returns the file of each inode.
    fn of(world: &World, file_of: impl Fn(Ino) -> Option<FileId>) -> Self {
        let mut all = Self::default();
        for (ino, node) in &world.nodes {
            let Some(file) = file_of(*ino) else {
                continue;
            };
            all.files.insert(file);
            let attr = &node.attr;
            let mut put = |what, value: u64| {
                let value = value.to_le_bytes().to_vec();
                all.values.insert(Place::Attr(file, what), value);
            };
            put("size", attr.size);
            put("mode", attr.perm.into());
            put("owner", attr.uid.into());
            put("group", attr.gid.into());
            put("mtime", attr.mtime.0 as u64);
            put("ctime", attr.ctime.0 as u64);
            for (name, value) in &node.xattrs {
                let value = [&[1], value.as_slice()].concat();
                all.values.insert(Place::Xattr(file, name.clone()), value);
            }
            for (piece, bytes) in &node.data {
                all.values.insert(Place::Data(file, *piece), bytes.clone());
            }
            let Some(names) = world.names.get(ino) else {
                continue;
            };
            all.listed.insert(file);
            for (name, target) in names {
                let target = file_of(*target).map_or(u64::MAX, |target| target.0.0);
                let value = target.to_le_bytes().to_vec();
                all.values.insert(Place::Name(file, name.clone()), value);
            }
        }
        all
    }

    fn at(&self, place: &Place) -> Option<Vec<u8>> {
        let is_there = match place {
            Place::Name(dir, _) => self.listed.contains(dir),
            Place::Data(..) | Place::Xattr(..) | Place::Attr(..) => {
                self.files.contains(&place.file())
            }
        };
        let value = || self.values.get(place).cloned();
        is_there.then(|| value().unwrap_or_else(|| place.nothing()))
    }
}

/// The operations whose changes a state shows, and those whose changes it lacks.
#[derive(Default)]
struct Seen {
    visible: BTreeSet<usize>,
    /// With the first place that shows it.
    missing: BTreeMap<usize, String>,
}

impl Seen {
    /// Notes a value. `values` are those that operations left, with the states after them. The
    /// operations in `partly` may show stale values.
    fn note<T: PartialEq>(
        &mut self,
        place: &Place,
        values: impl Iterator<Item = (usize, T)>,
        (seen, partly): (&T, &BTreeSet<usize>),
    ) {
        let mut changes: Vec<(usize, T)> = Vec::new();
        for (state, value) in values {
            if changes.last().is_none_or(|(_, last)| *last != value) {
                changes.push((state, value));
            }
        }
        let same = |(_, value): &(usize, T)| value == seen;
        let (Some(first), Some(last)) = (
            changes.iter().position(same),
            changes.iter().rposition(same),
        ) else {
            return;
        };
        if let (true, Some(op)) = (first == last, changes[first].0.checked_sub(1)) {
            self.visible.insert(op);
        }
        for (state, _) in changes[last + 1..].iter().rev() {
            let missing = self.missing.entry(state - 1);
            missing.or_insert_with(|| place.to_string());
            if partly.contains(&(state - 1)) {
                break;
            }
        }
    }
}

impl Ordered {
    pub(crate) fn new(script: &Script, order: Option<Order>, past: &[Past]) -> Option<Self> {
        let mut ordered = Self {
            order: order?,
            ops: script.ops.iter().map(ToString::to_string).collect(),
            files: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        let states: Vec<Values> = past.iter().map(|past| ordered.values_of(past)).collect();
        let all: BTreeSet<&Place> = states.iter().flat_map(|s| s.values.keys()).collect();
        for place in all {
            let mut values: Vec<(usize, Vec<u8>)> = Vec::new();
            for (state, there) in states.iter().enumerate() {
                let Some(value) = there.at(place) else {
                    continue;
                };
                if values.last().is_none_or(|(_, last)| *last != value) {
                    values.push((state, value));
                }
            }
            if values.len() > 1 || values.first().is_some_and(|(state, _)| *state > 0) {
                ordered.places.insert(place.clone(), values);
            }
        }
        Some(ordered)
    }

    fn values_of(&mut self, past: &Past) -> Values {
        let known = &past.known;
        for (ino, node) in &known.world.nodes {
            if let Some(file) = known.files.get(ino) {
                self.files.insert((*ino, node.attr.generation), *file);
            }
        }
        Values::of(&known.world, |ino| known.files.get(&ino).copied())
    }

    /// The operations that a recovered state shows, and those that it lacks.
    fn seen(&self, world: &World, window: &Window<'_>) -> Seen {
        let promise = window.promise;
        let states = window.floors.all..=window.newest;
        let file_of = |ino: Ino| {
            let node = world.nodes.get(&ino)?;
            self.files.get(&(ino, node.attr.generation)).copied()
        };
        let now = Values::of(world, file_of);
        let all = self.note_all(&now, &states, |_| None);
        let is_stale = |place: &Place| {
            promise.only_order
                || (place.is_of_bytes() && promise.kind == Kind::Journal(Data::Nothing))
        };
        self.note_all(&now, &states, |place| {
            is_stale(place).then_some(&all.visible)
        })
    }

    fn note_all<'a>(
        &self,
        now: &Values,
        states: &RangeInclusive<usize>,
        partly: impl Fn(&Place) -> Option<&'a BTreeSet<usize>>,
    ) -> Seen {
        let (mut seen, none) = (Seen::default(), BTreeSet::new());
        for (place, values) in &self.places {
            let Some(value) = now.at(place) else {
                continue;
            };
            let partly = partly(place).unwrap_or(&none);
            // Of the values up to the oldest state, only the last can be there.
            let is_old = |(state, _): &(usize, Vec<u8>)| state <= states.start();
            let oldest = values.iter().rposition(is_old).unwrap_or(0);
            let values = &values[oldest..];
            let reached = values.iter().filter(|(state, _)| state <= states.end());
            if !place.is_of_bytes() {
                let values = reached.map(|(state, value)| (*state, value));
                seen.note(place, values, (&&value, partly));
                continue;
            }
            for (at, byte) in value.iter().enumerate() {
                let values = reached.clone().map(|(state, bytes)| (*state, bytes[at]));
                seen.note(place, values, (byte, partly));
            }
        }
        seen
    }

    /// Demands G1 and G2 of the recovered state.
    ///
    /// # Errors
    /// One of them does not hold.
    pub(super) fn judge(&self, window: &Window<'_>, fs: &dyn FileSystem) -> Result<(), String> {
        // A promise of more than order demands that all can be read.
        let world = World::read_rest(fs, &mut Vec::new())?;
        let seen = self.seen(&world, window);
        for op in &seen.visible {
            for before in self.order.befores(*op) {
                if let Some(place) = seen.missing.get(before) {
                    let (before, op) = (&self.ops[*before], &self.ops[*op]);
                    return Err(format!(
                        "`{op}` is there without `{before}`, which precedes it: {place} is older"
                    ));
                }
            }
        }
        for op in &window.floors.ops {
            if let Some(place) = seen.missing.get(op) {
                let op = &self.ops[*op];
                return Err(format!(
                    "`{op}` is lost after a sync of its group: {place} is older"
                ));
            }
        }
        Ok(())
    }
}
