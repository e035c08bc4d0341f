//! The properties in which the models differ, and what requests of durability force.

use super::{Change, Modelled};
use crate::{Call, Node, PAGE_BYTES};

/// The order of names, attributes and lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metadata {
    /// None beyond what each effect needs.
    Free,
    /// As called.
    Ordered,
    /// As called, data included.
    OrderedWithData,
}

/// The time at which the length of a file that grows becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// Independent of the data.
    Apart,
    /// When space is taken, which is before the data are written; at once in a page that has space.
    WithSpace,
    /// With the data.
    WithData,
}

/// The effects that `fsync` of a file forces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// The inode and its contents.
    Inode,
    /// These, and everything up to the last change of the inode.
    Journal,
    /// These, and the names of the inode.
    Names,
    /// Nothing more: calls are durable when they return.
    AtReturn,
}

/// The properties in which the models differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Order of names and attributes.
    pub metadata: Metadata,
    /// Order of lengths and data.
    pub lengths: Lengths,
    /// The effects that `fsync` forces.
    pub fsync: Fsync,
    /// Whether a file that replaces another one, by name or after a cut, takes its space before
    /// (`auto_da_alloc` of ext4). Its write-back begins, but nothing waits for its end.
    pub flushes_replaced: bool,
}

impl Rules {
    pub(super) const POSIX: Self = Self {
        metadata: Metadata::Free,
        lengths: Lengths::Apart,
        fsync: Fsync::Inode,
        flushes_replaced: false,
    };
    pub(super) const EXT4_ORDERED: Self = Self {
        metadata: Metadata::Ordered,
        lengths: Lengths::WithSpace,
        fsync: Fsync::Journal,
        flushes_replaced: true,
    };
    pub(super) const EXT4_JOURNAL: Self = Self {
        metadata: Metadata::OrderedWithData,
        lengths: Lengths::WithData,
        fsync: Fsync::Journal,
        flushes_replaced: false,
    };
    pub(super) const XFS: Self = Self {
        metadata: Metadata::Ordered,
        lengths: Lengths::WithData,
        fsync: Fsync::Journal,
        flushes_replaced: false,
    };
    pub(super) const BTRFS: Self = Self {
        metadata: Metadata::Ordered,
        lengths: Lengths::WithData,
        fsync: Fsync::Names,
        flushes_replaced: false,
    };
    pub(super) const AT_RETURN: Self = Self {
        metadata: Metadata::OrderedWithData,
        lengths: Lengths::WithData,
        fsync: Fsync::AtReturn,
        flushes_replaced: false,
    };

    /// Whether a write is one effect.
    pub(super) fn is_whole_call(&self) -> bool {
        self.fsync == Fsync::AtReturn
    }
}

/// By entry of the run: the effects that it forces.
pub(super) fn forced(modelled: &Modelled<'_>, rules: &Rules) -> Vec<Vec<usize>> {
    let mut forced = Forced {
        modelled,
        rules,
        is_forced: vec![false; modelled.effects.len()],
    };
    let entries = modelled.run.entries.iter().enumerate();
    let setup = modelled.run.header.setup;
    entries
        .map(|(n, entry)| match entry.call {
            _ if n < setup => Vec::new(),
            _ if rules.fsync == Fsync::AtReturn => {
                (modelled.before[n]..modelled.before[n + 1]).collect()
            }
            Call::Sync {
                node,
                data_only,
                range,
            } => forced.sync(node, (data_only, range), modelled.before[n]),
            Call::SyncAll => forced.with_needs((0..modelled.before[n]).collect()),
            Call::Make { .. }
            | Call::Link { .. }
            | Call::Remove { .. }
            | Call::Rename { .. }
            | Call::Write { .. }
            | Call::SetSize { .. }
            | Call::Zero { .. }
            | Call::SetAttr { .. }
            | Call::SetXattr { .. }
            | Call::Barrier
            | Call::Close { .. }
            | Call::Output { .. } => Vec::new(),
        })
        .collect()
}

struct Forced<'a, 'r> {
    modelled: &'a Modelled<'r>,
    rules: &'a Rules,
    is_forced: Vec<bool>,
}

impl Forced<'_, '_> {
    /// The effects that are new when `fsync` returns, of those before `end`.
    fn sync(
        &mut self,
        node: Node,
        (data_only, range): (bool, Option<(u64, u64)>),
        end: usize,
    ) -> Vec<usize> {
        let touching = self.modelled.touching(node, end);
        let touching: Vec<usize> = touching
            .filter(|n| range.is_none_or(|range| self.is_written_back(*n, range)))
            .collect();
        let is_directory = self.is_directory(node);
        // The names in a directory are its data.
        let data_only = data_only && !is_directory;
        let wanted = match self.rules.fsync {
            Fsync::AtReturn => Vec::new(),
            Fsync::Inode if is_directory => touching,
            Fsync::Inode => {
                let mut wanted = touching;
                wanted.retain(|n| self.is_of_inode(*n, data_only));
                wanted
            }
            Fsync::Names => touching,
            Fsync::Journal => self.up_to_last(&touching, data_only, end),
        };
        self.with_needs(wanted)
    }

