//! Splits the calls of a run into effects.

use super::rules::{Fsync, Lengths, Metadata, Rules};
use crate::{Blob, Call, Node, PAGE_BYTES, Place, Run, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// A change that a crash keeps or loses as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A whole call: names, attributes, lengths.
    Call(Call),
    /// Data within one page; the file grows to their end.
    Data {
        /// The file.
        node: Node,
        /// Offset in bytes.
        off: u64,
        /// The data.
        data: Blob,
    },
    /// Data within one page, as far as the file is long.
    Store {
        /// The file.
        node: Node,
        /// Offset in bytes.
        off: u64,
        /// The data.
        data: Blob,
    },
    /// The length of a file that grows, when space is taken for its data.
    Grow {
        /// The file.
        node: Node,
        /// Length in bytes.
        size: u64,
    },
    /// Zeros in a page of a file that is cut, or gets a hole, within it.
    Clear {
        /// The file.
        node: Node,
        /// Offset in bytes.
        off: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// An earlier use of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reuse {
    /// The effect that gave the name to another inode; `None` in the setup.
    pub given: Option<usize>,
    /// The effect that took it away.
    pub taken: usize,
}

/// An effect and what it needs. All needs are earlier effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The entry of the run.
    pub entry: usize,
    /// The change.
    pub change: Change,
    /// Effects without which this one has no place, on any file system.
    pub inherent: Vec<usize>,
    /// Effects that the file system makes durable before this one. Effects that `fsync` forces do
    /// not wait for them.
    pub order: Vec<usize>,
    /// Earlier uses of its name, where `fsync` forces names. The effect needs the end of a use only if
    /// the begin is there.
    pub reuses: Vec<Reuse>,
    /// The inodes that it changes: for a name, that of the directory and that of the file.
    pub touches: Vec<Node>,
    /// Whether it is data that take new space.
    pub allocates: bool,
}

impl Effect {
    /// Whether it is data, or a length that waits for the write-back of data: not names or
    /// attributes.
    pub fn is_data(&self) -> bool {
        !matches!(self.change, Change::Call(_))
    }

    /// The effects without which this one is not there, given those that are.
    pub fn needs<'a>(&'a self, present: &'a [bool]) -> impl Iterator<Item = usize> + 'a {
        let reuses = self.reuses.iter();
        let used = reuses.filter(|reuse| reuse.given.is_none_or(|given| present[given]));
        let always = self.inherent.iter().chain(&self.order).copied();
        always.chain(used.map(|reuse| reuse.taken))
    }

    /// Whether it is data for a page of a file.
    pub(crate) fn stores_to(&self, file: Node, page: u64) -> bool {
        match self.change {
            Change::Data { node, off, .. } | Change::Store { node, off, .. } => {
                (node, off / PAGE_BYTES) == (file, page)
            }
            Change::Call(_) | Change::Grow { .. } | Change::Clear { .. } => false,
        }
    }

    /// Applies the effect. An effect without a place has no effect.
    pub fn apply(&self, tree: &mut Tree, data: &[u8]) {
        let bytes = |blob: &Blob| data.get(blob.at as usize..(blob.at + blob.len) as usize);
        match &self.change {
            Change::Call(call) => drop(tree.apply(call, data)),
            Change::Data {
                node,
                off,
                data: blob,
            } => {
                if let (Ok(inode), Some(bytes)) = (tree.get_mut(*node), bytes(blob)) {
                    inode.contents.write(*off, bytes);
                }
            }
            Change::Store {
                node,
                off,
                data: blob,
            } => {
                if let (Ok(inode), Some(bytes)) = (tree.get_mut(*node), bytes(blob)) {
                    inode.contents.store_within(*off, bytes);
                }
            }
            Change::Grow { node, size } => {
                if let Ok(inode) = tree.get_mut(*node) {
                    let size = inode.contents.size().max(*size);
                    inode.contents.set_size(size);
                }
            }
            Change::Clear { node, off, len } => {
                if let Ok(inode) = tree.get_mut(*node) {
                    inode.contents.zero(*off, *len);
                }
            }
        }
    }
}

