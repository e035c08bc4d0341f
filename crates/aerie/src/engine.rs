//! PXFS for commands, benchmarks and the explorer's command line.

use crate::directory;
use crate::facts::{NAME, about, probe, uuid};
use crate::service::{self, ServeArgs};
use aerie_objects::layout::{MAGIC, MIN_PAGES};
use aerie_objects::{PAGE, Superblock};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use engine::memory::{MapArgs, Region, at_start, open_read_only};
use engine::{
    Checked, Engine, Error, Explored, Identity, Image, Info, Interposer, Magic, Marks,
    MountRequest, Opened, Prepared, Replayed, Result, Scratch, ScratchKind, ScratchOptions,
    Selection, Service, ServiceRequest, Verb, size,
};
use medium::{EffectiveDurability, MapOptions, MappedPmem, Overlay, Pmem};
use pxfs::{MkfsOptions, Pxfs, PxfsSystem, guarantees};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Atime, Clock, FileSystem, Guarantees, ReadOnly, SystemClock};

/// The engine.
pub struct PxfsEngine;

const NO_MEDIUM: &str = "file system without a medium";

/// Options of `mkfs`.
#[derive(Args)]
struct MkfsArgs {
    /// Make PATH a directory in place of an image: each user of its service maps only what the user may
    /// read
    #[arg(long)]
    protect: bool,
}

/// Options of `mount`.
#[derive(Args)]
struct MountArgs {
    #[command(flatten)]
    map: MapArgs,
}

