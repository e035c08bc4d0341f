//! [`Tree::Large`](super::Tree::Large): directories of several blocks.

use super::{LONG, parse};
use crate::script::{Op, Script};
use std::fmt::Write;

/// Makes the directories and their names, in the order of the names. Every fourth name is of a
/// fifo of its own, since a rename of one name of a file over another does nothing. The last
/// name in `A` is of a directory.
pub(super) fn setup() -> Script {
    let mut text = String::from("create f 644\n");
    for (dir, names) in [("A", 12), ("B", 18), ("C", 9), ("D", 4)] {
        let _ = writeln!(text, "mkdir {dir} 755");
        for i in 0..names {
            let _ = match (dir, i) {
                ("A", 11) => writeln!(text, "mkdir A/#11 755"),
                _ if i % 4 == 0 => writeln!(text, "mknod {dir}/#{i} fifo 600 0"),
                _ => writeln!(text, "link f {dir}/#{i}"),
            };
        }
    }
    // Remove the first and the middle name of a block, and all names of `D`.
    for name in ["C/#3", "C/#7", "D/#0", "D/#1", "D/#2", "D/#3"] {
        let _ = writeln!(text, "unlink {name}");
    }
    expanded(&text).into()
}

pub(super) fn ops() -> Vec<Op> {
    expanded(OPS)
}

/// Expands `#NAME` to a name of [`LONG`] bytes, and `~NAME` to the longest name that fits after
/// three of these. The block has 1 KiB, with `.` and `..`.
fn expanded(text: &str) -> Vec<Op> {
    let long = |word: &str| match word.split_once(['#', '~']) {
        Some((dir, name)) if word.contains('#') => format!("{dir}{name:0>LONG$}"),
        Some((dir, name)) => format!("{dir}{name:0>REST$}"),
        None => word.to_string(),
    };
    let line = |line: &str| line.split(' ').map(long).collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = text.lines().map(|text| line(text.trim())).collect();
    parse(&lines.join("\n"))
}

/// Bytes of a name that fills the rest of the first block.
const REST: usize = 200;

/// Operations on [`Tree::Large`](super::Tree::Large): names that make a directory grow, then
/// names that fit in its first block or in a hole. Then come changes of two blocks of one
/// directory, and calls that undo any of these.
const OPS: &str = "create A/#n 644
    mkdir A/#n 755
    symlink f A/#n
    link f A/#n
    rename f A/#n replace
    rename A/#0 A/#n replace
    rename A/#8 A/#n noreplace
    rename A/#11 A/#n replace
    rename B/#16 A/#n replace
    create B/#n 644
    mkdir B/#n 755
    rename f B/#n replace
    rename B/#0 B/#n replace
    rename B/#17 B/#n replace
    rename A/#11 B/#n replace
    rename A/#4 B/#n replace

    create A/~m 644
    create B/~m 644
    mkdir B/m 700
    link f B/m
    create C/#n 644
    mkdir C/#n 755
    link f C/#m
    create D/#n 644
    create D/n 644
    link A/#0 D/#n

    rename A/#8 A/~m replace
    rename A/#11 A/~m replace
    rename A/#0 A/m replace
    rename A/#8 A/#0 replace
    rename A/#0 A/#8 replace
    rename A/#0 A/#4 exchange
    rename A/#11 A/#0 exchange
    rename A/#11 D replace
    rename A/#11 C/#n replace
    rename D A/#n replace
    rename D A/#11 replace
    rename B/#16 B/~m replace
    rename B/#17 B/m replace
    rename B/#4 B/#16 replace
    rename B/#16 B/#4 replace
    rename B/#12 B/#8 exchange
    rename B/#16 A/#0 replace
    rename B/#0 A/#8 exchange
    rename C/#0 C/#n replace
    rename C/#8 C/#n replace
    rename C/#4 D/#n replace

    unlink A/#0
    unlink A/#3
    unlink A/#10
    unlink A/#n
    unlink B/#0
    unlink B/#15
    unlink B/#17
    unlink B/#n
    unlink B/m
    rmdir A/#11
    rmdir A/#n
    rmdir D
    rename A/#n A/#m replace
    rename A/#n A/~m replace
    rename A/#n B/#n replace
    rename B/#n B/#m replace
    rename B/#n B/m replace
    fsync f
    fsync A/#n
    fsync B/#n
    fsyncdir A
    fsyncdir B
";
