//! Mounting: the options of mount(8), the daemon, and the server.

pub mod daemon;
pub mod facts;
pub mod nth_call;
pub mod options;
pub mod own_mount;
pub mod power_cut;
pub mod power_line;
pub mod serve;
pub mod server;
pub mod table;
