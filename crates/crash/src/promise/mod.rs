//! The states that are allowed after a crash, on any medium: a [`Promise`], which follows from
//! the declared [`Guarantees`] alone.
//!
//! | the guarantees | the recovered state |
//! |---|---|
//! | metadata is not atomic and ordered | a state that soft updates allow ([`soft`]) |
//! | metadata is atomic and ordered, data is not ordered | the metadata after some call, with data as a metadata or ordered journal keeps it ([`journal`]) |
//! | both are atomic and ordered | the state after some call ([`prefix`]), as a full journal keeps it |
//! | also, calls since a checkpoint are one unit | the state of some checkpoint ([`prefix`]) |
//!
//! [`Durability`] bounds the age of that state: no older than the last call that returned, or no
//! older than the last sync.
//!
//! Groups of changes have an order besides ([`order`]). Barriers in a script without groups divide
//! it into epochs. The state is one that the table allows after a crash
//! inside one epoch, with all calls of earlier epochs durable and no call of later ones.

mod journal;
mod order;
mod prefix;
mod soft;

pub(crate) use order::Ordered;

use crate::choice::mix;
use crate::handles::FileId;
use crate::past::Past;
use crate::world::Inode;
use oracle::script::{Op, Synced};
use oracle::snapshot::Snapshot;
use std::collections::{BTreeMap, BTreeSet};
use vfs::check::Severity;
use vfs::{Atomicity, Durability, FileSystem, Guarantees, Ordering, Timestamp};

/// The promise of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promise {
    pub kind: Kind,
    /// Whether a call that returned is durable.
    pub at_return: bool,
    /// Whether the times of a file change together with all else.
    pub times_atomic: bool,
    /// Whether nothing is promised but the order that a program requests.
    pub only_order: bool,
    /// Whether each block of data changes as a whole.
    pub whole_blocks: bool,
}

/// The kind of recovered state that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Soft,
    Journal(Data),
    Prefix,
    Checkpoint,
}

/// The promise of a journal that holds only metadata about data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    /// No order between data and metadata.
    Nothing,
    /// Written before the metadata that points to it.
    Ordered,
}

impl Promise {
    pub(crate) fn of(g: &Guarantees) -> Self {
        let is_ordered = |o: Ordering| o >= Ordering::PerThread;
        let kind = match (g.metadata_atomic, g.data_atomic) {
            (metadata, _) if metadata < Atomicity::Call || !is_ordered(g.metadata_ordered) => {
                Kind::Soft
            }
            (Atomicity::Checkpoint, _) => Kind::Checkpoint,
            _ if is_ordered(g.data_ordered) => Kind::Prefix,
            (_, Atomicity::None | Atomicity::Word) => Kind::Journal(Data::Nothing),
            (_, Atomicity::Block | Atomicity::Call | Atomicity::Checkpoint) => {
                Kind::Journal(Data::Ordered)
            }
        };
        Self {
            kind,
            at_return: g.durable == Durability::AtReturn,
            times_atomic: g.times_atomic,
            only_order: g.durable == Durability::None,
            whole_blocks: g.data_atomic >= Atomicity::Block,
        }
    }

    /// Whether each call goes from old to new in one step that is durable at its return.
    pub(crate) fn is_atomic_at_return(self) -> bool {
        self.at_return && self.kind == Kind::Prefix
    }

    /// The worst severity that the checker may report after a crash.
    pub(crate) fn worst(self) -> Option<Severity> {
        (self.kind == Kind::Soft).then_some(Severity::Leak)
    }

    /// Whether the image is sound before recovery.
    pub(crate) fn needs_no_recovery(self) -> bool {
        self.kind == Kind::Soft
    }

    /// Whether the promise concerns single inodes, or has an fsync cover single files.
    pub(crate) fn needs_inodes(self) -> bool {
        !self.at_return || matches!(self.kind, Kind::Soft | Kind::Journal(_))
    }

