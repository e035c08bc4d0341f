//! BPFS: a file system on byte-addressable persistent memory with short-circuit shadow paging.
#![forbid(unsafe_code)]
