// says: error[E0277]
// says: String
//! Nor can a persistent pointer lead to volatile things.

#[derive(mnemosyne::Persist)]
struct Node {
    name: mnemosyne::Ptr<String>,
}

fn main() {}
