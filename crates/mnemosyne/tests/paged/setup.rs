//! A directory with a pool of frames, and blocks of its heap that threads write.

use medium::Pmem;
use mnemosyne::memory::{
    Directory, DirectoryOptions, DurableMemory, Layout, MemoryError, Options, PoolOptions, Session,
};
use mnemosyne::tx::TxError;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const POOL_BYTES: u64 = 4 << 20;
/// The number of blocks of each thread: 16 MiB.
pub const BLOCKS: u64 = 2048;
const BLOCK_BYTES: u64 = 8192;

/// The directory and its pool, removed at the end.
pub struct Setup(pub TempDir);

impl Setup {
    pub fn new() -> Self {
        // In memory, if there is room: a kill loses nothing of it.
        let shm = Path::new("/dev/shm");
        let dir = match shm.is_dir() {
            true => tempfile::tempdir_in(shm),
            false => tempfile::tempdir(),
        };
        Self(dir.unwrap())
    }

    pub fn disk(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    pub fn pool(&self) -> PathBuf {
        self.0.path().join("memory")
    }

    pub fn open(&self) -> DurableMemory<Directory> {
        open(&self.disk(), Some(&self.pool())).unwrap()
    }
}

/// Opens the directory `disk` with this pool.
pub fn open(disk: &Path, pool: Option<&Path>) -> Result<DurableMemory<Directory>, MemoryError> {
    let pool = pool.map(|path| PoolOptions {
        path: path.to_owned(),
        bytes: POOL_BYTES,
        page_bytes: None,
    });
    let options = DirectoryOptions {
        layout: Layout {
            logs: 4,
            log_bytes: 256 << 10,
            ..Layout::default()
        },
        pool,
        ..DirectoryOptions::default()
    };
    DurableMemory::open_directory(disk, &options, Options::default())
}

pub type Failed = TxError<()>;

/// A thread's table of blocks, which is a root and has a word for each block.
pub fn table(session: &mut Session<Directory>, thread: u64) -> Result<u64, Failed> {
    let name = format!("table {thread}");
    session.run(|tx| {
        if let Some((_, table)) = tx.root(&name)? {
            return Ok(table);
        }
        let table = tx.alloc(BLOCKS * 8)?;
        for n in 0..BLOCKS {
            tx.store(table + n * 8, 0)?;
        }
        assert!(tx.set_root(&name, 0, table)?);
        Ok(table)
    })
}

/// Makes or changes a block: its first and last words, and two between.
pub fn write(session: &mut Session<Directory>, at: u64, value: u64) -> Result<(), Failed> {
    session.run(|tx| {
        let mut block = tx.load(at)?;
        if block == 0 {
            block = tx.alloc(BLOCK_BYTES)?;
            tx.store(at, block)?;
        }
        Ok(words(block).try_for_each(|word| tx.store(word, value))?)
    })
}

fn words(block: u64) -> impl Iterator<Item = u64> {
    [0, 2048, 4096 + 8, BLOCK_BYTES - 8]
        .into_iter()
        .map(move |off| block + off)
}

/// The value of all words of a block.
pub fn value(pm: &impl Pmem, at: u64) -> u64 {
    let block = pm.load(at).unwrap();
    if block == 0 {
        return 0;
    }
    let mut values = words(block).map(|word| pm.load(word).unwrap());
    let first = values.next().unwrap();
    assert!(
        values.all(|value| value == first),
        "block {block:#x} is torn"
    );
    first
}
