//! The same calls on a toy and on the model: their results, and the visible state after them.

use super::toy::{self, Kind, Toy};
use blockfs::{BlockFs, BlockFsOptions};
use oracle::script::{Op, Script, State, generate, run_op};
use oracle::snapshot::Snapshot;
use oracle::{ModelFs, ModelOptions};
use patch::{Cache, CacheOptions};
use std::sync::Arc;
use vfs::{Errno, FileSystem, RenameFlags};

fn mount(device: Arc<medium::block::MemoryDevice>, kind: Kind) -> (BlockFs<Toy>, Arc<Cache>) {
    let options = CacheOptions {
        interval: None,
        ..CacheOptions::default()
    };
    let cache = Arc::new(Cache::new(vec![Box::new(device)], options));
    let format = Toy::open(Arc::new(cache.store(0)), kind).unwrap();
    let options = BlockFsOptions {
        atime: vfs::Atime::Never,
        ..BlockFsOptions::new(ModelFs::default().guarantees())
    };
    (BlockFs::open(format, options).unwrap(), cache)
}

/// Whether a call exceeds the abilities of a toy.
fn is_beyond(op: &Op, got: vfs::Result<()>) -> bool {
    let small = matches!(
        got,
        Err(Errno::NOSPC | Errno::FBIG | Errno::MLINK | Errno::NAMETOOLONG | Errno::OPNOTSUPP)
    );
    small || matches!(op, Op::Rename { flags, .. } if flags.contains(RenameFlags::EXCHANGE))
}

fn same(fs: &dyn FileSystem, model: &ModelFs, at: &str) {
    let (here, there) = (Snapshot::take(fs).unwrap(), Snapshot::take(model).unwrap());
    assert!(
        here.is_same_except_times(&there),
        "{at}: {:#?}",
        here.diff(&there)
    );
    assert_eq!(fs.audit(), [], "{at}");
}

fn agree(kind: Kind, script: &Script) {
    let device = toy::mkfs();
    let (fs, cache) = mount(device.clone(), kind);
    let model = ModelFs::new(ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    for (at, op) in script.ops.iter().enumerate() {
        let got = run_op(&fs, &mut here, op);
        if is_beyond(op, got) {
            continue;
        }
        let at = format!("{kind:?}, call {at} of\n{script}\n{op}");
        assert_eq!(got, run_op(&model, &mut there, op), "{at}");
        cache.verify().unwrap();
        same(&fs, &model, &at);
    }
    here.close_all(&fs);
    there.close_all(&model);
    fs.close().unwrap();
    drop((fs, cache));
    let (fs, _cache) = mount(device, kind);
    same(&fs, &model, "after an unmount");
}

#[test]
fn random_calls_have_the_results_of_the_model() {
    for kind in [Kind::PLAIN, Kind::FRAGMENTS, Kind::MOVES, Kind::BOTH] {
        for seed in 0..40 {
            agree(kind, &generate::random(seed, 40));
        }
    }
}
