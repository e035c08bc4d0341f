//! `selvedge info`: what an image holds, or who has it.

use crate::engine::Engine;
use crate::failure::{Failure, Outcome};
use crate::mount::{facts, table};
use crate::{image, output, size};
use bpfs::format::BLOCK;
use bpfs::{Bpfs, MountOptions, SuperInfo};
use medium::block::{DeviceOptions, FileDevice};
use medium::{EffectiveDurability, Holder, MappedPmem, OpenError, Overlay, Pmem};
use patch::stack::{Mode, Stack};
use rustix::fs::statvfs;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vfs::{FileSystem, Guarantees, StatFs};

/// Show what an image holds and what a mount of it would promise
///
/// Of an image that is mounted, shows where, by which process, and which durability is
/// in force there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// ext2: where in the file or device the image begins, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "0",
        hide_default_value = true,
        value_parser = size::parse
    )]
    offset: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is shown.
#[derive(Serialize)]
struct Info<'a> {
    path: &'a Path,
    r#type: &'static str,
    version: u32,
    uuid: String,
    mode: String,
    size_bytes: u64,
    block_bytes: u64,
    blocks: u64,
    /// Missing if the image cannot be mounted as it is.
    blocks_free: Option<u64>,
    inodes_free: Option<u64>,
    /// What a mount for writing would use, unless told otherwise.
    durability: String,
    durability_means: &'static str,
    guarantees: Option<Guarantees>,
    /// Why it cannot be mounted as it is.
    trouble: Option<String>,
}

/// What is shown of an image that is mounted for writing.
#[derive(Serialize)]
struct Mounted<'a> {
    path: &'a Path,
    mounted_on: PathBuf,
    /// What the mount tells of type, mode, size and promises.
    #[serde(flatten)]
    told: Map<String, Value>,
    /// The server, if the system tells.
    process: Option<u32>,
    /// What is in force, if the mount tells.
    #[serde(serialize_with = "by_name")]
    durability: Option<EffectiveDurability>,
    durability_means: Option<&'static str>,
}

