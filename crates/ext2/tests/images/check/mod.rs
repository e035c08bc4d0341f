//! Our checker and e2fsck must agree on sound images and on damaged ones. The classes are clean,
//! leaks of soft updates, and corrupt.

mod images;

use ext2::fsck::{Verdict, judge};
use images::{KINDS, Map, device, populated};
use std::path::Path;

/// A directory whose files need no disk, since e2fsck syncs the images that it checks.
fn in_memory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let fallback = std::env::temp_dir();
    let base = if shm.is_dir() { shm } else { &fallback };
    tempfile::tempdir_in(base).unwrap()
}

/// Checks an image with both programs. Returns the verdict, and the disagreement, if any.
fn compare(what: &str, bytes: &[u8], at: &Path) -> (Verdict, Option<String>) {
    std::fs::write(at, bytes).unwrap();
    let theirs = judge(at).unwrap();
    let report = ext2::check(&device(bytes));
    let ours = Verdict::of(&report);
    let disagree = (ours != theirs.verdict).then(|| {
        let findings: Vec<_> = report
            .findings
            .iter()
            .take(5)
            .map(|f| f.to_string())
            .collect();
        format!(
            "{what}: {ours:?} by us {findings:?}, {:?} by e2fsck: {:?}\n{}",
            theirs.verdict,
            theirs.worst,
            theirs
                .output
                .lines()
                .take(40)
                .collect::<Vec<_>>()
                .join("\n"),
        )
    });
    (theirs.verdict, disagree)
}

#[test]
fn images_of_mke2fs_and_debugfs_are_clean() {
    let dir = in_memory();
    for kind in &KINDS {
        let bytes = populated(kind, dir.path());
        let at = dir.path().join("image");
        let (verdict, disagree) = compare(kind.name, &bytes, &at);
        assert_eq!(disagree, None, "{}", kind.name);
        assert_eq!(verdict, Verdict::Clean, "{}", kind.name);
    }
}

/// A field to spoil.
struct Field {
    name: String,
    at: usize,
    width: usize,
    /// Values besides 0, all ones, and one more and one less.
    others: Vec<u32>,
}

fn field(name: impl Into<String>, at: usize, width: usize) -> Field {
    Field {
        name: name.into(),
        at,
        width,
        others: Vec::new(),
    }
}

fn superblock(fields: &mut Vec<Field>) {
    for (name, offset, width) in [
        ("inodes_count", 0, 4),
        ("blocks_count", 4, 4),
        ("free_blocks", 12, 4),
        ("free_inodes", 16, 4),
        ("first_data_block", 20, 4),
        ("log_block_size", 24, 4),
        ("blocks_per_group", 32, 4),
        ("inodes_per_group", 40, 4),
        ("magic", 56, 2),
        ("revision", 76, 4),
        ("incompat", 96, 4),
        ("last_orphan", 232, 4),
    ] {
        fields.push(field(format!("superblock {name}"), 1024 + offset, width));
    }
}

fn descriptors(map: &Map, groups: u32, fields: &mut Vec<Field>) {
    for group in 0..groups {
        let at = map.descriptor(group);
        for (name, offset, width) in [
            ("block_bitmap", 0, 4),
            ("inode_bitmap", 4, 4),
            ("inode_table", 8, 4),
            ("free_blocks", 12, 2),
            ("free_inodes", 14, 2),
            ("directories", 16, 2),
        ] {
            fields.push(field(format!("group {group} {name}"), at + offset, width));
        }
        for bitmap in [0, 4] {
            let block = map.get(at + bitmap, 4) as usize * map.block;
            for byte in [0, 1, 2, 5, 8, 100, map.block - 1] {
                let name = format!("group {group} bitmap {bitmap} byte {byte}");
                fields.push(field(name, block + byte, 1));
            }
        }
    }
}

fn inodes(map: &Map, paths: &[&str], fields: &mut Vec<Field>) {
    for path in paths {
        let ino = map.find(path);
        let at = map.inode(ino);
        let foreign = map.get(map.inode(map.find("/a/large")) + 40, 4);
        for (name, offset, width) in [
            ("mode", 0, 2),
            ("size", 4, 4),
            ("dtime", 20, 4),
            ("links", 26, 2),
            ("sectors", 28, 4),
            ("file_acl", 104, 4),
            ("fragment", 112, 4),
        ] {
            fields.push(field(format!("{path} {name}"), at + offset, width));
        }
        for slot in [0, 1, 11, 12, 13, 14] {
            let others = vec![foreign, 1, 2, map.get(at + 40, 4)];
            let pointer = field(format!("{path} pointer {slot}"), at + 40 + 4 * slot, 4);
            fields.push(Field { others, ..pointer });
        }
    }
}

fn trees(map: &Map, fields: &mut Vec<Field>) {
    for slot in [12, 13, 14] {
        let ino = map.find("/a/b/sparse");
        let block = map.block_of(ino, slot);
        if block == 0 {
            continue;
        }
        // A pointer back to the tree's own root: a cycle.
        let others = vec![(block / map.block) as u32, map.get(map.inode(2) + 40, 4)];
        for word in [0, 7, 255] {
            let name = format!("indirect block {slot} word {word}");
            let word = field(name, block + 4 * word, 4);
            fields.push(Field {
                others: others.clone(),
                ..word
            });
        }
    }
}

