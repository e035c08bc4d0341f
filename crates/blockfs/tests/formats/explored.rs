//! The toy on shadow paging under the explorer: a crash leaves the state of some checkpoint.

use super::shadow::{ALL_BLOCKS, Fault, Shadow, image};
use super::toy::{self, BLOCK, Kind, Toy};
use blockfs::{BlockFs, BlockFsOptions};
use crash::{FailureReport, Options, block};
use medium::Rule;
use medium::block::{BlockDevice, Buffer, Lba, Write};
use patch::{Cache, CacheOptions};
use std::sync::Arc;
use vfs::check::Report;
use vfs::{
    Atime, Atomicity, BlockSystem, Clock, Durability, FileSystem, Guarantees, Ordering, Still,
    System,
};

/// The file system, with a mistake or without.
struct Shadowed(Option<Fault>);

fn guarantees() -> Guarantees {
    Guarantees {
        durable: Durability::AtFsync,
        metadata_atomic: Atomicity::Checkpoint,
        data_atomic: Atomicity::Checkpoint,
        metadata_ordered: Ordering::Global,
        data_ordered: Ordering::Global,
        times_atomic: true,
        ..Guarantees::none("toy (checkpoints)")
    }
}

impl System<dyn BlockDevice> for Shadowed {
    fn id(&self) -> String {
        match self.0 {
            None => "toy-shadow".to_owned(),
            Some(fault) => format!("toy-shadow-{fault:?}"),
        }
    }

    fn image_bytes(&self) -> u64 {
        ALL_BLOCKS * u64::from(BLOCK)
    }

    fn format(&self, device: &dyn BlockDevice) -> Result<(), String> {
        let bytes = image(&toy::mkfs().bytes());
        let write = |(n, bytes): (u64, &[u8])| Write {
            tag: n,
            lba: Lba(n),
            data: Arc::new(Buffer::from_slice(bytes)),
            durable: Some(Rule::DurableBeforeReturn),
        };
        let writes: Vec<Write> = (0..).zip(bytes.chunks(BLOCK as usize)).map(write).collect();
        let mut left = writes.len();
        device.submit(writes);
        while left > 0 {
            for done in device.reap(left) {
                done.result.map_err(|e| e.to_string())?;
                left -= 1;
            }
        }
        Ok(())
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        self.open_still(device, clock, 1024).map(|still| still.fs)
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn open_still(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<Still, String> {
        let options = CacheOptions {
            wave,
            interval: None,
            ..CacheOptions::default()
        };
        let cache = Arc::new(Cache::new(vec![Box::new(device)], options));
        let shadow = Shadow::open(Arc::new(cache.store(0)), self.0);
        let shadow = Arc::new(shadow.map_err(|e| e.to_string())?);
        let toy = Toy::open(shadow.clone(), Kind::PLAIN).map_err(|e| e.to_string())?;
        let options = BlockFsOptions {
            atime: Atime::Never,
            clock,
            ..BlockFsOptions::new(guarantees())
        };
        let fs = BlockFs::open(toy, options).map_err(|e| e.to_string())?;
        let checkpoint = move || shadow.checkpoint().map_err(|e| e.to_string());
        let drawn = checkpoint.clone();
        Ok(Still {
            fs: Arc::new(fs),
            write_some: Box::new(checkpoint),
            write_drawn: Box::new(move |_| drawn()),
        })
    }

    fn check(&self, _: &dyn BlockDevice) -> Report {
        Report::default()
    }
}

impl BlockSystem<dyn BlockDevice> for Shadowed {
    fn block_bytes(&self) -> u32 {
        BLOCK
    }

    /// The root lies in one sector.
    fn atomic_bytes(&self) -> u32 {
        512
    }

    fn scratch(&self, _: Arc<dyn BlockDevice>) -> Result<Vec<u64>, String> {
        Ok(Vec::new())
    }
}

const SCRIPT: &str = "
    mkdir d 755
    create f 644
    write f 0 1300 1
    fsync f
    append f 30 2
    rename f d/h replace
    create e 644
    fsync e
    unlink d/h
";

fn explored(fault: Option<Fault>) -> Option<FailureReport> {
    let options = Options {
        states_per_point: 24,
        samples: 16,
        ..Options::default()
    };
    let found = block::explore_script(&Shadowed(fault), SCRIPT, &options);
    found.expect("the toy can be set up")
}

#[test]
fn a_crash_leaves_the_state_of_a_checkpoint() {
    let failure = explored(None);
    assert!(failure.is_none(), "{}", failure.unwrap());
}

#[test]
fn each_mistake_of_a_checkpoint_is_found() {
    for fault in Fault::ALL {
        let report = explored(Some(fault));
        println!("{fault:?}: {}", report.expect("a mistake is not found"));
    }
}
