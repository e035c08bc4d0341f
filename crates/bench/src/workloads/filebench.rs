//! Workloads after Filebench's, with the parameters of Table 4 of the SoupFS paper.
//!
//! A thread repeats the steps of its workload, each on a random file that no other thread uses at
//! that moment.

use super::Slice;
use super::files::FileSet;
use crate::error::Result;
use crate::tree::{OpenFile, Tree};
use fastrand::Rng;
use std::ffi::CString;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of the largest append; all sizes up to it are equally frequent.
const APPEND: usize = 16 << 10;
/// Bytes of a log. A thread whose log is longer begins another one in its place.
const LOG: usize = 8 << 20;

/// A call on an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Write,
    Append,
    Read,
    Fsync,
}

/// The use of one file by a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Creates it, makes these calls, and closes it.
    Create(&'static [Call]),
    /// The same with a file that exists.
    Open(&'static [Call]),
    Delete,
    Stat,
    /// Appends to a log of the thread.
    Log,
}

use Call::{Append, Fsync, Read, Write};
use Step::{Create, Delete, Log, Open, Stat};

/// A workload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    /// Files, of which 80 % exist at first.
    files: usize,
    mean_bytes: usize,
    per_directory: Option<usize>,
    /// Bytes of the largest read or write.
    io_bytes: usize,
    steps: &'static [Step],
}

/// Files are made, appended to, read and deleted.
pub(super) const FILE_SERVER: Profile = Profile {
    files: 10_000,
    mean_bytes: 128 << 10,
    per_directory: Some(20),
    io_bytes: 1 << 20,
    steps: &[
        Create(&[Write]),
        Open(&[Append]),
        Open(&[Read]),
        Delete,
        Stat,
    ],
};

/// The same with small files.
pub(super) const FILE_SERVER_1K: Profile = Profile {
    mean_bytes: 1 << 10,
    ..FILE_SERVER
};

/// Objects are replaced and read.
pub(super) const WEB_PROXY: Profile = Profile {
    files: 10_000,
    mean_bytes: 16 << 10,
    per_directory: None,
    io_bytes: 16 << 10,
    steps: &[
        Delete,
        Create(&[Append]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
    ],
};

/// Pages are read, and each ten of them logged.
pub(super) const WEB_SERVER: Profile = Profile {
    files: 1_000,
    mean_bytes: 16 << 10,
    per_directory: Some(20),
    io_bytes: 1 << 20,
    steps: &[
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Open(&[Read]),
        Log,
    ],
};

/// Mails are deleted, delivered, answered and read.
pub(super) const VAR_MAIL: Profile = Profile {
    files: 5_000,
    mean_bytes: 16 << 10,
    per_directory: None,
    io_bytes: 1 << 20,
    steps: &[
        Delete,
        Create(&[Append, Fsync]),
        Open(&[Read, Append, Fsync]),
        Open(&[Read]),
    ],
};

impl Profile {
    /// The files, `files` instead of its own number if that is given, in directories whose names begin
    /// with `prefix`.
    pub(crate) fn file_set(&self, prefix: &str, files: Option<usize>) -> FileSet {
        let files = files.unwrap_or(self.files);
        FileSet::new(prefix, files, self.mean_bytes, self.per_directory)
    }

    /// Room for half as many files again, each with an append, its inode and its name.
    pub(crate) fn image_bytes(&self, files: Option<usize>) -> u64 {
        let each = (self.mean_bytes + APPEND).next_multiple_of(4096) as u64 + 4096;
        let logs = match self.steps.contains(&Log) {
            true => 16 * LOG as u64,
            false => 0,
        };
        (32 << 20) + logs + files.unwrap_or(self.files) as u64 * each * 3 / 2
    }

    /// Operations of one pass through the steps, as Filebench counts them: an open and a close are
    /// one each, and so is a whole file that is read or written.
    fn operations(&self) -> usize {
        let each = self.steps.iter().map(|step| match step {
            Create(calls) | Open(calls) => 2 + calls.len(),
            Log => 3,
            Delete | Stat => 1,
        });
        each.sum()
    }
}

/// Makes the files that exist at first.
pub(crate) fn fill(tree: &dyn Tree, set: &FileSet) -> Result<()> {
    for dir in set.directories() {
        tree.mkdir(&dir)?;
    }
    for n in set.present.numbers().iter() {
        let entry = &set.entries[*n];
        let file = tree.create(&entry.path)?;
        file.write_bytes(0, entry.bytes, 1 << 20)?;
    }
    tree.sync()
}

/// The work of a thread.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) tree: &'a dyn Tree,
    pub(crate) set: &'a FileSet,
    pub(crate) profile: &'a Profile,
}

