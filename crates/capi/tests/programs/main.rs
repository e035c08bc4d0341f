//! Programs in C and C++, compiled with gcc and run.

mod workshop;

mod crashes;
mod memory;
mod refused;
mod statics;
mod structures;
mod transactions;
