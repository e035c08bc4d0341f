//! The server of one mount, from opening the image to the unmount.

use crate::failure::{Failure, Outcome, code};
use crate::mount::drawer::Drawer;
use crate::mount::options::Options;
use crate::mount::own_mount::{OwnMount, Unmounted};
use crate::mount::power_cut::Switch;
use crate::mount::power_line::PowerLine;
use crate::mount::{daemon, facts, server};
use fuse::{Fact, Facts, Mount, MountOptions, STATS_XATTR};
use groups::{Grouped, ProcFs};
use medium::EffectiveDurability;
use runs::{Recorder, WithOutput};
use rustix::io::dup;
use rustix::process::{getegid, geteuid};
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use vfs::FileSystem;

/// A locked image whose superblock allows a mount.
pub(crate) struct Prepared<'a> {
    /// Its source in the mount table.
    pub source: String,
    /// Whether others can change the file system meanwhile.
    pub shared: bool,
    /// Opens the file system. Until then nothing is written, so that a mount that is refused
    /// leaves the image as it was.
    pub open: Box<dyn FnOnce() -> Result<Opened, Failure> + 'a>,
}

/// A file system that is open, and what the user should know about it.
pub(crate) struct Opened {
    /// The file system to serve.
    pub fs: Arc<dyn FileSystem>,
    /// The durability in force, if anything is durable.
    pub durability: Option<EffectiveDurability>,
    /// Facts about the image for `info`.
    pub about: Map<String, Value>,
    /// Counters of the mount as JSON, if it has any.
    pub stats: Option<Fact>,
    /// Said when it is mounted, one line each.
    pub notes: Vec<String>,
    /// Cuts the power of the medium, if that is to be simulated.
    pub switch: Option<Switch>,
    /// Unmounts in good order, when nobody uses it any more.
    pub close: Close,
    /// Draws what is not durable yet, at SIGUSR2.
    pub draw: Option<Draw>,
}

/// See [`Opened::close`]. The error is one line.
pub(crate) type Close = Box<dyn FnOnce() -> Result<(), String>>;

/// See [`Opened::draw`]. The error is one line.
pub(crate) type Draw = Box<dyn Fn() -> Result<(), String> + Send>;

/// Mounts `prepared` on `dir` and serves it until it is unmounted or a signal ends it.
///
/// `log`: where a server in the background writes what it would have printed. `quiet`: do
/// not print that and how it is mounted.
pub(crate) fn serve(
    prepared: Prepared<'_>,
    dir: &Path,
    options: &Options,
    log: Option<&Path>,
    quiet: bool,
) -> Outcome {
    // Caught from before the mount on, so that no signal can leave a dead mount.
    // SIGUSR1 and SIGUSR2 too, which would end a server that has no use for them.
    let signals = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2];
    let signals = Signals::new(signals).map_err(failed)?;
    let early = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    if let Some(run) = &options.record
        && std::path::absolute(run).is_ok_and(|run| run.starts_with(dir))
    {
        return Err(failed(format_args!(
            "--record {}: this directory would be in the mount itself",
            run.display()
        )));
    }
    let output = daemon::Output::open(log)?;
    let server = server::about(&prepared.source);
    let kernel = kernel_options(prepared.source, prepared.shared, options);
    let mount = Mount::new(dir, &kernel).map_err(failed)?;
    let own = OwnMount::new(mount.unmounter(), Path::new(&kernel.source));
    let opening = Opening::new(own.clone(), early);
    let opened = (prepared.open)()?;
    opening.done();
    if options.order && !groups::keeps_order(&*opened.fs) {
        own.detach();
        let _ = (opened.close)();
        let name = opened.fs.guarantees().name;
        return Err(failed(format_args!(
            "mount option 'order': {name} keeps no order"
        )));
    }
    let recorder = match recorded(&opened, options) {
        Ok(recorder) => recorder,
        Err(e) => {
            own.detach();
            let _ = (opened.close)();
            return Err(e);
        }
    };
    // Before standard output is let go.
    let outlet = options.record_output.then(|| dup(std::io::stdout()));
    let outlet = outlet.transpose().map_err(failed)?;
    let first = format!("{} is mounted on {}", kernel.source, dir.display());
    let told = match quiet {
        true => String::new(),
        false => lines(std::iter::once(&first).chain(&opened.notes)),
    };
    if let Err(e) = tell(&told, output) {
        own.detach();
        let _ = (opened.close)();
        return Err(failed(e));
    }
    let mut facts = facts_of(&opened, options);
    facts.push((facts::SERVER, server.into()));
    let last = recorder.clone();
    let opened = match recorder {
        Some(recorder) => Opened {
            fs: match outlet {
                Some(outlet) => Arc::new(with_output(recorder, outlet)),
                None => recorder,
            },
            ..opened
        },
        None => opened,
    };
    let ended = run(mount, own, opened, signals, (facts, options.order));
    let recorded = last.map_or(Ok(()), |recorder| recorder.end().map_err(failed));
    ended.and_then(|code| recorded.map(|()| code))
}

