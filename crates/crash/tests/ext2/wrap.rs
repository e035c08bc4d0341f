//! Scripts that fill a journal several times.

/// Appends to two files in turn, with syncs. The log of a test image has room for a few of the
/// transactions, so that it wraps around.
pub fn wrapping() -> String {
    let step = |n: u32| {
        let file = if n.is_multiple_of(2) { "f" } else { "g" };
        format!("append {file} 3000 {n}\nfsync {file}\n")
    };
    let steps: String = (0..30).map(step).collect();
    format!("create f 644\ncreate g 644\nmkdir A 755\n{steps}")
}
