//! `selvedge mount`: mounts an image and serves it.

use crate::failure::{Failure, Outcome, code};
use crate::image;
use crate::mount::options::Options;
use crate::mount::power_cut::{Power, Spec, Switch};
use crate::mount::serve::{Draw, Opened, Prepared, serve};
use crate::mount::{daemon, facts, table};
use crate::own_file::{self, OwnFile};
use crate::types::{EngineArgs, OfMount, Type, parse};
use engine::options::Given;
use engine::values::listed;
use engine::{Image, Interposer, MountRequest};
use fuse::Fact;
use medium::block::BlockDevice;
use medium::{Durability, EffectiveDurability, Pmem};
use rustix::mount::{MountFlags, mount_remount};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use vfs::Atime;

/// Mount a file system
///
/// Returns when the file system is in use, and leaves a server in the background. Says
/// which crashes the data survives. `umount` ends the server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image: a file, a block device or a DAX device ("none" for a type without images)
    #[arg(value_name = "PATH")]
    image: PathBuf,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Mount options, separated by commas
    ///
    /// ro, rw, allow_other, nosuid, nodev, noexec, noatime, relatime, strictatime and remount
    /// are those of mount(8).
    ///
    /// fsname=NAME: the source that the mount table shows. threads=N: the threads that serve,
    /// 1 to 256; by default one per CPU, at most 8. offset=BYTES: where in the file or device
    /// the image begins.
    ///
    /// order: fsync, fdatasync and synchronous writes of all programs only order changes, and do
    /// not wait for the disk; see selvedge order.
    ///
    /// The options of a type, such as mode, can be given here, too, as NAME=VALUE.
    ///
    /// Options that concern only mount(8) and fstab(5),
    /// such as nofail, _netdev and x-*, are ignored. A remount changes ro, nosuid, nodev,
    /// noexec and noatime; the others need an unmount.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// The type; by default what the image holds
    #[arg(
        long = "type",
        short = 't',
        value_name = "TYPE",
        default_value = "selvedge",
        hide_default_value = true,
        value_parser = listed::<Type>(engines::all().iter().map(|e| e.name()))
    )]
    fs_type: Type,
    /// Serve in the foreground; do not put a server in the background
    #[arg(long, short = 'f')]
    foreground: bool,
    /// Stop as if the power had failed: at SIGUSR1, at a fence, after a store or in a call
    ///
    /// The image is left in a state that a power failure at that moment could have left,
    /// chosen by the seed. From then on all calls fail with EIO until the unmount, which
    /// ends the server. SPEC is after=N (at the N-th fence or, on
    /// blocks, flush), after-stores=N (after the N-th store of a word or block) or
    /// after-calls=N (within the N-th call that changes the file system, or at its end, as
    /// the seed has it), seed=S, model=M, report=FILE, separated by commas; all of them are
    /// optional. M is words or lines (of memory), blocks or sectors (of disks: what is old
    /// or new as one). The report goes to PATH.power-cut.json unless report= says otherwise.
    #[arg(long, value_name = "SPEC", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    simulate_power_cut: Option<Spec>,
    /// Record all changes, for `selvedge crash explore`, in this new directory
    ///
    /// Calls that change something run serially. The recording ends with the mount.
    #[arg(long, value_name = "RUN")]
    record: Option<PathBuf>,
    /// Record the output of the program that `crash record` runs, and pass it on
    #[arg(long, hide = true, requires = "record")]
    record_output: bool,
    /// Seed of the simulated power cut
    #[arg(long, value_name = "S", requires = "simulate_power_cut")]
    seed: Option<u64>,
    /// Where the server in the background writes warnings and errors, instead of the
    /// system log
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Print nothing about a mount that succeeds
    #[arg(long, short = 'q')]
    quiet: bool,
    /// Check the arguments, but do not mount (what `-f` is to mount(8)'s helpers)
    #[arg(long, hide = true)]
    fake: bool,
    /// Ignore unknown options (for mount(8))
    #[arg(short = 's', hide = true)]
    sloppy: bool,
    /// Do not write /etc/mtab, which nobody does (for mount(8))
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[command(flatten)]
    engine: EngineArgs<OfMount>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let mut options = Options::parse(self.options.iter().map(String::as_str), self.sloppy)
            .map_err(|e| Failure::new(e).with_code(code::MOUNT_USAGE))?;
        options.record = self.record.as_deref().map(absolute).transpose()?;
        options.record_output = self.record_output;
        if self.fake {
            return Ok(ExitCode::SUCCESS);
        }
        if options.remount {
            let refused = self.cannot_change(&options);
            return refused
                .and_then(|()| remount(&self.dir, &options))
                .map_err(|e| e.with_code(code::MOUNT_FAILED));
        }
        if self.simulate_power_cut.is_some() && !self.fs_type.uses_image() {
            let why = format_args!("{:?} has no medium whose power could be cut", self.fs_type);
            return Err(Failure::new(why).with_code(code::MOUNT_USAGE));
        }
        if !self.foreground && !daemon::is_second() {
            return daemon::start();
        }
        if daemon::is_second() {
            daemon::leave_session();
        }
        // The server leaves its working directory.
        let image = match self.fs_type.uses_image() {
            true => self.image.canonicalize(),
            false => Ok("none".into()),
        };
        let mounted = image
            .map_err(|e| Failure::about(&self.image, e))
            .and_then(|image| {
                let prepared = self.prepare(&image, &options)?;
                let log = self.log.as_deref();
                serve(prepared, &self.dir, &options, log, self.quiet)
            });
        mounted.map_err(|e| e.with_code(code::MOUNT_FAILED))
    }

    /// Refuses a remount that asks for what its server was started with, unless that is
    /// what is in force.
    fn cannot_change(&self, options: &Options) -> Result<(), Failure> {
        let dir = self.dir.canonicalize();
        let dir = dir.map_err(|e| Failure::about(&self.dir, e))?;
        let entry = table::find(&dir).map_err(|e| Failure::about(&dir, e))?;
        let Some(entry) = entry.filter(|e| e.fs_type == table::OURS) else {
            return Err(Failure::about(
                &dir,
                "no file system of ours is mounted here",
            ));
        };
        let told = facts::info(&dir);
        let is = |name: &str, value: Value| told.get(name) == Some(&value);
        let given = self.engine_options(options);
        let changed = given.iter().find(|given| !is_so(given, &dir, &told));
        let changed = changed.map(|given| given.name.as_str());
        let changes = [
            (
                "threads",
                options.threads.is_some_and(|n| !is("threads", n.into())),
            ),
            ("order", options.order && !is("order", true.into())),
            ("allow_other", options.allow_other && !entry.allow_other),
            (
                "fsname",
                options
                    .fsname
                    .as_ref()
                    .is_some_and(|n| entry.source != Path::new(n)),
            ),
            ("--simulate-power-cut", self.simulate_power_cut.is_some()),
            ("--log", self.log.is_some()),
            ("--record", self.record.is_some()),
            ("offset", options.offset > 0),
        ];
        let other = changes.into_iter().find(|(_, changes)| *changes);
        match changed.or(other.map(|(name, _)| name)) {
            Some(name) => {
                let why = format_args!("{name} cannot change while mounted: unmount first");
                Err(Failure::about(&dir, why))
            }
            None => Ok(()),
        }
    }

    /// The options of engines: those of the command line count, then those after `-o`.
    fn engine_options(&self, options: &Options) -> Vec<Given> {
        let flags = self.engine.given();
        let is_free = |given: &&Given| flags.iter().all(|flag| flag.name != given.name);
        let rest = options.engine.iter().filter(is_free);
        flags.iter().chain(rest).cloned().collect()
    }

    /// Locks the image. All reasons to refuse it that need no change are checked here.
    fn prepare<'a>(
        &'a self,
        path: &'a Path,
        options: &'a Options,
    ) -> Result<Prepared<'a>, Failure> {
        let engine = self.fs_type.engine(path, options.offset)?;
        let given = parse::<OfMount>(engine, &self.engine_options(options));
        let given = given.map_err(Failure::new)?;
        let request = MountRequest {
            image: Image::at(path, options.offset),
            read_only: options.read_only,
            atime: options.atime,
            sync: options.sync,
        };
        let mut cut = self.simulate_power_cut.as_ref().map(|spec| Cut {
            path,
            spec,
            seed: self.seed,
            switch: None,
        });
        let prepared = image::patiently(path, || {
            let between = cut.as_mut().map(|cut| cut as &mut dyn Interposer);
            engine.mount(&request, &given, between)
        });
        let prepared = prepared.map_err(Failure::new)?;
        let power = cut.and_then(|cut| Some((cut.spec, cut.switch?)));
        let picture = prepared.draws.then(|| OwnFile::beside(path, ".graph.svg"));
        let picture = picture.transpose().map_err(|e| Failure::about(path, e))?;
        let is_ordered = options.order;
        Ok(Prepared {
            source: prepared.source,
            shared: prepared.shared,
            open: Box::new(move || {
                let opened = (prepared.open)().map_err(Failure::new)?;
                let mut opened = served(opened, power, picture);
                if is_ordered {
                    let note =
                        "note: fsync only orders changes; `selvedge sync PATH` makes them durable";
                    opened.notes.push(note.into());
                }
                Ok(opened)
            }),
        })
    }
}

