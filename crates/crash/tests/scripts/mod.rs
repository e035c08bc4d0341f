//! Scripts that every engine runs, whatever its medium and its promise.

pub mod groups;

use oracle::script::generate::{LONG_TARGET, Tree};
use std::fmt::Write;

/// Kinds of crash bugs that were found in real file systems, each with a script that shows it.
/// The explorer's demands (old or new, times, checker, audit, everything can be written and
/// deleted) found them.
const BUG_CLASSES: [&str; 26] = [
    // The new inode is never flushed.
    "create f 644",
    // Two pointers into a log change by two stores.
    "mkdir A 755\n create A/f 644\n rename A/f b replace",
    // The replaced entry is removed before the new one is durable.
    "create a 644\n write a 0 9 1\n create b 644\n write b 0 9 2\n rename a b replace",
    // Not all that a rename changes is logged.
    "mkdir A 755\n create A/f 644\n rename A/f b replace\n rename A b noreplace\n mkdir A/B 755\n rename A/B C replace",
    // A link count is updated in place.
    "create f 644\n rename f g replace\n link g h\n unlink g",
    // Two descriptors rebuild one file in another order.
    "create f 644\n open 0 f\n open 1 f\n write @0 0 9000 1\n truncate @1 100\n fallocate @0 allocate 0 20000\n append @1 10 2\n close 0\n unlink f\n write @1 5 5 3",
    // A length or checksum is set after the first copy.
    "create f 644\n write f 0 20 1\n create g 644\n write g 4096 20 2",
    // Recovery frees what was freed.
    "create f 644\n write f 0 9000 1\n unlink f\n create g 644\n write g 0 9000 2",
    // Recovery needs a list that it has not built yet.
    "create f 644\n write f 0 4096 1\n truncate f 0",
    // Written data are flushed and not fenced.
    "create f 644\n write f 0 1 1\n write f 0 8 2\n fsync f",
    // A one-block file is overwritten in place.
    "create f 644\n write f 0 4096 1\n write f 0 1024 2\n write f 1000 2000 3",
    // Size and time are stored as if 16 bytes were atomic.
    "create f 644\n append f 10 1\n append f 10 2\n append f 5000 3",
    // The tail is not zeroed when a file shrinks, and shows when it grows again.
    "create f 644\n write f 0 9000 1\n truncate f 100\n truncate f 9000\n truncate f 4096\n append f 1 2\n truncate f 3\n write f 5000 1 3",
    // Replay stamps the time at which it runs.
    "create f 644\n write f 0 5000 1\n truncate f 10\n utimens f 5 6\n rename f g replace",
    // An entry has a length before its inode number is valid.
    "create long-name-of-a-file 644\n unlink long-name-of-a-file\n create n 644\n create m 644\n mkdir d 755\n create d/x 644",
    // A rename leaves both names, or none.
    "create f 644\n write f 0 5 1\n rename f g replace\n create f 644\n fsync f\n rename f g exchange",
    // A directory's entry is not logged.
    "mkdir A 755\n mkdir A/B 755\n rename A/B C replace\n fsyncdir C\n fsyncdir A",
    // A further name is missing after the file was synced by another.
    "create f 644\n mkdir A 755\n link f A/g\n fsync A/g\n link A/g h\n fsync f",
    // Space is allocated beyond the end, and the size becomes wrong.
    "create f 644\n write f 0 100 1\n fallocate f allocate-keep 0 20000\n fsync f\n truncate f 9000\n fallocate f zero-keep 50 9000",
    // A directory that should be empty cannot be removed.
    "mkdir A 755\n create A/f 644\n link A/f A/g\n unlink A/f\n fsync A/g\n unlink A/g\n rmdir A",
    // Replay fails on a name that was removed and made again.
    "create f 644\n write f 0 5000 1\n unlink f\n mkdir f 755\n fsyncdir f\n rmdir f\n symlink x f",
    // Data that changed before a link is not there after it.
    "create f 644\n write f 0 9000 1\n append f 100 2\n link f g\n fsync g\n fallocate f punch 0 4096\n link g h\n fsync f",
    // A new inode takes a number that is in use.
    "create f 644\n fsync f\n unlink f\n create g 644\n create h 644\n unlink g\n mkdir g 755",
    // A whole subtree is punched out or cut off, and only its top is freed.
    "create f 644\n write f 0 5000 1\n write f 2097152 9000 2\n write f 4194304 5000 3\n fallocate f punch 2097152 2097152\n write f 2200000 10 4\n fallocate f punch 0 6291456\n write f 2097152 9000 5\n write f 4190000 9000 6\n truncate f 4000000\n fallocate f zero 2000000 3000000\n unlink f",
    // A tree that is cut gets lower before it is short.
    "create f 644\n write f 0 5000 1\n write f 4194304 5000 2\n truncate f 4500\n append f 6000 3\n write f 1073741824 10 4\n truncate f 2097153\n append f 10 5\n truncate f 9000\n truncate f 100\n append f 10 6\n truncate f 0\n write f 4194304 10 7\n truncate f 5000\n append f 9000 8",
    // The target or an attribute is missing.
    "symlink a/target s\n create f 644\n setxattr f user.a 20 1 create\n fsync f\n setxattr f user.a 30 2 replace\n setxattr f user.b 5 3 set\n removexattr f user.a\n removexattr f user.b",
];

