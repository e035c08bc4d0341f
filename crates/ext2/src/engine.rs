//! ext2 as an engine, for commands, benchmarks and the explorer's command line.

use crate::log::clear_marks;
use crate::{Ext2, Ext2System, Inodes, MkfsOptions, SuperInfo};
use blockfs::engine::{MountArgs, named, stack_text};
use blockfs::mount::{Devices, MountOptions, Mountable, guarantees, mount, recover};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use engine::values::listed;
use engine::{
    Calls, Checked, Engine, Error, Explored, Graph, Identity, Image, Info, Interposer, Magic,
    Marks, MountRequest, Prepared, Replayed, Result, Selection, Verb, size,
};
use medium::block::{BlockDevice, DeviceOptions, FileDevice, Geometry, MemoryDevice};
use patch::Optimised;
use patch::stack::{Mode, Stack};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{FileSystem, Guarantees, SystemClock};

/// The engine.
pub struct Ext2Engine;

/// Options of `mkfs`.
#[derive(Args)]
struct MkfsArgs {
    /// Bytes in a block, 1024, 2048 or 4096, by default as mke2fs
    #[arg(long, short = 'b', value_name = "BYTES", value_parser = block_size)]
    block_size: Option<u32>,
    /// Bytes of an inode, 128 or, for times in nanoseconds, 256
    #[arg(long, short = 'I', value_name = "BYTES")]
    inode_size: Option<u16>,
    /// One inode for that many bytes of the file system
    #[arg(long, short = 'i', value_name = "BYTES")]
    bytes_per_inode: Option<u32>,
    /// A name, of at most 16 bytes
    #[arg(long, short = 'L', value_name = "NAME", value_parser = label)]
    label: Option<[u8; 16]>,
    /// Revision 0, without any features
    #[arg(long = "revision-0")]
    revision_0: bool,
    /// Make an internal journal, which otherwise the first mount that needs one does
    #[arg(long, short = 'j')]
    journal: bool,
}

fn block_size(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("ext2 has blocks of 1024, 2048 or 4096 bytes".into()),
    }
}

fn label(text: &str) -> std::result::Result<[u8; 16], String> {
    let mut label = [0; 16];
    let room = label.get_mut(..text.len());
    room.ok_or("a label has at most 16 bytes")?
        .copy_from_slice(text.as_bytes());
    Ok(label)
}

/// Options of `fsck`.
#[derive(Args)]
struct FsckArgs {
    /// The file or device of the log, if the image has one outside
    #[arg(long, short = 'j', value_name = "PATH")]
    journal: Option<PathBuf>,
}

/// Options of `crash test`.
#[derive(Args)]
struct ExploreArgs {
    /// How the order of changes is kept, by default softupdates
    ///
    /// The mode async is the control: it keeps no order and promises nothing, is judged by
    /// the rules of soft updates, and must be found to break them.
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
    /// Optimisations of the patch graph: hard patches, and changes that join the patch that
    /// they overlap; by default both
    ///
    /// They let changes reach the medium in one write that could go in several. Without
    /// them, an order that is missing shows. In a journal they matter little.
    #[arg(long, value_name = "WHICH", value_parser = listed::<Optimised>(Optimised::ALL))]
    optimise: Option<Optimised>,
}

/// Options of `graph`.
#[derive(Args)]
struct GraphArgs {
    /// How the order of changes is kept, by default softupdates
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
    /// The layers, as for mount
    #[arg(long, value_name = "STACK", conflicts_with = "mode", value_parser = stack_text)]
    stack: Option<Stack>,
    /// Size of the file system, by default 16M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Bytes in a block, 1024, 2048 or 4096, by default 4096
    #[arg(long, value_name = "BYTES", value_parser = block_size)]
    block_size: Option<u32>,
}

impl GraphArgs {
    /// An empty file system in memory.
    fn memory(&self) -> Result<Devices> {
        let bytes = self.size.unwrap_or(16 << 20);
        if bytes > 1 << 32 {
            return Err(Error::new("at most 4G: it is in memory"));
        }
        let block_bytes = self.block_size.unwrap_or(4096);
        let options = MkfsOptions {
            block_bytes,
            ..MkfsOptions::for_size(bytes)
        };
        let geometry = Geometry {
            block_bytes,
            blocks: bytes / u64::from(block_bytes),
        };
        let disk = Arc::new(MemoryDevice::new(geometry));
        crate::mkfs(&*disk, &options).map_err(Error::new)?;
        Ok(Devices { disk, log: None })
    }
}

