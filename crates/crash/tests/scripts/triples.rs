//! Scripts of three calls on the small tree as text. Unlike enumerated ones they run without all pairs
//! besides, and their setup is crashed as well.

use oracle::script::generate::Tree;

/// That many of them, from all parts of the enumeration.
pub fn triples(count: u64) -> Vec<String> {
    let (tree, step) = (Tree::Small, Tree::Small.count(3) / count);
    let text = |n| format!("{}{}", tree.setup(), tree.sequence(3, n * step + n % step));
    (0..count).map(text).collect()
}
