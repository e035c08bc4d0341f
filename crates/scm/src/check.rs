//! The checker of a store.
//!
//! Guarantees: nothing changes. Each finding names the invariant of `format.md`. Time and memory
//! are bounded by the bytes of the tables, whatever they are, and by the files of the directory.
//! [`Store::open`](crate::Store::open) refuses a store with a finding of S1 to S6.

use crate::error::{Finding, ScmError};
use crate::files::{Files, Place};
use crate::format::{Geometry, Key, PartitionRecord, Record, changes_off};
use crate::identity::{Identity, Rights};
use crate::intent::Intent;
use crate::records::Records;
use crate::table;
use medium::Pmem;

/// Most findings of a check.
pub const MOST_FINDINGS: usize = 1000;

/// Checks a store that is not open.
///
/// # Errors
/// The files or the memory cannot be read.
pub fn check(files: &impl Files) -> Result<Vec<Finding>, ScmError> {
    let geometry = match table::geometry(files.table()) {
        Ok(geometry) => geometry,
        Err(ScmError::Damaged(finding)) => return Ok(vec![finding]),
        Err(e) => return Err(e),
    };
    let (records, mut findings) = Records::load(files.table(), &geometry)?;
    findings.extend(relations(&records, &geometry));
    let intent = match Intent::load(files.table())? {
        Ok(intent) => intent.map(|(_, intent)| intent),
        Err(finding) => {
            findings.push(finding);
            None
        }
    };
    // Places that overlap or lie outside would make the rest wrong.
    if findings.is_empty() {
        let partitions: Vec<_> = partitions(&records).collect();
        let is_there = |intent: &Intent| {
            let mut all = partitions.iter();
            all.any(|(n, p)| *n == intent.partition && intent.run.is_within(p.pages))
        };
        findings.extend(
            intent
                .filter(|intent| !is_there(intent))
                .map(|intent| intent.no_such_run()),
        );
        for (number, partition) in partitions {
            let place = Place {
                number,
                first_page: partition.first_page,
                pages: partition.pages,
            };
            let checked = Checked {
                files,
                records: &records,
                place,
                name: &partition.name,
            };
            let change = intent.filter(|intent| intent.partition == number);
            checked.partition(change.as_ref(), &mut findings)?;
        }
    }
    findings.truncate(MOST_FINDINGS);
    Ok(findings)
}

fn partitions(records: &Records) -> impl Iterator<Item = (u32, &PartitionRecord)> {
    records
        .iter()
        .filter_map(|(key, record)| match (key, record) {
            (Key::Partition(number), Record::Partition(partition)) => Some((number, partition)),
            _ => None,
        })
}

/// The violations between records (S5).
pub(crate) fn relations(records: &Records, geometry: &Geometry) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut all: Vec<&PartitionRecord> = partitions(records).map(|(_, one)| one).collect();
    for one in &all {
        let end = one.first_page.checked_add(one.pages);
        if one.pages == 0 || end.is_none_or(|end| end > geometry.pages) {
            let what = format!("the partition {} is not inside the store", one.name);
            findings.push(Finding::new("S5", what));
        }
    }
    let mut two = |pair: &[&PartitionRecord], wrong: bool, how: &str| {
        if wrong {
            let what = format!("the partitions {} and {} {how}", pair[0].name, pair[1].name);
            findings.push(Finding::new("S5", what));
        }
    };
    all.sort_by_key(|one| one.first_page);
    for pair in all.windows(2) {
        let end = pair[0].first_page.saturating_add(pair[0].pages);
        two(pair, end > pair[1].first_page, "overlap");
    }
    all.sort_by_key(|one| &one.name);
    for pair in all.windows(2) {
        two(pair, pair[0].name == pair[1].name, "have the same name");
    }
    findings
}

/// A partition under check.
struct Checked<'a, F> {
    files: &'a F,
    records: &'a Records,
    place: Place,
    name: &'a str,
}

impl<F: Files> Checked<'_, F> {
    /// Checks identities (S7) and classes (S8). The pages of `change` may be in two places.
    fn partition(
        &self,
        change: Option<&Intent>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), ScmError> {
        let name = self.name;
        let identities = match self.files.identities(self.place) {
            Ok(identities) if identities.len() >= changes_off(self.place.pages) + 8 => identities,
            Ok(_) => {
                let what = format!("the identity table of {name} is too short");
                findings.push(Finding::new("S7", what));
                return Ok(());
            }
            Err(e) => {
                let what = format!("the identity table of {name} cannot be used: {e}");
                findings.push(Finding::new("S7", what));
                return Ok(());
            }
        };
        let runs = table::runs(&identities, self.place.all())?;
        for (run, identity) in &runs {
            if !self.is_possible(*identity) {
                let what = format!("page {} of {name} has the identity {identity}", run.first);
                findings.push(Finding::new("S7", what));
            }
        }
        for identity in self.files.classes(self.place)? {
            let class = self.place.class(identity);
            for foreign in table::foreign_runs(&runs, identity) {
                let Some(page) = self.files.contents(class, foreign)? else {
                    continue;
                };
                let changes =
                    |intent: &Intent| (intent.run.first..intent.run.end()).contains(&page);
                if !change.is_some_and(changes) {
                    let what = format!(
                        "page {page} of {name} has contents in the class {identity}; scrub it"
                    );
                    findings.push(Finding::new("S8", what));
                }
            }
        }
        Ok(())
    }

    fn is_possible(&self, identity: Identity) -> bool {
        let has_list = || self.records.get(Key::List(identity.group())).is_some();
        identity == Identity::FREE
            || identity.is_valid() && (identity.rights() == Rights::NONE || has_list())
    }
}