/// The effects of a run, and by entry the number of those before it.
pub(super) fn split(
    run: &Run,
    start: &Tree,
    rules: &Rules,
) -> Result<(Vec<Effect>, Vec<usize>), String> {
    let mut split = Split {
        rules: *rules,
        tree: start.clone(),
        effects: Vec::new(),
        made: BTreeMap::new(),
        at_place: BTreeMap::new(),
        uses: BTreeMap::new(),
        synced: BTreeSet::new(),
        loose: Vec::new(),
        in_directory: BTreeMap::new(),
        on_page: BTreeMap::new(),
        last_call_on: BTreeMap::new(),
        last_growth: BTreeMap::new(),
        last_call: None,
        allocated: BTreeSet::new(),
        growth: BTreeMap::new(),
        was_cut: BTreeSet::new(),
        flushed: Vec::new(),
    };
    let mut before = vec![0; run.header.setup];
    for (node, pages) in start.allocated_pages() {
        split.allocated.extend(pages.map(|page| (node, page)));
    }
    for (n, entry) in run.entries.iter().enumerate().skip(run.header.setup) {
        before.push(split.effects.len());
        split.entry(n, &entry.call);
        let applied = split.tree.apply(&entry.call, &run.data);
        applied.map_err(|e| format!("call {n}: {}: {e}", entry.text))?;
    }
    before.push(split.effects.len());
    Ok((split.effects, before))
}

struct Split {
    rules: Rules,
    /// The tree before the present call, with everything there.
    tree: Tree,
    effects: Vec<Effect>,
    made: BTreeMap<Node, usize>,
    at_place: BTreeMap<Place, usize>,
    /// By name: earlier uses, and the present one, see [`Effect::reuses`].
    uses: BTreeMap<Place, Uses>,
    /// Inodes for which `fsync` was called.
    synced: BTreeSet<Node>,
    /// Changes of names without an order, since the last call with one.
    loose: Vec<usize>,
    /// The last effects on names in a directory.
    in_directory: BTreeMap<Node, Vec<usize>>,
    on_page: BTreeMap<(Node, u64), usize>,
    /// The last effect on attributes or length of an inode.
    last_call_on: BTreeMap<Node, usize>,
    last_growth: BTreeMap<Node, usize>,
    last_call: Option<usize>,
    allocated: BTreeSet<(Node, u64)>,
    /// Effects that take new space, by file.
    growth: BTreeMap<Node, Vec<usize>>,
    /// Files that were cut to nothing since they were opened.
    was_cut: BTreeSet<Node>,
    /// Growth of files that the file system begins to write at once. Later calls wait until it has
    /// space.
    flushed: Vec<usize>,
}

/// The uses of a name in the run.
#[derive(Debug, Clone, Default)]
struct Uses {
    over: Vec<Reuse>,
    /// The effect that gave the present use, if it is of the run.
    begun: Option<usize>,
}

impl Split {
    fn entry(&mut self, entry: usize, call: &Call) {
        match call {
            Call::Write { node, .. } if self.rules.is_whole_call() => {
                self.call(entry, Change::Call(call.clone()), &[*node], &[]);
            }
            Call::Write { node, off, data } => self.write(entry, *node, *off, *data),
            Call::Make { .. } => self.make(entry, call),
            Call::Link { node, at } => {
                self.call(entry, Change::Call(call.clone()), &[at.dir, *node], &[at]);
            }
            Call::Remove { at } => self.remove(entry, call, at),
            Call::Rename { from, to, .. } => self.rename(entry, call, from, to),
            Call::SetSize { node, size } => {
                self.set_size(entry, *node, *size);
                self.call(entry, Change::Call(call.clone()), &[*node], &[]);
            }
            Call::Zero { node, off, len } => self.zero(entry, *node, *off, *len),
            Call::SetAttr { node, .. } | Call::SetXattr { node, .. } => {
                self.call(entry, Change::Call(call.clone()), &[*node], &[]);
            }
            Call::Close { node } => {
                if self.was_cut.remove(node) && self.rules.flushes_replaced {
                    let growth = self.growth.get(node).cloned().unwrap_or_default();
                    self.flushed.extend(growth);
                }
            }
            Call::Sync { node, .. } => drop(self.synced.insert(*node)),
            Call::SyncAll | Call::Barrier | Call::Output { .. } => {}
        }
    }