fn directories(map: &Map, paths: &[&str], fields: &mut Vec<Field>) {
    for path in paths {
        for (at, name) in map.entries(map.find(path)) {
            let name = format!("{path} entry '{}'", name.escape_ascii());
            let others = ["", "/a", "/a/b", "/small", "/fast"]
                .map(|p| map.find(p))
                .to_vec();
            let ino = field(format!("{name} inode"), at, 4);
            fields.push(Field { others, ..ino });
            fields.push(field(format!("{name} rec_len"), at + 4, 2));
            fields.push(field(format!("{name} name_len"), at + 6, 1));
            fields.push(field(format!("{name} file_type"), at + 7, 1));
            let letter = field(format!("{name} letter"), at + 8, 1);
            fields.push(Field {
                others: vec![b'/'.into(), b'.'.into()],
                ..letter
            });
        }
    }
}

fn attributes(map: &Map, fields: &mut Vec<Field>) {
    let ino = map.find("/a/large");
    let block = map.get(map.inode(ino) + 104, 4) as usize * map.block;
    if block == 0 {
        return;
    }
    for (name, offset, width) in [
        ("magic", 0, 4),
        ("references", 4, 4),
        ("blocks", 8, 4),
        ("name_len", 32, 1),
        ("value_offset", 34, 2),
        ("value_size", 40, 4),
    ] {
        fields.push(field(
            format!("attribute block {name}"),
            block + offset,
            width,
        ));
    }
}

/// All fields of one image, each with every value.
fn mutations(map: &Map, groups: u32) -> Vec<(String, Vec<u8>)> {
    let mut fields = Vec::new();
    superblock(&mut fields);
    descriptors(map, groups, &mut fields);
    let paths = [
        "/",
        "/a",
        "/a/b",
        "/small",
        "/a/large",
        "/a/b/sparse",
        "/fast",
        "/a/slow",
    ];
    inodes(map, &paths, &mut fields);
    inodes(map, &["/a/pipe", "/a/char"], &mut fields);
    trees(map, &mut fields);
    directories(map, &["/", "/a", "/a/b/c"], &mut fields);
    attributes(map, &mut fields);
    let mut all = Vec::new();
    for f in &fields {
        let old = map.get(f.at, f.width);
        let mut values = vec![0, u32::MAX, old.wrapping_add(1), old.wrapping_sub(1)];
        values.extend(&f.others);
        for value in values {
            let bytes = map.with(f.at, f.width, value);
            if bytes != map.bytes {
                all.push((format!("{} {old} -> {value}", f.name), bytes));
            }
        }
    }
    all
}

/// Whether the two differ by design. `format.md` states the reasons.
fn by_design(what: &str) -> bool {
    // e2fsck -n does not follow the orphan list.
    what.contains("superblock last_orphan")
        // It takes features in revision 0 for revision 1.
        || what.contains("superblock revision 1 -> 0")
        // It follows the pointers of a directory, and corrects the size.
        || [": / size", ": /a size", ": /a/b size"].iter().any(|w| what.contains(w))
}

/// An interrupted rename leaves a directory with two names, and each further one adds a name.
#[test]
fn a_directory_with_several_names_can_be_used() {
    let (dir, kind) = (in_memory(), &KINDS[0]);
    let at = dir.path().join("image");
    std::fs::write(&at, populated(kind, dir.path())).unwrap();
    let said = std::process::Command::new("sh")
        .arg("-c")
        .arg(
            "printf 'mkdir m\nmkdir n\nmkdir o\nmkdir n/d\nsif n/d links_count 4\n\
              ln n/d m/d\nln n/d o/d\n' | debugfs -w -f /dev/stdin \"$0\"",
        )
        .arg(&at)
        .output()
        .unwrap();
    let report = ext2::check(&device(&std::fs::read(&at).unwrap()));
    let found: Vec<_> = report.findings.iter().map(|f| &*f.invariant).collect();
    assert_eq!(found, ["E29"], "{report:?} {said:?}");
    assert_eq!(judge(&at).unwrap().verdict, Verdict::Leaks);
}

#[test]
fn both_checkers_agree_on_damaged_images() {
    let dir = in_memory();
    let at = dir.path().join("image");
    let mut counts = [0; 3];
    let mut disagreements = Vec::new();
    for (kind, groups) in KINDS.iter().zip([1, 1, 1, 1, 1, 1, 3]) {
        let map = Map::new(populated(kind, dir.path()));
        // Each kind gets another part of all changes. The usual kind gets most of them.
        let step = if kind.name == "usual" { 2 } else { 7 };
        for (what, bytes) in mutations(&map, groups).into_iter().step_by(step) {
            let what = format!("{}: {what}", kind.name);
            let (verdict, disagree) = compare(&what, &bytes, &at);
            counts[verdict as usize] += 1;
            disagreements.extend(disagree.filter(|_| !by_design(&what)));
        }
    }
    eprintln!("clean, leaks, corrupt: {counts:?}");
    for d in &disagreements {
        eprintln!("{d}");
    }
    assert_eq!(disagreements.len(), 0);
}
