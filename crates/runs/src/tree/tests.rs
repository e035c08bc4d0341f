use super::*;
use crate::Blob;

fn make(tree: &mut Tree, node: u64, dir: Node, name: &str, kind: Kind) -> Node {
    let call = Call::Make {
        node: Node(node),
        at: Some(Place::new(dir, name.as_bytes())),
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
    };
    tree.apply(&call, &[]).unwrap();
    Node(node)
}

/// A tree with a directory, a file with two names and a hole, and a link.
fn example() -> Tree {
    let mut tree = Tree::default();
    let dir = make(&mut tree, 2, Node::ROOT, "d", Kind::Directory);
    tree.get_mut(dir).unwrap().perm = 0o700;
    let file = make(&mut tree, 3, dir, "f", Kind::File);
    let at = Place::new(Node::ROOT, b"g");
    tree.apply(&Call::Link { node: file, at }, &[]).unwrap();
    let contents = &mut tree.get_mut(file).unwrap().contents;
    contents.write(2 * PAGE_BYTES + 7, b"tail");
    contents.write(0, b"head");
    make(
        &mut tree,
        4,
        Node::ROOT,
        "l",
        Kind::Symlink((&b"d/f"[..]).into()),
    );
    tree
}

#[test]
fn a_tree_survives_a_directory_of_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let tree = example();
    tree.write_to(&root).unwrap();
    let back = Tree::read_dir(&root, &mut 10).unwrap();
    assert_eq!(back.differences(&tree), []);
    assert_eq!(back.hash(), tree.hash());
}

#[test]
fn two_names_of_a_file_differ_from_two_files() {
    let tree = example();
    let mut other = tree.clone();
    let copy = other.get(Node(3)).unwrap().clone();
    other.insert(Node(9), copy);
    let at = Place::new(Node::ROOT, b"g");
    other.set_name(&at, Some(Node(9))).unwrap();
    assert_ne!(tree.hash(), other.hash());
}

#[test]
fn a_file_that_was_cut_grows_by_zeros() {
    for cut in [0, 1, 4095, 4096, 4097, 9000] {
        let mut contents = Contents::default();
        contents.write(0, &[1; 10_000]);
        contents.set_size(cut);
        contents.set_size(10_000);
        let bytes = contents.bytes(1 << 20).unwrap();
        assert!(bytes[..cut as usize].iter().all(|b| *b == 1), "{cut}");
        assert!(bytes[cut as usize..].iter().all(|b| *b == 0), "{cut}");
    }
}

#[test]
fn zeros_cover_their_range_only() {
    for (off, len) in [
        (0, 1),
        (10, 4086),
        (10, 4087),
        (4096, 4096),
        (100, 9000),
        (0, 20_000),
    ] {
        let mut contents = Contents::default();
        contents.write(0, &[1; 12_000]);
        contents.zero(off, len);
        let bytes = contents.bytes(1 << 20).unwrap();
        for (at, byte) in bytes.iter().enumerate() {
            let is_zero = (off..off + len).contains(&(at as u64));
            assert_eq!(*byte, u8::from(!is_zero), "{off} {len} {at}");
        }
    }
}

#[test]
fn a_rename_onto_the_same_file_changes_nothing() {
    let mut tree = example();
    let (from, to) = (Place::new(Node(2), b"f"), Place::new(Node::ROOT, b"g"));
    let before = tree.hash();
    let rename = |from: &Place, to: &Place| Call::Rename {
        from: from.clone(),
        to: to.clone(),
        exchange: false,
    };
    tree.apply(&rename(&from, &to), &[]).unwrap();
    assert_eq!(tree.hash(), before);
    let other = Place::new(Node::ROOT, b"l");
    tree.apply(&rename(&to, &other), &[]).unwrap();
    assert_eq!(tree.lookup(&to), None);
    assert_eq!(tree.lookup(&other), Some(Node(3)));
}

#[test]
fn differences_name_the_path_and_the_fault() {
    let tree = example();
    let mut lost = tree.clone();
    lost.set_name(&Place::new(Node(2), b"f"), None).unwrap();
    lost.get_mut(Node(3)).unwrap().contents.set_size(1);
    make(&mut lost, 7, Node::ROOT, "new", Kind::Fifo);
    let found: Vec<String> = lost
        .differences(&tree)
        .iter()
        .map(|d| d.to_string())
        .collect();
    let size = 2 * PAGE_BYTES + 11;
    let expected = [
        "d/f is missing".to_owned(),
        format!("g has 1 bytes, not {size}"),
        "new is still there".to_owned(),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_call_that_does_not_fit_is_an_error() {
    let mut tree = example();
    let blob = Blob { at: 0, len: 1 };
    let write = |node| Call::Write {
        node,
        off: 0,
        data: blob,
    };
    assert!(tree.apply(&write(Node(99)), b"x").is_err());
    assert!(tree.apply(&write(Node(3)), b"").is_err());
    let at = Place::new(Node(3), b"x");
    let link = Call::Link { node: Node(4), at };
    assert!(tree.apply(&link, &[]).is_err());
}
