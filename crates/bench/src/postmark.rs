//! PostMark (J. Katcher, 1997): the life of a mail server's small files.
//!
//! The defaults of version 1.5: 500 files of 500 to 10,000 bytes in one directory, 500
//! transactions, each a read or an append and then a creation or a deletion (even odds),
//! through buffered streams, seed 42.

use crate::error::Result;
use crate::tree::Tree;
use std::ffi::CString;
use std::time::Instant;

/// Bytes that the C library reads and writes at once.
const STREAM_BYTES: usize = 4096;

/// The parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub files: u32,
    pub transactions: u32,
    pub min_bytes: usize,
    pub max_bytes: usize,
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            files: 500,
            transactions: 500,
            min_bytes: 500,
            max_bytes: 10_000,
            seed: 42,
        }
    }
}

/// The work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub created: u32,
    pub deleted: u32,
    pub read: u32,
    pub appended: u32,
}

/// Runs the benchmark in the root of `tree`, and leaves it empty. Also returns the nanoseconds of
/// each transaction.
pub(crate) fn run(tree: &dyn Tree, config: &Config) -> Result<(Tally, Vec<f64>)> {
    let mut mail = Mail {
        tree,
        config,
        random: fastrand::Rng::with_seed(config.seed),
        files: Vec::new(),
        tally: Tally::default(),
    };
    (0..config.files).try_for_each(|_| mail.create())?;
    let mut times = Vec::with_capacity(config.transactions as usize);
    let mut last = Instant::now();
    for _ in 0..config.transactions {
        mail.transaction()?;
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64);
        last = now;
    }
    while !mail.files.is_empty() {
        mail.delete()?;
    }
    Ok((mail.tally, times))
}

struct Mail<'a> {
    tree: &'a dyn Tree,
    config: &'a Config,
    random: fastrand::Rng,
    /// Names and bytes.
    files: Vec<(CString, usize)>,
    tally: Tally,
}

impl Mail<'_> {
    fn transaction(&mut self) -> Result<()> {
        if !self.files.is_empty() {
            match self.random.bool() {
                true => self.read()?,
                false => self.append()?,
            }
        }
        match self.random.bool() || self.files.is_empty() {
            true => self.create(),
            false => self.delete(),
        }
    }

    fn create(&mut self) -> Result<()> {
        self.tally.created += 1;
        let name = CString::new(self.tally.created.to_string()).unwrap_or_default();
        let sizes = self.config.min_bytes..=self.config.max_bytes;
        let len = self.random.usize(sizes);
        let file = self.tree.create(&name)?;
        file.write_bytes(0, len, STREAM_BYTES)?;
        self.files.push((name, len));
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let victim = self.random.usize(..self.files.len());
        let (name, _) = self.files.swap_remove(victim);
        self.tally.deleted += 1;
        self.tree.unlink(&name)
    }

    fn read(&mut self) -> Result<()> {
        let (name, _) = &self.files[self.random.usize(..self.files.len())];
        self.tally.read += 1;
        self.tree.open(name)?.read_whole(&mut [0; STREAM_BYTES])
    }

    /// Grows a file, up to the largest size.
    fn append(&mut self) -> Result<()> {
        let chosen = self.random.usize(..self.files.len());
        let (name, size) = &mut self.files[chosen];
        let len = self.random.usize(..=self.config.max_bytes - *size);
        let file = self.tree.open(name)?;
        file.write_bytes(*size as u64, len, STREAM_BYTES)?;
        *size += len;
        self.tally.appended += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Directory, InProcess};
    use oracle::{ModelFs, Snapshot};
    use vfs::FileSystem;

    /// All transactions run, and no file is left, in a directory and in an engine.
    #[test]
    fn postmark_runs_all_transactions_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default();
        let (tally, times) = run(&Directory::open(dir.path()).unwrap(), &config).unwrap();
        assert_eq!(times.len(), config.transactions as usize);
        assert_eq!(tally.read + tally.appended, config.transactions);
        assert_eq!(tally.created, tally.deleted);
        assert!(tally.created > config.files && tally.read > 0 && tally.appended > 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

        let fs = ModelFs::default();
        let empty = Snapshot::take(&fs).unwrap().len();
        assert_eq!(run(&InProcess::new(&fs), &config).unwrap().0, tally);
        assert_eq!(Snapshot::take(&fs).unwrap().len(), empty);
        assert!(fs.audit().is_empty());
    }

    #[test]
    fn survives_running_out_of_files() {
        let config = Config {
            files: 0,
            transactions: 50,
            ..Config::default()
        };
        run(&InProcess::new(&ModelFs::default()), &config).unwrap();
    }
}
