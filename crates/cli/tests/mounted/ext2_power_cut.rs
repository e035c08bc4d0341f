//! Mounts of ext2 whose power is cut, in each mode that promises something.

use crate::fixture::{Fixture, finish, run, selvedge, stderr};
use ext2::fsck::{Verdict, verdict};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// A file that its fsync, and that of its directory, have made durable.
fn write_durably(dir: &Path, i: usize) -> io::Result<()> {
    let mut file = File::create(dir.join(i.to_string()))?;
    file.write_all(contents(i).as_bytes())?;
    file.sync_all()?;
    // Some garbage in between, whose removal need not be durable.
    let passing = dir.join("passing");
    fs::write(&passing, contents(i))?;
    fs::remove_file(&passing)?;
    File::open(dir)?.sync_all()
}

fn contents(i: usize) -> String {
    format!("{i} ").repeat(i * 37 % 5_000)
}

/// Loses the power at `after`, and checks what is left.
fn survives(mode: &str, after: &str, worst: Verdict) {
    let place = Fixture::new();
    let image = place.image_str();
    run(0, &["mkfs", "--type", "ext2", "--size", "16M", image]);
    let spec = format!("--simulate-power-cut={after},seed=5");
    let mode = format!("mode={mode}");
    let mut server = place.serve(&["-o", &mode, &spec]);
    let dir = place.dir();
    let returned = (0..)
        .take_while(|i| write_durably(&dir, *i).is_ok())
        .count();
    assert!(place.is_mounted());
    place.umount();
    assert_eq!(server.wait(), Some(0));

    let journaled = worst == Verdict::Clean;
    if !journaled {
        assert!(verdict(&place.image()).unwrap() <= worst, "{mode} {after}");
    }
    place.mount(&["-o", &mode]);
    for i in 0..returned {
        let there = fs::read_to_string(dir.join(i.to_string())).unwrap();
        assert!(there == contents(i), "{mode} {after}: {i} of {returned}");
    }
    fs::write(dir.join("new"), "new").unwrap();
    place.umount();
    assert!(verdict(&place.image()).unwrap() <= worst, "{mode} {after}");
}

#[test]
fn fsynced_files_survive_a_power_cut_at_any_flush_block_or_call() {
    let cuts = [
        "after=1",
        "after=40",
        "after=101",
        "after-stores=1",
        "after-stores=333",
        "after-calls=150",
    ];
    for after in cuts {
        survives("softupdates", after, Verdict::Leaks);
        survives("journal-ordered", after, Verdict::Clean);
        survives("journal", after, Verdict::Clean);
    }
}

#[test]
fn a_model_of_memory_is_refused() {
    let place = Fixture::new();
    let image = place.image_str();
    run(0, &["mkfs", "--type", "ext2", "--size", "16M", image]);
    let mut mount = selvedge();
    mount.args(["mount", image, place.dir_str()]);
    let refused = finish(32, mount.arg("--simulate-power-cut=model=words"));
    assert!(stderr(&refused).contains("blocks and sectors"));
}