/// Calls on objects that were just made, moved or removed, on [`Tree::Names`]. `T` is a long
/// target.
const NAMES: [&str; 24] = [
    "create A/x 644\ncreate A/y 644\ncreate A/z 644\nsync\nunlink A/x\nrename A/z B/z replace\ncreate A/z 644\n",
    "rename C/D A/D replace\nrename C A/D/C replace\n",
    "mkdir C/D/E 755\nmkdir C/D/E/F 755\nsync\nrename C/D/E A/E replace\nrename C A/E/F/C replace\n",
    "symlink T A/n\nrename A/n B/n replace\ncreate m 644\nfsync m\n",
    "symlink T A/n\nlink A/n B/n\ncreate m 644\nfsync m\n",
    "symlink T A/n\nrename A/n B/n replace\n",
    "symlink T A/n\nlink A/n B/m\n",
    "symlink T A/n\nrename A/n f replace\n",
    "mkdir n 755\nrename f n/f replace\n",
    "mkdir A/n 755\nlink f A/n/f\nunlink f\n",
    "mkdir A/n 755\nmkdir A/n/m 755\nrename f A/n/m/f replace\n",
    "mkdir A/n 755\nrename A/n B/n replace\nrmdir B/n\n",
    "mkdir A/n 755\nmkdir A/n/m 755\nrename A/n/m B/m replace\nrmdir A/n\nrmdir B/m\n",
    "rename C/D A/D replace\nrename A/D B/D replace\n",
    "rename C/D A/D replace\nrmdir A/D\n",
    "rename C/D A/D replace\nrmdir A/D\nrmdir C\nmkdir m 755\n",
    "rename C/D A/D replace\nrename A/D C/D replace\nrmdir C/D\nrmdir C\n",
    "rename C/D A/D replace\nrmdir C\nmkdir m 755\nrename A/D m/D replace\n",
    "mkdir n 755\nrename C/D n/D replace\nrmdir n/D\nrmdir n\n",
    "mkdir n 755\nrename C/D n/D replace\nrename n/D A/D replace\nrmdir n\n",
    "rename A/g B/g replace\nrmdir A\nrename B/g f replace\nrmdir B\n",
    "link A/g B/g\nunlink A/g\nrmdir A\n",
    "rmdir C/D\nrmdir C\nmkdir n 755\nmkdir m 755\nmkdir m/n 755\n",
    "mkdir C/D/n 755\nrmdir C/D/n\nrmdir C/D\nrmdir C\nmkdir n 755\ncreate n/m 644\n",
];

/// Fsyncs on [`Tree::Names`], which wait for the names of the new directories above the inode.
const PATHS: [&str; 15] = [
    "mkdir n 755\ncreate n/m 644\nfsync n/m\n",
    "mkdir n 755\ncreate n/m 644\nfsync n/m\nwrite n/m 0 100 1\nfsync n/m\n",
    "mkdir n 755\ncreate n/m 644\nwrite n/m 0 100 1\nfdatasync n/m\n",
    "mkdir n 755\nmkdir n/m 755\nfsyncdir n/m\n",
    "mkdir n 755\nmkdir n/m 755\ncreate n/m/k 644\nfsync n/m/k\n",
    "mkdir n 755\nmkdir n/m 755\nfsyncdir n\ncreate n/m/k 644\nfsync n/m/k\n",
    "mkdir n 755\ncreate n/m 644\nrename n/m n/k replace\nfsync n/k\n",
    "mkdir n 755\ncreate n/m 644\nrename n k replace\nfsync k/m\n",
    "mkdir n 755\ncreate n/m 644\nrename n A/k replace\nfsync A/k/m\n",
    "mkdir n 755\ncreate n/m 644\nrename n/m A/m replace\nrmdir n\nfsync A/m\n",
    "mkdir n 755\nmkdir k 755\ncreate n/m 644\nrename n k/n replace\nfsync k/n/m\n",
    "mkdir n 755\nmkdir n/m 755\nmkdir k 755\nrename n/m k/m replace\nfsyncdir k/m\n",
    "mkdir n 755\nlink f n/m\nrename n k replace\nunlink f\nfsync k/m\n",
    "mkdir n 755\nrename f n/m replace\nrename n k replace\nfsync k/m\n",
    "mkdir n 755\ntmpfile 0 n 644\nlink @0 n/m\nfsync n/m\n",
];

/// Removals of names, of open files among them, on a directory `A` and a file `f` with data.
const REMOVALS: [&str; 9] = [
    "open 0 f\nunlink f\nclose 0\n",
    "open 0 f\ncreate n 644\nunlink f\nclose 0\n",
    "link f g\nunlink f\nunlink g\n",
    "open 0 f\nlink f A/g\nunlink f\nunlink A/g\nclose 0\n",
    "rename f g replace\nunlink g\n",
    "create x 644\nrename f g replace\nrename x g replace\n",
    "open 0 f\nrename f g replace\nunlink g\nclose 0\n",
    "create n 644\nwrite n 0 2000 5\nopen 0 f\nrename n f replace\nclose 0\n",
    "tmpfile 0 / 644\nappend @0 3000 4\nclose 0\n",
];

