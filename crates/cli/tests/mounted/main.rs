//! The program as its users meet it: images, mounts, servers that die, and everything
//! through real system calls. Needs `/dev/fuse` and, since it mounts directly and acts
//! as other users, root.

mod attributes;
mod bench_aerie;
mod bench_fs;
mod bench_workloads;
mod cases;
mod command_line;
mod covered;
mod crash_runs;
mod crash_test;
mod data;
mod ext2;
mod ext2_power_cut;
mod failed_mounts;
mod fixture;
mod group_clients;
mod group_scopes;
mod group_sqlite;
mod groups;
mod holders;
mod kernel;
mod late_data;
mod names;
mod own_files;
mod power_cut;
mod read_only;
#[cfg(target_arch = "x86_64")]
mod run;
mod run_processes;
mod run_sessions;
mod run_users;
mod serve;
mod server;
mod soupfs;
mod umount;
mod unprivileged;
mod wholedisk;
