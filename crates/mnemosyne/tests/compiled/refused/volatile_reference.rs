// says: error[E0277]
// says: Persist
//! Persistent data outlives the program; a reference does not.

#[derive(mnemosyne::Persist)]
struct Name {
    text: &'static str,
}

fn main() {}
