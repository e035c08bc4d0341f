//! `selvedge mount`: mounts an image and serves it.

use crate::engine::{Engine, Type};
use crate::failure::{Failure, Outcome, code};
use crate::mount::options::Options;
use crate::mount::power_cut::{self, Power, Spec, Switch};
use crate::mount::serve::{Close, Opened, Prepared, serve};
use crate::mount::{daemon, facts, table};
use crate::values::{Listed, explained, listed};
use crate::{ext2fs, image};
use bpfs::format::BLOCK;
use bpfs::{Bpfs, Mode, SuperInfo};
use ext2::Devices;
use medium::{Durability, EffectiveDurability, Latency, LatencyModel, MappedPmem, Overlay, Pmem};
use rustix::mount::{MountFlags, mount_remount};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use vfs::{Atime, FileSystem, ModelFs, ModelOptions};

/// Mount a file system
///
/// Returns when the file system is in use, and leaves a server in the background. Says
/// which crashes the data survives. `umount` ends the server.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image: a file, a block device or a DAX device ("none" for type model)
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
    /// mode=MODE: of bpfs sp, sc, a, t, at, other or log; by default that of mkfs. Of ext2
    /// async, softupdates (the default), journal-metadata, journal-ordered or journal.
    ///
    /// fsname=NAME: the source that the mount table shows. threads=N: the threads that serve,
    /// 1 to 256; by default one per CPU, at most 8.
    ///
    /// durability=LEVEL, of bpfs: auto, dax, process or msync, as --durability.
    ///
    /// Of ext2 also: cache=SIZE (memory for blocks), dirty=SIZE (memory for changed blocks),
    /// commit=SECONDS (the age at which changes are written back, 1 to 86400), offset=BYTES
    /// (where in the file or device the image begins), stack=STACK (as --stack) and
    /// unsafe-no-flush. errors=ACTION, when a call finds the image damaged: continue,
    /// remount-ro, or panic, which refuses all calls; by default what the superblock says.
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
        value_parser = listed::<Type>(["bpfs", "ext2", "model"])
    )]
    fs_type: Type,
    /// Serve in the foreground; do not put a server in the background
    #[arg(long, short = 'f')]
    foreground: bool,
    /// What a commit of bpfs is worth
    #[arg(long, value_name = "LEVEL", value_parser = levels())]
    durability: Option<Durability>,
    /// What ext2 is put together from, such as 'uhfs > ext2 > journal(full, internal) >
    /// cache(256M, durable=flush) > disk'
    ///
    /// Reads from the front end down to the device. Before the cache there may be trace
    /// (logs every change), then async (drops the order of changes) or journal(metadata,
    /// ordered or full; internal or external=PATH; commit=TIME); with neither it is soft
    /// updates. cache has SIZE, dirty=SIZE, wave=BLOCKS, interval=TIME or never,
    /// durable=auto, flush, fua or unsafe, optimise=none, hard, overlap or both.
    /// delay(disk) or delay(ssd) before the disk makes it as slow as one. disk has io=auto,
    /// uring or pwrite, direct=auto, on or off, and unsafe-no-flush.
    #[arg(long, value_name = "STACK")]
    stack: Option<String>,
    /// Use an ext2 image also where flushing does not work: a crash can leave anything
    #[arg(long)]
    unsafe_no_flush: bool,
    /// Stop as if the power had failed: at SIGUSR1, at a fence, after a store or in a call
    ///
    /// The image is left in a state that a power failure at that moment could have left,
    /// chosen by the seed. From then on all calls fail with EIO until the unmount, which
    /// ends the server. SPEC is after=N (at the N-th fence or, of
    /// ext2, flush), after-stores=N (after the N-th store of a word or, of ext2, block) or
    /// after-calls=N (within the N-th call that changes the file system, or at its end, as
    /// the seed has it), seed=S, model=M, report=FILE, separated by commas; all of them are
    /// optional. M is words or lines (of memory), blocks or sectors (of disks: what is old
    /// or new as one). The report goes to PATH.power-cut.json unless report= says otherwise.
    #[arg(long, value_name = "SPEC", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    simulate_power_cut: Option<Spec>,
    /// Seed of the simulated power cut
    #[arg(long, value_name = "S", requires = "simulate_power_cut")]
    seed: Option<u64>,
    /// Make durable stores slower by NS nanoseconds per line and per fence, and streaming
    /// stores no faster than MB megabytes per second; without a value as phase-change
    /// memory (150,4000)
    #[arg(long, value_name = "NS[,MB]", num_args = 0..=1, require_equals = true, default_missing_value = "150,4000", value_parser = latency)]
    emulate_latency: Option<LatencyModel>,
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
}

