//! Workloads and reports: how many bytes, how many nanoseconds, how much memory.
//!
//! Each benchmark is a module with `Options` (which have a `Default`), a function
//! `run(&Options) -> Result<Report>`, and a `Report` that prints as text (`Display`) and
//! serialises (`serde`) as the JSON rows that the manual page names:
//!
//! - [`bytes`]: bytes written per call, Figure 3.8 of the dissertation, ours beside the
//!   paper's. Rows `{"op", "mode", "bytes", "paper", ..}`.
//! - [`micro`]: the same operations on engines in this process and on directories through
//!   system calls, interleaved. Rows
//!   `{"target", "op", "ns_median", "ns_p99", "flushes", "fences", "bytes"}`.
//! - [`scaling`]: operations per second of several threads, each on files of its own. Rows
//!   `{"target", "op", "threads", "ops_per_second", "speedup"}`.
//! - [`soup`]: SoupFS beside BPFS and tmpfs, the figures of section 5.2 of the SoupFS paper. Rows
//!   `{"target", "op", "threads", "flush_ns", "ns_median", "ns_p99", "ops_per_second"}`.
//! - [`workloads`]: file servers, a web proxy and mail servers on engines, directories and mounts,
//!   the figures of section 4.3 of the SoupFS paper. Rows
//!   `{"target", "op", "threads", "flush_ns", "ns_median", "ns_p99", "ops_per_second"}`.
//! - [`aerie`]: PXFS by its clients beside other file systems, the figures of section 4.4 of the
//!   dissertation. Rows
//!   `{"target", "op", "clients", "threads", "ns_median", "ns_p95", "ns_p99", "ops_per_second"}`.
//! - [`shared`]: lines flushed, fences and bytes of calls that share a write-back. Rows
//!   `{"target", "op", "calls", "lines", "fences", "bytes"}`.
//! - [`scan`]: time to mount, and memory of, a file system full of small files.
//! - [`mounted`]: workloads on FUSE mounts, as ratios to the in-memory model's mount.
//! - [`devices`]: FUA against flush, for waves of scattered blocks. Rows
//!   `{"target", "blocks", "fua_us", "flush_us", "fua_us_p90", "flush_us_p90"}`.
//! - [`patches`]: what the patch optimisations are worth, Figure 2.10, ours beside the
//!   paper's. Rows `{"workload", "optimisations", "patches", "undo_bytes", "cpu_seconds",
//!   "patch_memory_bytes", "data_bytes", ..}`; and [`patches::scale`], time per operation
//!   with ever more dirty blocks. Rows
//!   `{"dirty_blocks", "create_ns", "merge_ns", "write_ns"}`.
//! - [`fs`]: ext2 in every mode beside the kernel's file systems on the same devices,
//!   Figure 2.11. Rows
//!   `{"target", "backing", "workload", "seconds", "cpu_seconds", "writes", "flushes", ..}`.
//! - [`memory`]: durable memory beside other stores on the same memory, and what its parts
//!   cost; the figures of section 3.5. An object whose `rows` are
//!   `{"store", "op", "value_bytes", "threads", "us_median", "ops_per_second"}`.
//! - [`report`]: all of them into a folder, as JSON, text, Markdown and SVG:
//!   `run_all(&Path, &Options, progress)`.
//!
//! Nothing here judges by time in a test: goals are printed as met or missed.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod aerie;
pub mod bytes;
mod chart;
mod detached;
pub mod devices;
mod engine;
mod error;
pub mod fs;
mod images;
mod interrupt;
pub mod machine;
mod matrix;
pub mod memory;
pub mod micro;
pub mod mounted;
pub mod paper;
pub mod patches;
mod postmark;
pub mod report;
pub mod scaling;
pub mod scan;
mod server;
mod service;
pub mod shared;
mod singles;
pub mod soup;
pub mod stats;
mod table;
mod target;
mod tree;
mod values;
pub mod workloads;

pub use engine::{Engine, names};
pub use error::{Error, Result};