    /// Adds an effect that is a whole call on these inodes and names.
    fn call(&mut self, entry: usize, change: Change, touches: &[Node], places: &[&Place]) -> usize {
        let is_name = !places.is_empty();
        let made = touches.iter().filter_map(|node| self.made.get(node));
        let (named, reuses) = self.named(places);
        let changed = touches
            .iter()
            .filter_map(|node| self.last_call_on.get(node));
        let inherent = made.chain(&named).chain(changed.filter(|_| !is_name));
        let inherent = inherent.copied().collect();
        let mut order = std::mem::take(&mut self.flushed);
        let is_loose = is_name && self.is_logged(&change, touches);
        if self.rules.metadata != Metadata::Free && !is_loose {
            order.extend(self.last_call);
            order.append(&mut self.loose);
        }
        let number = self.push(Effect {
            entry,
            change,
            inherent,
            order,
            reuses,
            touches: touches.to_vec(),
            allocates: false,
        });
        match is_loose {
            true => self.loose.push(number),
            false => self.last_call = Some(number),
        }
        for at in places {
            self.use_name(at, number);
            self.at_place.insert((*at).clone(), number);
            self.in_directory.entry(at.dir).or_default().push(number);
        }
        for node in touches.iter().filter(|_| !is_name) {
            self.last_call_on.insert(*node, number);
        }
        number
    }

    /// Whether `fsync` logs a change of these inodes at once: it has logged one of them before. The
    /// next `fsync` of any file can then make the change durable, without earlier calls.
    fn is_logged(&self, change: &Change, touches: &[Node]) -> bool {
        // The log of a directory loses names at once, and gets new ones with the next `fsync`.
        let takes = matches!(
            change,
            Change::Call(Call::Remove { .. } | Call::Rename { .. })
        );
        let is_file = |node: &Node| {
            let inode = self.tree.get(*node);
            inode.is_some_and(|inode| inode.kind != crate::Kind::Directory)
        };
        let is_logged = |node: &Node| self.synced.contains(node) && (takes || is_file(node));
        self.rules.fsync == Fsync::Names && touches.iter().any(is_logged)
    }

    /// The effects that an effect on these names needs, and the uses of the names that are over.
    fn named(&self, places: &[&Place]) -> (Vec<usize>, Vec<Reuse>) {
        let (mut needs, mut reuses) = (Vec::new(), Vec::new());
        for at in places {
            let uses = self
                .uses
                .get(at)
                .filter(|_| self.rules.fsync == Fsync::Names);
            match (uses, self.at_place.get(at)) {
                (Some(uses), last) => {
                    reuses.extend(&uses.over);
                    let is_over = uses.over.last().map(|reuse| &reuse.taken) == last;
                    needs.extend(last.filter(|_| !is_over));
                }
                (None, last) => needs.extend(last),
            }
        }
        (needs, reuses)
    }

    /// Notes that an effect gives a name to an inode, or takes it away.
    fn use_name(&mut self, at: &Place, number: usize) {
        let gives = match &self.effects[number].change {
            Change::Call(Call::Remove { .. }) => false,
            Change::Call(Call::Rename { from, exchange, .. }) => from != at || *exchange,
            _ => true,
        };
        let uses = self.uses.entry(at.clone()).or_default();
        match (gives, uses.begun.take()) {
            (true, begun) => uses.begun = begun.or(Some(number)),
            (false, given) => uses.over.push(Reuse {
                given,
                taken: number,
            }),
        }
    }