fn levels() -> Listed<Durability> {
    explained([
        (
            "auto",
            "dax where the image is on persistent memory, else process",
        ),
        ("dax", "survives power failures; needs persistent memory"),
        ("process", "survives crashes of this program only"),
        ("msync", "survives power failures on any disk, slowly"),
    ])
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let options = Options::parse(self.options.iter().map(String::as_str), self.sloppy)
            .map_err(|e| Failure::new(e).with_code(code::MOUNT_USAGE))?;
        if self.fake {
            return Ok(ExitCode::SUCCESS);
        }
        if options.remount {
            let refused = self.cannot_change(&options);
            return refused
                .and_then(|()| remount(&self.dir, &options))
                .map_err(|e| e.with_code(code::MOUNT_FAILED));
        }
        let simulates = self.simulate_power_cut.is_some() || self.emulate_latency.is_some();
        if simulates && self.fs_type == Type::One(Engine::Model) {
            let why = "the model has no medium whose power or speed could be simulated";
            return Err(Failure::new(why).with_code(code::MOUNT_USAGE));
        }
        if !self.foreground && !daemon::is_second() {
            return daemon::start();
        }
        if daemon::is_second() {
            daemon::leave_session();
        }
        // The server leaves its working directory.
        let image = match self.fs_type {
            Type::One(Engine::Model) => Ok("none".into()),
            _ => self.image.canonicalize(),
        };
        let mounted = image
            .map_err(|e| image::about(&self.image, e))
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
        let dir = dir.map_err(|e| image::about(&self.dir, e))?;
        let entry = table::find(&dir).map_err(|e| image::about(&dir, e))?;
        let Some(entry) = entry.filter(|e| e.fs_type == table::OURS) else {
            return Err(image::about(&dir, "no file system of ours is mounted here"));
        };
        let told = facts::info(&dir);
        let is = |name: &str, value: Value| told.get(name) == Some(&value);
        let wrong_durability = |asked| !is_in_force(asked, facts::durability(&dir));
        let changes = [
            (
                "durability",
                self.durability.is_some_and(wrong_durability)
                    || options.durability.is_some_and(wrong_durability),
            ),
            (
                "mode",
                options
                    .mode
                    .as_ref()
                    .is_some_and(|m| !is("mode", m.as_str().into())),
            ),
            (
                "threads",
                options.threads.is_some_and(|n| !is("threads", n.into())),
            ),
            ("allow_other", options.allow_other && !entry.allow_other),
            (
                "fsname",
                options
                    .fsname
                    .as_ref()
                    .is_some_and(|n| entry.source != Path::new(n)),
            ),
            ("--simulate-power-cut", self.simulate_power_cut.is_some()),
            ("--emulate-latency", self.emulate_latency.is_some()),
            ("--log", self.log.is_some()),
            ("the stack", self.stack.is_some() || options.changes_stack()),
        ];
        match changes.into_iter().find(|(_, changes)| *changes) {
            Some((name, _)) => {
                let why = format_args!("{name} cannot change while mounted: unmount first");
                Err(image::about(&dir, why))
            }
            None => Ok(()),
        }
    }

    /// Locks the image. Whatever can be refused without changing it is refused here.
    fn prepare<'a>(
        &'a self,
        path: &'a Path,
        options: &'a Options,
    ) -> Result<Prepared<'a>, Failure> {
        match self.fs_type.engine(path, options.offset)? {
            Engine::Model => Ok(model(options)),
            Engine::Bpfs => self.prepare_bpfs(path, options),
            Engine::Ext2 => self.prepare_ext2(path, options),
        }
    }

    fn prepare_ext2<'a>(
        &'a self,
        path: &'a Path,
        options: &'a Options,
    ) -> Result<Prepared<'a>, Failure> {
        let durability = self.durability.or(options.durability);
        if self.emulate_latency.is_some() || durability.is_some() {
            return Err(Failure::new(
                "ext2 has no durability= and no --emulate-latency, which are for persistent \
                 memory; a stack can end in 'delay(ssd) > disk'",
            ));
        }
        let stack = ext2fs::stack(options, self.stack.as_deref(), self.unsafe_no_flush)?;
        let switch = |devices: &mut Devices| {
            let spec = self.simulate_power_cut.as_ref();
            let devices = [&mut devices.disk].into_iter().chain(&mut devices.log);
            spec.map(|spec| Ok((spec, Switch::of_blocks(devices, path, spec, self.seed)?)))
                .transpose()
        };
        ext2fs::prepare(path, stack, options, switch)
    }

    fn prepare_bpfs<'a>(
        &'a self,
        path: &'a Path,
        options: &'a Options,
    ) -> Result<Prepared<'a>, Failure> {
        let durability = self.durability.or(options.durability).unwrap_or_default();
        let pm = if options.read_only {
            image::open_read_only(path)?
        } else {
            image::open(path, durability)?
        };
        let header = image::probe(path, &pm)?;
        let mode = bpfs_mode(options)?.unwrap_or(header.mode);
        let effective = pm.durability();
        let mut notes = vec![
            format!("type: bpfs, mode {mode}"),
            format!("durability: {effective}: {}", effective.describe()),
        ];
        let (region, power) = self.simulated(pm, path)?;
        if self.simulate_power_cut.is_some() || self.emulate_latency.is_some() {
            let seed = power.as_ref().map(|(_, s)| format!("; seed {}", s.seed()));
            let seed = seed.unwrap_or_default();
            notes.push(format!("simulation: slower than a real mount{seed}"));
        }
        let open = move || {
            let mut fs = region.open(path, options)?;
            if let Some((spec, switch)) = &power {
                fs = switch.arm(spec, fs);
            }
            Ok(Opened {
                close: synced(&fs),
                draw: None,
                stats: None,
                fs,
                durability: Some(effective),
                about: about(&header, mode),
                notes,
                switch: power.map(|(_, switch)| switch),
            })
        };
        Ok(Prepared {
            source: path.display().to_string(),
            open: Box::new(open),
        })
    }

    /// Puts what is to be simulated between the image and the file system.
    fn simulated(
        &self,
        pm: MappedPmem,
        path: &Path,
    ) -> Result<(Region, Option<Power<'_>>), Failure> {
        if self.simulate_power_cut.is_none() && self.emulate_latency.is_none() {
            return Ok((Region::Plain(Box::new(pm)), None));
        }
        let region: Box<dyn Pmem> = match self.emulate_latency {
            Some(model) => Box::new(Latency::new(pm, model)),
            None => Box::new(pm),
        };
        let Some(spec) = &self.simulate_power_cut else {
            return Ok((Region::Slow(region), None));
        };
        let (switch, region) = Switch::of_memory(region, path, spec, self.seed)?;
        Ok((Region::Switched(region), Some((spec, switch))))
    }
}

