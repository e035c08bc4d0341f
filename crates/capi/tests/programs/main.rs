//! Programs in C and C++, compiled with gcc and run.

mod workshop;

mod crashes;
mod examples;
mod files;
mod headers;
mod memory;
mod pointers;
mod refused;
mod sanitizers;
mod statics;
mod structures;
mod transactions;
