//! BPFS for commands, benchmarks and the explorer's command line.

use crate::format::{BLOCK, MAGIC, MIN_BLOCKS};
use crate::{Bpfs, BpfsSystem, Dump, MkfsOptions, Mode, MountOptions, SuperInfo};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use engine::memory::{MapArgs, Region, at_start, open_read_only};
use engine::values::listed;
use engine::{
    Checked, Close, Engine, Error, Explored, Identity, Image, Info, Interposer, Magic, Marks,
    MountRequest, Opened, Prepared, Result, Scratch, ScratchKind, ScratchOptions, Selection, Verb,
    size,
};
use medium::{EffectiveDurability, MapOptions, MappedPmem, MemoryPmem, Overlay, Pmem};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use vfs::{FileSystem, Guarantees};

/// The engine.
pub struct BpfsEngine;

/// Its name.
const NAME: &str = "bpfs";

/// Missing from a scratch medium of ordinary memory.
const NO_MEDIUM: &str = "file system without a medium";

/// Options of `mkfs`.
#[derive(Args)]
struct MkfsArgs {
    /// Commit mode until a mount chooses another
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
}

/// Options of `mount`.
#[derive(Args)]
struct MountArgs {
    /// Commit mode, by default that of mkfs
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
    #[command(flatten)]
    map: MapArgs,
}

/// Options of `crash test`.
#[derive(Args)]
struct ExploreArgs {
    /// Commit mode, by default that of mkfs
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
}