    /// Raises the floors by the promise of a call that returned. The state after it is number
    /// `state`.
    pub(crate) fn raise(self, floors: &mut Floors, op: &Op, past: &[Past], state: usize) {
        if self.at_return {
            (floors.all, floors.data) = (state, state);
            return;
        }
        let (path, data_only) = match op.synced() {
            None => return,
            Some(Synced::Everything) => {
                (floors.all, floors.data) = (state, state);
                return;
            }
            Some(Synced::Path { path, data_only }) => (path, data_only),
        };
        let now = &past[state].expected;
        let path = format!("/{}", path.trim_matches('/'));
        let at = now.snapshot.iter();
        let mut at = at.map(|(p, ..)| p);
        let Some(at) = at.position(|p| p == path.as_bytes()) else {
            return;
        };
        let file = FileId(now.inos[at]);
        floors.files.insert(file, state);
        if !data_only {
            floors.times.insert(file, state);
        }
        if self.kind != Kind::Soft {
            // By order, all before the file's last change is durable as well.
            let last = self.last_change(file, &past[..=state], !data_only);
            floors.all = floors.all.max(last);
        }
    }

    /// The last of these states in which the file differs from the state before. Without `times`,
    /// differences of times do not count. Data count where they are ordered with metadata.
    fn last_change(self, file: FileId, past: &[Past], times: bool) -> usize {
        let at = |state: usize| past[state].known.of(file);
        let with_data = matches!(self.kind, Kind::Prefix | Kind::Checkpoint);
        let same = |now: &Inode, then: &Inode| match times {
            true => now == then,
            false => now.same_but_times(then) && (!with_data || now.data == then.data),
        };
        let changed = |state: &usize| match (at(*state), at(*state - 1)) {
            (Some((now, names)), Some((then, names_then))) => {
                !same(now, then) || names != names_then
            }
            (now, then) => now.is_some() != then.is_some(),
        };
        (1..past.len()).rev().find(changed).unwrap_or(0)
    }
}

/// The oldest states that a crash may leave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Floors {
    /// Everything; in a journal that does not hold data, the metadata.
    pub all: usize,
    /// The data of all files.
    pub data: usize,
    /// Single files, without their times.
    pub files: BTreeMap<FileId, usize>,
    /// The times of single files.
    pub times: BTreeMap<FileId, usize>,
    /// The operations that syncs of groups have made durable.
    pub ops: BTreeSet<usize>,
}

/// The states that a crash at some moment may leave.
#[derive(Clone)]
pub(crate) struct Window<'a> {
    pub promise: Promise,
    /// All states, from before the first call on.
    pub past: &'a [Past],
    pub floors: &'a Floors,
    /// The newest state that may be there.
    pub newest: usize,
    /// The states in which the cache was asked to write. Each may be a checkpoint.
    pub written: &'a BTreeSet<usize>,
    /// The states after barriers, oldest first.
    pub barriers: &'a [usize],
    /// The order of groups or barriers, if the script has any.
    pub ordered: Option<&'a Ordered>,
    /// Time of the last call.
    pub now: Timestamp,
}

