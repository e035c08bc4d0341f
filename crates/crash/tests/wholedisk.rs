//! A block device as one file under the explorer. Its promise beyond fsync is the order of
//! patchgroups, so scripts with groups judge it by that order. The other demands of the explorer
//! concern names and times, which a device does not keep.

use blockfs::mount::{Devices, MountOptions, Mountable, mount};
use crash::Options;
use crash::block::explore;
use medium::block::BlockDevice;
use patch::Optimised;
use patch::stack::{CacheLayer, Mode, Stack};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfs::check::Report;
use vfs::{
    Atime, BlockSystem, Clock, FileSystem, FileSystemLayer, Guarantees, Still, System, Timestamp,
};
use wholedisk::WholeDisk;

const BLOCK_BYTES: u32 = 1024;
const BLOCKS: u64 = 8;

/// A device in one mode.
#[derive(Clone, Copy)]
struct DiskSystem(Mode, Optimised);

/// Time after all calls of a script. The explorer opens crash states later.
const RECOVERY: Timestamp = Timestamp(3_000_000_000_000_000_000);

/// A clock that stands still during a mount, since a device does not keep times. After a crash it
/// gives a time that no call has left.
struct MountClock {
    outer: Arc<dyn Clock>,
    is_mounted: AtomicBool,
}

impl Clock for MountClock {
    fn now(&self) -> Timestamp {
        let now = self.outer.now();
        match self.is_mounted.load(Relaxed) || now > RECOVERY {
            true => now,
            false => Timestamp(0),
        }
    }
}

/// The file system without its promise about fsync.
struct OnlyOrder(Arc<dyn FileSystem>);

impl FileSystemLayer for OnlyOrder {
    fn below(&self) -> &dyn FileSystem {
        &*self.0
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("wholedisk")
    }
}

impl System<dyn BlockDevice> for DiskSystem {
    fn id(&self) -> String {
        format!("wholedisk-{}-{}", self.0, self.1)
    }

    fn image_bytes(&self) -> u64 {
        BLOCKS * u64::from(BLOCK_BYTES)
    }

    fn format(&self, _: &(dyn BlockDevice + 'static)) -> Result<(), String> {
        Ok(()) // any contents can be mounted
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
        disk: Arc<dyn BlockDevice>,
        outer: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<Still, String> {
        let clock = Arc::new(MountClock {
            outer,
            is_mounted: AtomicBool::new(false),
        });
        let options = MountOptions {
            atime: Atime::Never,
            clock: clock.clone(),
            ..MountOptions::default()
        };
        let stack = Stack::new(WholeDisk::NAME, self.0).with_cache(CacheLayer {
            bytes: 8 << 20,
            wave,
            interval: None,
            optimise: self.1,
            ..CacheLayer::default()
        });
        let devices = Devices { disk, log: None };
        let mounted = mount::<WholeDisk>(&stack, devices, &options).map_err(|e| e.to_string())?;
        clock.is_mounted.store(true, Relaxed);
        let fs = WholeDisk::served(mounted.file_system().clone());
        let mounted = Arc::new(mounted);
        let same = mounted.clone();
        Ok(Still {
            fs: Arc::new(OnlyOrder(fs)),
            write_some: Box::new(move || mounted.cache().write_some().map_err(|e| e.to_string())),
            write_drawn: Box::new(move |pick| {
                let most = 1 + pick(3);
                let written = same.cache().write_drawn(most, pick);
                written.map_err(|e| e.to_string())
            }),
        })
    }

    fn check(&self, _: &(dyn BlockDevice + 'static)) -> Report {
        Report::default()
    }
}

impl BlockSystem<dyn BlockDevice> for DiskSystem {
    fn block_bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    fn atomic_bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    fn scratch(&self, _: Arc<dyn BlockDevice>) -> Result<Vec<u64>, String> {
        Ok(Vec::new())
    }
}

/// Writes of several blocks, in chains, a diamond, independent groups, and with barriers.
const SCRIPTS: [&str; 5] = [
    "group a\ngroup b\nengage a\nwrite disk 0 2000 1\ndisengage a\ndepend b a\nengage b\n\
     write disk 3000 2000 2\n",
    "group a\ngroup b\ngroup c\nengage a\nwrite disk 0 3000 1\ndisengage a\ndepend b a\nengage b\n\
     write disk 1000 1500 2\ndisengage b\ndepend c b\nengage c\nwrite disk 100 500 3\n\
     disengage c\nwrite disk 7000 100 4\npgsync c\nwrite disk 7500 100 5\n",
    "group a\ngroup b\ngroup c\ngroup d\nengage a\nwrite disk 0 100 1\ndisengage a\ndepend b a\n\
     depend c a\nengage b\nwrite disk 1024 2000 2\ndisengage b\nengage c\nwrite disk 4096 2000 3\n\
     disengage c\ndepend d b\ndepend d c\nengage d\nwrite disk 200 100 4\nwrite disk 7168 9 5\n",
    "group a\ngroup b\nengage a\nwrite disk 0 1500 1\ndisengage a\nengage b\nwrite disk 1500 1500 2\n\
     disengage b\npgsync b\nwrite disk 5000 10 3\n",
    "write disk 0 1500 1\nbarrier\nwrite disk 1200 1500 2\nbarrier\nwrite disk 0 10 3\n",
];

fn options() -> Options {
    Options {
        ops: 0,
        scripts: SCRIPTS.map(String::from).to_vec(),
        states_per_point: 64,
        samples: 16,
        ..Options::default()
    }
}

#[test]
fn groups_order_writes_of_a_device() {
    for mode in [Mode::Async, Mode::SoftUpdates] {
        for optimised in [Optimised::Both, Optimised::None] {
            let system = DiskSystem(mode, optimised);
            let outcome = explore(&system, &options(), &|_| {}).expect("a device can be mounted");
            assert_eq!(outcome.failures.first(), None, "{}", outcome.system);
            assert!(outcome.complete && outcome.states_distinct > 50);
        }
    }
}

/// The control: without the order of the groups, the later write is there first.
#[cfg(feature = "seeded-bugs")]
#[test]
fn an_early_release_of_a_group_is_found_on_a_device() {
    use crash::Schedule;
    use crash::block::explore_script;
    use patch::seeded::{Bug, arm, fired};
    let options = Options {
        schedules: vec![Schedule::Sync],
        threads: 1,
        ..options()
    };
    let system = DiskSystem(Mode::SoftUpdates, Optimised::Both);
    arm(Some(Bug::GroupReleasedEarly));
    let found = explore_script(&system, SCRIPTS[0], &options).expect("it is a script");
    assert!(fired() > 0);
    arm(None);
    let found = found.expect("a failure").what;
    assert!(found.contains("which precedes it"), "{found}");
}
