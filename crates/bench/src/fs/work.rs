//! The workloads of Figure 2.11, by the programs that people use.

use super::Options;
use crate::detached::{is_installed, run};
use crate::error::{Context, Result};
use crate::mounted::tree::{Archive, archive};
use crate::postmark;
use crate::tree::Directory;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files in a directory of sources, functions in a source, and bytes of its comment.
const PER_DIRECTORY: u32 = 20;
const FUNCTIONS: u32 = 20;
const COMMENT: usize = 8_000;

/// Directories, copy, status, read, build: the phases of the Andrew benchmark. `$1` is the
/// source, `$2` compiles `$c`, `$3` links what it reads the names of.
const ANDREW: &str = r#"
set -e
(cd "$1" && find . -type d) | xargs mkdir -p
cp -r "$1/." .
find . -type f -exec ls -l {} + >/dev/null
find . -type f -exec cat {} + >/dev/null
find . -name '*.c' | while read -r c; do eval "$2"; done
find . -name '*.o' -print0 | eval "$3"
"#;

/// Compile and link, without files in between.
const WITH_CC: [&str; 2] = [
    r#"cc -pipe -O1 -c -o "${c%.c}.o" "$c""#,
    "xargs -0 cc -pipe -o program",
];

/// Work that replaces compiling on a machine without a compiler.
const WITHOUT_CC: [&str; 2] = [r#"gzip -9 -c "$c" >"${c%.c}.o""#, "xargs -0 cat >program"];

/// `argv[1]` is the journal mode, `argv[2]` the number of transactions. SQLite asks for the
/// path of its directory, and a mount that is not in the tree has none but as a root.
const SQLITE: &str = r#"
import os, sqlite3, sys
try:
    os.chroot(".")
except PermissionError:
    pass
db = sqlite3.connect("table.db", isolation_level=None)
if db.execute("PRAGMA journal_mode=" + sys.argv[1]).fetchone()[0].upper() != sys.argv[1]:
    sys.exit("SQLite refuses the journal mode " + sys.argv[1])
db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
for _ in range(int(sys.argv[2])):
    db.execute("INSERT INTO t (v) VALUES (randomblob(100))")
db.close()
"#;

/// The work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Unpack a source tree.
    Untar,
    /// Delete it.
    Delete,
    /// The life of a mail server.
    PostMark,
    /// Directories, copy, status, read, build.
    Andrew,
    /// Overwrite random blocks of a large file, each with an fsync.
    Overwrite,
    /// Commits of SQLite with a write-ahead log.
    Wal,
    /// Commits of SQLite with a rollback journal, which it deletes.
    Rollback,
}

impl std::str::FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|w| w.key() == name);
        let known = || Self::ALL.map(Self::key).join(", ");
        found.ok_or_else(|| format!("there is no workload '{name}'; there are {}", known()))
    }
}

impl Workload {
    /// All workloads, in the order in which they run.
    pub const ALL: [Self; 7] = [
        Self::Untar,
        Self::Delete,
        Self::PostMark,
        Self::Andrew,
        Self::Overwrite,
        Self::Wal,
        Self::Rollback,
    ];
    /// Workloads of programs that never sync.
    pub const LAZY: &[Self] = Self::ALL.split_at(4).0;
    /// Workloads of programs that sync after each change.
    pub const SYNCED: &[Self] = Self::ALL.split_at(4).1;

    /// Its name on the command line and in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Untar => "untar",
            Self::Delete => "delete",
            Self::PostMark => "postmark",
            Self::Andrew => "andrew",
            Self::Overwrite => "overwrite",
            Self::Wal => "wal",
            Self::Rollback => "rollback",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Untar => "untar",
            Self::Delete => "delete",
            Self::PostMark => "PostMark",
            Self::Andrew => "Andrew",
            Self::Overwrite => "overwrite",
            Self::Wal => "SQLite WAL",
            Self::Rollback => "SQLite rollback",
        }
    }
}

/// The files of the workloads.
pub(super) struct Materials {
    archive: Archive,
    sources: PathBuf,
    /// PostMark's files, and its transactions.
    mails: u32,
    /// Bytes of PostMark's largest file.
    max_bytes: u32,
    /// MiB of the file that is overwritten.
    large_mib: u32,
    /// Blocks that are overwritten, and commits of SQLite.
    syncs: u32,
    scratch: PathBuf,
}

