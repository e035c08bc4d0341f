//! Mounting: the options of mount(8), the daemon, and the server.

pub(crate) mod daemon;
pub(crate) mod drawer;
pub(crate) mod facts;
pub(crate) mod nth_call;
pub(crate) mod options;
pub(crate) mod own_mount;
pub(crate) mod power_cut;
pub(crate) mod power_line;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod table;
pub(crate) mod write_back;
