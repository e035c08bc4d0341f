// says: error[E0277]
// says: Persist
//! A box is in volatile memory.

#[derive(persist::Persist)]
struct Node {
    next: Option<Box<Node>>,
}

fn main() {}
