//! What a module guarantees. <start>

/// It. <empty-doc>
pub struct Block {
    /// Why. <empty-doc>
    reason: u32,
    /// See the module. <empty-doc>
    order: u32,
}

// The block's contents were written. Of ext2, <start>
// the later one wins, whoever sent it. <whoever>
/* The checker tells <person>
 * what it wants. <person>
 */
fn message() -> String {
    let lifetime: &'static str = "cannot mount: the cache wants more room"; // wait here <person>
    let quoted = "the first line \
                  is no good line"; // <is-no>
    let raw = r#"the "journal" knows <person>
        its blocks, as long as <as-long-as>
        they are in the log"#;
    format!("{lifetime}{quoted}{raw}")
}

#[test]
fn the_commit_behind_the_data_is_no_error() {} // <behind> <is-no>
