//! The stores that durable memory is measured against: a C program for each, in
//! `tools/peers`, built when it is needed.
//!
//! Guarantee: a store that cannot be built is reported with the packages to install; it has no
//! rows.

use super::work::{Found, Load};
use crate::detached;
use crate::error::{Context, Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const DRIVER: &str = include_str!("../../../../tools/peers/driver.h");

/// A program, and the library that it is built with.
#[derive(Debug)]
struct Program {
    name: &'static str,
    source: &'static str,
    header: &'static str,
    library: &'static str,
    /// Debian's package with the header.
    package: &'static str,
}

macro_rules! program {
    ($name:literal, $header:literal, $library:literal, $package:literal) => {
        Program {
            name: $name,
            source: include_str!(concat!("../../../../tools/peers/", $name, ".c")),
            header: $header,
            library: $library,
            package: $package,
        }
    };
}

static PROGRAMS: [Program; 6] = [
    program!("pmemobj", "libpmemobj.h", "pmemobj", "libpmemobj-dev"),
    program!("db", "db.h", "db-5.3", "libdb5.3-dev"),
    program!(
        "tokyocabinet",
        "tcbdb.h",
        "tokyocabinet",
        "libtokyocabinet-dev"
    ),
    program!("lmdb", "lmdb.h", "lmdb", "liblmdb-dev"),
    program!("sqlite", "sqlite3.h", "sqlite3", "libsqlite3-dev"),
    program!("rocksdb", "rocksdb/c.h", "rocksdb", "librocksdb-dev"),
];

/// A store with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its name in rows.
    pub name: &'static str,
    program: &'static str,
    is_durable: bool,
    /// Whether its files are in the directory on the disk.
    pub on_disk: bool,
    /// Its settings, for the notes.
    pub setting: &'static str,
}

impl Peer {
    const fn new(
        name: &'static str,
        program: &'static str,
        is_durable: bool,
        setting: &'static str,
    ) -> Self {
        Self {
            name,
            program,
            is_durable,
            on_disk: false,
            setting,
        }
    }
}

pub(super) const PMEMOBJ: &str = "libpmemobj";
pub(super) const BERKELEY_RELAXED: &str = "Berkeley DB, no fsync";
pub(super) const BERKELEY_ON_DISK: &str = "Berkeley DB, on disk";

const TOKYO: &str = "B+ tree, an msync for each call (tcbdbsync)";
const BERKELEY: &str = "hash table, a transaction and an fsync of the log for each call";

pub(super) const PEERS: [Peer; 13] = [
    Peer::new(
        PMEMOBJ,
        "pmemobj",
        true,
        "a hash table like ours in its transactions, PMEM_IS_PMEM_FORCE=1",
    ),
    Peer::new("Berkeley DB", "db", true, BERKELEY),
    Peer::new(
        BERKELEY_RELAXED,
        "db",
        false,
        "the same with DB_TXN_WRITE_NOSYNC",
    ),
    Peer {
        on_disk: true,
        ..Peer::new(BERKELEY_ON_DISK, "db", true, BERKELEY)
    },
    Peer::new("Tokyo Cabinet", "tokyocabinet", true, TOKYO),
    Peer::new(
        "Tokyo Cabinet, no msync",
        "tokyocabinet",
        false,
        "B+ tree, in its own cache until it is closed",
    ),
    Peer {
        on_disk: true,
        ..Peer::new("Tokyo Cabinet, on disk", "tokyocabinet", true, TOKYO)
    },
    Peer::new("LMDB", "lmdb", true, "a synced transaction for each call"),
    Peer::new("LMDB, no fsync", "lmdb", false, "the same with MDB_NOSYNC"),
    Peer::new(
        "SQLite",
        "sqlite",
        true,
        "write-ahead log, synchronous=FULL",
    ),
    Peer::new(
        "SQLite, no fsync",
        "sqlite",
        false,
        "write-ahead log, synchronous=OFF",
    ),
    Peer::new("RocksDB", "rocksdb", true, "write-ahead log, sync=true"),
    Peer::new(
        "RocksDB, no fsync",
        "rocksdb",
        false,
        "write-ahead log, sync=false",
    ),
];