/// Runs these threads at once, for this long.
pub(crate) fn slice(threads: &[Work<'_>], time: Duration) -> Result<Slice> {
    let start = Barrier::new(threads.len());
    let work = |n: usize, work: Work<'_>| {
        let mut worker = Worker {
            work,
            log: log_of(n),
            logged: LOG,
            random: Rng::with_seed(n as u64),
            buf: vec![0; work.profile.io_bytes],
        };
        start.wait();
        worker.run(time)
    };
    let done = thread::scope(|scope| {
        let work = &work;
        let all = threads.iter().copied().enumerate();
        let running = all.map(|(n, one)| scope.spawn(move || work(n, one)));
        let running: Vec<_> = running.collect();
        let joined = running.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|e| std::panic::resume_unwind(e))
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let mut slice = Slice::default();
    for (times, work) in done.into_iter().zip(threads) {
        let seconds = times.iter().sum::<f64>() / 1e9;
        let operations = times.len() * work.profile.operations();
        slice.rate += operations as f64 / seconds.max(1e-9);
        slice.times.extend(times);
    }
    Ok(slice)
}

/// The log of a thread.
fn log_of(n: usize) -> CString {
    CString::new(format!("log{n}")).unwrap_or_default()
}

/// A thread.
struct Worker<'a> {
    work: Work<'a>,
    log: CString,
    /// Bytes in the log.
    logged: usize,
    random: Rng,
    buf: Vec<u8>,
}

impl Worker<'_> {
    /// Nanoseconds of each pass through the steps that begins in this time.
    fn run(&mut self, time: Duration) -> Result<Vec<f64>> {
        let steps = self.work.profile.steps;
        let mut passes = Vec::new();
        let begun = Instant::now();
        let mut last = begun;
        while last - begun < time {
            steps.iter().try_for_each(|step| self.step(*step))?;
            let now = Instant::now();
            passes.push((now - last).as_nanos() as f64);
            last = now;
        }
        Ok(passes)
    }

    fn step(&mut self, step: Step) -> Result<()> {
        let Work { tree, set, .. } = self.work;
        let (from, to) = match step {
            Create(_) => (&set.absent, &set.present),
            Open(_) | Stat => (&set.present, &set.present),
            Delete => (&set.present, &set.absent),
            Log => return self.append_to_log(),
        };
        let n = from.take(&mut self.random)?;
        let entry = &set.entries[n];
        match step {
            Create(calls) => self.calls(tree.create(&entry.path)?, calls, entry.bytes)?,
            Open(calls) => self.calls(tree.open(&entry.path)?, calls, entry.bytes)?,
            Delete => tree.unlink(&entry.path)?,
            Stat => tree.stat(&entry.path)?,
            Log => {}
        }
        to.put(n);
        Ok(())
    }

    fn append_to_log(&mut self) -> Result<()> {
        let tree = self.work.tree;
        let bytes = self.random.usize(1..=APPEND);
        let file = match self.logged < LOG {
            true => tree.open(&self.log)?,
            false => {
                self.logged = 0;
                // The first log has no predecessor.
                let _ = tree.unlink(&self.log);
                tree.create(&self.log)?
            }
        };
        self.logged += bytes;
        file.append(bytes)
    }

    fn calls(&mut self, file: Box<dyn OpenFile + '_>, calls: &[Call], bytes: usize) -> Result<()> {
        let io_bytes = self.work.profile.io_bytes;
        calls.iter().try_for_each(|call| match call {
            Write => file.write_bytes(0, bytes, io_bytes),
            Append => file.append(self.random.usize(1..=APPEND)),
            Read => file.read_whole(&mut self.buf),
            Fsync => file.fsync(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::InProcess;
    use oracle::ModelFs;

    const ALL: [Profile; 5] = [FILE_SERVER, FILE_SERVER_1K, WEB_PROXY, VAR_MAIL, WEB_SERVER];

    /// Table 4 of the paper: reads of files to writes.
    #[test]
    fn workloads_have_the_published_ratios_of_reads_to_writes() {
        let ratios = ALL.map(|profile| {
            let steps = profile.steps.iter();
            let calls = steps.flat_map(|step| match step {
                Create(calls) | Open(calls) => *calls,
                Delete | Stat | Log => &[],
            });
            let count = |kinds: &[Call]| calls.clone().filter(|call| kinds.contains(call)).count();
            (count(&[Read]), count(&[Write, Append]))
        });
        assert_eq!(ratios, [(1, 2), (1, 2), (5, 1), (2, 2), (10, 0)]);
        // 13 flow operations of Filebench's varmail, 11 of fileserver, 19 of webproxy. Its webserver has
        // 31, as the log stays open.
        assert_eq!(ALL.map(|p| p.operations()), [11, 11, 19, 13, 33]);
    }

    /// After a run by several threads, exactly the files of the set exist.
    #[test]
    fn the_files_are_those_of_the_set() {
        for profile in ALL {
            let tree = InProcess::new(Box::new(ModelFs::default()));
            let set = profile.file_set("", Some(50));
            fill(&tree, &set).unwrap();
            let work = Work {
                tree: &tree,
                set: &set,
                profile: &profile,
            };
            let slice = slice(&[work; 2], Duration::from_millis(10)).unwrap();
            assert!(slice.rate > 0.0 && slice.times.len() >= 2);
            let present = set.present.numbers();
            assert_eq!(present.len(), 40);
            for (n, entry) in set.entries.iter().enumerate() {
                assert_eq!(tree.stat(&entry.path).is_ok(), present.contains(&n), "{n}");
            }
        }
    }
}