impl Engine for PxfsEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "PXFS, on persistent memory: files of Aerie; each call is durable when it returns, by a redo log"
    }

    fn magic(&self) -> Option<Magic> {
        Some(Magic {
            offset: 0,
            bytes: &MAGIC,
            name: "a PXFS file system",
        })
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        Ok(vec![guarantees()])
    }

    fn options(&self, verb: Verb) -> Command {
        let command = Command::new(self.name());
        match verb {
            Verb::Mount => MountArgs::augment_args(command),
            Verb::Serve => ServeArgs::augment_args(command),
            Verb::Mkfs => MkfsArgs::augment_args(command),
            Verb::Fsck | Verb::CrashTest | Verb::Graph => command,
        }
    }

    fn min_bytes(&self) -> u64 {
        MIN_PAGES * PAGE
    }

    fn mkfs_directory(
        &self,
        path: &Path,
        bytes: u64,
        identity: &Identity,
        options: &ArgMatches,
    ) -> Option<Result<String>> {
        let is_wanted = options.get_flag("protect");
        is_wanted.then(|| directory::make(path, bytes, identity))
    }

    fn is_directory(&self, path: &Path) -> bool {
        directory::is_at(path)
    }

    fn mkfs(&self, image: &Image, identity: &Identity, options: &ArgMatches) -> Result<String> {
        let path = at_start(NAME, image)?;
        if options.get_flag("protect") {
            return Err(Error::about(path, "a protected store needs --size"));
        }
        let map = MapOptions {
            over_idle_loops: image.over_idle_loops,
            ..MapOptions::default()
        };
        let memory = MappedPmem::open(path, &map)?;
        let options = directory::mkfs_options(identity);
        pxfs::mkfs(&memory, &options).map_err(|e| Error::about(path, e))?;
        let made = probe(path, &memory)?;
        let (bytes, uuid) = (size::display(made.bytes), uuid(&made));
        Ok(format!("pxfs, {bytes}, UUID {uuid}"))
    }

    fn mount(
        &self,
        request: &MountRequest,
        options: &ArgMatches,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        let args = MountArgs::from_arg_matches(options).map_err(Error::new)?;
        if request.image.is_socket() {
            if args.map.are_given() || between.is_some() {
                let why = "a service decides how durable and how slow the memory is; give the \
                           options to `selvedge serve`, and cut the power of a mounted image";
                return Err(Error::about(&request.image.path, why));
            }
            return service::mount(request);
        }
        let path = at_start(NAME, &request.image)?.to_owned();
        if directory::is_at(&path) {
            let why = "it is a protected store; serve it, and mount the socket";
            return Err(Error::about(&path, why));
        }
        let memory = args.map.map(&path, request.read_only)?;
        let superblock = probe(&path, &memory)?;
        let effective = memory.durability();
        let mut notes = vec![
            "type: pxfs".to_owned(),
            format!("durability: {effective}: {}", effective.describe()),
        ];
        let (region, note) = args.map.region(memory, between)?;
        notes.extend(note);
        let (read_only, atime) = (request.read_only, request.atime);
        Ok(Prepared {
            source: path.display().to_string(),
            draws: false,
            shared: false,
            open: Box::new(move || {
                let opened = match region {
                    Region::Plain(memory) => open(*memory, read_only, atime),
                    Region::Wrapped(memory) => open(memory, read_only, atime),
                };
                Ok(Opened {
                    fs: opened.map_err(|e| Error::about(&path, e))?,
                    durability: Some(effective),
                    about: about(&superblock),
                    stats: None,
                    notes,
                    close: Box::new(|| Ok(())),
                    draw: None,
                })
            }),
        })
    }

    fn has_service(&self) -> bool {
        true
    }

    fn serve(&self, request: &ServiceRequest, options: &ArgMatches) -> Result<Service> {
        service::serve(
            request,
            &ServeArgs::from_arg_matches(options).map_err(Error::new)?,
        )
    }

    fn check(&self, image: &Image, repair: bool, _options: &ArgMatches) -> Result<Checked> {
        let path = at_start(NAME, image)?;
        let (report, replayed) = match (repair, directory::is_at(path)) {
            (true, true) => {
                let store = directory::open(path, &MapOptions::default())?;
                checked(path, &store.memory(), Replayed::InPlace)
            }
            (true, false) => {
                let memory = Arc::new(MappedPmem::open(path, &MapOptions::default())?);
                checked(path, &memory, Replayed::InPlace)
            }
            (false, true) => checked(path, &directory::look(path)?.1, Replayed::InMemory),
            (false, false) => {
                let memory = Arc::new(Overlay::new(open_read_only(path)?));
                checked(path, &memory, Replayed::InMemory)
            }
        }?;
        Ok(Checked {
            replayed,
            marks: Marks::default(),
            reclaimed: false,
            report,
            leaks_go_by: "the next mount",
        })
    }

    fn info(&self, image: &Image) -> Result<Info> {
        let path = at_start(NAME, image)?;
        if directory::is_at(path) {
            let (store, memory) = directory::look(path)?;
            let superblock = probe(path, &memory)?;
            let inside = open(memory, true, Atime::Never).map_err(|error| error.to_string());
            let inside = inside.and_then(|fs| fs.statfs().map_err(|errno| errno.to_string()));
            return Ok(described(path, &superblock, store.durability(), inside));
        }
        let memory = open_read_only(path)?;
        let durability = memory.durability();
        let superblock = probe(path, &memory)?;
        let inside = open(memory, true, Atime::Never).map_err(|error| error.to_string());
        let inside = inside.and_then(|fs| fs.statfs().map_err(|errno| errno.to_string()));
        Ok(described(path, &superblock, durability, inside))
    }

    fn dump(&self, image: &Image, what: &Selection, out: &mut dyn Write) -> Result<()> {
        let path = at_start(NAME, image)?;
        if directory::is_at(path) {
            let (_store, memory) = directory::look(path)?;
            aerie_objects::recover(&memory).map_err(|e| Error::about(path, e))?;
            return pxfs::dump(&memory, what, out).map_err(|e| Error::about(path, e));
        }
        let memory = Arc::new(Overlay::new(open_read_only(path)?));
        aerie_objects::recover(&memory).map_err(|e| Error::about(path, e))?;
        pxfs::dump(&memory, what, out).map_err(|e| Error::about(path, e))
    }

    fn subject(&self, _options: &ArgMatches) -> Result<Explored> {
        Ok(Explored::Memory(Box::new(PxfsSystem)))
    }

    fn subjects(&self) -> Vec<Explored> {
        vec![Explored::Memory(Box::new(PxfsSystem))]
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
            Scratch::Mapped(memory) => pxfs::mkfs(&**memory, &made),
            Scratch::Shared(memory) => pxfs::mkfs(&**memory, &made),
            Scratch::Any(memory) => pxfs::mkfs(memory, &made),
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
        let (clock, atime) = (options.clock.clone(), options.atime);
        match scratch {
            Scratch::Mapped(memory) => writable(*memory, clock, atime),
            Scratch::Shared(memory) => writable(memory, clock, atime),
            Scratch::Any(memory) => writable(memory, clock, atime),
            Scratch::Own => return Err(self.lacks(NO_MEDIUM)),
        }
        .map_err(Error::new)
    }
}

