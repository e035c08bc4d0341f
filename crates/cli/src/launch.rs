//! Runs commands in the scope of patchgroups, and waits for all processes that they start.

use crate::failure::Failure;
use pg::{Engaged, Group};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::thread;

/// A process that starts others, inherits their orphans, and passes signals on.
pub(crate) struct Launcher {
    /// The child that gets the signals; 0: none.
    child: Arc<AtomicI32>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended(WaitStatus);

impl Ended {
    /// Whether the next command may run.
    pub(crate) fn is_success(self) -> bool {
        self.0.exit_status() == Some(0)
    }

    /// The exit code that a shell would report.
    pub(crate) fn code(self) -> ExitCode {
        let signal = || self.0.terminating_signal().map(|signal| 128 + signal);
        let code = self.0.exit_status().or_else(signal);
        code.and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1)
            .into()
    }
}

impl Launcher {
    /// From now on orphans of this process's children become its children. Signals that would end
    /// it go to the running child. Those of a terminal reach the child anyway.
    pub(crate) fn new() -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::new(format_args!("cannot start commands: {e}"));
        set_child_subreaper(Some(rustix::process::getpid())).map_err(|e| failed(e.into()))?;
        let child = Arc::new(AtomicI32::new(0));
        let mut caught = vec![SIGINT, SIGQUIT, SIGTERM, SIGHUP];
        caught.retain(|signal| !is_ignored(*signal));
        let mut signals = Signals::new(caught).map_err(failed)?;
        let running = child.clone();
        thread::spawn(move || {
            for signal in signals.forever() {
                let child = Pid::from_raw(running.load(SeqCst));
                let signal = Signal::from_named_raw(signal);
                if let (Some(child), Some(signal @ (Signal::TERM | Signal::HUP))) = (child, signal)
                {
                    // It may have ended.
                    let _ = kill_process(child, signal);
                }
            }
        });
        Ok(Self { child })
    }

    /// Runs a command, and waits until it and all that it started have ended.
    pub(crate) fn run(&self, command: &mut Command) -> Result<Ended, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |e: io::Error| {
            let code = if e.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            Failure::new(format_args!("cannot run {name}: {e}")).with_code(code)
        };
        let child = command.spawn().map_err(failed)?;
        let id = child.id() as i32;
        self.child.store(id, SeqCst);
        let mut ended = None;
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid.as_raw_pid() == id => ended = Some(Ended(status)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => {
                    self.child.store(0, SeqCst);
                    // ECHILD: all have ended.
                    return ended.ok_or_else(|| failed(e.into()));
                }
            }
        }
    }
}

/// Whether this process was started with a signal ignored, as nohup(1) does. Its children ignore it
/// too, unless it catches the signal.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 == 1
}

/// One group in each of several mounts.
pub(crate) struct Groups(Vec<(PathBuf, Group)>);

impl Groups {
    /// New groups in the mounts of these directories.
    pub(crate) fn new(dirs: &[PathBuf]) -> Result<Self, Failure> {
        let make = |dir: &PathBuf| match Group::new(dir) {
            Ok(group) => Ok((dir.clone(), group)),
            Err(e) => Err(no_group(dir, &e)),
        };
        dirs.iter().map(make).collect::<Result<_, _>>().map(Self)
    }

    fn each(
        &self,
        what: &str,
        call: impl Fn(usize, &Group) -> io::Result<()>,
    ) -> Result<(), Failure> {
        self.0
            .iter()
            .enumerate()
            .try_for_each(|(at, (dir, group))| {
                let failed =
                    |e| Failure::new(format_args!("{}: cannot {what}: {e}", dir.display()));
                call(at, group).map_err(failed)
            })
    }

    /// Makes these groups wait for those, mount by mount.
    pub(crate) fn depend(&self, befores: &Self) -> Result<(), Failure> {
        self.each("order commands", |at, group| group.depend(&befores.0[at].1))
    }

    /// Makes each request of durability a barrier.
    pub(crate) fn order(&self) -> Result<(), Failure> {
        self.each("order commands", |_, group| group.order())
    }

    /// Makes the changes of the groups durable.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.each("make the changes durable", |_, group| group.sync())
    }

    /// Engages all of them in this process.
    pub(crate) fn engage(&self) -> Result<Vec<Engaged<'_>>, Failure> {
        let mut engaged = Vec::new();
        for (dir, group) in &self.0 {
            let dir = dir.display();
            let failed = |e| Failure::new(format_args!("{dir}: cannot engage a group: {e}"));
            engaged.push(group.engage().map_err(failed)?);
        }
        Ok(engaged)
    }
}

fn no_group(dir: &Path, e: &io::Error) -> Failure {
    let name = dir.display();
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::OPNOTSUPP) => Failure::new(format_args!(
            "{name}: this file system keeps no order between changes; see `selvedge guarantees`"
        )),
        Some(Errno::NOENT | Errno::INVAL) if dir.is_dir() => Failure::new(format_args!(
            "{name}: not in a mount of Selvedge; name a directory of one with --dir"
        )),
        _ => Failure::new(format_args!("{name}: cannot make a patchgroup: {e}")),
    }
}