/// What a BPFS lies on. Mounts that simulate nothing call nothing through pointers.
enum Region {
    Plain(Box<MappedPmem>),
    Slow(Box<dyn Pmem>),
    Switched(power_cut::Region),
}

impl Region {
    fn open(self, path: &Path, options: &Options) -> Result<Arc<dyn FileSystem>, Failure> {
        match self {
            Self::Plain(pm) => bpfs(*pm, path, options),
            Self::Slow(pm) => bpfs(pm, path, options),
            Self::Switched(pm) => bpfs(pm, path, options),
        }
    }
}

fn bpfs<P: Pmem + 'static>(
    pm: P,
    path: &Path,
    options: &Options,
) -> Result<Arc<dyn FileSystem>, Failure> {
    let atime = match options.atime {
        Atime::Never => bpfs::Atime::Never,
        Atime::Relative => bpfs::Atime::Relative,
        Atime::Strict => bpfs::Atime::Strict,
    };
    let mount = bpfs::MountOptions {
        read_only: options.read_only,
        mode: bpfs_mode(options)?,
        atime,
        ..bpfs::MountOptions::default()
    };
    let failed = |e| image::about(path, e);
    if !options.read_only {
        return Ok(Arc::new(Bpfs::open(pm, mount).map_err(failed)?));
    }
    // What a crash left to be done is done in memory: the image may not be written.
    let pm = Overlay::new(pm);
    if bpfs::recover(&pm).map_err(failed)? {
        let pm: Box<dyn Pmem> = Box::new(pm);
        return Ok(Arc::new(Bpfs::open(pm, mount).map_err(failed)?));
    }
    let fs = Bpfs::open(pm.into_inner(), mount).map_err(failed)?;
    Ok(Arc::new(fs))
}

