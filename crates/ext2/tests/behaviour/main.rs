//! What the mounted file system does, on images that mke2fs makes, judged by the model, by
//! e2fsck and by debugfs.

mod crash;
mod differential;
mod fixture;
mod formats;
mod fsync;
mod hostile;
mod limits;
mod short_lived;
mod space;