fn by_name<S: Serializer>(d: &Option<EffectiveDurability>, s: S) -> Result<S::Ok, S::Error> {
    d.map(|d| d.to_string()).serialize(s)
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        if Engine::of_image_at(&self.path, self.offset)? == Engine::Ext2 {
            return self.ext2();
        }
        let pm = match image::try_open_read_only(&self.path) {
            Ok(pm) => pm,
            Err(e) => return self.in_use(e),
        };
        let durability = pm.durability();
        let header = image::probe(&self.path, &pm)?;
        let info = match inside(pm) {
            Ok((space, promise)) => self.info(&header, durability, Some((space, promise)), None),
            Err(e) => self.info(&header, durability, None, Some(e)),
        };
        if self.json {
            output::print_json(&info)?;
        } else {
            output::print(text(&info))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn ext2(&self) -> Outcome {
        let options = DeviceOptions {
            read_only: true,
            offset_bytes: self.offset,
            ..DeviceOptions::default()
        };
        // Blocks of any size will do for the superblock; disks have none that are larger.
        let device = match FileDevice::open(&self.path, 4096, &options) {
            Ok(device) => device,
            Err(e) => return self.in_use(e),
        };
        let sup = ext2::probe(&device).map_err(|e| image::about(&self.path, e))?;
        let info = Ext2Info::new(&self.path, sup);
        if self.json {
            output::print_json(&info)?;
        } else {
            output::print(table_of(info.lines()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What can be told of an image that cannot be opened: what its mount tells.
    fn in_use(&self, e: OpenError) -> Outcome {
        let OpenError::InUse { holder, .. } = &e else {
            return Err(Failure::new(e));
        };
        let path = self.path.canonicalize();
        let path = path.map_err(|e| image::about(&self.path, e))?;
        let mount = table::find_image(&path).map_err(|e| image::about(&path, e))?;
        let Some(mount) = mount else {
            return Err(Failure::new(e));
        };
        let durability = facts::durability(&mount.dir);
        let info = Mounted {
            path: &self.path,
            process: holder.as_ref().map(|h| h.pid),
            durability,
            durability_means: durability.map(EffectiveDurability::describe),
            told: told_by(&mount.dir),
            mounted_on: mount.dir,
        };
        if self.json {
            output::print_json(&info)?;
        } else {
            output::print(mounted_text(&info, holder.as_ref()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn info(
        &self,
        header: &SuperInfo,
        durability: EffectiveDurability,
        inside: Option<(StatFs, Guarantees)>,
        trouble: Option<String>,
    ) -> Info<'_> {
        let (space, guarantees) = inside.unzip();
        Info {
            path: &self.path,
            r#type: "bpfs",
            version: header.version,
            uuid: image::uuid(&header.uuid),
            mode: header.mode.to_string(),
            size_bytes: header.blocks * BLOCK,
            block_bytes: BLOCK,
            blocks: header.blocks,
            blocks_free: space.map(|s| s.blocks_free),
            inodes_free: space.map(|s| s.inodes_free),
            durability: durability.to_string(),
            durability_means: durability.describe(),
            guarantees,
            trouble,
        }
    }
}

/// What a mount of ours tells, and how much room it has now.
fn told_by(dir: &Path) -> Map<String, Value> {
    let mut told = facts::info(dir);
    if let Ok(space) = statvfs(dir) {
        told.insert("blocks_free".into(), space.f_bfree.into());
        told.insert("inodes_free".into(), space.f_ffree.into());
    }
    told.extend(facts::stats(dir).map(|stats| ("stats".into(), stats)));
    told
}

/// What a mount has written, on one line.
fn written(stats: &Value) -> Option<String> {
    let graph = &stats["graph"];
    Some(format!(
        "{} blocks, {} of them before all their changes were ready; {} flushes",
        stats["writes"].as_u64()?,
        graph["blocks_partial"].as_u64()?,
        stats["flushes"].as_u64()?
    ))
}

/// What only a mount knows.
fn inside(pm: MappedPmem) -> Result<(StatFs, Guarantees), String> {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    // As a mount that may not write does.
    let pm: Box<dyn Pmem> = Box::new(Overlay::new(pm));
    bpfs::recover(&pm).map_err(|e| e.to_string())?;
    let fs = Bpfs::open(pm, options).map_err(|e| e.to_string())?;
    let space = fs.statfs().map_err(|e| e.to_string())?;
    Ok((space, fs.guarantees()))
}

fn text(info: &Info<'_>) -> String {
    let mut lines = vec![
        ("path", info.path.display().to_string()),
        (
            "type",
            format!("{}, format version {}", info.r#type, info.version),
        ),
        ("UUID", info.uuid.clone()),
        ("mode", info.mode.clone()),
        (
            "size",
            format!(
                "{}, {} blocks of {}",
                size::display(info.size_bytes),
                info.blocks,
                info.block_bytes
            ),
        ),
    ];
    if let Some(free) = info.blocks_free {
        let bytes = size::display(free * info.block_bytes);
        lines.push(("free", format!("{bytes}, {free} blocks")));
    }
    lines.push((
        "durability",
        format!(
            "a mount would use {}: {}",
            info.durability, info.durability_means
        ),
    ));
    if let Some(trouble) = &info.trouble {
        lines.push(("trouble", trouble.clone()));
    }
    table_of(lines)
}

fn mounted_text(info: &Mounted<'_>, holder: Option<&Holder>) -> String {
    let by = holder.map_or_else(|| "a process that is not visible".into(), Holder::to_string);
    let mut lines = vec![("path", info.path.display().to_string())];
    for name in ["type", "mode", "stack", "graph"] {
        let told = info.told.get(name).and_then(Value::as_str);
        lines.extend(told.map(|value| (name, value.to_owned())));
    }
    let bytes = info.told.get("size_bytes").and_then(Value::as_u64);
    lines.extend(bytes.map(|bytes| ("size", size::display(bytes))));
    let written = info.told.get("stats").and_then(written);
    lines.extend(written.map(|written| ("written", written)));
    lines.extend([
        ("mounted on", info.mounted_on.display().to_string()),
        ("served by", by),
    ]);
    // There are such levels for persistent memory only.
    if info.told.get("type").is_none_or(|t| t == "bpfs") {
        let told = match info.durability {
            Some(durability) => format!("in force is {durability}: {}", durability.describe()),
            None => "the mount does not tell which is in force".into(),
        };
        lines.push(("durability", told));
    }
    table_of(lines)
}

/// What is shown of an ext2 image.
#[derive(Serialize)]
struct Ext2Info<'a> {
    path: &'a Path,
    r#type: &'static str,
    revision: u32,
    uuid: String,
    label: String,
    features: Vec<String>,
    /// Features that keep it from being mounted for writing.
    read_only_because: Vec<String>,
    state: &'static str,
    size_bytes: u64,
    block_bytes: u32,
    blocks: u32,
    blocks_free: u32,
    blocks_reserved: u32,
    groups: u32,
    inode_bytes: u16,
    inodes: u32,
    inodes_free: u32,
    /// What a mount would be put together from, unless told otherwise.
    stack: String,
    guarantees: Guarantees,
}

impl<'a> Ext2Info<'a> {
    fn new(path: &'a Path, sup: ext2::SuperInfo) -> Self {
        let stack = Stack::new("ext2", Mode::default());
        let replay = sup.features.iter().any(|name| name == "needs_recovery");
        Self {
            path,
            r#type: "ext2",
            revision: sup.revision,
            uuid: image::uuid(&sup.uuid),
            label: String::from_utf8_lossy(&sup.label).into_owned(),
            state: match (sup.errors, sup.clean) {
                (true, _) => "errors were found in it",
                (false, _) if replay => "its journal must be replayed: a mount does it",
                (false, true) => "clean",
                (false, false) => "not unmounted cleanly",
            },
            features: sup.features,
            read_only_because: sup.read_only,
            size_bytes: u64::from(sup.blocks) * u64::from(sup.block_bytes),
            block_bytes: sup.block_bytes,
            blocks: sup.blocks,
            blocks_free: sup.free_blocks,
            blocks_reserved: sup.reserved_blocks,
            groups: sup.groups,
            inode_bytes: sup.inode_bytes,
            inodes: sup.inodes,
            inodes_free: sup.free_inodes,
            guarantees: ext2::mount::guarantees(&stack),
            stack: stack.to_string(),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let size = size::display(self.size_bytes);
        let free = size::display(u64::from(self.blocks_free) * u64::from(self.block_bytes));
        let mut lines = vec![
            ("path", self.path.display().to_string()),
            (
                "type",
                format!("{}, revision {}", self.r#type, self.revision),
            ),
            ("UUID", self.uuid.clone()),
            ("label", self.label.clone()),
            ("features", self.features.join(" ")),
            ("state", self.state.to_string()),
            (
                "size",
                format!("{size}, {} blocks of {}", self.blocks, self.block_bytes),
            ),
            (
                "free",
                format!(
                    "{free}, {} blocks, {} for the super-user only",
                    self.blocks_free, self.blocks_reserved
                ),
            ),
            (
                "inodes",
                format!(
                    "{} of {} bytes, {} free",
                    self.inodes, self.inode_bytes, self.inodes_free
                ),
            ),
            ("stack", format!("a mount would use {}", self.stack)),
        ];
        if !self.read_only_because.is_empty() {
            let why = self.read_only_because.join(" ");
            lines.push(("read-only", format!("because of {why}")));
        }
        lines
    }
}

fn table_of(lines: Vec<(&str, String)>) -> String {
    let line = |(name, value): (&str, String)| format!("{name:<11} {value}\n");
    lines.into_iter().map(line).collect()
}
