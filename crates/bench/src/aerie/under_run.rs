//! Single calls of an unmodified program under `selvedge run`: of this program, which measures a directory.

use super::options::ROOM;
use super::{Options, Row, Target};
use crate::detached::output;
use crate::error::{Context, Error, Result};
use crate::service::Service;
use std::process::Command;

/// The rows of a directory of a service.
///
/// # Errors
/// The program cannot run, or has failed.
pub(super) fn calls(options: &Options) -> Result<Vec<Row>> {
    let what = || "making a directory in /dev/shm".to_owned();
    let service = Service::start(options.file_bytes + ROOM, None)?;
    let dir = tempfile::Builder::new()
        .prefix("selvedge-bench-")
        .tempdir_in("/dev/shm")
        .what(what)?;
    let mut command = Command::new(&options.program);
    command.args(["run", "--no-mount", "--store"]);
    command.arg(service.socket()).arg("--at").arg(dir.path());
    command.arg(&options.program);
    command.args(["bench", "aerie", "--json", "--dir"]);
    command.arg(dir.path());
    let mib = (options.file_bytes >> 20).max(1);
    command.arg("--file-mib").arg(mib.to_string());
    command.arg("--rounds").arg(options.rounds.to_string());
    let printed = output(&mut command)?.stdout;
    let rows: Vec<Row> = serde_json::from_slice(&printed).map_err(|error| Error::Program {
        program: "selvedge run".into(),
        why: error.to_string(),
    })?;
    let named = |row| Row {
        target: Target::Run.name().into(),
        ..row
    };
    Ok(rows.into_iter().map(named).collect())
}
