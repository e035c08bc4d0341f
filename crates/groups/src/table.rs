//! The groups of a mount, their rules, and the processes engaged in them.
//!
//! # Guarantees
//! - **T1** *Befores first.* A group gets its befores before any process has engaged it. It is
//!   sealed once another group depends on it, and nobody engages it afterwards. So its changes
//!   are complete when another group begins to wait for them.
//! - **T2** *Inheritance.* A process has what its parent had when it was made. A process gets an
//!   entry at its first call, from its nearest ancestor that has one. So before an entry changes,
//!   the present descendants of its process get the old one. A process whose parent has ended
//!   before that first call has another parent then, and inherits from that one.
//! - **T3** *Owners.* The owner of a group is the user who made it. Only processes of the owner
//!   name the group in calls. Changes of other users join it only if the owner is root.
//! - **T4** *Ends.* A group without descriptors is removed, with all engagements in it.

use crate::gate::{Gate, Inside};
use crate::processes::{Process, Processes};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;
use vfs::{ChangeOrder, Ctx, Errno, Result, SetId, Sets};

/// Most groups of one user.
const MOST_GROUPS: usize = 4096;

/// Number of known processes at which those that have ended are dropped.
const FIRST_LIMIT: usize = 256;

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    number: u64,
    set: SetId,
    /// The user who made it, and that user's group.
    owner: u32,
    owner_group: u32,
    made_by: u32,
    made: Instant,
    /// The calls of engaged processes that are under way. Sealed once another group depends on
    /// this one.
    gate: Gate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a process has engaged it.
    was_engaged: bool,
    /// Whether requests of durability are barriers.
    is_order: bool,
    /// The groups for which this one waits, by number.
    befores: Vec<u64>,
}

/// The groups that a process has engaged.
pub(crate) type Engaged = Arc<Vec<Arc<Group>>>;

/// A group as users see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupInfo {
    /// Number of the group. Its file has this inode number, with bit 62 set.
    pub group: u64,
    /// The user who made it.
    pub uid: u32,
    /// The process that made it.
    pub pid: u32,
    /// Seconds since then.
    pub age_seconds: f64,
    /// Whether another group depends on it.
    pub sealed: bool,
    /// Whether requests of durability are barriers.
    pub order: bool,
    /// The groups for which it waits.
    pub after: Vec<u64>,
    /// The processes that have engaged it.
    pub engaged: Vec<u32>,
    /// Changes that are not durable: patches, in an engine on blocks.
    pub pending: usize,
}

#[derive(Default)]
struct Tables {
    groups: BTreeMap<u64, Arc<Group>>,
    last: u64,
    processes: HashMap<Process, Engaged>,
    limit: usize,
}

/// The groups of a mount, and the groups that each process has engaged.
pub(crate) struct Table<P> {
    /// Number of groups.
    groups: AtomicUsize,
    tables: Mutex<Tables>,
    /// Held by calls that change what groups wait for and who has engaged them.
    rules: Mutex<()>,
    processes: P,
}

impl<P: Processes> Table<P> {
    pub(crate) fn new(processes: P) -> Self {
        Self {
            groups: AtomicUsize::new(0),
            tables: Mutex::new(Tables {
                limit: FIRST_LIMIT,
                ..Tables::default()
            }),
            rules: Mutex::default(),
            processes,
        }
    }

    /// Makes a group with this number.
    pub(crate) fn create(&self, cx: &Ctx, order: &dyn ChangeOrder) -> Result<u64> {
        let mut tables = self.tables.lock();
        let own = tables.groups.values().filter(|group| group.owner == cx.uid);
        if own.count() >= MOST_GROUPS {
            return Err(Errno::NFILE);
        }
        tables.last += 1;
        let number = tables.last;
        let group = Group {
            number,
            set: order.create(),
            owner: cx.uid,
            owner_group: cx.gid,
            made_by: cx.pid,
            made: Instant::now(),
            gate: Gate::default(),
            state: Mutex::default(),
        };
        tables.groups.insert(number, Arc::new(group));
        self.groups.store(tables.groups.len(), SeqCst);
        Ok(number)
    }

