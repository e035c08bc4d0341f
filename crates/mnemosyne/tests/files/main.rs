//! Durable memory in the files of a directory: calls, files of other programs, and inspection.

mod directory;
mod foreign;
mod inspection;
