//! Serves a FileSystem to the kernel through FUSE.
#![forbid(unsafe_code)]