impl Engine for BpfsEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "BPFS, on persistent memory: each call is atomic and durable when it returns"
    }

    fn magic(&self) -> Option<Magic> {
        Some(Magic {
            offset: 0,
            bytes: &MAGIC,
            name: "a BPFS file system",
        })
    }

    fn modes(&self) -> Vec<&'static str> {
        Mode::ALL.map(Mode::name).to_vec()
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        let promised = |mode: Mode| {
            let pm = MemoryPmem::new(MIN_BLOCKS * BLOCK);
            let options = ScratchOptions {
                mode: Some(mode.name()),
                ..ScratchOptions::default()
            };
            let fs = self.fresh(Scratch::Any(Arc::new(pm)), &options)?;
            Ok(fs.guarantees())
        };
        Mode::ALL.into_iter().map(promised).collect()
    }

    fn options(&self, verb: Verb) -> Command {
        let command = Command::new(self.name());
        match verb {
            Verb::Mkfs => MkfsArgs::augment_args(command),
            Verb::Mount => MountArgs::augment_args(command),
            Verb::CrashTest => ExploreArgs::augment_args(command),
            Verb::Fsck | Verb::Graph | Verb::Serve => command,
        }
    }

    fn min_bytes(&self) -> u64 {
        MIN_BLOCKS * BLOCK
    }

    fn mkfs(&self, image: &Image, identity: &Identity, options: &ArgMatches) -> Result<String> {
        let args = parsed::<MkfsArgs>(options)?;
        let path = at_start(NAME, image)?;
        let map = MapOptions {
            over_idle_loops: image.over_idle_loops,
            ..MapOptions::default()
        };
        let pm = MappedPmem::open(path, &map)?;
        let defaults = MkfsOptions::default();
        let options = MkfsOptions {
            uuid: identity.uuid,
            mode: args.mode.unwrap_or(defaults.mode),
            uid: identity.uid,
            gid: identity.gid,
            now: identity.now,
            ..defaults
        };
        crate::mkfs(&pm, &options).map_err(|e| Error::about(path, e))?;
        let made = probe(path, &pm)?;
        let bytes = size::display(made.blocks * BLOCK);
        let uuid = engine::uuid(&made.uuid);
        Ok(format!("bpfs, {bytes}, mode {}, UUID {uuid}", made.mode))
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
        let mode = args.mode.unwrap_or(header.mode);
        let effective = pm.durability();
        let mut notes = vec![
            format!("type: bpfs, mode {mode}"),
            format!("durability: {effective}: {}", effective.describe()),
        ];
        let (region, note) = args.map.region(pm, between)?;
        notes.extend(note);
        let mount = MountOptions {
            read_only: request.read_only,
            mode: args.mode,
            atime: request.atime,
            ..MountOptions::default()
        };
        Ok(Prepared {
            source: path.display().to_string(),
            draws: false,
            shared: false,
            open: Box::new(move || {
                let fs = open(region, mount).map_err(|e| Error::about(&path, e))?;
                Ok(opened(fs, &header, mode, effective, notes))
            }),
        })
    }

    fn check(&self, image: &Image, _repair: bool, _options: &ArgMatches) -> Result<Checked> {
        let path = at_start(NAME, image)?;
        let pm = open_read_only(path)?;
        // A damaged image has the magic number. Without it, the file is not an image.
        if let Err(e @ crate::Error::NotBpfs) = crate::probe(&pm) {
            return Err(Error::about(path, e));
        }
        Ok(Checked {
            replayed: None,
            marks: Marks::default(),
            reclaimed: false,
            report: crate::check(&pm),
            leaks_go_by: "the next mount",
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
        let inside = open_without_writing(pm, options).map_err(|e| e.to_string());
        let inside = inside.and_then(|fs| {
            let space = fs.statfs().map_err(|e| e.to_string())?;
            Ok((space, fs.guarantees()))
        });
        Ok(described(path, &header, durability, inside))
    }

    fn dump(&self, image: &Image, what: &Selection, out: &mut dyn Write) -> Result<()> {
        let path = at_start(NAME, image)?;
        let pm = open_read_only(path)?;
        let what = match what {
            Selection::Super => Dump::Super,
            Selection::Inode(ino) => Dump::Inode(*ino),
            Selection::Path(path) => Dump::Path(path.clone()),
        };
        crate::dump(&pm, &what, out).map_err(|e| Error::about(path, e))
    }

    fn subject(&self, options: &ArgMatches) -> Result<Explored> {
        let args = parsed::<ExploreArgs>(options)?;
        Ok(subject(args.mode.unwrap_or(Mode::DEFAULT)))
    }

    fn subjects(&self) -> Vec<Explored> {
        Mode::ALL.map(subject).into()
    }

    fn scratch(&self) -> Option<ScratchKind> {
        Some(ScratchKind::Memory)
    }

    fn fresh(&self, scratch: Scratch, options: &ScratchOptions<'_>) -> Result<Arc<dyn FileSystem>> {
        let made = MkfsOptions {
            mode: parsed_mode(options.mode)?.unwrap_or(Mode::DEFAULT),
            now: options.made,
            ..MkfsOptions::default()
        };
        match &scratch {
            Scratch::Mapped(pm) => crate::mkfs(&**pm, &made),
            Scratch::Shared(pm) => crate::mkfs(&**pm, &made),
            Scratch::Any(pm) => crate::mkfs(&**pm, &made),
            Scratch::Own => return Err(self.lacks(NO_MEDIUM)),
        }
        .map_err(Error::new)?;
        self.reopen(scratch, options)
    }

    fn reopen(
        &self,
        scratch: Scratch,
        options: &ScratchOptions<'_>,
    ) -> Result<Arc<dyn FileSystem>> {
        let options = MountOptions {
            mode: parsed_mode(options.mode)?,
            clock: options.clock.clone(),
            atime: options.atime,
            ..MountOptions::default()
        };
        Ok(match scratch {
            Scratch::Mapped(pm) => Arc::new(Bpfs::open(*pm, options).map_err(Error::new)?),
            Scratch::Shared(pm) => Arc::new(Bpfs::open(pm, options).map_err(Error::new)?),
            Scratch::Any(pm) => Arc::new(Bpfs::open(pm, options).map_err(Error::new)?),
            Scratch::Own => return Err(self.lacks(NO_MEDIUM)),
        })
    }
}

fn parsed<A: FromArgMatches>(options: &ArgMatches) -> Result<A> {
    A::from_arg_matches(options).map_err(Error::new)
}

fn parsed_mode(mode: Option<&str>) -> Result<Option<Mode>> {
    mode.map(str::parse).transpose().map_err(Error::new)
}

fn probe(path: &Path, pm: &MappedPmem) -> Result<SuperInfo> {
    crate::probe(pm).map_err(|e| Error::about(path, e))
}

fn subject(mode: Mode) -> Explored {
    Explored::Memory(Box::new(BpfsSystem(mode)))
}

/// Opens the file system. If `options` say so, the image is not changed, and recovery is done in
/// memory.
fn open(
    region: Region,
    options: MountOptions,
) -> std::result::Result<Arc<dyn FileSystem>, crate::Error> {
    match region {
        Region::Plain(pm) if options.read_only => open_without_writing(*pm, options),
        Region::Plain(pm) => Ok(Arc::new(Bpfs::open(*pm, options)?)),
        Region::Wrapped(pm) if options.read_only => open_without_writing(pm, options),
        Region::Wrapped(pm) => Ok(Arc::new(Bpfs::open(pm, options)?)),
    }
}

/// Opens read-only. Recovery is done in memory, since the image may not be written.
fn open_without_writing<P: Pmem + 'static>(
    pm: P,
    options: MountOptions,
) -> std::result::Result<Arc<dyn FileSystem>, crate::Error> {
    let pm = Overlay::new(pm);
    if crate::recover(&pm)? {
        let pm: Box<dyn Pmem> = Box::new(pm);
        return Ok(Arc::new(Bpfs::open(pm, options)?));
    }
    Ok(Arc::new(Bpfs::open(pm.into_inner(), options)?))
}

