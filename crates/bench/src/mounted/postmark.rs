//! PostMark (J. Katcher, 1997): the life of a mail server's small files.
//!
//! The defaults of version 1.5: 500 files of 500 to 10,000 bytes in one directory, 500
//! transactions, each a read or an append and then a creation or a deletion (even odds),
//! through buffered streams, seed 42.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// The parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub files: u32,
    pub transactions: u32,
    pub min_bytes: usize,
    pub max_bytes: usize,
    /// Bytes of one read or write call on the stream.
    pub io_bytes: usize,
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            files: 500,
            transactions: 500,
            min_bytes: 500,
            max_bytes: 10_000,
            io_bytes: 512,
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

/// Runs the benchmark in `dir` and leaves it empty.
pub(crate) fn run(dir: &Path, config: &Config) -> io::Result<Tally> {
    let mut mail = Mail {
        dir,
        config,
        random: fastrand::Rng::with_seed(config.seed),
        text: vec![b'm'; config.max_bytes],
        files: Vec::new(),
        made: 0,
        tally: Tally::default(),
    };
    for _ in 0..config.files {
        mail.create()?;
    }
    for _ in 0..config.transactions {
        mail.transaction()?;
    }
    while !mail.files.is_empty() {
        mail.delete()?;
    }
    Ok(mail.tally)
}

struct Mail<'a> {
    dir: &'a Path,
    config: &'a Config,
    random: fastrand::Rng,
    text: Vec<u8>,
    files: Vec<(PathBuf, usize)>,
    made: u32,
    tally: Tally,
}

impl Mail<'_> {
    fn transaction(&mut self) -> io::Result<()> {
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

    fn create(&mut self) -> io::Result<()> {
        self.made += 1;
        let path = self.dir.join(self.made.to_string());
        let len = self
            .random
            .usize(self.config.min_bytes..=self.config.max_bytes);
        self.write(File::create_new(&path)?, len)?;
        self.files.push((path, len));
        self.tally.created += 1;
        Ok(())
    }

    fn delete(&mut self) -> io::Result<()> {
        let victim = self.random.usize(..self.files.len());
        let (path, _) = self.files.swap_remove(victim);
        self.tally.deleted += 1;
        fs::remove_file(path)
    }

    fn read(&mut self) -> io::Result<()> {
        let (path, _) = &self.files[self.random.usize(..self.files.len())];
        let mut stream = BufReader::with_capacity(4096, File::open(path)?);
        let mut buf = vec![0; self.config.io_bytes];
        while stream.read(&mut buf)? > 0 {}
        self.tally.read += 1;
        Ok(())
    }

    /// Grows a file, up to the largest size.
    fn append(&mut self) -> io::Result<()> {
        let chosen = self.random.usize(..self.files.len());
        let room = self.config.max_bytes - self.files[chosen].1;
        let len = self.random.usize(..=room);
        let file = OpenOptions::new()
            .append(true)
            .open(&self.files[chosen].0)?;
        self.write(file, len)?;
        self.files[chosen].1 += len;
        self.tally.appended += 1;
        Ok(())
    }

    fn write(&self, file: File, len: usize) -> io::Result<()> {
        let mut stream = BufWriter::with_capacity(4096, file);
        for chunk in self.text[..len].chunks(self.config.io_bytes) {
            stream.write_all(chunk)?;
        }
        stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postmark_runs_all_transactions_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::default();
        let tally = run(dir.path(), &config).unwrap();
        assert_eq!(tally.read + tally.appended, config.transactions);
        assert_eq!(tally.created, tally.deleted);
        assert!(tally.created > config.files && tally.read > 0 && tally.appended > 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(run(dir.path(), &config).unwrap(), tally);
    }

    #[test]
    fn survives_running_out_of_files() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            files: 0,
            transactions: 50,
            ..Config::default()
        };
        run(dir.path(), &config).unwrap();
    }
}