    /// Whether the write-back of a range of the file has an effect: data have pages in it. The lengths that these need are
    /// among their needs.
    fn is_written_back(&self, n: usize, (off, len): (u64, u64)) -> bool {
        let pages = |off: u64, len: u64| off / PAGE_BYTES..(off + len).div_ceil(PAGE_BYTES);
        let wanted = pages(off, len);
        match &self.modelled.effects[n].change {
            Change::Data { off, data, .. } | Change::Store { off, data, .. } => {
                let pages = pages(*off, data.len);
                pages.start < wanted.end && wanted.start < pages.end
            }
            Change::Clear { off, len, .. } => {
                let pages = pages(*off, *len);
                pages.start < wanted.end && wanted.start < pages.end
            }
            Change::Grow { .. } => false,
            Change::Call(_) => true,
        }
    }

    fn is_directory(&self, node: Node) -> bool {
        let is_made = |n: &usize| {
            matches!(&self.modelled.effects[*n].change,
                Change::Call(Call::Make { node: made, kind: crate::Kind::Directory, .. }) if *made == node)
        };
        let made = (0..self.modelled.effects.len()).any(|n| is_made(&n));
        let start = self.modelled.start.get(node);
        made || start.is_some_and(|inode| inode.kind == crate::Kind::Directory)
    }

    /// Whether an effect belongs to the inode itself, not to one of its names.
    fn is_of_inode(&self, n: usize, data_only: bool) -> bool {
        match &self.modelled.effects[n].change {
            Change::Data { .. }
            | Change::Store { .. }
            | Change::Grow { .. }
            | Change::Clear { .. } => true,
            Change::Call(call) => match call {
                Call::Write { .. } | Call::SetSize { .. } | Call::Zero { .. } => true,
                Call::SetAttr { .. } | Call::SetXattr { .. } => !data_only,
                // The inode is forced as far as its data need it; see `Effect::inherent`.
                Call::Make { at, .. } => at.is_none(),
                Call::Link { .. }
                | Call::Remove { .. }
                | Call::Rename { .. }
                | Call::Sync { .. }
                | Call::SyncAll
                | Call::Barrier
                | Call::Close { .. }
                | Call::Output { .. } => false,
            },
        }
    }

    /// The data of the file, and all calls up to its last change. New space is taken by a change of
    /// the inode in the newest transaction, which has all calls so far.
    fn up_to_last(&self, touching: &[usize], data_only: bool, end: usize) -> Vec<usize> {
        let effects = &self.modelled.effects;
        let allocates = |n: &&usize| effects[**n].allocates && !self.is_forced[**n];
        let counts = |n: &&usize| {
            !effects[**n].is_data()
                && (!data_only || self.is_of_inode(**n, true) || self.makes(**n))
        };
        let last = match touching.iter().find(allocates) {
            Some(_) => end,
            None => touching.iter().filter(counts).max().map_or(0, |n| n + 1),
        };
        let calls = (0..last).filter(|n| {
            let with_data = self.rules.metadata == Metadata::OrderedWithData;
            with_data || !effects[*n].is_data()
        });
        let data = touching.iter().filter(|n| effects[**n].is_data());
        calls.chain(data.copied()).collect()
    }

    fn makes(&self, n: usize) -> bool {
        matches!(
            self.modelled.effects[n].change,
            Change::Call(Call::Make { .. })
        )
    }

    /// Those effects and what they need, without those that were forced before.
    fn with_needs(&mut self, wanted: Vec<usize>) -> Vec<usize> {
        let mut left = wanted;
        let mut new = Vec::new();
        while let Some(n) = left.pop() {
            if !std::mem::replace(&mut self.is_forced[n], true) {
                new.push(n);
                let effect = &self.modelled.effects[n];
                left.extend(&effect.inherent);
                if self.rules.fsync != Fsync::Names {
                    left.extend(&effect.order);
                }
                let reuses = effect.reuses.iter();
                let durable =
                    reuses.filter(|reuse| reuse.given.is_none_or(|given| self.is_forced[given]));
                left.extend(durable.map(|reuse| reuse.taken));
            }
        }
        new.sort_unstable();
        new
    }
}