impl Window<'_> {
    /// Demands that the recovered state is allowed. Returns the state that callers see, if it was
    /// judged as a whole.
    ///
    /// # Errors
    /// The state is not allowed.
    pub(crate) fn judge(&self, fs: &dyn FileSystem) -> Result<Option<Snapshot>, String> {
        if let Some(ordered) = self.ordered {
            ordered.judge(self, fs)?;
        }
        if self.is_only_order() {
            return Ok(None);
        }
        let mut judged = None;
        for (floors, newest) in self.epochs() {
            let epoch = Window {
                floors: &floors,
                newest,
                ..self.clone()
            };
            let result = epoch.judge_epoch(fs);
            if result.is_ok() {
                return result;
            }
            judged = Some(result);
        }
        judged.expect("the newest state covers all synced files")
    }

    /// Whether the order of groups is all that is demanded.
    pub(crate) fn is_only_order(&self) -> bool {
        self.promise.only_order && self.ordered.is_some()
    }

    /// The calls between two barriers become durable in any order, after all calls before them.
    /// So a crash leaves a state between two barriers. The newest comes first. It is no older than
    /// the last change of a file that was synced: that sync covered the barriers before the change.
    fn epochs(&self) -> impl Iterator<Item = (Floors, usize)> {
        let is_ordered = matches!(self.promise.kind, Kind::Prefix | Kind::Checkpoint);
        let barriers = self.barriers.iter().copied();
        let inside =
            move |state: &usize| !is_ordered && (self.floors.all + 1..=self.newest).contains(state);
        let inside: Vec<usize> = barriers.filter(inside).collect();
        let starts = std::iter::once(self.floors.all).chain(inside.clone());
        let ends = inside.into_iter().chain([self.newest]);
        let mut epochs: Vec<_> = starts.zip(ends).collect();
        epochs.retain(|(_, end)| self.covers_synced_files(*end));
        epochs.into_iter().rev().map(|(start, end)| {
            let within = |floors: &BTreeMap<FileId, usize>| {
                let floors = floors.iter();
                floors
                    .map(|(file, floor)| (*file, *floor.min(&end)))
                    .collect()
            };
            let floors = Floors {
                all: start,
                data: match start == self.floors.all {
                    // No barrier: what is durable of the metadata says nothing of data.
                    true => self.floors.data,
                    false => self.floors.data.max(start),
                },
                files: within(&self.floors.files),
                times: within(&self.floors.times),
                ops: BTreeSet::new(), // judged before
            };
            (floors, end)
        })
    }

    /// Whether no synced file has changed after this state and up to its sync.
    fn covers_synced_files(&self, end: usize) -> bool {
        let mut floors = self.floors.files.iter();
        floors.all(|(file, floor)| {
            let at = |state: usize| self.past[state].known.of(*file);
            *floor <= end
                || match (at(end), at(*floor)) {
                    (Some((then, names_then)), Some((now, names))) => {
                        now.same_but_times(then) && now.data == then.data && names == names_then
                    }
                    (then, now) => then.is_none() && now.is_none(),
                }
        })
    }

    fn judge_epoch(&self, fs: &dyn FileSystem) -> Result<Option<Snapshot>, String> {
        match self.promise.kind {
            Kind::Soft => soft::judge(self, fs).map(|()| None),
            Kind::Journal(data) => journal::judge(self, fs, data).map(Some),
            Kind::Prefix | Kind::Checkpoint => prefix::judge(self, fs).map(Some),
        }
    }

    /// Demands what [`judge`](Self::judge) demands of the state as a whole.
    ///
    /// # Errors
    /// The state is not allowed.
    pub(crate) fn allows(&self, seen: &Snapshot) -> Result<(), String> {
        match self.promise.kind {
            Kind::Prefix | Kind::Checkpoint => prefix::allows(self, seen).map(drop),
            Kind::Soft | Kind::Journal(_) => Ok(()),
        }
    }

    /// Hash of the demands. A crash state need not be judged twice by the same demands.
    pub(crate) fn demands(&self) -> u64 {
        if self.promise.is_atomic_at_return() {
            // The states themselves count: a call that changes nothing adds no demand.
            let states = self.past[self.floors.all..=self.newest].iter();
            return states.fold(0, |h, past| mix(h, past.expected.hash));
        }
        let Floors {
            files, times, ops, ..
        } = self.floors;
        let synced = ops.iter().fold(0, |h, op| mix(h, *op as u64));
        let files = files
            .iter()
            .chain(times)
            .fold(0, |h, (file, floor)| mix(h, mix(file.0.0, *floor as u64)));
        let all = mix(self.floors.all as u64, self.floors.data as u64);
        mix(mix(mix(all, self.newest as u64), files), synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Atomicity as A;
    use Ordering as O;

    fn kind(metadata: (A, O), data: (A, O)) -> Kind {
        let guarantees = Guarantees {
            name: String::new(),
            durable: Durability::AtFsync,
            metadata_atomic: metadata.0,
            metadata_ordered: metadata.1,
            data_atomic: data.0,
            data_ordered: data.1,
            times_atomic: true,
            notes: Vec::new(),
        };
        Promise::of(&guarantees).kind
    }

    #[test]
    fn a_promise_follows_from_the_guarantees() {
        let call = (A::Call, O::Global);
        assert_eq!(kind((A::None, O::None), (A::None, O::None)), Kind::Soft);
        assert_eq!(kind((A::Call, O::None), call), Kind::Soft);
        let nothing = Kind::Journal(Data::Nothing);
        assert_eq!(kind(call, (A::None, O::None)), nothing);
        let ordered = Kind::Journal(Data::Ordered);
        assert_eq!(kind(call, (A::Block, O::None)), ordered);
        assert_eq!(kind(call, (A::Block, O::Global)), Kind::Prefix);
        assert_eq!(kind(call, call), Kind::Prefix);
        let together = (A::Checkpoint, O::Global);
        assert_eq!(kind(together, together), Kind::Checkpoint);
    }
}