impl Engine for Ext2Engine {
    fn name(&self) -> &'static str {
        "ext2"
    }

    fn about(&self) -> &'static str {
        "ext2, on block devices: soft updates or a journal; durable at fsync"
    }

    fn magic(&self) -> Option<Magic> {
        Some(Magic {
            offset: 0x438,
            bytes: &[0x53, 0xef],
            name: "an ext2, ext3 or ext4 file system",
        })
    }

    fn kernel_type(&self) -> Option<&'static str> {
        Some("ext2")
    }

    fn modes(&self) -> Vec<&'static str> {
        Mode::ALL.map(Mode::name).to_vec()
    }

    fn guarantees(&self) -> Result<Vec<Guarantees>> {
        let promised = |mode| guarantees(&Stack::new("ext2", mode));
        Ok(Mode::ALL.map(promised).into())
    }

    fn options(&self, verb: Verb) -> Command {
        let command = Command::new(self.name());
        match verb {
            Verb::Mkfs => MkfsArgs::augment_args(command),
            Verb::Mount => MountArgs::augment_args(command),
            Verb::Fsck => FsckArgs::augment_args(command),
            Verb::CrashTest => ExploreArgs::augment_args(command),
            Verb::Graph => GraphArgs::augment_args(command),
            Verb::Serve => command,
        }
    }

    fn mkfs(&self, image: &Image, identity: &Identity, options: &ArgMatches) -> Result<String> {
        let args = parsed::<MkfsArgs>(options)?;
        let path = &image.path;
        let failed = |e: crate::Error| Error::about(path, e);
        if args.revision_0 && args.journal {
            return Err(failed(crate::Error::Revision0));
        }
        let mut options = MkfsOptions::for_size(open(image, 1024, false)?.geometry().bytes());
        if args.revision_0 {
            options = options.revision_0();
        }
        options.block_bytes = args.block_size.unwrap_or(options.block_bytes);
        options.inode_bytes = args.inode_size.unwrap_or(options.inode_bytes);
        if let Some(bytes) = args.bytes_per_inode {
            options.inodes = Inodes::BytesPer(bytes);
        }
        options.label = args.label.unwrap_or_default();
        (options.uid, options.gid) = (identity.uid, identity.gid);
        (options.uuid, options.now) = (identity.uuid, identity.now);
        let disk: Arc<dyn BlockDevice> = Arc::new(open(image, options.block_bytes, false)?);
        crate::mkfs(&*disk, &options).map_err(failed)?;
        if args.journal {
            let added = Ext2::add_journal(&disk, None, Arc::new(SystemClock));
            added.map_err(|e| named(path, e))?;
        }
        let made = crate::probe(&*disk).map_err(failed)?;
        Ok(format!(
            "ext2, {}, blocks of {}, {} inodes of {}, UUID {}",
            size::display(u64::from(made.blocks) * u64::from(made.block_bytes)),
            made.block_bytes,
            made.inodes,
            made.inode_bytes,
            engine::uuid(&made.uuid)
        ))
    }

    fn mount(
        &self,
        request: &MountRequest,
        options: &ArgMatches,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        parsed::<MountArgs>(options)?.prepare::<Ext2>(request, between)
    }

    fn check(&self, image: &Image, repair: bool, options: &ArgMatches) -> Result<Checked> {
        let args = parsed::<FsckArgs>(options)?;
        let path = &image.path;
        // The superblock contains the size of the blocks.
        let sup = probe(image)?;
        let dirty = needs_replay(&sup);
        let replayed = dirty.then_some(match repair {
            true => Replayed::InPlace,
            false => Replayed::InMemory,
        });
        let read_only = !repair || !(dirty || sup.errors || !sup.clean);
        let device: Arc<dyn BlockDevice> = Arc::new(open(image, sup.block_bytes, read_only)?);
        let log = args.journal.map(Image::whole);
        let log = log.map(|log| open(&log, sup.block_bytes, read_only));
        let log = log
            .transpose()?
            .map(|log| Arc::new(log) as Arc<dyn BlockDevice>);
        let device =
            recover::<Ext2>(&device, log.as_ref(), read_only).map_err(|e| named(path, e))?;
        // A journal can contain the superblock as well.
        let sup = crate::probe(&*device).map_err(|e| Error::about(path, e))?;
        let report = crate::check(&*device);
        let worst = report.worst();
        let marks = Marks {
            errors: sup.errors && !read_only && worst != Some(Severity::Corrupt),
            unclean: !sup.clean && !read_only && worst.is_none(),
        };
        if marks.errors || marks.unclean {
            clear_marks(&*device, marks.unclean).map_err(|e| Error::about(path, e))?;
        }
        Ok(Checked {
            replayed,
            marks,
            reclaimed: false,
            report,
            leaks_go_by: "e2fsck",
        })
    }

    fn info(&self, image: &Image) -> Result<Info> {
        Ok(described(&image.path, &probe(image)?))
    }

    fn dump(&self, image: &Image, _what: &Selection, _out: &mut dyn Write) -> Result<()> {
        let why = "debugfs(8) shows structures of ext2; there is no dump of it here";
        Err(Error::about(&image.path, why))
    }

    fn has_graph(&self) -> bool {
        true
    }

    fn graph(&self, calls: &Calls<'_>, options: &ArgMatches) -> Result<Graph> {
        let args = parsed::<GraphArgs>(options)?;
        let usual = || Stack::new("ext2", args.mode.unwrap_or_default());
        let mut stack = args.stack.clone().unwrap_or_else(usual);
        stack.set_cache(|cache| cache.interval = None);
        let mounted = mount::<Ext2>(&stack, args.memory()?, &MountOptions::default());
        let mounted = mounted.map_err(|e| named(Path::new("memory"), e))?;
        let fs = mounted.file_system();
        // Changes that making and mounting it left in memory.
        fs.sync().map_err(Error::new)?;
        calls(&**fs)?;
        let drawing = mounted.drawing();
        Ok(Graph {
            svg: drawing.svg(),
            dot: drawing.dot(),
            json: json!(drawing),
        })
    }

    fn subject(&self, options: &ArgMatches) -> Result<Explored> {
        let args = parsed::<ExploreArgs>(options)?;
        let optimised = args.optimise.unwrap_or(Optimised::Both);
        Ok(subject(args.mode.unwrap_or_default(), optimised))
    }

    fn subjects(&self) -> Vec<Explored> {
        let of_mode = |mode| Optimised::ALL.map(|which| subject(mode, which));
        Mode::ALL.into_iter().flat_map(of_mode).collect()
    }

    fn with_room(&self, bytes: u64, inodes: u64) -> Vec<Explored> {
        let of_mode = |mode| {
            let system = Ext2System::with_room(mode, bytes, inodes);
            Explored::Blocks(Box::new(system))
        };
        Mode::ALL.into_iter().map(of_mode).collect()
    }
}

