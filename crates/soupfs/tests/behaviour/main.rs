//! Properties of SoupFS beyond agreement with the model. Rounds, repairs and threads leave a
//! consistent state. Damaged and old images, large directories and `fsync` have their tests. They
//! are one program, since each program compiles the file system for its media.

mod blocks;
mod copies;
mod differential;
mod directories;
mod fsync;
mod full;
mod golden;
mod hostile;
mod repaired;
mod reused;
mod tails;
mod threads;
