//! Changing a tree in durable memory against saving a volatile one, Table 3.4: an insert into
//! a red-black tree of that many nodes, and the whole of it serialised into a new file that is
//! synced.

use super::Options;
use super::ground::{self, Mapped, Session};
use super::tree::{NODE_BYTES, PAYLOAD_BYTES, Tree, Volatile};
use super::work::key_of;
use crate::error::{Context, Result};
use crate::stats;
use mnemosyne::memory::Layout;
use mnemosyne::tx::Stop;
use serde::Serialize;
use std::convert::Infallible;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Timed inserts at each size: the last ones.
const INSERTS: usize = 500;

/// Saves of each tree.
const SAVES: usize = 5;

/// One size of tree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Nodes in the tree.
    pub nodes: u64,
    /// Microseconds of a durable insert: the median.
    pub insert_us: f64,
    /// Microseconds to save the tree on the same memory: the median.
    pub save_us: f64,
    /// Microseconds to save the tree on the disk: the median.
    pub disk_save_us: f64,
}

impl Row {
    /// Inserts in the time of a save on the same memory.
    pub(super) fn inserts_per_save(&self) -> f64 {
        self.save_us / self.insert_us
    }
}

/// Measures inserts and saves of trees.
pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut sizes = options.tree_nodes.clone();
    sizes.sort_unstable();
    let mut trees = Trees::make(options, sizes.last().copied().unwrap_or(0))?;
    let (mut rows, mut done) = (Vec::new(), 0);
    for nodes in sizes {
        let inserts = (done..nodes).map(|n| trees.insert(n));
        let mut inserts = inserts.collect::<Result<Vec<_>>>()?;
        let timed = inserts.len().saturating_sub(INSERTS);
        rows.push(Row {
            nodes,
            insert_us: stats::median(&mut inserts[timed..]).unwrap_or(f64::NAN),
            save_us: trees.save(&options.dir)?,
            disk_save_us: trees.save(&options.disk)?,
        });
        done = nodes;
    }
    Ok(rows)
}

/// One tree in durable memory and the same tree in ordinary memory.
struct Trees {
    session: Session<Mapped>,
    /// Address of the link to the root of the durable tree.
    root: u64,
    volatile: Volatile,
}

impl Trees {
    fn make(options: &Options, nodes: u64) -> Result<Self> {
        let layout = Layout::default();
        let bytes = layout.bytes() + 2 * nodes * NODE_BYTES + ground::SPARE_BYTES;
        let pm = ground::map(&options.dir, bytes)?;
        let store = ground::make(pm, &layout, &ground::options())?;
        let mut session = store.session();
        let root = session.run(|tx| {
            let root = tx.alloc(8)?;
            tx.store(root, 0)?;
            Ok::<_, Stop<Infallible>>(root)
        });
        Ok(Self {
            root: root.what(|| "making a tree".into())?,
            session,
            volatile: Volatile::new(),
        })
    }

    /// Inserts the `n`-th node into both; microseconds of the durable insert.
    fn insert(&mut self, n: u64) -> Result<f64> {
        let (key, payload) = (key_of(0, n), &[n as u8; PAYLOAD_BYTES]);
        let nodes = &mut self.volatile;
        let Ok(()) = Tree { nodes, root: 0 }.insert(key, payload);
        let root = self.root;
        let start = Instant::now();
        let inserted = self.session.run(|nodes| {
            let done = Tree { nodes, root }.insert(key, payload);
            done.map_err(Stop::<Infallible>::from)
        });
        inserted.what(|| "inserting into a tree".into())?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3)
    }

    /// Microseconds to save the volatile one in a directory: the median.
    fn save(&self, dir: &Path) -> Result<f64> {
        let what = || format!("saving a tree in {}", dir.display());
        let place = tempfile::Builder::new()
            .prefix("selvedge-save-")
            .tempdir_in(dir)
            .what(what)?;
        let mut samples = Vec::with_capacity(SAVES);
        for n in 0..SAVES {
            let path = place.path().join(n.to_string());
            let start = Instant::now();
            let mut bytes = Vec::new();
            self.volatile.serialise(&mut bytes);
            let mut file = File::create(path).what(what)?;
            file.write_all(&bytes).what(what)?;
            file.sync_all().what(what)?;
            samples.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        Ok(stats::median(&mut samples).unwrap_or(f64::NAN))
    }
}