const BLOCK: usize = 4096;
/// The file that is overwritten.
const LARGE: &str = "large";

impl Materials {
    /// Makes them in `scratch`, a directory in memory, and builds once, so that the
    /// programs are in memory, too.
    ///
    /// # Errors
    /// If a program fails.
    pub(super) fn new(scratch: &Path, options: &Options) -> Result<Self> {
        let made = Self {
            archive: archive(scratch, options.files)?,
            sources: scratch.join("sources"),
            mails: options.mails,
            max_bytes: options.max_bytes,
            large_mib: options.large_mib,
            syncs: options.syncs,
            scratch: scratch.to_owned(),
        };
        write_sources(&made.sources, options.sources).what(|| "making sources".into())?;
        let once = scratch.join("once");
        fs::create_dir(&once).what(|| "making a directory".into())?;
        for workload in Workload::LAZY
            .iter()
            .chain(&[Workload::Wal, Workload::Rollback])
        {
            made.run(*workload, &once)?;
        }
        fs::remove_dir_all(&once).what(|| "removing a directory".into())?;
        Ok(made)
    }

    /// Their descriptions, one sentence each.
    pub(super) fn notes(&self) -> Vec<String> {
        let archive = &self.archive;
        let by = |there, program, otherwise| if there { program } else { otherwise };
        vec![
            format!(
                "untar: {} files, {} MB, by tar(1); delete: all of them, by rm(1).",
                archive.files,
                archive.bytes / 1_000_000
            ),
            format!(
                "PostMark: {0} files of 500 to {1} bytes, {0} transactions, by {2}.",
                self.mails,
                self.max_bytes,
                by(
                    is_installed("postmark"),
                    "Debian's postmark",
                    "our own code (no postmark is installed)"
                )
            ),
            format!(
                "Andrew: mkdir, cp, ls, cat and {}, one source after the other.",
                by(
                    is_installed("cc"),
                    "cc -O1",
                    "gzip in the place of a compiler (no cc is installed)"
                )
            ),
            format!(
                "overwrite: {} random blocks of 4 KiB of a file of {} MiB, an fsync after each; \
                 SQLite: {0} transactions with a row of 100 bytes each, synchronous=FULL.",
                self.syncs, self.large_mib
            ),
        ]
    }

    /// Makes what a workload needs, which is not measured. Returns whether there is such a
    /// thing.
    ///
    /// # Errors
    /// If a call on the file system fails.
    pub(super) fn prepare(&self, workload: Workload, dir: &Path) -> Result<bool> {
        if workload != Workload::Overwrite {
            return Ok(false);
        }
        let fill = || {
            let mut file = fs::File::create(dir.join(LARGE))?;
            let data = vec![1; 1 << 20];
            (0..self.large_mib).try_for_each(|_| file.write_all(&data))
        };
        fill().map(|()| true).what(|| format!("writing {LARGE}"))
    }

    /// Runs a workload in a directory, without a sync.
    ///
    /// # Errors
    /// If a program fails.
    pub(super) fn run(&self, workload: Workload, dir: &Path) -> Result<()> {
        let make = |name: &str| {
            let path = dir.join(name);
            fs::create_dir(&path).what(|| format!("mkdir {name}"))?;
            Ok(path)
        };
        match workload {
            Workload::Untar => {
                let tree = make("tree")?;
                let mut tar = Command::new("tar");
                run(tar.arg("-xf").arg(&self.archive.path).current_dir(tree))
            }
            Workload::Delete => run(Command::new("rm").args(["-rf", "tree"]).current_dir(dir)),
            Workload::PostMark => self.postmark(&make("mail")?),
            Workload::Andrew => {
                let [compile, link] = if is_installed("cc") {
                    WITH_CC
                } else {
                    WITHOUT_CC
                };
                let mut sh = Command::new("sh");
                sh.args(["-c", ANDREW, "andrew"]).arg(&self.sources);
                sh.args([compile, link]).env("TMPDIR", &self.scratch);
                run(sh.current_dir(make("andrew")?))
            }
            Workload::Overwrite => {
                let done = self.overwrite(&dir.join(LARGE));
                done.what(|| format!("overwriting {LARGE}"))
            }
            Workload::Wal => self.sqlite(&make("wal")?, "WAL"),
            Workload::Rollback => self.sqlite(&make("rollback")?, "DELETE"),
        }
    }

