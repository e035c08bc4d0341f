//! Hashes, comparisons and text of snapshots.

use super::{Content, Node, Snapshot, Times};
use std::fmt::{self, Display, Formatter, Write as _};
use xxhash_rust::xxh3::xxh3_128;

impl Snapshot {
    /// A hash of all except the times, the same on every machine.
    pub fn hash(&self) -> u128 {
        let mut bytes = Vec::with_capacity(4096);
        for name in &self.names {
            put(&mut bytes, &name.path);
            bytes.extend((name.node as u64).to_le_bytes());
        }
        for node in &self.nodes {
            put_node(&mut bytes, node);
        }
        xxh3_128(&bytes)
    }

    /// The differences except times, one line each; `self` is left of the arrow.
    pub fn diff(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let (leaders, other_leaders) = (self.leaders(), other.leaders());
        for (path, ours, theirs) in self.pairs(other) {
            let (ours, theirs) = match (ours, theirs) {
                (Some(ours), Some(theirs)) => (ours, theirs),
                (Some(ours), None) => {
                    lines.push(format!("{path}: {} -> nothing", self.nodes[ours]));
                    continue;
                }
                (None, Some(theirs)) => {
                    lines.push(format!("{path}: nothing -> {}", other.nodes[theirs]));
                    continue;
                }
                (None, None) => continue,
            };
            let (leader, other_leader) = (leaders[ours], other_leaders[theirs]);
            if leader != other_leader {
                let [leader, other_leader] = [leader, other_leader].map(<[u8]>::escape_ascii);
                lines.push(format!("{path}: same inode as {leader} -> {other_leader}"));
            }
            diff_nodes(&path, &self.nodes[ours], &other.nodes[theirs], &mut lines);
        }
        lines
    }

    /// The differences of times, one line each, for the paths that both have.
    pub fn diff_times(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, ours, theirs) in self.pairs(other) {
            let (Some(ours), Some(theirs)) = (ours, theirs) else {
                continue;
            };
            let (ours, theirs) = (self.times[ours].named(), other.times[theirs].named());
            for ((what, ours), (_, theirs)) in ours.into_iter().zip(theirs) {
                differ(&path, what, ours, theirs, &mut lines);
            }
        }
        lines
    }

    /// The first path of each inode.
    fn leaders(&self) -> Vec<&[u8]> {
        let mut leaders: Vec<&[u8]> = vec![b""; self.nodes.len()];
        for name in self.names.iter().rev() {
            leaders[name.node] = &name.path;
        }
        leaders
    }

    /// All paths of either, in order, printable, with the index of the inode in each.
    fn pairs(&self, other: &Self) -> Vec<(String, Option<usize>, Option<usize>)> {
        let (mut ours, mut theirs) = (self.names.iter().peekable(), other.names.iter().peekable());
        let mut pairs = Vec::new();
        loop {
            let path = match (ours.peek(), theirs.peek()) {
                (Some(a), Some(b)) => (&a.path).min(&b.path),
                (Some(a), None) => &a.path,
                (None, Some(b)) => &b.path,
                (None, None) => return pairs,
            };
            let left = ours.next_if(|name| name.path == *path);
            let right = theirs.next_if(|name| name.path == *path);
            pairs.push((
                path.escape_ascii().to_string(),
                left.map(|name| name.node),
                right.map(|name| name.node),
            ));
        }
    }
}

impl Times {
    fn named(&self) -> [(&'static str, i64); 3] {
        [
            ("atime", self.atime.0),
            ("mtime", self.mtime.0),
            ("ctime", self.ctime.0),
        ]
    }
}

/// Appends a string with its length, so that different lists of strings give different bytes.
fn put(bytes: &mut Vec<u8>, string: &[u8]) {
    bytes.extend((string.len() as u64).to_le_bytes());
    bytes.extend_from_slice(string);
}

fn put_node(bytes: &mut Vec<u8>, node: &Node) {
    for field in [
        node.kind.mode_bits() | node.perm,
        node.uid,
        node.gid,
        node.rdev,
        node.nlink,
        node.xattrs.len() as u32,
    ] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(node.size.to_le_bytes());
    match &node.content {
        Content::None => {}
        Content::Bytes(data) | Content::Target(data) => put(bytes, data),
        Content::Hash(hash) => bytes.extend(hash.to_le_bytes()),
    }
    for (name, value) in &node.xattrs {
        put(bytes, name);
        put(bytes, value);
    }
}

fn differ<T: PartialEq + Display>(
    path: &str,
    what: &str,
    ours: T,
    theirs: T,
    lines: &mut Vec<String>,
) {
    if ours != theirs {
        lines.push(format!("{path}: {what} {ours} -> {theirs}"));
    }
}

fn diff_nodes(path: &str, ours: &Node, theirs: &Node, lines: &mut Vec<String>) {
    if ours.kind != theirs.kind {
        lines.push(format!("{path}: {ours} -> {theirs}"));
        return;
    }
    let octal = |perm| format!("{perm:04o}");
    differ(path, "mode", octal(ours.perm), octal(theirs.perm), lines);
    differ(path, "owner", ours.uid, theirs.uid, lines);
    differ(path, "group", ours.gid, theirs.gid, lines);
    differ(path, "device", ours.rdev, theirs.rdev, lines);
    differ(path, "links", ours.nlink, theirs.nlink, lines);
    differ(path, "size", ours.size, theirs.size, lines);
    match (&ours.content, &theirs.content) {
        (Content::Bytes(a), Content::Bytes(b)) => diff_bytes(path, a, b, lines),
        (Content::Target(a), Content::Target(b)) => {
            let [a, b] = [a, b].map(|target| target.escape_ascii().to_string());
            differ(path, "target", a, b, lines);
        }
        (a, b) if a != b => lines.push(format!("{path}: other data")),
        _ => {}
    }
    let xattrs = |node: &Node| {
        let mut all = String::from("{");
        for (name, value) in &node.xattrs {
            let _ = write!(all, " {}={}", name.escape_ascii(), value.escape_ascii());
        }
        all + " }"
    };
    differ(path, "xattrs", xattrs(ours), xattrs(theirs), lines);
}

/// Describes the place and the start of the first run of differing bytes.
fn diff_bytes(path: &str, ours: &[u8], theirs: &[u8], lines: &mut Vec<String>) {
    let mut pairs = ours.iter().zip(theirs);
    let Some(start) = pairs.position(|(a, b)| a != b) else {
        return; // the sizes differ already
    };
    let count = 1 + pairs.filter(|(a, b)| a != b).count();
    let hex = |bytes: &[u8]| {
        let mut out = String::new();
        for byte in bytes[start..].iter().take(8) {
            let _ = write!(out, "{byte:02x}");
        }
        out
    };
    let (a, b) = (hex(ours), hex(theirs));
    lines.push(format!("{path}: {count} bytes from {start} on: {a} -> {b}"));
}

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            perm,
            uid,
            gid,
            nlink,
            size,
            ..
        } = self;
        write!(
            f,
            "{kind:?} {perm:04o} {uid}:{gid} links {nlink} size {size}"
        )?;
        if let Content::Target(target) = &self.content {
            write!(f, " to {}", target.escape_ascii())?;
        }
        Ok(())
    }
}

impl Display for Snapshot {
    /// One line per path.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (path, node, _) in self.iter() {
            writeln!(f, "{}: {node}", path.escape_ascii())?;
        }
        Ok(())
    }
}
