// says: error[E0277]
// says: Persist
//! Persistent data outlives the program; a reference does not.

#[derive(persist::Persist)]
struct Name {
    text: &'static str,
}

fn main() {}