fn opened(
    fs: Arc<dyn FileSystem>,
    header: &SuperInfo,
    mode: Mode,
    effective: EffectiveDurability,
    notes: Vec<String>,
) -> Opened {
    let served = Arc::clone(&fs);
    let close: Close = Box::new(move || served.sync().map_err(|e| e.to_string()));
    Opened {
        fs,
        durability: Some(effective),
        about: about(header, mode),
        stats: None,
        notes,
        close,
        draw: None,
    }
}

/// The facts that `info` shows both of an image and of a mount.
fn about(header: &SuperInfo, mode: Mode) -> Map<String, Value> {
    let about = [
        ("type", json!("bpfs")),
        ("version", json!(header.version)),
        ("uuid", json!(engine::uuid(&header.uuid))),
        ("mode", json!(mode.to_string())),
        ("size_bytes", json!(header.blocks * BLOCK)),
        ("block_bytes", json!(BLOCK)),
        ("blocks", json!(header.blocks)),
    ];
    let named = |(name, value): (&str, Value)| (name.to_owned(), value);
    about.map(named).into_iter().collect()
}

/// Describes an image. `inside` holds the facts that need a mount, or the reason why they are
/// missing.
fn described(
    path: &Path,
    header: &SuperInfo,
    durability: EffectiveDurability,
    inside: std::result::Result<(vfs::StatFs, Guarantees), String>,
) -> Info {
    let (inside, trouble) = match inside {
        Ok(inside) => (Some(inside), None),
        Err(trouble) => (None, Some(trouble)),
    };
    let (space, guarantees) = inside.unzip();
    let bytes = size::display(header.blocks * BLOCK);
    let mut lines = vec![
        ("path", path.display().to_string()),
        ("type", format!("bpfs, format version {}", header.version)),
        ("UUID", engine::uuid(&header.uuid)),
        ("mode", header.mode.to_string()),
        (
            "size",
            format!("{bytes}, {} blocks of {BLOCK}", header.blocks),
        ),
    ];
    if let Some(free) = space.as_ref().map(|space| space.blocks_free) {
        let bytes = size::display(free * BLOCK);
        lines.push(("free", format!("{bytes}, {free} blocks")));
    }
    let level = format!("a mount would use {durability}: {}", durability.describe());
    lines.push(("durability", level));
    lines.extend(trouble.clone().map(|trouble| ("trouble", trouble)));
    let mut json = Map::from_iter([("path".to_owned(), json!(path))]);
    json.extend(about(header, header.mode));
    for (name, value) in [
        ("blocks_free", json!(space.as_ref().map(|s| s.blocks_free))),
        ("inodes_free", json!(space.as_ref().map(|s| s.inodes_free))),
        ("durability", json!(durability.to_string())),
        ("durability_means", json!(durability.describe())),
        ("guarantees", json!(guarantees)),
        ("trouble", json!(trouble)),
    ] {
        json.insert(name.to_owned(), value);
    }
    Info {
        lines,
        json: Value::Object(json),
    }
}