fn parsed<A: FromArgMatches>(options: &ArgMatches) -> Result<A> {
    A::from_arg_matches(options).map_err(Error::new)
}

fn open(image: &Image, block_bytes: u32, read_only: bool) -> Result<FileDevice> {
    let options = DeviceOptions {
        read_only,
        offset_bytes: image.offset_bytes,
        over_idle_loops: image.over_idle_loops,
        ..DeviceOptions::default()
    };
    Ok(FileDevice::open(&image.path, block_bytes, &options)?)
}

/// Reads the superblock. Any block size serves for that, and no disk has larger sectors.
fn probe(image: &Image) -> Result<SuperInfo> {
    let device = open(image, 4096, true)?;
    crate::probe(&device).map_err(|e| Error::about(&image.path, e))
}

fn needs_replay(sup: &SuperInfo) -> bool {
    sup.features.iter().any(|name| name == "needs_recovery")
}

fn subject(mode: Mode, optimised: Optimised) -> Explored {
    Explored::Blocks(Box::new(Ext2System::new(mode).optimised(optimised)))
}

/// Describes an image.
fn described(path: &Path, sup: &SuperInfo) -> Info {
    let stack = Stack::new("ext2", Mode::default());
    let state = match (sup.errors, sup.clean) {
        (true, _) => "errors were found in it",
        (false, _) if needs_replay(sup) => "its journal must be replayed: a mount does it",
        (false, true) => "clean",
        (false, false) => "not unmounted cleanly",
    };
    let label = String::from_utf8_lossy(&sup.label).into_owned();
    let bytes = |blocks: u32| u64::from(blocks) * u64::from(sup.block_bytes);
    let (all, free) = (
        size::display(bytes(sup.blocks)),
        size::display(bytes(sup.free_blocks)),
    );
    let mut lines = vec![
        ("path", path.display().to_string()),
        ("type", format!("ext2, revision {}", sup.revision)),
        ("UUID", engine::uuid(&sup.uuid)),
        ("label", label.clone()),
        ("features", sup.features.join(" ")),
        ("state", state.to_owned()),
        (
            "size",
            format!("{all}, {} blocks of {}", sup.blocks, sup.block_bytes),
        ),
        (
            "free",
            format!(
                "{free}, {} blocks, {} for the super-user only",
                sup.free_blocks, sup.reserved_blocks
            ),
        ),
        (
            "inodes",
            format!(
                "{} of {} bytes, {} free",
                sup.inodes, sup.inode_bytes, sup.free_inodes
            ),
        ),
        ("stack", format!("a mount would use {stack}")),
    ];
    if !sup.read_only.is_empty() {
        let why = sup.read_only.join(" ");
        lines.push(("read-only", format!("because of {why}")));
    }
    let json = json!({
        "path": path,
        "type": "ext2",
        "revision": sup.revision,
        "uuid": engine::uuid(&sup.uuid),
        "label": label,
        "features": sup.features,
        "read_only_because": sup.read_only,
        "state": state,
        "size_bytes": bytes(sup.blocks),
        "block_bytes": sup.block_bytes,
        "blocks": sup.blocks,
        "blocks_free": sup.free_blocks,
        "blocks_reserved": sup.reserved_blocks,
        "groups": sup.groups,
        "inode_bytes": sup.inode_bytes,
        "inodes": sup.inodes,
        "inodes_free": sup.free_inodes,
        "stack": stack.to_string(),
        "guarantees": guarantees(&stack),
    });
    Info { lines, json }
}
