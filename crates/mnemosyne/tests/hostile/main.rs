//! Damaged durable memory is checked, opened and used. The result is never a panic, a hang or
//! unbounded memory, and damage is reported by the number of the invariant that it violates.

mod damage;
mod flips;
mod fuzz;
mod image;
mod ways_out;
