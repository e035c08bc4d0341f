//! SoupFS for commands, benchmarks and the explorer's command line.

use crate::format::{MAGIC, MIN_PAGES, PAGE};
use crate::fs::guarantees;
use crate::{MkfsOptions, Mode, MountOptions, SoupFs, SoupSystem, SuperInfo};
use clap::builder::TypedValueParser;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use engine::memory::{MapArgs, Region, at_start, open_read_only};
use engine::values::listed;
use engine::{
    Checked, Engine, Error, Explored, Identity, Image, Info, Interposer, Magic, Marks,
    MountRequest, Opened, Prepared, Result, Scratch, ScratchKind, ScratchOptions, Selection, Verb,
    size,
};
use medium::{EffectiveDurability, MapOptions, MappedPmem, Pmem};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use vfs::{Durability, FileSystem, Guarantees};

/// The engine.
pub struct SoupEngine;

/// Its name.
const NAME: &str = "soupfs";

/// Seconds within which changes are persistent, unless a mount chooses others.
const BOUND_S: u32 = 1;

/// Most threads that share a round.
const MAX_PERSISTERS: u64 = 64;

/// Options of `mount`.
#[derive(Args)]
struct MountArgs {
    /// The way in which file contents are overwritten
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
    /// Seconds after which a change survives a crash: the period of the persister
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    bound: Option<u32>,
    /// Threads that share a round of the persister if it has many changes; by default one for each
    /// NUMA node
    #[arg(long, value_name = "N", value_parser = persisters())]
    persisters: Option<NonZeroUsize>,
    #[command(flatten)]
    map: MapArgs,
}

/// Options of `crash test`.
#[derive(Args)]
struct ExploreArgs {
    /// The way in which file contents are overwritten
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
}

