//! The groups of scripts: the rules of patchgroups, and the order that they demand.

use super::{Op, Script};
use std::collections::{BTreeMap, BTreeSet};
use vfs::{Errno, Result};

/// The groups of a running script. A script is one process that makes all groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Table(BTreeMap<String, Group>);

#[derive(Debug, Clone, Default)]
struct Group {
    /// Another group depends on it.
    sealed: bool,
    engaged: bool,
    /// It was engaged at some time.
    used: bool,
}

impl Table {
    /// Applies a call on a group.
    ///
    /// # Errors
    /// `EEXIST`: the name is in use. `EBADF`: it names no group. `EINVAL`: a group is sealed, or
    /// depends on itself. `EBUSY`: a group is engaged, or was engaged before it depends.
    pub(super) fn apply(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Group { name } if self.0.contains_key(name) => return Err(Errno::EXIST),
            Op::Group { name } => {
                self.0.insert(name.clone(), Group::default());
            }
            Op::Depend { later, earlier } => self.depend(later, earlier)?,
            Op::Engage { name } => {
                let group = self.get(name)?;
                if group.sealed {
                    return Err(Errno::INVAL);
                }
                (group.engaged, group.used) = (true, true);
            }
            Op::Disengage { name } => self.get(name)?.engaged = false,
            Op::SyncGroup { name } => drop(self.get(name)?),
            Op::CloseGroup { name } => {
                self.get(name)?;
                self.0.remove(name);
            }
            _ => {}
        }
        Ok(())
    }

    fn get(&mut self, name: &str) -> Result<&mut Group> {
        self.0.get_mut(name).ok_or(Errno::BADF)
    }

    fn depend(&mut self, later: &str, earlier: &str) -> Result<()> {
        let is_engaged = self.get(earlier)?.engaged;
        let after = self.get(later)?;
        if later == earlier || after.sealed {
            return Err(Errno::INVAL);
        }
        if is_engaged || after.used {
            return Err(Errno::BUSY);
        }
        self.get(earlier)?.sealed = true;
        Ok(())
    }

    /// The names of the engaged groups.
    pub(super) fn engaged(&self) -> impl Iterator<Item = &String> {
        let engaged = self.0.iter().filter(|(_, group)| group.engaged);
        engaged.map(|(name, _)| name)
    }
}

/// The operations of a group so far, and those for which its later ones wait.
#[derive(Debug, Clone, Default)]
struct Members {
    ops: BTreeSet<usize>,
    befores: BTreeSet<usize>,
}

/// The order that the groups of a script demand between its operations, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    befores: Vec<BTreeSet<usize>>,
    synced: Vec<BTreeSet<usize>>,
}

impl Order {
    /// The order of a script. `None`: it has neither groups nor barriers.
    pub fn of(script: &Script) -> Option<Self> {
        let named = script.ops.iter().any(Op::is_of_groups);
        if !named && !script.ops.contains(&Op::Barrier) {
            return None;
        }
        let mut order = Self::default();
        let (mut table, mut members) = (Table::default(), BTreeMap::new());
        if !named {
            // The whole script is one group.
            let name = String::new();
            let all = Op::Group { name: name.clone() };
            let _ = table.apply(&all);
            let _ = table.apply(&Op::Engage { name });
        }
        for (number, op) in script.ops.iter().enumerate() {
            order.befores.push(BTreeSet::new());
            order.synced.push(BTreeSet::new());
            if table.apply(op).is_ok() {
                let engaged: Vec<String> = table.engaged().cloned().collect();
                order.add(number, op, &engaged, &mut members);
            }
        }
        Some(order)
    }

    fn add(
        &mut self,
        number: usize,
        op: &Op,
        engaged: &[String],
        members: &mut BTreeMap<String, Members>,
    ) {
        match op {
            Op::Depend { later, earlier } => {
                let earlier = members.entry(earlier.clone()).or_default().clone();
                let later = members.entry(later.clone()).or_default();
                later.befores.extend(earlier.befores);
                later.befores.extend(earlier.ops);
            }
            Op::Barrier => {
                for group in engaged {
                    let Members { ops, befores } = members.entry(group.clone()).or_default();
                    befores.extend(ops.iter());
                }
            }
            Op::SyncGroup { name } => {
                let group = members.entry(name.clone()).or_default().clone();
                let ops = group.ops.union(&group.befores).copied();
                self.synced[number] = self.closure(ops);
            }
            Op::Group { name } | Op::CloseGroup { name } => drop(members.remove(name)),
            Op::Engage { .. } | Op::Disengage { .. } => {}
            _ => {
                let mut befores = BTreeSet::new();
                for group in engaged {
                    let group = members.entry(group.clone()).or_default();
                    group.ops.insert(number);
                    befores.extend(group.befores.iter());
                }
                self.befores[number] = self.closure(befores);
            }
        }
    }

