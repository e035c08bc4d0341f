//! Workloads and reports.
#![forbid(unsafe_code)]