    /// Removes a group (T4).
    pub(crate) fn remove(&self, number: u64, order: &dyn ChangeOrder) {
        let mut tables = self.tables.lock();
        let Some(group) = tables.groups.remove(&number) else {
            return;
        };
        self.groups.store(tables.groups.len(), SeqCst);
        for engaged in tables.processes.values_mut() {
            if engaged.iter().any(|other| Arc::ptr_eq(other, &group)) {
                let left = engaged.iter().filter(|other| !Arc::ptr_eq(other, &group));
                *engaged = Arc::new(left.cloned().collect());
            }
        }
        drop(tables);
        group.gate.seal();
        order.remove(group.set);
    }

    /// The user who made a group, and that user's group.
    pub(crate) fn owner(&self, number: u64) -> Option<(u32, u32)> {
        let tables = self.tables.lock();
        let group = tables.groups.get(&number)?;
        Some((group.owner, group.owner_group))
    }

    /// A group that the caller may name (T3).
    fn named(&self, cx: &Ctx, number: u64) -> Result<Arc<Group>> {
        let tables = self.tables.lock();
        let group = tables.groups.get(&number).ok_or(Errno::BADF)?;
        match group.owner == cx.uid {
            true => Ok(group.clone()),
            false => Err(Errno::PERM),
        }
    }

    // --- calls ----------------------------------------------------------------------

    /// Makes `after` wait for `before`, and seals `before` (T1).
    pub(crate) fn depend(
        &self,
        cx: &Ctx,
        (after, before): (u64, u64),
        order: &dyn ChangeOrder,
    ) -> Result<()> {
        if after == before {
            return Err(Errno::INVAL);
        }
        let (after, before) = (self.named(cx, after)?, self.named(cx, before)?);
        let _alone = self.rules.lock();
        if self.is_engaged(&before) {
            return Err(Errno::BUSY);
        }
        let mut state = after.state.lock();
        if after.gate.is_sealed() {
            return Err(Errno::INVAL);
        }
        if state.was_engaged {
            return Err(Errno::BUSY);
        }
        before.gate.seal();
        order.depend(after.set, before.set);
        if !state.befores.contains(&before.number) {
            state.befores.push(before.number);
        }
        Ok(())
    }

    pub(crate) fn engage(&self, cx: &Ctx, number: u64) -> Result<()> {
        let group = self.named(cx, number)?;
        let process = self.caller(cx)?;
        let _alone = self.rules.lock();
        if group.gate.is_sealed() {
            return Err(Errno::INVAL);
        }
        group.state.lock().was_engaged = true;
        self.change_engaged(process, |engaged| {
            if !engaged.iter().any(|other| Arc::ptr_eq(other, &group)) {
                engaged.push(group.clone());
            }
        });
        Ok(())
    }

    pub(crate) fn disengage(&self, cx: &Ctx, number: u64) -> Result<()> {
        let group = self.named(cx, number)?;
        let process = self.caller(cx)?;
        self.change_engaged(process, |engaged| {
            engaged.retain(|other| !Arc::ptr_eq(other, &group));
        });
        Ok(())
    }

    pub(crate) fn sync(&self, cx: &Ctx, number: u64, order: &dyn ChangeOrder) -> Result<()> {
        let group = self.named(cx, number)?;
        order.sync(group.set)
    }

    pub(crate) fn barrier(&self, cx: &Ctx, number: u64, order: &dyn ChangeOrder) -> Result<()> {
        let group = self.named(cx, number)?;
        match group.gate.is_sealed() {
            true => Err(Errno::INVAL),
            false => order.barrier(group.set),
        }
    }

    /// Makes requests of durability barriers.
    pub(crate) fn order(&self, cx: &Ctx, number: u64) -> Result<()> {
        let group = self.named(cx, number)?;
        let _alone = self.rules.lock();
        let mut state = group.state.lock();
        if state.was_engaged {
            return Err(Errno::BUSY);
        }
        state.is_order = true;
        Ok(())
    }

    /// The groups, by number.
    pub(crate) fn list(&self, order: &dyn ChangeOrder) -> Vec<GroupInfo> {
        let groups: Vec<_> = self.tables.lock().groups.values().cloned().collect();
        let about = |group: Arc<Group>| {
            let state = group.state.lock();
            GroupInfo {
                group: group.number,
                uid: group.owner,
                pid: group.made_by,
                age_seconds: group.made.elapsed().as_secs_f64(),
                sealed: group.gate.is_sealed(),
                order: state.is_order,
                after: state.befores.clone(),
                engaged: self.engaged_in(&group).iter().map(|p| p.pid).collect(),
                pending: order.pending(group.set),
            }
        };
        groups.into_iter().map(about).collect()
    }

