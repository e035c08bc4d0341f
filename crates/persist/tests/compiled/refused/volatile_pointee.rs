// says: error[E0277]
// says: String
//! Nor can a persistent pointer lead to volatile things.

#[derive(persist::Persist)]
struct Node {
    name: persist::Ptr<String>,
}

fn main() {}