impl Engine for SoupEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "SoupFS, on persistent memory: soft updates; a call waits for nothing, and a crash leaves a \
         usable image"
    }

    fn magic(&self) -> Option<Magic> {
        Some(Magic {
            offset: 0,
            bytes: &MAGIC,
            name: "a SoupFS file system",
        })
    }

    fn modes(&self) -> Vec<&'static str> {
        Mode::ALL.map(Mode::name).to_vec()
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        let durable = Durability::Interval(BOUND_S);
        Ok(Mode::ALL.map(|mode| guarantees(mode, durable)).to_vec())
    }

    fn options(&self, verb: Verb) -> Command {
        let command = Command::new(self.name());
        match verb {
            Verb::Mount => MountArgs::augment_args(command),
            Verb::CrashTest => ExploreArgs::augment_args(command),
            Verb::Mkfs | Verb::Fsck | Verb::Graph | Verb::Serve => command,
        }
    }

    fn min_bytes(&self) -> u64 {
        MIN_PAGES * PAGE
    }

    fn mkfs(&self, image: &Image, identity: &Identity, _options: &ArgMatches) -> Result<String> {
        let path = at_start(NAME, image)?;
        let map = MapOptions {
            over_idle_loops: image.over_idle_loops,
            ..MapOptions::default()
        };
        let pm = MappedPmem::open(path, &map)?;
        let options = MkfsOptions {
            uuid: identity.uuid,
            uid: identity.uid,
            gid: identity.gid,
            now: identity.now,
        };
        crate::mkfs(&pm, &options).map_err(|e| Error::about(path, e))?;
        let made = probe(path, &pm)?;
        let bytes = size::display(made.pages * PAGE);
        Ok(format!(
            "soupfs, {bytes}, UUID {}",
            engine::uuid(&made.uuid)
        ))
    }

    fn mount(
        &self,
        request: &MountRequest,
        options: &ArgMatches,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        let args = parsed::<MountArgs>(options)?;
        let path = at_start(NAME, &request.image)?.to_owned();
        let pm = args.map.map(&path, request.read_only)?;
        let header = probe(&path, &pm)?;
        let mode = args.mode.unwrap_or_default();
        let bound = args.bound.unwrap_or(BOUND_S);
        let persisters = args.persisters.unwrap_or_else(crate::numa::nodes);
        let effective = pm.durability();
        let mut notes = vec![
            format!("type: soupfs, mode {mode}"),
            format!("durability: {effective}: {}", effective.survived()),
            match request.sync {
                true => "sync: each change is durable when its call returns".into(),
                false => format!("bound: changes are durable after an fsync, or after {bound} s"),
            },
            format!("persisters: {persisters}"),
        ];
        let (region, note) = args.map.region(pm, between)?;
        notes.extend(note);
        let mount = MountOptions {
            read_only: request.read_only,
            atime: request.atime,
            bound_s: Some(bound),
            sync: request.sync,
            boot: boot(),
            mode,
            persisters,
            ..MountOptions::default()
        };
        Ok(Prepared {
            source: path.display().to_string(),
            draws: false,
            shared: false,
            open: Box::new(move || {
                let opened = match region {
                    Region::Plain(pm) => opened(*pm, mount),
                    Region::Wrapped(pm) => opened(pm, mount),
                };
                let (fs, close) = opened.map_err(|e| Error::about(&path, e))?;
                let mut about = about(&header);
                about.insert("mode".into(), json!(mode.to_string()));
                about.insert("bound".into(), json!(bound));
                about.insert("persisters".into(), json!(persisters));
                Ok(Opened {
                    fs,
                    durability: Some(effective),
                    about,
                    stats: None,
                    notes,
                    close,
                    draw: None,
                })
            }),
        })
    }

    fn check(&self, image: &Image, repair: bool, _options: &ArgMatches) -> Result<Checked> {
        let path = at_start(NAME, image)?;
        let pm = match repair {
            true => MappedPmem::open(path, &MapOptions::default())?,
            false => open_read_only(path)?,
        };
        if let Err(e @ crate::Error::NotSoupFs) = crate::probe(&pm) {
            return Err(Error::about(path, e));
        }
        let (report, reclaimed) = match repair {
            true => crate::repair(&pm, boot()).map_err(|e| Error::about(path, e))?,
            false => (crate::check(&pm), false),
        };
        Ok(Checked {
            replayed: None,
            marks: Marks::default(),
            reclaimed,
            report,
            leaks_go_by: "selvedge fsck -p",
        })
    }

    fn info(&self, image: &Image) -> Result<Info> {
        let path = at_start(NAME, image)?;
        let pm = open_read_only(path)?;
        let durability = pm.durability();
        let header = probe(path, &pm)?;
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let fs = SoupFs::open(pm, options).map_err(|e| Error::about(path, e))?;
        let space = fs.statfs().map_err(|e| Error::about(path, e))?;
        Ok(described(path, &header, durability, &space))
    }

    fn dump(&self, image: &Image, what: &Selection, out: &mut dyn Write) -> Result<()> {
        let path = at_start(NAME, image)?;
        let pm = open_read_only(path)?;
        crate::dump::dump(&pm, what, out).map_err(|e| Error::about(path, e))
    }

    fn subject(&self, options: &ArgMatches) -> Result<Explored> {
        let args = parsed::<ExploreArgs>(options)?;
        Ok(subject(args.mode.unwrap_or_default()))
    }

    fn subjects(&self) -> Vec<Explored> {
        Mode::ALL.map(subject).into()
    }

    fn with_room(&self, bytes: u64, inodes: u64) -> Vec<Explored> {
        let of_mode = |mode| {
            let system = SoupSystem::with_room(mode, bytes, inodes);
            Explored::Memory(Box::new(system))
        };
        Mode::ALL.map(of_mode).into()
    }

    fn scratch(&self) -> Option<ScratchKind> {
        Some(ScratchKind::Memory)
    }

    fn fresh(&self, scratch: Scratch, options: &ScratchOptions<'_>) -> Result<Arc<dyn FileSystem>> {
        let made = MkfsOptions {
            now: options.made,
            ..MkfsOptions::default()
        };
        match &scratch {
            Scratch::Mapped(pm) => crate::mkfs(&**pm, &made),
            Scratch::Shared(pm) => crate::mkfs(&**pm, &made),
            Scratch::Any(pm) => crate::mkfs(&**pm, &made),
            Scratch::Own => return Err(self.lacks("file system without a medium")),
        }
        .map_err(Error::new)?;
        self.reopen(scratch, options)
    }

    fn reopen(
        &self,
        scratch: Scratch,
        options: &ScratchOptions<'_>,
    ) -> Result<Arc<dyn FileSystem>> {
        let mode = options.mode.map(str::parse).transpose();
        let defaults = MountOptions::default();
        let options = MountOptions {
            mode: mode.map_err(Error::new)?.unwrap_or_default(),
            clock: options.clock.clone(),
            atime: options.atime,
            boot: options.boot,
            bound_s: defaults.bound_s.filter(|_| options.writes_back_alone),
            ..defaults
        };
        Ok(match scratch {
            Scratch::Mapped(pm) => Arc::new(SoupFs::open(*pm, options).map_err(Error::new)?),
            Scratch::Shared(pm) => Arc::new(SoupFs::open(pm, options).map_err(Error::new)?),
            Scratch::Any(pm) => Arc::new(SoupFs::open(pm, options).map_err(Error::new)?),
            Scratch::Own => return Err(self.lacks("file system without a medium")),
        })
    }
}