/// The file system with a recorder, if its calls are to be recorded.
fn recorded(opened: &Opened, options: &Options) -> Result<Option<Arc<Recorder>>, Failure> {
    let Some(dir) = &options.record else {
        return Ok(None);
    };
    let header = runs::Header::new(runs::Source::Mount, "programs on a mount");
    let recorder = Recorder::new(Arc::clone(&opened.fs), dir, header);
    recorder
        .map(|recorder| Some(Arc::new(recorder)))
        .map_err(failed)
}

/// A recorder with a file for the output of a program, which is passed on.
fn with_output(recorder: Arc<Recorder>, outlet: OwnedFd) -> WithOutput {
    let mut outlet = File::from(outlet);
    let owner = (geteuid().as_raw(), getegid().as_raw());
    // A reader of the output may have ended.
    let pass_on = move |bytes: &[u8]| drop(outlet.write_all(bytes));
    WithOutput::new(recorder, owner, Box::new(pass_on))
}

/// Serves what is open and mounted, to the end.
fn run(
    mount: Mount,
    own: OwnMount,
    opened: Opened,
    signals: Signals,
    (mut facts, order): (Facts, bool),
) -> Outcome {
    let dir = own.dir().to_owned();
    let Opened {
        fs,
        switch,
        close,
        draw,
        ..
    } = opened;
    let (fs, blackout) = match &switch {
        Some(switch) => {
            let fs = Arc::new(PowerLine::new(fs, switch.clone()));
            let blackout = switch.watch(Arc::clone(&fs), mount.invalidator());
            (fs as Arc<dyn FileSystem>, Some(blackout))
        }
        None => (fs, None),
    };
    let fs = with_groups(fs, order, &mut facts);
    let is_closing = Arc::new(Mutex::new(false));
    let on_signal = OnSignal {
        mount: own,
        fs: Arc::clone(&fs),
        switch: switch.clone(),
        drawer: draw.map(Drawer::new),
        is_closing: Arc::clone(&is_closing),
    };
    thread::spawn(move || on_signal.serve(signals));
    mount.serve(fs, facts).map_err(failed)?;
    // A signal that ends the server meanwhile has ended it when the lock is free.
    *locked(&is_closing) = true;
    if let Some(blackout) = blackout.filter(|_| switch.is_some_and(|s| s.is_cut())) {
        // Nothing can be stored any more. Only the report remains.
        let reported = blackout
            .join()
            .unwrap_or_else(|_| Err(Failure::new("no report")));
        return reported.map(|()| ExitCode::SUCCESS);
    }
    close().map_err(|e| {
        let dir = dir.display();
        failed(format_args!("{dir}: not everything could be stored: {e}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The file system with patchgroups.
fn with_groups(fs: Arc<dyn FileSystem>, order: bool, facts: &mut Facts) -> Arc<dyn FileSystem> {
    let grouped = Arc::new(Grouped::new(fs, ProcFs, order));
    let listed = Arc::clone(&grouped);
    let list = move || {
        let groups = listed.list();
        let total = groups.len();
        let groups = &groups[..total.min(facts::MOST_LISTED)];
        json!({ "total": total, "groups": groups }).to_string()
    };
    facts.push((facts::GROUPS, Fact::new(list)));
    grouped
}

fn failed(e: impl Display) -> Failure {
    Failure::new(e).with_code(code::MOUNT_FAILED)
}

fn lines<'a>(lines: impl Iterator<Item = &'a String>) -> String {
    lines.map(|line| format!("{line}\n")).collect()
}

/// The facts that the root of the mount reports.
fn facts_of(opened: &Opened, options: &Options) -> Facts {
    let mut about = opened.about.clone();
    about.insert("guarantees".into(), json!(opened.fs.guarantees()));
    if options.order {
        about.insert("order".into(), true.into());
    }
    about.extend(options.threads.map(|n| ("threads".into(), n.into())));
    let mut facts: Facts = vec![(facts::INFO, Value::Object(about).to_string().into())];
    let durability = opened.durability.map(|d| d.to_string().into());
    facts.extend(durability.map(|d| (facts::DURABILITY, d)));
    facts.extend(opened.stats.clone().map(|stats| (STATS_XATTR, stats)));
    let io_errors = Fact::new(|| fuse::io_errors().to_string());
    facts.push((facts::IO_ERRORS, io_errors));
    facts.extend(opened.switch.clone().map(|switch| {
        let power = move || facts::power(switch.is_cut()).into();
        (facts::POWER, Fact::new(power))
    }));
    facts
}

fn tell(told: &str, output: daemon::Output) -> Result<(), Failure> {
    if daemon::is_second() {
        daemon::serves(told, &output)
    } else {
        crate::output::print(told)
    }
}

/// The time for the last pages of mappings.
const WRITE_BACK: Duration = Duration::from_secs(10);

fn kernel_options(source: String, shared: bool, options: &Options) -> MountOptions {
    // Others than root get these from the kernel in any case.
    let unprivileged = !geteuid().is_root();
    MountOptions {
        source: options.fsname.clone().unwrap_or(source),
        read_only: options.read_only,
        allow_other: options.allow_other,
        nosuid: options.nosuid || unprivileged,
        nodev: options.nodev || unprivileged,
        noexec: options.noexec,
        noatime: options.atime == vfs::Atime::Never,
        strict_atime: options.atime == vfs::Atime::Strict && !options.read_only,
        shared,
        threads: options.threads,
    }
}

/// The time in which a mount is in place and its file system is not open yet. If that ends
/// by an error, a panic or a signal, the mount is detached: nobody would answer its users.
struct Opening {
    mount: OwnMount,
    is_open: Arc<Mutex<bool>>,
    signals: Handle,
}

impl Opening {
    /// `signals` end the process, also those that came since they are caught.
    fn new(mount: OwnMount, mut signals: Signals) -> Self {
        let opening = Self {
            mount,
            is_open: Arc::default(),
            signals: signals.handle(),
        };
        let (is_open, mount) = (Arc::clone(&opening.is_open), opening.mount.clone());
        thread::spawn(move || {
            let Some(signal) = signals.forever().next() else {
                return;
            };
            let is_open = locked(&is_open);
            // Otherwise the server itself handles it.
            if !*is_open {
                let dir = mount.dir().display();
                tracing::error!("signal {signal}: {dir} is not mounted");
                mount.detach();
                std::process::exit(code::MOUNT_FAILED.into());
            }
        });
        opening
    }

    /// The file system is open.
    fn done(self) {
        *locked(&self.is_open) = true;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.signals.close();
        if !*locked(&self.is_open) {
            self.mount.detach();
        }
    }
}

fn locked(flag: &Mutex<bool>) -> MutexGuard<'_, bool> {
    flag.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SIGUSR1 cuts the power and SIGUSR2 draws, where there is such a thing. The other signals
/// unmount, which ends the server in good order. If the mount is in use, or another one covers
/// it, it is taken out of the tree where that is possible, and the server ends under its users,
/// after a last sync.
struct OnSignal {
    mount: OwnMount,
    fs: Arc<dyn FileSystem>,
    switch: Option<Switch>,
    drawer: Option<Drawer>,
    /// Set when nothing is mounted any more: the main thread closes the file system and then
    /// ends the server itself.
    is_closing: Arc<Mutex<bool>>,
}

impl OnSignal {
    fn serve(self, mut signals: Signals) {
        for signal in signals.forever() {
            match (signal, &self.switch, &self.drawer) {
                (SIGUSR1, Some(switch), _) => switch.cut(),
                (SIGUSR1, None, _) | (SIGUSR2, _, None) => {}
                (SIGUSR2, _, Some(drawer)) => drawer.request(),
                _ => self.unmount(signal),
            }
        }
    }

    fn unmount(&self, signal: i32) {
        let dir = self.mount.dir().display();
        if *locked(&self.is_closing) {
            tracing::warn!(
                "signal {signal}: {dir} is unmounted already, and what changed is being stored"
            );
            return;
        }
        match self.mount.unmount() {
            Ok(Unmounted::Everywhere) => *locked(&self.is_closing) = true,
            Ok(Unmounted::Not(why)) => {
                tracing::warn!("signal {signal}: {dir} {why}, and ends now");
                self.end();
            }
            Err(e) => tracing::error!("signal {signal}: {e}"),
        }
    }

    /// Lets the kernel send what programs have stored in mappings, for a while: a program may hold a page for
    /// ever.
    fn write_mappings_back(&self) {
        let (done, wait) = std::sync::mpsc::channel();
        let mount = self.mount.clone();
        thread::spawn(move || done.send(mount.write_back()));
        let dir = self.mount.dir().display();
        match wait.recv_timeout(WRITE_BACK) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!("{dir}: changes in mappings may be lost: {e}"),
            Err(_) => tracing::warn!(
                "{dir}: changes in mappings may be lost: the kernel did not send them within {} s",
                WRITE_BACK.as_secs()
            ),
        }
    }

    /// Ends the server of a mount that is in use, unless it ends by itself already.
    fn end(&self) {
        let is_closing = locked(&self.is_closing);
        if *is_closing {
            return;
        }
        let cut = self.switch.as_ref().filter(|switch| switch.is_cut());
        if cut.is_none() {
            self.write_mappings_back();
        }
        self.mount.detach();
        if let Some(switch) = cut {
            std::process::exit(i32::from(!switch.wait_for_report()));
        }
        let synced = self.fs.sync();
        if let Err(e) = &synced {
            let dir = self.mount.dir().display();
            tracing::error!("{dir}: the last sync failed: {e}");
        }
        std::process::exit(i32::from(synced.is_err()))
    }
}
