//! Serving in the background without `fork`: the program starts itself again, and exits
//! only when that second process serves, or has failed and said why.
//!
//! The second process has the first one's arguments, standard error and working
//! directory, a pipe as its standard output, and a mark in its environment. Through the
//! pipe it sends the text for the user and then [`READY`]; the end of the pipe
//! without that byte reports a failure.

use crate::failure::{Failure, code};
use crate::own_file;
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Marks the environment of the process that serves.
const MARK: &str = "SELVEDGE_SERVES";

/// The last byte through the pipe: ASCII "acknowledge".
const READY: u8 = 6;

/// Whether this process has ended the first one.
static LET_GO: AtomicBool = AtomicBool::new(false);

/// Whether standard error has no reader any more: it is a log file, or nothing.
pub(crate) fn is_detached() -> bool {
    LET_GO.load(Relaxed)
}

/// Whether this process is the second one.
pub(crate) fn is_second() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the second process; returns when it serves or has failed.
///
/// # Errors
/// If it cannot be started. A failure of the second process is an exit code, since that process
/// printed the reason.
pub(crate) fn start() -> Result<ExitCode, Failure> {
    let failed = |what: &'static str| {
        move |e: io::Error| Failure::new(format_args!("{what}: {e}")).with_code(code::MOUNT_FAILED)
    };
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| OsString::from("selvedge"));
    let program = std::env::current_exe().map_err(failed("cannot find this program"))?;
    let mut child = Command::new(program)
        .arg0(name)
        .args(args)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed("cannot start the server"))?;
    let mut told = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut told)
            .map_err(failed("lost the server"))?;
    }
    if told.last() == Some(&READY) {
        told.pop();
        // It is mounted, whether that can be printed or not.
        if let Err(e) = crate::output::print(&told) {
            crate::output::complain(&e);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().map_err(failed("lost the server"))?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(
            u8::try_from(code).unwrap_or(code::MOUNT_FAILED),
        )),
        None => {
            Err(Failure::new(format_args!("the server died: {status}"))
                .with_code(code::MOUNT_FAILED))
        }
    }
}

/// Leaves the user's session, in the second process before the mount. So the end of the terminal
/// does not end the server.
pub(crate) fn leave_session() {
    // Fails only for a process that leads a session already.
    let _ = rustix::process::setsid();
}

/// The destination of the server's output once it serves in the background.
pub(crate) struct Output {
    null: File,
    log: Option<File>,
}

impl Output {
    /// Standard error goes to `log`, or to nobody but the system log.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub(crate) fn open(log: Option<&Path>) -> Result<Self, Failure> {
        let open = |options: &OpenOptions, path: &Path| {
            let opened = options.open(path);
            opened.map_err(|e| Failure::about(path, e).with_code(code::MOUNT_FAILED))
        };
        Ok(Self {
            null: open(OpenOptions::new().write(true), Path::new("/dev/null"))?,
            log: log.map(|path| open(&log_options(), path)).transpose()?,
        })
    }
}

/// Prints `told` for the user and ends the first process, when the second one serves. Later
/// output of the second process goes to `output`.
///
/// # Errors
/// If the first process is gone.
pub(crate) fn serves(told: &str, output: &Output) -> Result<(), Failure> {
    let log = output.log.as_ref().unwrap_or(&output.null);
    let_go(told, &output.null, log).map_err(Failure::new)
}

/// A log is appended to, and made for its owner only. A link is not followed, and a pipe
/// without a reader is refused instead of waited for.
fn log_options() -> OpenOptions {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(own_file::PRIVATE);
    options.custom_flags(flags.bits() as i32);
    options
}

fn let_go(told: &str, null: &File, log: &File) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(told.as_bytes())?;
    out.write_all(&[READY])?;
    out.flush()?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(log)?;
    LET_GO.store(true, Relaxed);
    std::env::set_current_dir("/")
}