/// A parser of a number of threads.
fn persisters() -> impl TypedValueParser<Value = NonZeroUsize> {
    let number = clap::value_parser!(u64).range(1..=MAX_PERSISTERS);
    number.map(|number| NonZeroUsize::new(number as usize).unwrap_or(NonZeroUsize::MIN))
}

fn parsed<A: FromArgMatches>(options: &ArgMatches) -> Result<A> {
    A::from_arg_matches(options).map_err(Error::new)
}

fn probe(path: &Path, pm: &MappedPmem) -> Result<SuperInfo> {
    crate::probe(pm).map_err(|e| Error::about(path, e))
}

fn subject(mode: Mode) -> Explored {
    Explored::Memory(Box::new(SoupSystem {
        mode,
        ..SoupSystem::default()
    }))
}

/// The number of this boot of the machine, if the kernel reports it.
fn boot() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
}

/// A mounted file system, and the function that unmounts it.
fn opened<P: Pmem + 'static>(
    pm: P,
    options: MountOptions,
) -> std::result::Result<(Arc<dyn FileSystem>, engine::Close), crate::Error> {
    let fs = Arc::new(SoupFs::open(pm, options)?);
    let served = Arc::clone(&fs);
    let close = Box::new(move || served.close().map_err(|e| e.to_string()));
    Ok((fs, close))
}

/// The facts that `info` shows both of an image and of a mount.
fn about(header: &SuperInfo) -> Map<String, Value> {
    let about = [
        ("type", json!(NAME)),
        ("version", json!(header.version)),
        ("uuid", json!(engine::uuid(&header.uuid))),
        ("size_bytes", json!(header.pages * PAGE)),
        ("block_bytes", json!(PAGE)),
        ("blocks", json!(header.pages)),
        ("epoch", json!(header.epoch)),
    ];
    let named = |(name, value): (&str, Value)| (name.to_owned(), value);
    about.map(named).into_iter().collect()
}

/// Describes an image.
fn described(
    path: &Path,
    header: &SuperInfo,
    durability: EffectiveDurability,
    space: &vfs::StatFs,
) -> Info {
    let (bytes, pages) = (size::display(header.pages * PAGE), header.pages);
    let (free, blocks) = (size::display(space.blocks_free * PAGE), space.blocks_free);
    let state = match (header.is_clean, header.is_unmounted) {
        (true, _) => "unmounted",
        (false, true) => "unmounted after a crash: usable; fsck -p gives lost memory back",
        (false, false) => "in use, or left by a crash: usable; fsck -p gives lost memory back",
    };
    let lines = vec![
        ("path", path.display().to_string()),
        ("type", format!("soupfs, format version {}", header.version)),
        ("UUID", engine::uuid(&header.uuid)),
        ("size", format!("{bytes}, {pages} pages of {PAGE}")),
        ("free", format!("{free}, {blocks} pages")),
        ("state", state.to_owned()),
        (
            "durability",
            format!("a mount would use {durability}: {}", durability.survived()),
        ),
    ];
    let mut json = Map::from_iter([("path".to_owned(), json!(path))]);
    json.extend(about(header));
    for (name, value) in [
        ("blocks_free", json!(space.blocks_free)),
        ("inodes_free", json!(space.inodes_free)),
        ("clean", json!(header.is_clean)),
        ("durability", json!(durability.to_string())),
        ("durability_means", json!(durability.survived())),
        (
            "guarantees",
            json!(guarantees(Mode::default(), Durability::Interval(BOUND_S))),
        ),
    ] {
        json.insert(name.to_owned(), value);
    }
    Info {
        lines,
        json: Value::Object(json),
    }
}