/// The programs that could be built.
pub(super) struct Peers {
    /// Keeps the directory of the programs.
    dir: tempfile::TempDir,
    /// The stores whose programs were built.
    pub there: Vec<Peer>,
    /// The other stores, and the missing packages.
    pub missing: Vec<String>,
}

impl Peers {
    /// Builds the programs.
    ///
    /// # Errors
    /// If one does not compile although its store is installed.
    pub(super) fn build() -> Result<Self> {
        let what = || "building programs that use other stores".to_owned();
        let dir = tempfile::tempdir().what(what)?;
        std::fs::write(dir.path().join("driver.h"), DRIVER).what(what)?;
        let mut peers = Self {
            dir,
            there: Vec::new(),
            missing: Vec::new(),
        };
        for program in &PROGRAMS {
            let stores = PEERS.iter().filter(|peer| peer.program == program.name);
            match peers.build_one(program)? {
                None => peers.there.extend(stores),
                Some(package) => {
                    let names: Vec<_> = stores.map(|peer| peer.name).collect();
                    let names = names.join("; ");
                    peers
                        .missing
                        .push(format!("{names}: not there: install {package}"));
                }
            }
        }
        Ok(peers)
    }

    /// Builds a program. Returns the missing package, if any.
    fn build_one(&self, program: &Program) -> Result<Option<&'static str>> {
        if !detached::is_installed("cc") {
            return Ok(Some("gcc and libc6-dev"));
        }
        let source = self.dir.path().join(format!("{}.c", program.name));
        std::fs::write(&source, program.source).what(|| format!("writing {}", source.display()))?;
        let mut headers = Command::new("cc");
        headers.args(["-E", "-include", program.header, "-o", "/dev/null"]);
        headers.args(["-x", "c", "/dev/null"]);
        if detached::run(&mut headers).is_err() {
            return Ok(Some(program.package));
        }
        let mut build = Command::new("cc");
        build.args(["-std=gnu11", "-O2", "-Wall", "-pthread", "-o"]);
        build.arg(self.binary(program.name)).arg(&source);
        build.arg(format!("-l{}", program.library));
        detached::run(&mut build)?;
        Ok(None)
    }

    fn binary(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the load on a store in a fresh directory below `dir`.
    ///
    /// # Errors
    /// If the store fails, or the program prints what it should not.
    pub(super) fn run(&self, peer: &Peer, dir: &Path, load: Load) -> Result<Found> {
        let place = tempfile::Builder::new()
            .prefix("selvedge-peer-")
            .tempdir_in(dir)
            .what(|| format!("making a directory in {}", dir.display()))?;
        let mut command = Command::new(self.binary(peer.program));
        let numbers = [
            load.value_bytes as u64,
            load.threads as u64,
            load.live,
            load.operations,
        ];
        command
            .arg(place.path())
            .args(numbers.map(|number| number.to_string()))
            .arg(if peer.is_durable {
                "durable"
            } else {
                "relaxed"
            })
            .env("PMEM_IS_PMEM_FORCE", "1");
        let failed = |why: String| Error::Program {
            program: peer.name.into(),
            why,
        };
        let output = command.output().map_err(|e| failed(e.to_string()))?;
        if !output.status.success() {
            return Err(failed(detached::why(&output)));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| failed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_not_installed_is_reported() {
        let peers = Peers {
            dir: tempfile::tempdir().unwrap(),
            there: Vec::new(),
            missing: Vec::new(),
        };
        let nowhere = program!("db", "no/such/store.h", "db-5.3", "libnowhere-dev");
        let package = peers.build_one(&nowhere).unwrap();
        let expected = match detached::is_installed("cc") {
            true => "libnowhere-dev",
            false => "gcc and libc6-dev",
        };
        assert_eq!(package, Some(expected));
    }

    #[test]
    fn every_store_has_a_program_and_every_program_a_store() {
        for peer in PEERS {
            assert!(PROGRAMS.iter().any(|program| program.name == peer.program));
        }
        for program in &PROGRAMS {
            assert!(PEERS.iter().any(|peer| peer.program == program.name));
        }
    }
}
