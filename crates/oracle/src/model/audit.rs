//! The invariants of the model, for tests of the model.
//!
//! - M1: every name leads to an inode of the type that the entry states.
//! - M2: link counts equal the names; a directory has 2 and one for each subdirectory,
//!   and its `..` is the directory that names it.
//! - M3: an inode without a name has a reference.
//! - M4: the blocks in use are those of all inodes, and no block lies beyond the end of
//!   its file.

use super::node::{Content, Directory, Node};
use super::pages::BLOCK;
use super::table::{Space, Table};
use hashbrown::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use vfs::check::{Finding, Report, Severity::Corrupt};
use vfs::{Cookie, FileType, Ino};

pub(super) fn audit(table: &Table, space: &Space) -> Vec<Finding> {
    let mut report = Report::default();
    let mut names = HashMap::from([(Ino::ROOT, 1)]);
    for node in table.nodes.values() {
        if let Content::Directory(dir) = &node.body.read().content {
            audit_entries(table, node, dir, &mut names, &mut report);
        }
    }
    let mut blocks = 0;
    for node in table.nodes.values() {
        audit_node(node, names.get(&node.ino).copied(), &mut report);
        blocks += node.body.read().blocks();
    }
    let used = space.used();
    if used != blocks {
        report.add(
            "M4",
            Corrupt,
            format!("{used} blocks counted, {blocks} used"),
        );
    }
    report.findings
}

fn audit_entries(
    table: &Table,
    node: &Node,
    dir: &Directory,
    names: &mut HashMap<Ino, u32>,
    report: &mut Report,
) {
    for (_, name, entry) in dir.list(Cookie(0)) {
        *names.entry(entry.ino).or_default() += 1;
        let at = format!("{} in directory {}", name.escape_ascii(), node.ino);
        let Some(child) = table.nodes.get(&entry.ino) else {
            report.add("M1", Corrupt, format!("{at}: no inode {}", entry.ino));
            continue;
        };
        if child.kind != entry.kind {
            report.add("M1", Corrupt, format!("{at}: is a {:?}", child.kind));
        }
        if child.with_dir(|dir| dir.parent != node.ino) == Ok(true) {
            report.add("M2", Corrupt, format!("{at}: `..` leads elsewhere"));
        }
    }
}

fn audit_node(node: &Node, names: Option<u32>, report: &mut Report) {
    let body = node.body.read();
    let subdirs = match &body.content {
        Content::Directory(dir) => {
            let kinds = dir.list(Cookie(0)).map(|(_, _, entry)| entry.kind);
            kinds.filter(|&kind| kind == FileType::Directory).count() as u32 + 1
        }
        Content::None | Content::Data(_) | Content::Target(_) => 0,
    };
    let expected = names.map_or(0, |names| names + subdirs);
    if body.nlink != expected {
        let what = format!("inode {}: {} links, not {expected}", node.ino, body.nlink);
        report.add("M2", Corrupt, what);
    }
    if names.is_none() && node.refs.load(SeqCst) == 0 {
        report.add("M3", Corrupt, format!("inode {} is lost", node.ino));
    }
    if let Content::Data(pages) = &body.content
        && pages.next_data(body.size.next_multiple_of(BLOCK)).is_some()
    {
        report.add(
            "M4",
            Corrupt,
            format!("inode {}: blocks beyond the end", node.ino),
        );
    }
}