/// The server leaves its working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::about(path, e))
}

/// Puts a switch between the image and the file system.
struct Cut<'a> {
    path: &'a Path,
    spec: &'a Spec,
    seed: Option<u64>,
    /// Once it is there.
    switch: Option<Switch>,
}

impl Interposer for Cut<'_> {
    fn memory(&mut self, region: Box<dyn Pmem>) -> engine::Result<Box<dyn Pmem>> {
        let made = Switch::of_memory(region, self.path, self.spec, self.seed);
        let (switch, region) = made.map_err(engine::Error::new)?;
        self.switch = Some(switch);
        Ok(Box::new(region))
    }

    fn blocks(&mut self, devices: Vec<&mut Arc<dyn BlockDevice>>) -> engine::Result<()> {
        let made = Switch::of_blocks(devices, self.path, self.spec, self.seed);
        self.switch = Some(made.map_err(engine::Error::new)?);
        Ok(())
    }
}

/// The file system to serve, with the additions of this program: the switch and the drawing.
fn served(opened: engine::Opened, power: Option<Power<'_>>, picture: Option<OwnFile>) -> Opened {
    let (mut fs, mut notes, mut about) = (opened.fs, opened.notes, opened.about);
    let drawing = picture.zip(opened.draw);
    if let Some((picture, _)) = &drawing {
        let path = picture.path();
        notes.push(format!(
            "graph: kill -USR2 {} draws what is not durable yet as {}",
            std::process::id(),
            path.display()
        ));
        about.insert("graph".into(), serde_json::json!(path));
    }
    if let Some((spec, switch)) = &power {
        let seed = switch.seed();
        notes.push(format!("simulation: slower than a real mount; seed {seed}"));
        fs = switch.arm(spec, fs);
    }
    Opened {
        fs,
        durability: opened.durability,
        about,
        stats: opened.stats.map(Fact::new),
        notes,
        switch: power.map(|(_, switch)| switch),
        close: opened.close,
        draw: drawing.map(|(picture, draw)| written(picture, draw)),
    }
}

