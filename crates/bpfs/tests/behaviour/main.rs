//! Properties of BPFS beyond agreement with the model. The bugs of the original are absent.
//! A full or failing medium fails the call and changes nothing. Concurrent threads leave one
//! consistent state. Times, permissions, listings, read-only mounts, damaged and old images have their
//! tests. They are one program, since each program compiles the file system for its media.

mod differential;
mod emptied;
mod faults;
mod fixture;
mod golden;
mod hostile;
mod inodes;
mod killed;
mod known_bugs;
mod listings;
mod no_space;
mod permissions;
mod read_only;
mod stress;
mod taller;
mod terabytes;
mod times;
