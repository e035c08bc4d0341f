//! Several clients that read and write one block of one file, or of a file each (Figure 4.6). Beside them
//! threads do the same with blocks of memory alone: a processor that reads what another one has just written
//! waits for it, and no file system can be faster than that.

use super::Row;
use crate::error::{Context, Result};
use crate::singles::clock_ns;
use crate::target::Made;
use crate::tree::OpenFile;
use medium::{MemoryPmem, Pmem};
use std::ffi::CString;
use std::sync::Barrier;
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

/// The block of a client.
trait Block {
    fn load(&self, buf: &mut [u8]) -> Result<()>;
    fn store(&self, data: &[u8]) -> Result<()>;
}

impl Block for Box<dyn OpenFile + '_> {
    fn load(&self, buf: &mut [u8]) -> Result<()> {
        self.read(0, buf).map(drop)
    }

    fn store(&self, data: &[u8]) -> Result<()> {
        self.write(0, data)
    }
}

/// A block of memory, at an offset.
struct Bare<'a>(&'a MemoryPmem, u64);

impl Block for Bare<'_> {
    fn load(&self, buf: &mut [u8]) -> Result<()> {
        self.0.read(self.1, buf).what(|| "read of memory".into())
    }

    fn store(&self, data: &[u8]) -> Result<()> {
        self.0.store(self.1, data);
        Ok(())
    }
}

/// Opens the block of a client in the file with a number.
type Opens<'a> = dyn Fn(usize, usize) -> Result<Box<dyn Block + 'a>> + Sync + 'a;

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
    let open = |client: usize, file: usize| -> Result<Box<dyn Block + '_>> {
        Ok(Box::new(trees[client].open(&names[file])?))
    };
    in_each_mix(target, clients, &open, time)
}

/// The same, of threads that only copy to and from memory.
pub(super) fn measure_memory(target: &str, clients: usize, time: Duration) -> Result<Vec<Row>> {
    let memory = MemoryPmem::new((clients * BLOCK) as u64);
    let open = |_, file: usize| -> Result<Box<dyn Block + '_>> {
        Ok(Box::new(Bare(&memory, (file * BLOCK) as u64)))
    };
    in_each_mix(target, clients, &open, time)
}

fn in_each_mix(target: &str, clients: usize, open: &Opens<'_>, time: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mix in Mix::ALL {
        for is_shared in [false, true] {
            let figures = run(clients, open, mix, is_shared, time)?;
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
    clients: usize,
    open: &Opens<'_>,
    mix: Mix,
    is_shared: bool,
    time: Duration,
) -> Result<Vec<Figures>> {
    let start = Barrier::new(clients);
    let start = &start;
    thread::scope(|scope| {
        let spawn = |client: usize| {
            let file = if is_shared { 0 } else { client };
            let role = mix.role(client);
            scope.spawn(move || {
                start.wait();
                Ok((role, one(&*open(client, file)?, role, time)?))
            })
        };
        let running: Vec<_> = (0..clients).map(spawn).collect();
        let joined = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|e| std::panic::resume_unwind(e))
        });
        joined.collect()
    })
}

/// Nanoseconds of each call of a client that begins in this time.
fn one(block: &dyn Block, role: Role, time: Duration) -> Result<Vec<f64>> {
    let clock_ns = clock_ns();
    let (buf, data) = (&mut [0; BLOCK], &[1; BLOCK]);
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    while last - begun < time {
        match role {
            Role::Reader => block.load(buf)?,
            Role::Writer => block.store(data)?,
        }
        let now = Instant::now();
        times.push(((now - last).as_nanos() as f64 - clock_ns).max(0.0));
        last = now;
    }
    Ok(times)
}
