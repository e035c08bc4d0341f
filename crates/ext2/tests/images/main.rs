//! Images that no file system is mounted on: what mkfs makes, and what the checker finds.

mod check;
mod golden;
mod hostile;
mod mkfs;