fn written(picture: OwnFile, draw: engine::Draw) -> Draw {
    Box::new(move || {
        let written = picture.write(draw(), own_file::PRIVATE);
        written.map_err(|e| format!("{}: {e}", picture.path().display()))
    })
}

/// Whether an option of an engine asks for what a mount has in force.
fn is_so(given: &Given, dir: &Path, told: &serde_json::Map<String, Value>) -> bool {
    let value = given.value.as_ref().and_then(|value| value.to_str());
    if given.name == "durability" {
        let asked = value.and_then(|value| value.parse().ok());
        return asked.is_some_and(|asked| is_in_force(asked, facts::durability(dir)));
    }
    let in_force = told.get(&given.name).map(|told| match told.as_str() {
        Some(text) => text.to_owned(),
        None => told.to_string(),
    });
    value.is_some() && value == in_force.as_deref()
}

/// Whether asking for this level would give the one in force.
fn is_in_force(asked: Durability, in_force: Option<EffectiveDurability>) -> bool {
    use EffectiveDurability as Is;
    match asked {
        Durability::Auto => matches!(in_force, Some(Is::Dax | Is::Process)),
        Durability::Dax => in_force == Some(Is::Dax),
        Durability::Process => in_force == Some(Is::Process),
        Durability::Msync => in_force == Some(Is::Msync),
    }
}

/// Changes the flags of a mount that is there; its server goes on as it was opened.
fn remount(dir: &Path, options: &Options) -> Outcome {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::NOATIME, options.atime == Atime::Never);
    match mount_remount(dir, flags, "") {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) => Err(Failure::about(dir, format_args!("cannot remount: {e}"))),
    }
}