/// Changes of a file `f` with data and holes, each with the path of the file after it.
const CHANGES: [(&str, &str); 13] = [
    ("write f 100 1000 2\nwrite f 1500 30 3", "f"),
    ("write f 5000 1000 2", "f"),
    ("write f 20000 8 2", "f"),
    ("write f 0 8 2\nappend f 8 3\nwrite f 0 8 4", "f"),
    ("truncate f 30001", "f"),
    ("fallocate f zero 100 5000", "f"),
    ("fallocate f punch 100 2500", "f"),
    ("utimens f 1000 2000\nwrite f 0 8 2", "f"),
    ("chmod f 4755\nwrite f 0 8 2", "f"),
    ("setxattr f user.k 10 0 set", "f"),
    ("link f A/g", "f"),
    ("rename f A/g replace", "A/g"),
    ("create A/g 644\nwrite A/g 0 3000 2", "A/g"),
];

/// On [`Tree::Names`], which is made durable first.
pub fn on_names(script: &str) -> String {
    let script = script.replace("symlink T", &format!("symlink {}", "t".repeat(LONG_TARGET)));
    format!("{}sync\n{script}", Tree::Names.setup())
}

/// [`NAMES`] as whole scripts.
pub fn of_names() -> impl Iterator<Item = String> {
    NAMES.iter().map(|script| on_names(script))
}

/// [`PATHS`] as whole scripts.
pub fn of_paths() -> impl Iterator<Item = String> {
    PATHS.iter().map(|script| on_names(script))
}

fn of_removals() -> impl Iterator<Item = String> {
    let setup = "mkdir A 755\ncreate e 644\ncreate f 644\nwrite f 0 3000 1\nsync\n";
    REMOVALS.iter().map(move |rest| format!("{setup}{rest}"))
}

/// An `fdatasync` covers data, size, pointers of added blocks, permissions, attributes and names.
/// In blocks of 1 KiB, the one at 20,000 is below an indirect block. An overwrite alone changes
/// only times besides data.
fn of_changes() -> impl Iterator<Item = String> {
    let setup = "mkdir A 755\ncreate f 644\nwrite f 0 3000 1\ntruncate f 30000\nsync\n";
    let whole = move |(change, path): &(&str, &str)| format!("{setup}{change}\nfdatasync {path}\n");
    CHANGES.iter().map(whole)
}

/// The second of two changes of a file may find the first in memory, not yet stored. An fsync
/// after it waits for both. The byte ranges end within blocks.
fn of_cuts() -> impl Iterator<Item = String> {
    let cuts = [
        "truncate f 100",
        "truncate f 1500",
        "fallocate f punch 100 2500",
    ];
    let growths = [
        "truncate f 5000",
        "write f 4000 8 4",
        "fallocate f zero 2000 3000",
    ];
    cuts.into_iter().flat_map(move |cut| {
        growths.map(|growth| {
            format!("create f 644\nwrite f 0 3000 1\nfsync f\n{cut}\n{growth}\nfsync f\n")
        })
    })
}

/// The line at the edge of a write is not flushed.
pub fn unaligned_tail() -> String {
    let mut script = "create f 644\n write f 0 300 1\n".to_string();
    for off in 0..=64 {
        let _ = writeln!(script, "write f {off} 11 {}", off + 2);
    }
    for len in 1..=24 {
        let _ = writeln!(script, "write f 59 {len} {}", len + 100);
        let _ = writeln!(script, "append f {len} {}", len + 200);
    }
    script
}

/// A commit of at most 8 bytes is split into several stores.
pub fn memcpy_commit() -> String {
    let mut script = "create f 644\n write f 0 64 1\n".to_string();
    for (off, len) in (0..8).flat_map(|off| (1..=8 - off).map(move |len| (16 + off, len))) {
        let _ = writeln!(script, "write f {off} {len} {}", off * 8 + len);
    }
    script
}

/// Scripts of one or two files, which change few blocks.
pub fn of_files() -> Vec<String> {
    let more = [
        // A file made without a name gets one.
        "mkdir A 755\ntmpfile 2 A 644\nlink @2 n\n".to_string(),
        // A script ends with an open file without a name.
        "tmpfile 0 / 644\nappend @0 3000 4\ncreate f 644\nopen 1 f\nunlink f\n".to_string(),
    ];
    of_removals()
        .chain(of_changes())
        .chain(of_cuts())
        .chain(more)
        .collect()
}

/// All of them.
pub fn all() -> Vec<String> {
    let classes = BUG_CLASSES.iter().map(ToString::to_string);
    classes
        .chain(of_names())
        .chain(of_paths())
        .chain(of_files())
        .chain([unaligned_tail(), memcpy_commit()])
        .collect()
}
