//! The order of writes.
//!
//! ```
//! // What is in an example is code.
//! ```

/// Frees the block.
fn free<'a>(name: &'a str) -> char {
    let goes = "goes"; // One word is an identifier.
    let quote = '"';
    // The commit record follows the data.
    if name == goes { quote } else { '\'' }
}
