//! Scripts on a directory whose names fill a chain: one more splits it.
//!
//! The callers keep no reference between calls. So the directory leaves memory as soon as a round has
//! made its changes durable, and the next call reads it from the medium.

use std::fmt::Write;

/// Names that a chain holds before it is split.
const NAMES: usize = 12;

/// Calls that split the chain, that undo this, and others on its names.
const CALLS: [&str; 10] = [
    "create A/n 644",
    "mkdir A/n 755",
    "link A/3 A/n",
    "rename A/5 A/n replace",
    "rename f A/n replace",
    "rename A/n m replace",
    "rename A/7 A/8 replace",
    "unlink A/n",
    "unlink A/0",
    "rmdir A/n",
];

/// All pairs of calls.
pub fn scripts() -> Vec<String> {
    let mut setup = String::from("create f 644\nmkdir A 755\n");
    for n in 0..NAMES {
        let _ = writeln!(setup, "mknod A/{n} fifo 600 0"); // writing to a string cannot fail
    }
    setup.push_str("sync\n");
    let second = |first| CALLS.map(|second| format!("{setup}{first}\n{second}\n"));
    CALLS.iter().flat_map(second).collect()
}
