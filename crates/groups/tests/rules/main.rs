//! The rules of patchgroups, with processes of the test's own on a file system in memory.

mod calls;
mod files;
mod fixture;
mod inheritance;
mod order;
mod races;