type Opening = aerie_objects::Result<Arc<dyn FileSystem>>;

/// Opens the file system. If it is read-only the memory is not changed, and recovery is done in ordinary
/// memory.
fn open<P: Pmem + 'static>(memory: P, read_only: bool, atime: Atime) -> Opening {
    let clock = Arc::new(SystemClock);
    if !read_only {
        return writable(memory, clock, atime);
    }
    let memory = Arc::new(Overlay::new(memory));
    let fs = Pxfs::open(memory, clock, Atime::Never)?;
    Ok(Arc::new(ReadOnly(fs)))
}

fn writable<P: Pmem + 'static>(memory: P, clock: Arc<dyn Clock>, atime: Atime) -> Opening {
    Ok(Arc::new(Pxfs::open(Arc::new(memory), clock, atime)?))
}

/// Replays the log, and checks what it leaves.
fn checked<P: Pmem + Clone>(
    path: &Path,
    memory: &P,
    target: Replayed,
) -> Result<(Report, Option<Replayed>)> {
    must_be_store(path, memory)?;
    let is_replayed = match (aerie_objects::recover(memory), target) {
        (Err(error), Replayed::InPlace) => return Err(Error::about(path, error)),
        // A damaged superblock or log: the checker says more about it.
        (replayed, _) => replayed.unwrap_or(false),
    };
    Ok((pxfs::check(memory), is_replayed.then_some(target)))
}

/// A damaged store has the magic number. Without it, the file is not a store.
fn must_be_store<P: Pmem>(path: &Path, memory: &P) -> Result<()> {
    match memory.load(0) {
        Ok(word) if word == u64::from_le_bytes(MAGIC) => Ok(()),
        Ok(_) => Err(Error::about(
            path,
            "no PXFS file system: its magic is missing",
        )),
        Err(error) => Err(Error::about(path, error)),
    }
}

/// The size and the number of the redo logs.
fn logs(superblock: &Superblock) -> String {
    let bytes = size::display(superblock.logs_bytes());
    match superblock.logs {
        1 => bytes,
        logs => format!("{bytes}, {logs} logs"),
    }
}

/// Describes an image. `inside` holds what needs a mount, or the reason why it is missing.
fn described(
    path: &Path,
    superblock: &Superblock,
    durability: EffectiveDurability,
    inside: std::result::Result<vfs::StatFs, String>,
) -> Info {
    let (bytes, pages) = (size::display(superblock.bytes), superblock.bytes / PAGE);
    let mut lines = vec![
        ("path", path.display().to_string()),
        (
            "type",
            format!("pxfs, format version {}", superblock.version()),
        ),
        ("UUID", uuid(superblock)),
        ("size", format!("{bytes}, {pages} pages of {PAGE}")),
        ("log", logs(superblock)),
    ];
    let (space, trouble) = match inside {
        Ok(space) => (Some(space), None),
        Err(trouble) => (None, Some(trouble)),
    };
    if let Some(free) = space.as_ref().map(|space| space.blocks_free) {
        lines.push((
            "free",
            format!("{}, {free} pages", size::display(free * PAGE)),
        ));
    }
    let level = format!("a mount would use {durability}: {}", durability.describe());
    lines.push(("durability", level));
    lines.extend(trouble.clone().map(|trouble| ("trouble", trouble)));
    let mut json = Map::from_iter([("path".to_owned(), json!(path))]);
    json.extend(about(superblock));
    for (name, value) in [
        ("blocks_free", json!(space.as_ref().map(|s| s.blocks_free))),
        ("inodes_free", json!(space.as_ref().map(|s| s.inodes_free))),
        ("durability", json!(durability.to_string())),
        ("durability_means", json!(durability.describe())),
        ("guarantees", json!(guarantees())),
        ("trouble", json!(trouble)),
    ] {
        json.insert(name.to_owned(), value);
    }
    Info {
        lines,
        json: Value::Object(json),
    }
}
