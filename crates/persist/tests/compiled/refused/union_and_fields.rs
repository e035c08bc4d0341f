// says: a union does not record
// says: a variant has fields
//! Types without one layout.

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