    /// Operations and all for which they wait. Earlier operations have all of theirs.
    fn closure(&self, ops: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        let mut all = BTreeSet::new();
        for op in ops {
            all.insert(op);
            all.extend(&self.befores[op]);
        }
        all
    }

    /// The operations whose changes are durable before any change of this one.
    pub fn befores(&self, op: usize) -> &BTreeSet<usize> {
        &self.befores[op]
    }

    /// The operations that this one, a `pgsync`, makes durable.
    pub fn synced(&self, op: usize) -> &BTreeSet<usize> {
        &self.synced[op]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelFs;
    use crate::script::{State, run};

    fn order(script: &str) -> Order {
        Order::of(&script.parse().expect("a script")).expect("it has groups")
    }

    fn befores(script: &str, op: usize) -> Vec<usize> {
        order(script).befores(op).iter().copied().collect()
    }

    #[test]
    fn a_chain_of_groups_waits_for_all_before_it() {
        let script = "group a\ngroup b\ngroup c\nengage a\ncreate f 644\ndisengage a\ndepend b a\n\
                      depend c b\nengage c\ncreate g 644\ncreate h 644\n";
        assert_eq!(befores(script, 9), [4]);
        assert_eq!(befores(script, 10), [4]);
        assert_eq!(befores(script, 4), []);
    }

    #[test]
    fn an_operation_of_two_groups_waits_for_the_befores_of_both() {
        let script = "group a\ngroup b\ngroup c\ngroup d\nengage a\ncreate f 644\ndisengage a\n\
                      engage b\ncreate g 644\ndisengage b\ndepend c a\ndepend d b\nengage c\n\
                      engage d\ncreate h 644\ndisengage c\ncreate i 644\npgsync d\n";
        assert_eq!(befores(script, 14), [5, 8]);
        assert_eq!(befores(script, 16), [8]);
        let synced = order(script).synced(17).clone();
        assert_eq!(synced, BTreeSet::from([5, 8, 14, 16]));
    }

    #[test]
    fn a_barrier_without_groups_orders_the_whole_script() {
        let script = "create f 644\nbarrier\ncreate g 644\nbarrier\ncreate h 644\n";
        assert_eq!(befores(script, 2), [0]);
        assert_eq!(befores(script, 4), [0, 2]);
    }

    #[test]
    fn a_closed_group_leaves_its_order() {
        let script = "group a\ngroup b\nengage a\ncreate f 644\ndisengage a\ndepend b a\n\
                      pgclose a\nengage b\ncreate g 644\ngroup a\nengage a\ncreate h 644\n";
        assert_eq!(befores(script, 8), [3]);
        assert_eq!(befores(script, 11), [3], "b is still engaged");
    }

    #[test]
    fn scripts_keep_the_rules_of_patchgroups() {
        let script = "group a\ngroup a\ngroup b\nengage a\ndepend b a\ndisengage a\ndepend b a\n\
                      engage a\ndepend a b\ndepend b b\nengage b\ndepend b a\nengage x\n\
                      pgclose b\npgsync b\n";
        let script: Script = script.parse().expect("a script");
        let results = run(&ModelFs::default(), &mut State::default(), &script);
        let codes = results.into_iter().map(|result| result.err());
        let expected = [
            None,
            Some(Errno::EXIST),
            None,
            None,
            Some(Errno::BUSY),
            None,
            None,
            Some(Errno::INVAL),
            Some(Errno::INVAL),
            Some(Errno::INVAL),
            None,
            Some(Errno::BUSY),
            Some(Errno::BADF),
            None,
            Some(Errno::BADF),
        ];
        assert_eq!(codes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn calls_on_groups_are_read_as_they_are_printed() {
        let text = "group a\ngroup b\ndepend b a\nengage b\ndisengage b\npgsync b\npgclose b\n";
        let script: Script = text.parse().expect("a script");
        assert_eq!(script.to_string(), text);
    }

    #[test]
    fn a_script_without_groups_or_barriers_has_no_order() {
        let script: Script = "create f 644\nsync\n".parse().expect("a script");
        assert_eq!(Order::of(&script), None);
    }
}
