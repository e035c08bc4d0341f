//! Several clients that read and write one block of one file, or of a file each (Figure 4.6).

use super::Row;
use crate::error::Result;
use crate::singles::clock_ns;
use crate::target::Made;
use crate::tree::Tree;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// The work of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Reader,
    Writer,
}

impl Role {
    /// The name of its rows.
    pub(super) fn op(self, mix: Mix, is_shared: bool) -> String {
        let what = match self {
            Self::Reader => "read",
            Self::Writer => "write",
        };
        let where_to = if is_shared { "one file" } else { "own files" };
        format!("{what}, {}, {where_to}", mix.name())
    }
}

/// Some clients at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mix {
    Readers,
    OneWriter,
    Writers,
}

impl Mix {
    pub(super) const ALL: [Self; 3] = [Self::Readers, Self::OneWriter, Self::Writers];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Readers => "readers",
            Self::OneWriter => "a writer and readers",
            Self::Writers => "writers",
        }
    }

    fn role(self, client: usize) -> Role {
        match (self, client) {
            (Self::Writers, _) | (Self::OneWriter, 0) => Role::Writer,
            _ => Role::Reader,
        }
    }
}

/// Nanoseconds of calls.
type Figures = (Role, Vec<f64>);

/// Times of this number of clients, in each mix, on one file and on a file each.
pub(super) fn measure(
    target: &str,
    made: &Made,
    clients: usize,
    time: Duration,
) -> Result<Vec<Row>> {
    let trees: Result<Vec<_>> = (0..clients).map(|_| made.client()).collect();
    let trees = trees?;
    let name = |n| CString::new(format!("block{clients}-{n}")).unwrap_or_default();
    let names: Vec<_> = (0..clients).map(name).collect();
    for name in &names {
        trees[0].create(name)?.write(0, &[0; BLOCK])?;
    }
    trees[0].sync()?;
    let mut rows = Vec::new();
    for mix in Mix::ALL {
        for is_shared in [false, true] {
            let figures = run(&trees, &names, mix, is_shared, time)?;
            for role in [Role::Reader, Role::Writer] {
                let some = figures.iter().filter(|(of, _)| *of == role);
                let (mut times, mut rate) = (Vec::new(), 0.0);
                for (_, one) in some {
                    let seconds = one.iter().sum::<f64>() / 1e9;
                    rate += one.len() as f64 / seconds.max(1e-9);
                    times.extend_from_slice(one);
                }
                if !times.is_empty() {
                    let op = role.op(mix, is_shared);
                    rows.push(Row::of(target, &op, [clients, 1], times, rate));
                }
            }
        }
    }
    Ok(rows)
}

fn run(
    trees: &[Arc<dyn Tree>],
    files: &[CString],
    mix: Mix,
    is_shared: bool,
    time: Duration,
) -> Result<Vec<Figures>> {
    let start = Barrier::new(trees.len());
    let start = &start;
    thread::scope(|scope| {
        let spawn = |(n, tree): (usize, &Arc<dyn Tree>)| {
            let tree = Arc::clone(tree);
            let file = &files[if is_shared { 0 } else { n }];
            let role = mix.role(n);
            scope.spawn(move || {
                start.wait();
                Ok((role, one(&*tree, file, role, time)?))
            })
        };
        let running: Vec<_> = trees.iter().enumerate().map(spawn).collect();
        let joined = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|e| std::panic::resume_unwind(e))
        });
        joined.collect()
    })
}

/// Nanoseconds of each call of a client that begins in this time.
fn one(tree: &dyn Tree, file: &CStr, role: Role, time: Duration) -> Result<Vec<f64>> {
    let clock_ns = clock_ns();
    let file = tree.open(file)?;
    let (buf, data) = (&mut [0; BLOCK], &[1; BLOCK]);
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    while last - begun < time {
        match role {
            Role::Reader => drop(file.read(0, buf)?),
            Role::Writer => file.write(0, data)?,
        }
        let now = Instant::now();
        times.push(((now - last).as_nanos() as f64 - clock_ns).max(0.0));
        last = now;
    }
    Ok(times)
}
