//! The medium after every single block write. e2fsck may find leaks, link counts that are too high
//! and wrong free counts, and nothing else. The image can be mounted.

use super::fixture::{Mounted, device, mke2fs, options, output_of_e2fsck};
use oracle::script::{State, generate, run_op};
use oracle::snapshot::Snapshot;

/// Whether soft updates may leave the problem in a line of e2fsck. e2fsck counts the `..` of
/// directories without a name as a name.
fn is_allowed(line: &str, nameless: u64) -> bool {
    const LEFT_OVER: [&str; 16] = [
        "Free blocks count wrong",
        "Free inodes count wrong",
        "Directories count wrong",
        "Unattached inode",
        "Unattached zero-length inode",
        "Unconnected directory inode",
        // Blocks that the inode's count or size does not include yet.
        ", i_blocks is",
        ", i_size is",
        "has zero dtime",
        // A crash between an inode's link in the list and the superblock's.
        "corrupted orphan linked list",
        "Clearing orphaned inode",
        "Truncating orphaned inode",
        // A directory has both names during a rename.
        "is a link to directory",
        "'..' in",
        "Was not cleanly unmounted",
        "was not cleanly unmounted",
    ];
    const TALK: [&str; 9] = [
        "e2fsck ",
        "Pass ",
        "Fix? no",
        "Clear? no",
        "Connect to /lost+found? no",
        "IGNORED",
        "WARNING: Filesystem still has errors",
        " files (",
        "Padding at end",
    ];
    let numbers = || {
        line.split(|c: char| !c.is_ascii_digit())
            .filter(|w| !w.is_empty())
    };
    if let Some((_, list)) = line.split_once("bitmap differences:") {
        return list.split_whitespace().all(|word| word.starts_with('-'));
    }
    if line.contains("ref count is") {
        let counts: Vec<u64> = numbers().map(|n| n.parse().unwrap()).collect();
        return counts[1] + nameless >= counts[2];
    }
    line.trim().is_empty()
        || LEFT_OVER
            .iter()
            .chain(&TALK)
            .any(|known| line.contains(known))
}

/// The defect of an image that a crash left, if any.
fn examine(image: &[u8]) -> Option<String> {
    let said = output_of_e2fsck(image);
    let nameless = said.matches("Unconnected directory").count() as u64;
    if !said.lines().all(|line| is_allowed(line, nameless)) {
        return Some(said);
    }
    let (fs, _) = match Mounted::try_open(device(image.to_vec()), options(4096)) {
        Ok(mounted) => (mounted.fs, mounted.cache),
        Err(error) => return Some(error),
    };
    // During a rename a directory has two names and one `..`, which snapshots do not support.
    if let Err(error) = Snapshot::take(&fs)
        && !said.contains("is a link to directory")
    {
        return Some(error.to_string());
    }
    let audit = vfs::FileSystem::audit(&fs);
    (!audit.is_empty()).then(|| format!("{audit:#?}"))
}

#[test]
fn every_write_leaves_a_consistent_image() {
    for (number, args) in [["-b", "1024", "-N", "256"], ["-b", "1024", "-I", "128"]]
        .iter()
        .enumerate()
    {
        let image = mke2fs(args, "2M");
        for seed in 0..4 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let options = patch::CacheOptions {
                wave: 1,
                ..options(4096)
            };
            let mounted = Mounted::try_open(device(image.clone()), options).unwrap();
            let seed = seed + 1000 * number as u64;
            let script = generate::setup().then(&generate::random(seed, 60));
            let mut state = State::default();
            let check = |at: usize| {
                if let Some(what) = examine(&mounted.device.bytes()) {
                    let done = oracle::script::Script::from(script.ops[..=at].to_vec());
                    panic!("seed {seed}, after a write after op {at}:\n{what}\n{done}");
                }
            };
            for (at, op) in script.ops.iter().enumerate() {
                let _ = run_op(&mounted.fs, &mut state, op);
                mounted.cache.verify().unwrap();
                for _ in 0..rng.usize(0..3) {
                    mounted.cache.write_some().unwrap();
                    check(at);
                }
            }
            while mounted.cache.write_some().unwrap() > 0 {
                check(script.ops.len() - 1);
            }
        }
    }
}