    fn overwrite(&self, path: &Path) -> std::io::Result<()> {
        let file = fs::OpenOptions::new().write(true).open(path)?;
        let blocks = u64::from(self.large_mib) * ((1 << 20) / BLOCK as u64);
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..self.syncs {
            let at = random.u64(0..blocks) * BLOCK as u64;
            file.write_all_at(&[round as u8; BLOCK], at)?;
            file.sync_all()?;
        }
        Ok(())
    }

    /// Transactions of one row, by Python's module, in this journal mode.
    fn sqlite(&self, dir: &Path, mode: &str) -> Result<()> {
        let mut python = Command::new("python3");
        python.args(["-I", "-c", SQLITE, mode, &self.syncs.to_string()]);
        run(python.current_dir(dir))
    }

    fn postmark(&self, dir: &Path) -> Result<()> {
        if !is_installed("postmark") {
            let config = postmark::Config {
                files: self.mails,
                transactions: self.mails,
                max_bytes: self.max_bytes as usize,
                ..postmark::Config::default()
            };
            return postmark::run(&Directory::open(dir)?, &config).map(drop);
        }
        let script = self.scratch.join("postmark");
        let text = format!(
            "set number {0}\nset transactions {0}\nset size 500 {1}\nrun\nquit\n",
            self.mails, self.max_bytes
        );
        fs::write(&script, text).what(|| "writing PostMark's commands".into())?;
        // Not by its command `set location`, which overruns its buffer with a long path.
        run(Command::new("postmark").arg(&script).current_dir(dir))
    }
}

/// Sources of one program, in directories.
fn write_sources(root: &Path, files: u32) -> std::io::Result<()> {
    let comment = "Some words that explain what follows, at some length. ".repeat(COMMENT / 54);
    for file in 0..files {
        let dir = root.join(format!("part{}", file / PER_DIRECTORY));
        fs::create_dir_all(&dir)?;
        let mut text = format!("/* {comment} */\n");
        for n in 0..FUNCTIONS {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "int f{file}_{n}(int x) {{ for (int i = 0; i < x; i++) x ^= x << i | {n}; return x; }}"
            );
        }
        if file == 0 {
            text.push_str("int main(void) { return f0_0(0); }\n");
        }
        fs::write(dir.join(format!("source{file}.c")), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_runs_and_has_its_effect() {
        let scratch = tempfile::tempdir().unwrap();
        let options = Options {
            files: 30,
            sources: 3,
            mails: 20,
            max_bytes: 600,
            large_mib: 1,
            syncs: 5,
            ..Options::default()
        };
        if !is_installed("python3") {
            return skip::test("python3 is not installed");
        }
        let materials = Materials::new(scratch.path(), &options).unwrap();
        let dir = scratch.path().join("work");
        fs::create_dir(&dir).unwrap();
        materials.run(Workload::Untar, &dir).unwrap();
        assert!(dir.join("tree/top0/mid0/leaf1/source29.c").is_file());
        materials.run(Workload::Delete, &dir).unwrap();
        assert!(!dir.join("tree").exists());
        materials.run(Workload::PostMark, &dir).unwrap();
        assert_eq!(fs::read_dir(dir.join("mail")).unwrap().count(), 0);
        materials.run(Workload::Andrew, &dir).unwrap();
        let built = fs::metadata(dir.join("andrew/program")).unwrap();
        assert!(built.len() > 1000);
        assert!(dir.join("andrew/part0/source2.o").is_file());
        assert!(materials.prepare(Workload::Overwrite, &dir).unwrap());
        materials.run(Workload::Overwrite, &dir).unwrap();
        let large = fs::read(dir.join(LARGE)).unwrap();
        assert_eq!(large.len(), 1 << 20);
        assert!(large.contains(&4), "the last round's");
        for (workload, name) in [(Workload::Wal, "wal"), (Workload::Rollback, "rollback")] {
            materials.run(workload, &dir).unwrap();
            assert!(dir.join(name).join("table.db").is_file());
        }
    }
}