    /// A new inode. Without an order of names, its name is an effect of its own.
    fn make(&mut self, entry: usize, call: &Call) {
        let Call::Make { node, at, .. } = call else {
            return;
        };
        let (mut inode, mut touches) = (call.clone(), vec![*node]);
        let name = at
            .as_ref()
            .filter(|_| self.rules.metadata == Metadata::Free);
        if let (Some(_), Call::Make { at, .. }) = (name, &mut inode) {
            *at = None;
        }
        let together = at.as_ref().filter(|_| name.is_none());
        touches.extend(together.map(|at| at.dir));
        let places: Vec<&Place> = together.into_iter().collect();
        let made = self.call(entry, Change::Call(inode), &touches, &places);
        self.made.insert(*node, made);
        if let Some(at) = name {
            let link = Call::Link {
                node: *node,
                at: at.clone(),
            };
            self.call(entry, Change::Call(link), &[at.dir, *node], &[at]);
        }
    }

    fn push(&mut self, mut effect: Effect) -> usize {
        for needs in [&mut effect.inherent, &mut effect.order] {
            needs.sort_unstable();
            needs.dedup();
        }
        self.effects.push(effect);
        self.effects.len() - 1
    }

    fn remove(&mut self, entry: usize, call: &Call, at: &Place) {
        let node = self.tree.lookup(at);
        let touches: Vec<Node> = [at.dir].into_iter().chain(node).collect();
        let number = self.call(entry, Change::Call(call.clone()), &touches, &[at]);
        // A directory is removed after the names in it.
        let below = node.and_then(|node| self.in_directory.get(&node)).cloned();
        self.effects[number]
            .inherent
            .extend(below.unwrap_or_default());
    }

    fn rename(&mut self, entry: usize, call: &Call, from: &Place, to: &Place) {
        let (moved, replaced) = (self.tree.lookup(from), self.tree.lookup(to));
        let dirs = [from.dir, to.dir].into_iter();
        let touches: Vec<Node> = dirs.chain(moved).chain(replaced).collect();
        if let (Some(moved), Some(_), true) = (moved, replaced, self.rules.flushes_replaced) {
            let growth = self.growth.get(&moved).cloned().unwrap_or_default();
            self.flushed.extend(growth);
        }
        self.call(entry, Change::Call(call.clone()), &touches, &[from, to]);
    }

    fn set_size(&mut self, entry: usize, node: Node, size: u64) {
        let old = self.tree.get(node).map_or(0, |inode| inode.contents.size());
        if size == 0 && old > 0 {
            self.was_cut.insert(node);
        }
        if size < old {
            // The cut zeroes the rest of the page.
            self.clear(entry, node, size, PAGE_BYTES - size % PAGE_BYTES);
            let first = size.div_ceil(PAGE_BYTES);
            let gone = (node, first)..=(node, u64::MAX);
            let gone: Vec<_> = self.allocated.range(gone).copied().collect();
            for page in gone {
                self.allocated.remove(&page);
                self.on_page.remove(&page);
            }
        }
    }

    /// Zeros in a range: whole pages give their space back, others are zeroed as data.
    fn zero(&mut self, entry: usize, node: Node, off: u64, len: u64) {
        let end = off.saturating_add(len);
        let (first, last) = (off.div_ceil(PAGE_BYTES), end / PAGE_BYTES);
        let whole = match self.rules.metadata {
            Metadata::OrderedWithData => off..end,
            Metadata::Free | Metadata::Ordered => first * PAGE_BYTES..last * PAGE_BYTES,
        };
        if off < whole.start {
            self.clear(entry, node, off, end.min(whole.start) - off);
        }
        if last >= first && whole.end < end {
            self.clear(entry, node, whole.end, end - whole.end);
        }
        if !whole.is_empty() {
            let (off, len) = (whole.start, whole.end - whole.start);
            let call = Call::Zero { node, off, len };
            self.call(entry, Change::Call(call), &[node], &[]);
        }
    }

