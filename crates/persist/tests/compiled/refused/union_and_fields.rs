// says: a union does not say
// says: a variant has fields
//! What does not say what it holds.

#[derive(persist::Persist)]
union Either {
    one: u32,
    other: f32,
}

#[derive(persist::Persist)]
enum Shape {
    Circle { radius: u64 },
    Nothing,
}

fn main() {}