/// What a mount tells of its image, under the names that `info` shows.
fn about(header: &SuperInfo, mode: Mode) -> Map<String, Value> {
    let about = [
        ("type", json!("bpfs")),
        ("version", json!(header.version)),
        ("uuid", json!(image::uuid(&header.uuid))),
        ("mode", json!(mode.to_string())),
        ("size_bytes", json!(header.blocks * BLOCK)),
        ("block_bytes", json!(BLOCK)),
        ("blocks", json!(header.blocks)),
    ];
    about
        .map(|(name, value)| (name.into(), value))
        .into_iter()
        .collect()
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

/// The commit mode that `mode=` names.
fn bpfs_mode(options: &Options) -> Result<Option<bpfs::Mode>, Failure> {
    let parsed = options.mode.as_deref().map(str::parse).transpose();
    parsed.map_err(|e| Failure::new(format_args!("mount option 'mode': {e}")))
}

/// Closes a file system that needs no more than a sync.
fn synced(fs: &Arc<dyn FileSystem>) -> Close {
    let fs = Arc::clone(fs);
    Box::new(move || fs.sync().map_err(|e| e.to_string()))
}

fn model(options: &Options) -> Prepared<'static> {
    let fs = ModelFs::new(ModelOptions {
        atime: options.atime,
        ..ModelOptions::default()
    });
    let fs: Arc<dyn FileSystem> = Arc::new(fs);
    let open = || {
        Ok(Opened {
            close: synced(&fs),
            draw: None,
            stats: None,
            fs,
            durability: None,
            about: Map::from_iter([("type".into(), "model".into())]),
            notes: vec![
                "durability: none: everything is in memory, and gone at the unmount".into(),
            ],
            switch: None,
        })
    };
    Prepared {
        source: "none".into(),
        open: Box::new(open),
    }
}

/// `NS[,MB]`
fn latency(text: &str) -> Result<LatencyModel, String> {
    let wrong = |_| format!("'{text}' is not NS or NS,MB");
    let (ns, mb) = text.split_once(',').unwrap_or((text, "0"));
    let ns = ns.parse().map_err(wrong)?;
    let mb: u32 = mb.parse().map_err(wrong)?;
    Ok(LatencyModel {
        flush_line_ns: ns,
        fence_ns: ns,
        stream_bytes_per_s: u64::from(mb) * 1_000_000,
        ..LatencyModel::default()
    })
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
        Err(e) => Err(image::about(dir, format_args!("cannot remount: {e}"))),
    }
}
