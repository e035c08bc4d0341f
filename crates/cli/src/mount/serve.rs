//! The server of one mount, from opening the image to the unmount.

use crate::failure::{Failure, Outcome, code};
use crate::mount::options::Options;
use crate::mount::power_cut::Switch;
use crate::mount::{daemon, facts};
use fuse::{Fact, Mount, MountOptions, STATS_XATTR, Unmounter};
use medium::EffectiveDurability;
use rustix::process::geteuid;
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use vfs::FileSystem;

/// A file system that is open, and what the user should know about it.
pub struct Opened {
    /// What to serve.
    pub fs: Arc<dyn FileSystem>,
    /// What the mount table shows as its source.
    pub source: String,
    /// The durability in force, if anything is durable.
    pub durability: Option<EffectiveDurability>,
    /// What the mount tells `info` about the image.
    pub about: Map<String, Value>,
    /// What the mount has done so far, as JSON, if it counts that.
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
pub type Close = Box<dyn FnOnce() -> Result<(), String>>;

/// See [`Opened::draw`]. The error is one line.
pub type Draw = Box<dyn Fn() -> Result<(), String> + Send>;

/// Mounts `opened` on `dir` and serves it until it is unmounted or a signal ends it.
///
/// `log`: where a server in the background writes what it would have printed.
pub fn serve(opened: Opened, dir: &Path, options: &Options, log: Option<&Path>) -> Outcome {
    let failed = |e: &dyn std::fmt::Display| Failure::new(e).with_code(code::MOUNT_FAILED);
    // Caught from before the mount on, so that no signal can leave a dead one behind.
    // SIGUSR1 and SIGUSR2 too, which would end a server that has no use for them.
    let signals = [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2];
    let signals = Signals::new(signals).map_err(|e| failed(&e))?;
    let Opened {
        fs,
        source,
        durability,
        mut about,
        stats,
        notes,
        switch,
        close,
        draw,
    } = opened;
    about.insert("guarantees".into(), json!(fs.guarantees()));
    about.extend(options.threads.map(|n| ("threads".into(), n.into())));
    let mut facts = vec![(facts::INFO, Value::Object(about).to_string().into())];
    facts.extend(durability.map(|d| (facts::DURABILITY, d.to_string().into())));
    facts.extend(stats.map(|stats| (STATS_XATTR, stats)));
    let kernel = kernel_options(source, facts, options);
    let mount = Mount::new(Arc::clone(&fs), dir, &kernel).map_err(|e| failed(&e))?;
    let unmounter = mount.unmounter();
    let mut told = format!("{} is mounted on {}\n", kernel.source, dir.display());
    for note in notes {
        told.push_str(&note);
        told.push('\n');
    }
    if let Err(e) = tell(&told, log) {
        let _ = unmounter.detach();
        return Err(failed(&e));
    }
    if let Some(switch) = &switch {
        switch.clone().watch(unmounter.clone());
    }
    let on_signal = OnSignal {
        unmounter,
        fs,
        switch: switch.clone(),
        draw,
    };
    thread::spawn(move || on_signal.serve(signals));
    mount.serve().map_err(|e| failed(&e))?;
    if switch.is_some_and(|s| s.is_cut()) {
        // The watch is about to end the process.
        loop {
            thread::park();
        }
    }
    close().map_err(|e| {
        let e = format_args!("{}: not everything could be stored: {e}", dir.display());
        failed(&e)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn tell(told: &str, log: Option<&Path>) -> Result<(), Failure> {
    if daemon::is_second() {
        daemon::serves(told, log)
    } else {
        crate::output::print(told)
    }
}

fn kernel_options(
    source: String,
    facts: Vec<(&'static str, Fact)>,
    options: &Options,
) -> MountOptions {
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
        facts,
        threads: options.threads,
    }
}

/// SIGUSR1 cuts the power and SIGUSR2 draws, where there is such a thing. The other signals unmount, which ends the server
/// in good order. If the mount is in use it is taken out of the tree all the same, and the
/// server ends under its users, after a last sync.
struct OnSignal {
    unmounter: Unmounter,
    fs: Arc<dyn FileSystem>,
    switch: Option<Switch>,
    draw: Option<Draw>,
}

impl OnSignal {
    fn serve(self, mut signals: Signals) {
        for signal in signals.forever() {
            match (signal, &self.switch, &self.draw) {
                (SIGUSR1, Some(switch), _) => switch.cut(),
                (SIGUSR1, None, _) | (SIGUSR2, _, None) => {}
                (SIGUSR2, _, Some(draw)) => {
                    if let Err(e) = draw() {
                        tracing::error!("{e}");
                    }
                }
                _ => match self.unmounter.unmount() {
                    Ok(()) => return,
                    Err(fuse::Error::Busy { dir }) => {
                        tracing::warn!(
                            "signal {signal}: {} is in use, and ends now",
                            dir.display()
                        );
                        self.end(&dir);
                    }
                    Err(e) => tracing::error!("signal {signal}: {e}"),
                },
            }
        }
    }

    /// Ends the server of a mount that is in use.
    fn end(&self, dir: &Path) -> ! {
        let detached = self.unmounter.detach();
        let synced = self.fs.sync();
        if let Err(e) = detached {
            tracing::error!("{e}");
        }
        if let Err(e) = &synced {
            tracing::error!("{}: the last sync failed: {e}", dir.display());
        }
        std::process::exit(i32::from(synced.is_err()))
    }
}