    // --- processes ------------------------------------------------------------------

    /// Whether no group exists, so that no call needs its process.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.load(SeqCst) == 0
    }

    /// All groups.
    pub(crate) fn all(&self) -> Engaged {
        Arc::new(self.tables.lock().groups.values().cloned().collect())
    }

    /// The process of a call that needs one.
    fn caller(&self, cx: &Ctx) -> Result<Process> {
        self.processes.of_thread(cx.pid)
    }

    /// The groups that a process has engaged (T2).
    pub(crate) fn engaged(&self, process: Process) -> Engaged {
        self.engaged_of(&mut self.tables.lock(), process)
    }

    /// The groups of a process, which it gets from its nearest known ancestor if it is unknown.
    fn engaged_of(&self, tables: &mut Tables, process: Process) -> Engaged {
        let mut new = Vec::new();
        let mut at = Some(process);
        let mut found = Engaged::default();
        while let Some(it) = at {
            if let Some(engaged) = tables.processes.get(&it) {
                found = engaged.clone();
                break;
            }
            new.push(it);
            at = self.processes.parent(it).unwrap_or_default();
        }
        for it in new {
            tables.processes.insert(it, found.clone());
        }
        self.prune(tables);
        found
    }

    /// Changes the groups of a process. Its descendants keep what they have.
    fn change_engaged(&self, process: Process, change: impl FnOnce(&mut Vec<Arc<Group>>)) {
        let mut tables = self.tables.lock();
        let old = self.engaged_of(&mut tables, process);
        let mut ancestors = vec![process];
        while let Some(parent) = ancestors.pop() {
            for child in self.processes.children(parent).unwrap_or_default() {
                if let Entry::Vacant(unknown) = tables.processes.entry(child) {
                    unknown.insert(old.clone());
                    ancestors.push(child);
                }
            }
        }
        let mut new = old.to_vec();
        change(&mut new);
        tables.processes.insert(process, Arc::new(new));
    }

    /// The processes that have engaged a group, and run.
    fn engaged_in(&self, group: &Arc<Group>) -> Vec<Process> {
        let tables = self.tables.lock();
        let has = |engaged: &Engaged| engaged.iter().any(|other| Arc::ptr_eq(other, group));
        let engaged = tables.processes.iter().filter(|(_, engaged)| has(engaged));
        let mut found: Vec<Process> = engaged.map(|(process, _)| *process).collect();
        drop(tables);
        found.retain(|process| self.processes.is_alive(*process));
        found.sort_unstable();
        found
    }

    fn is_engaged(&self, group: &Arc<Group>) -> bool {
        !self.engaged_in(group).is_empty()
    }

    fn prune(&self, tables: &mut Tables) {
        if tables.processes.len() > tables.limit {
            let is_alive = |process: &Process, _: &mut _| self.processes.is_alive(*process);
            tables.processes.retain(is_alive);
            tables.limit = (2 * tables.processes.len()).max(FIRST_LIMIT);
        }
    }
}

/// The groups that a call joins, which stay open while it runs.
pub(crate) struct Joined<'a> {
    groups: Vec<&'a Arc<Group>>,
    _inside: Vec<Inside<'a>>,
}

impl<'a> Joined<'a> {
    /// The open groups among these that changes of this user join (T3).
    pub(crate) fn new(engaged: &'a Engaged, cx: &Ctx) -> Self {
        let mut joined = Self {
            groups: Vec::new(),
            _inside: Vec::new(),
        };
        let may_join = |group: &&Arc<Group>| cx.is_write_back || [0, cx.uid].contains(&group.owner);
        for group in engaged.iter().filter(may_join) {
            if let Some(inside) = group.gate.enter() {
                joined.groups.push(group);
                joined._inside.push(inside);
            }
        }
        joined
    }

    /// Their sets, and `further`.
    pub(crate) fn sets(&self, further: Option<SetId>) -> Sets {
        if self.groups.is_empty() && further.is_none() {
            return Sets::NONE;
        }
        Sets::new(self.groups.iter().map(|group| group.set).chain(further))
    }

    /// The sets in which a request of durability is a barrier, and `further`.
    pub(crate) fn orders(&self, further: Option<SetId>) -> Vec<SetId> {
        let is_order = |group: &&&Arc<Group>| group.state.lock().is_order;
        let orders = self.groups.iter().filter(is_order);
        orders.map(|group| group.set).chain(further).collect()
    }
}