    /// Zeros within a page, by a cut or a hole. They are in the page cache. The page, with what is
    /// written to it later, can reach its place before or after the rest of the call.
    fn clear(&mut self, entry: usize, node: Node, off: u64, len: u64) {
        let page = off / PAGE_BYTES;
        let is_in_order = self.rules.metadata == Metadata::OrderedWithData;
        if len == PAGE_BYTES || is_in_order || !self.allocated.contains(&(node, page)) {
            return;
        }
        let made = self.made.get(&node).into_iter();
        let inherent = made.chain(self.on_page.get(&(node, page)));
        let number = self.push(Effect {
            entry,
            change: Change::Clear { node, off, len },
            inherent: inherent.copied().collect(),
            order: Vec::new(),
            reuses: Vec::new(),
            touches: vec![node],
            allocates: false,
        });
        self.on_page.insert((node, page), number);
    }

    fn write(&mut self, entry: usize, node: Node, off: u64, data: Blob) {
        let mut size = self.tree.get(node).map_or(0, |inode| inode.contents.size());
        let mut done = 0;
        while done < data.len {
            let at = off + done;
            let len = (PAGE_BYTES - at % PAGE_BYTES).min(data.len - done);
            let part = Blob {
                at: data.at + done,
                len,
            };
            self.page(entry, node, at, part, size);
            size = size.max(at + len);
            done += len;
        }
    }

    /// The effects of data within one page of a file of this size.
    fn page(&mut self, entry: usize, node: Node, off: u64, data: Blob, size: u64) {
        let page = off / PAGE_BYTES;
        let is_new = self.allocated.insert((node, page));
        let end = off + data.len;
        let grows = end > size;
        let mut inherent: Vec<usize> = self.made.get(&node).into_iter().copied().collect();
        inherent.extend(self.on_page.get(&(node, page)));
        if is_new {
            // New space is taken after the space before was given back.
            inherent.extend(self.last_call_on.get(&node));
        }
        let length = match self.rules.lengths {
            Lengths::WithSpace if grows && is_new => Some(self.grow(entry, node, end, &inherent)),
            Lengths::Apart | Lengths::WithSpace if grows => {
                let call = Call::SetSize { node, size: end };
                Some(self.call(entry, Change::Call(call), &[node], &[]))
            }
            Lengths::Apart | Lengths::WithSpace | Lengths::WithData => None,
        };
        let mut order = Vec::new();
        if self.rules.metadata == Metadata::OrderedWithData {
            order.extend(self.last_call);
        } else if is_new && length.is_none() {
            order.extend(self.last_growth.get(&node));
        }
        let change = match length {
            Some(_) => Change::Store { node, off, data },
            None => Change::Data { node, off, data },
        };
        let number = self.push(Effect {
            entry,
            change,
            inherent,
            order,
            reuses: Vec::new(),
            touches: vec![node],
            allocates: is_new,
        });
        self.on_page.insert((node, page), number);
        if is_new && length.is_none() {
            self.takes_space(node, number);
        }
        if self.rules.metadata == Metadata::OrderedWithData {
            self.last_call = Some(number);
        }
    }

    /// The new length of a file whose data take space in write-back. Calls after it do not wait for
    /// it, but it waits for those before.
    fn grow(&mut self, entry: usize, node: Node, size: u64, inherent: &[usize]) -> usize {
        let growth = self.last_growth.get(&node).into_iter();
        let order = growth.chain(&self.last_call).copied().collect();
        let number = self.push(Effect {
            entry,
            change: Change::Grow { node, size },
            inherent: inherent.to_vec(),
            order,
            reuses: Vec::new(),
            touches: vec![node],
            allocates: true,
        });
        self.takes_space(node, number);
        number
    }

    fn takes_space(&mut self, node: Node, number: usize) {
        self.last_growth.insert(node, number);
        self.growth.entry(node).or_default().push(number);
    }
}
