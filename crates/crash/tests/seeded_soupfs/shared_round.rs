//! A power cut after rounds that two persisters have shared. A fence covers the flushes of its own
//! thread, which a power cut respects; the explorer records all threads as one.

use crash::PersistModel;
use medium::{MemoryPmem, PowerCut};
use oracle::script::{State, run};
use oracle::snapshot::Snapshot;
use soupfs::SoupSystem;
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{ManualClock, System, Timestamp};

/// Each step of the second round has several parts. Files that grow have no other change, since the
/// last step flushes their inodes once more.
fn script() -> String {
    let calls = "create f# 644\ncreate g# 644\nlink g# h#\nwrite f# 0 100 0";
    let more = "write f# 0 9000 1\nchmod g# 600\nunlink h#\ncreate i# 644";
    let of_each = |calls: &str| {
        let of_one = |n: u32| calls.replace('#', &n.to_string()) + "\n";
        (0..16).map(of_one).collect::<String>()
    };
    of_each(calls) + "sync\n" + &of_each(more)
}

/// Cuts the power after a sync. Returns the first damage, or the loss.
pub fn loss(model: PersistModel) -> Option<String> {
    let system = SoupSystem {
        persisters: 2,
        has_threads: true,
        ..SoupSystem::default()
    };
    let pm = Arc::new(PowerCut::new(MemoryPmem::new(system.image_bytes())));
    system.format(&*pm).expect("a new image");
    let clock = Arc::new(ManualClock::new(Timestamp(0), 1000));
    let fs = system.open(pm.clone(), clock.clone()).expect("a mount");
    let script = script().parse().expect("a script");
    let results = run(&*fs, &mut State::default(), &script);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    fs.sync().expect("the power is on");
    let before = Snapshot::take(&*fs).expect("it can be read");
    pm.cut(1, model).expect("the image takes the state");
    let cut = MemoryPmem::copy_of(pm.inner()).expect("memory can be read");
    let cut = Arc::new(cut);
    let report = system.check(&*cut);
    if report.worst() == Some(Severity::Corrupt) {
        return Some(format!("{:?}", report.findings.first()));
    }
    let fs = system.open(cut, clock).expect("a mount after the cut");
    match Snapshot::take(&*fs) {
        Ok(after) if after == before => None,
        Ok(after) => Some(before.diff(&after).join("; ")),
        Err(e) => Some(e.to_string()),
    }
}
