//! Several clients, each in a directory of its own (Table 4.7), and batches of several sizes.

use super::Row;
use crate::error::Result;
use crate::singles::{cpu_seconds, timed};
use crate::target::Made;
use crate::workloads::Workload;
use crate::workloads::filebench::{Work, fill, slice};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Bytes of the small files that fill batches.
const SMALL: [u8; 4096] = [4; 4096];

/// Clients that run these workloads by turns.
pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) workloads: &'static [Workload],
}

/// The groups of Table 4.7.
pub(super) const GROUPS: [Group; 2] = [
    Group {
        name: "fileserver",
        workloads: &[Workload::FileServer],
    },
    Group {
        name: "fileserver+webproxy",
        workloads: &[Workload::FileServer, Workload::WebProxy],
    },
];

/// The row of a group.
pub(super) fn op(group: &str) -> String {
    format!("{group}, own directories")
}

/// Its row with the time of all CPUs for an operation, the service's included. It does not grow with the
/// number of clients if these wait for processors, and not for each other.
pub(super) fn cpu(group: &str) -> String {
    format!("{}, CPU", op(group))
}

/// Rates of this number of clients, unless the group needs more.
pub(super) fn measure(
    target: &str,
    made: &Made,
    group: &Group,
    clients: usize,
    (files, time): (usize, Duration),
) -> Result<Vec<Row>> {
    if clients < group.workloads.len() {
        return Ok(Vec::new());
    }
    let profiles = (0..clients).map(|n| group.workloads[n % group.workloads.len()]);
    let profiles: Vec<_> = profiles.filter_map(Workload::profile).collect();
    let (mut trees, mut sets) = (Vec::new(), Vec::new());
    for (n, profile) in profiles.iter().enumerate() {
        let prefix = format!("client{n}");
        let tree = made.client()?;
        let set = profile.file_set(&format!("{prefix}/"), Some(files));
        fill(&*tree, &set)?;
        trees.push(tree);
        sets.push(set);
    }
    let all = trees.iter().zip(&sets).zip(profiles);
    let work = all.map(|((tree, set), profile)| Work {
        tree: &**tree,
        set,
        profile,
    });
    let work: Vec<_> = work.collect();
    let begun = cpu_seconds();
    let done = slice(&work, time)?;
    trees.iter().try_for_each(|tree| tree.sync())?;
    let used_ns = (cpu_seconds() - begun) * 1e9;
    let operations = (done.rate * time.as_secs_f64()).max(1.0);
    Ok(vec![
        Row::of(target, &op(group.name), [clients, 1], done.times, done.rate),
        Row::cpu(target, &cpu(group.name), clients, used_ns / operations),
    ])
}

/// Times of creates with 4 KiB each, by a client whose batches have at most this size.
pub(super) fn batches(target: &str, made: &Made, batch_bytes: u64, files: usize) -> Result<Row> {
    let options = aerie_client::Options {
        batch_bytes,
        ..aerie_client::Options::of_environment()
    };
    let tree = made.client_with(&options)?;
    let name = |n| CString::new(format!("batch{batch_bytes}-{n}")).unwrap_or_default();
    let names: Vec<_> = (0..files).map(name).collect();
    let mut times = Vec::new();
    let begun = Instant::now();
    timed(&names, &mut times, |name| {
        tree.create(name)?.write(0, &SMALL)
    })?;
    tree.sync()?;
    let rate = files as f64 / begun.elapsed().as_secs_f64();
    let op = format!(
        "create and write 4 KiB, batches of {} KiB",
        batch_bytes >> 10
    );
    Ok(Row::of(target, &op, [1, 1], times, rate))
}
