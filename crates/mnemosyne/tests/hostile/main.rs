//! Durable memory that lies: it is checked, opened and used, and never a panic, a hang, or
//! memory without bound comes of it; and what is wrong is told by the number of the invariant
//! that is broken.

mod damage;
mod flips;
mod fuzz;
mod image;
mod ways_out;
