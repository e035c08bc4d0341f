// says: error[E0277]
// says: String
//! A persistent pointer cannot lead to volatile data.

#[derive(persist::Persist)]
struct Node {
    name: persist::Ptr<String>,
}

fn main() {}
