//! Kinds of crash bugs that were found in real file systems, one named test each. The explorer's
//! demands (old or new, times, checker, audit, everything can be written and deleted) found them.

use bpfs::{BpfsSystem, Mode};
use crash::{Options, PersistModel, explore_script};
use std::fmt::Write as _;

fn holds(script: &str) {
    for (mode, model) in Mode::ALL
        .iter()
        .flat_map(|m| PersistModel::ALL.map(|p| (*m, p)))
    {
        let options = Options {
            model,
            ..Options::default()
        };
        let failure = explore_script(&BpfsSystem(mode), script, &options);
        if let Some(failure) = failure.expect("the script is one") {
            panic!("{failure}\nshrunk:\n{}", failure.shrunk);
        }
    }
}

macro_rules! bug_classes {
    ($($(#[$doc:meta])* $name:ident: $script:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            holds($script);
        }
    )*};
}

bug_classes! {
    /// The new inode is never flushed.
    missing_flush: "create f 644";
    /// Two pointers into a log change serially.
    half_log_pointers: "mkdir A 755\n create A/f 644\n rename A/f b replace";
    /// The replaced entry is removed before the new one is durable.
    rename_in_place: "create a 644\n write a 0 9 1\n create b 644\n write b 0 9 2\n rename a b replace";
    /// Not all that a rename changes is logged.
    rename_journal_gap: "mkdir A 755\n create A/f 644\n rename A/f b replace\n rename A b noreplace\n mkdir A/B 755\n rename A/B C replace";
    /// A link count is updated in place.
    link_after_rename: "create f 644\n rename f g replace\n link g h\n unlink g";
    /// Two descriptors rebuild one file in another order.
    two_descriptors: "create f 644\n open 0 f\n open 1 f\n write @0 0 9000 1\n truncate @1 100\n fallocate @0 allocate 0 20000\n append @1 10 2\n close 0\n unlink f\n write @1 5 5 3";
    /// A length or checksum is set after the first copy.
    init_order: "create f 644\n write f 0 20 1\n create g 644\n write g 4096 20 2";
    /// Recovery frees what was freed.
    double_free: "create f 644\n write f 0 9000 1\n unlink f\n create g 644\n write g 0 9000 2";
    /// Recovery needs a list that it has not built yet.
    truncate_list: "create f 644\n write f 0 4096 1\n truncate f 0";
    /// Written data are flushed and not fenced.
    sync_write_fence: "create f 644\n write f 0 1 1\n write f 0 8 2\n fsync f";
    /// A one-block file is overwritten in place.
    strict_overwrite: "create f 644\n write f 0 4096 1\n write f 0 1024 2\n write f 1000 2000 3";
    /// Size and time are stored as if 16 bytes were atomic.
    wide_store: "create f 644\n append f 10 1\n append f 10 2\n append f 5000 3";
    /// The tail is not zeroed when a file shrinks, and shows when it grows again.
    truncate_leak: "create f 644\n write f 0 9000 1\n truncate f 100\n truncate f 9000\n truncate f 4096\n append f 1 2\n truncate f 3\n write f 5000 1 3";
    /// Replay stamps the time at which it runs.
    replay_drift: "create f 644\n write f 0 5000 1\n truncate f 10\n utimens f 5 6\n rename f g replace";
    /// An entry has a length before its inode number is valid.
    reclen_before_ino: "create long-name-of-a-file 644\n unlink long-name-of-a-file\n create n 644\n create m 644\n mkdir d 755\n create d/x 644";
    /// A rename leaves both names, or none.
    rename_lost_or_doubled: "create f 644\n write f 0 5 1\n rename f g replace\n create f 644\n fsync f\n rename f g exchange";
    /// A directory's entry is not logged.
    dir_fsync: "mkdir A 755\n mkdir A/B 755\n rename A/B C replace\n fsyncdir C\n fsyncdir A";
    /// A further name is missing after the file was synced by another.
    link_fsync: "create f 644\n mkdir A 755\n link f A/g\n fsync A/g\n link A/g h\n fsync f";
    /// Space is allocated beyond the end, and the size becomes wrong.
    keep_size: "create f 644\n write f 0 100 1\n fallocate f allocate-keep 0 20000\n fsync f\n truncate f 9000\n fallocate f zero-keep 50 9000";
    /// A directory that should be empty cannot be removed.
    unremovable_dir: "mkdir A 755\n create A/f 644\n link A/f A/g\n unlink A/f\n fsync A/g\n unlink A/g\n rmdir A";
    /// Replay fails on a name that was removed and made again.
    replay_fails: "create f 644\n write f 0 5000 1\n unlink f\n mkdir f 755\n fsyncdir f\n rmdir f\n symlink x f";
    /// Data that changed before a link is not there after it.
    data_after_link: "create f 644\n write f 0 9000 1\n append f 100 2\n link f g\n fsync g\n fallocate f punch 0 4096\n link g h\n fsync f";
    /// A new inode takes a number that is in use.
    ino_reuse: "create f 644\n fsync f\n unlink f\n create g 644\n create h 644\n unlink g\n mkdir g 755";
    /// A whole subtree is punched out or cut off, and only its top is freed.
    punched_subtree: "create f 644\n write f 0 5000 1\n write f 2097152 9000 2\n write f 4194304 5000 3\n fallocate f punch 2097152 2097152\n write f 2200000 10 4\n fallocate f punch 0 6291456\n write f 2097152 9000 5\n write f 4190000 9000 6\n truncate f 4000000\n fallocate f zero 2000000 3000000\n unlink f";
    /// A tree that is cut gets lower before it is short.
    lowered_tree: "create f 644\n write f 0 5000 1\n write f 4194304 5000 2\n truncate f 4500\n append f 6000 3\n write f 1073741824 10 4\n truncate f 2097153\n append f 10 5\n truncate f 9000\n truncate f 100\n append f 10 6\n truncate f 0\n write f 4194304 10 7\n truncate f 5000\n append f 9000 8";
    /// The target or an attribute is missing.
    symlink_xattr: "symlink a/target s\n create f 644\n setxattr f user.a 20 1 create\n fsync f\n setxattr f user.a 30 2 replace\n setxattr f user.b 5 3 set\n removexattr f user.a\n removexattr f user.b";
}

/// The line at the edge of a write is not flushed.
#[test]
fn unaligned_tail() {
    let mut script = "create f 644\n write f 0 300 1\n".to_string();
    for off in 0..=64 {
        let _ = writeln!(script, "write f {off} 11 {}", off + 2);
    }
    for len in 1..=24 {
        let _ = writeln!(script, "write f 59 {len} {}", len + 100);
        let _ = writeln!(script, "append f {len} {}", len + 200);
    }
    holds(&script);
}

/// A commit of at most 8 bytes is split into several stores.
#[test]
fn memcpy_commit() {
    let mut script = "create f 644\n write f 0 64 1\n".to_string();
    for (off, len) in (0..8).flat_map(|off| (1..=8 - off).map(move |len| (16 + off, len))) {
        let _ = writeln!(script, "write f {off} {len} {}", off * 8 + len);
    }
    holds(&script);
}
