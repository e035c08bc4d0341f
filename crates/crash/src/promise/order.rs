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
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use vfs::{Attr, FileSystem, Ino};

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
    /// Another attribute, by its number in [`ATTRS`].
    Attr(FileId, usize),
}

/// An attribute, and its value.
type Attribute = (&'static str, fn(&Attr) -> u64);

/// The attributes that are places.
const ATTRS: [Attribute; 6] = [
    ("ctime", |attr| attr.ctime.0 as u64),
    ("group", |attr| attr.gid.into()),
    ("mode", |attr| attr.perm.into()),
    ("mtime", |attr| attr.mtime.0 as u64),
    ("owner", |attr| attr.uid.into()),
    ("size", |attr| attr.size),
];

impl Place {
    /// The value if the file is there and the place is not.
    fn nothing(&self) -> &'static [u8] {
        match self {
            Self::Data(..) => &[0; PIECE as usize],
            Self::Name(..) | Self::Xattr(..) | Self::Attr(..) => &[],
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
            Self::Attr(file, number) => write!(f, "the {} of file {file}", ATTRS[*number].0),
        }
    }
}

/// A state in which the file of each inode is known.
struct Values<'a> {
    world: &'a World,
    files: BTreeMap<Ino, FileId>,
    inos: BTreeMap<FileId, Ino>,
}

impl<'a> Values<'a> {
    /// The values of a state in which `file_of` returns the file of each inode.
    fn of(world: &'a World, file_of: impl Fn(Ino) -> Option<FileId>) -> Self {
        let inodes = world.nodes.keys();
        let files: BTreeMap<Ino, FileId> = inodes
            .filter_map(|ino| Some((*ino, file_of(*ino)?)))
            .collect();
        Self {
            world,
            inos: files.iter().map(|(ino, file)| (*file, *ino)).collect(),
            files,
        }
    }

    /// The places that have a value.
    fn places(&self) -> impl Iterator<Item = Place> {
        self.files.iter().flat_map(|(ino, file)| {
            let (node, file) = (&self.world.nodes[ino], *file);
            let attrs = (0..ATTRS.len()).map(move |number| Place::Attr(file, number));
            let xattrs = node.xattrs.iter();
            let xattrs = xattrs.map(move |(name, _)| Place::Xattr(file, name.clone()));
            let pieces = node.data.keys().map(move |piece| Place::Data(file, *piece));
            let names = self.world.names.get(ino).into_iter();
            let names = names.flat_map(BTreeMap::keys);
            let names = names.map(move |name| Place::Name(file, name.clone()));
            attrs.chain(xattrs).chain(pieces).chain(names)
        })
    }

    /// The value of a place. `None`: its file is not there, or its directory cannot be read.
    fn at(&self, place: &Place) -> Option<Cow<'a, [u8]>> {
        let node = |file| Some(&self.world.nodes[self.inos.get(file)?]);
        let number = |value: u64| Cow::from(value.to_le_bytes().to_vec());
        let value = match place {
            Place::Name(dir, name) => {
                let names = self.world.names.get(self.inos.get(dir)?)?;
                let file = |target: &Ino| self.files.get(target).map_or(u64::MAX, |f| f.0.0);
                names.get(name).map(|target| number(file(target)))
            }
            Place::Data(file, piece) => node(file)?.data.get(piece).map(Cow::from),
            Place::Xattr(file, name) => {
                let mut xattrs = node(file)?.xattrs.iter();
                let found = xattrs.find(|(other, _)| other == name);
                found.map(|(_, value)| Cow::from([&[1], value.as_slice()].concat()))
            }
            Place::Attr(file, at) => Some(number(ATTRS[*at].1(&node(file)?.attr))),
        };
        Some(value.unwrap_or(Cow::from(place.nothing())))
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

/// Whether two bytes differ between the same values, and equal `seen` in the same ones.
fn change_alike(values: &[(usize, &[u8])], seen: &[u8], [a, b]: [usize; 2]) -> bool {
    let alike = |x: &[u8], y: &[u8]| (x[a] == y[a]) == (x[b] == y[b]);
    let mut pairs = values.windows(2);
    pairs.all(|pair| alike(pair[0].1, pair[1].1)) && values.iter().all(|(_, x)| alike(x, seen))
}

impl Ordered {
    pub(crate) fn new(script: &Script, order: Option<Order>, past: &[Past]) -> Option<Self> {
        let mut ordered = Self {
            order: order?,
            ops: script.ops.iter().map(ToString::to_string).collect(),
            files: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        let states: Vec<Values<'_>> = past.iter().map(|past| ordered.values_of(past)).collect();
        let all: BTreeSet<Place> = states.iter().flat_map(Values::places).collect();
        for place in all {
            let mut values: Vec<(usize, Vec<u8>)> = Vec::new();
            for (state, there) in states.iter().enumerate() {
                let Some(value) = there.at(&place) else {
                    continue;
                };
                if values.last().is_none_or(|(_, last)| *last != *value) {
                    values.push((state, value.into_owned()));
                }
            }
            if values.len() > 1 || values.first().is_some_and(|(state, _)| *state > 0) {
                ordered.places.insert(place, values);
            }
        }
        Some(ordered)
    }

    fn values_of<'p>(&mut self, past: &'p Past) -> Values<'p> {
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
        let has_stale_data = promise.kind == Kind::Journal(Data::Nothing);
        if !promise.only_order && !has_stale_data {
            return all;
        }
        let is_stale = |place: &Place| promise.only_order || place.is_of_bytes();
        self.note_all(&now, &states, |place| {
            is_stale(place).then_some(&all.visible)
        })
    }

    fn note_all<'a>(
        &self,
        now: &Values<'_>,
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
            let reached: Vec<(usize, &[u8])> =
                reached.map(|(state, value)| (*state, &value[..])).collect();
            if !place.is_of_bytes() {
                seen.note(place, reached.into_iter(), (&&*value, partly));
                continue;
            }
            let mut noted = None;
            for (at, byte) in value.iter().enumerate() {
                // Bytes that change alike show the same.
                if noted.is_none_or(|noted| !change_alike(&reached, &value, [noted, at])) {
                    let values = reached.iter().map(|(state, bytes)| (*state, bytes[at]));
                    seen.note(place, values, (byte, partly));
                    noted = Some(at);
                }
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
