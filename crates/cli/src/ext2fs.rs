//! ext2 behind the commands: which stack, opened how, told about how.

use crate::failure::Failure;
use crate::image::about;
use crate::mount::options::Options;
use crate::mount::power_cut::Power;
use crate::mount::serve::{Close, Draw, Opened, Prepared};
use crate::own_file::{self, OwnFile};
use ext2::{Devices, MountOptions, Mounted};
use fuse::Fact;
use medium::block::BlockDevice;
use patch::draw::Drawing;
use patch::stack::{Mode, Module, Stack};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;
use vfs::FileSystem;

/// The stack that the options ask for.
///
/// # Errors
/// What is wrong with it, or which options contradict each other.
pub fn stack(
    options: &Options,
    stack: Option<&str>,
    unsafe_no_flush: bool,
) -> Result<Stack, Failure> {
    if options.sync {
        return Err(Failure::new(
            "mount option 'sync': ext2 here is durable at fsync only; leave it out",
        ));
    }
    let named = stack.or(options.stack.as_deref());
    let mut stack = match (named, options.mode.as_deref()) {
        (Some(_), Some(_)) => {
            return Err(Failure::new("mode= and a stack exclude each other"));
        }
        (Some(stack), None) => stack
            .parse()
            .map_err(|e| Failure::new(format_args!("stack: {e}")))?,
        (None, mode) => {
            let mode = mode.map_or(Ok(Mode::default()), str::parse);
            let mode = mode.map_err(|e| Failure::new(format_args!("mount option 'mode': {e}")))?;
            Stack::new("ext2", mode)
        }
    };
    stack.disk.unsafe_no_flush |= unsafe_no_flush || options.unsafe_no_flush;
    if let Some(bytes) = options.cache {
        stack.cache.bytes = bytes;
    }
    stack.cache.dirty_bytes = options.dirty.or(stack.cache.dirty_bytes);
    if let Some(commit) = options.commit {
        stack.cache.interval = Some(commit);
        if let Module::Journal(journal) = &mut stack.module {
            journal.commit = commit;
        }
    }
    // What was set apart is checked with the rest.
    let checked: Result<Stack, _> = stack.to_string().parse();
    let mut stack = checked.map_err(|e| Failure::new(format_args!("stack: {e}")))?;
    stack.disk.offset_bytes = options.offset;
    Ok(stack)
}

/// Locks the image, an absolute path, for a mount; `power` may put a switch before its
/// devices.
///
/// # Errors
/// [`ext2::MountError`], with the path; those of `power`.
pub fn prepare<'a>(
    path: &'a Path,
    stack: Stack,
    options: &'a Options,
    power: impl FnOnce(&mut Devices) -> Result<Option<Power<'a>>, Failure>,
) -> Result<Prepared<'a>, Failure> {
    let devices = Devices::open(path, &stack, options.read_only);
    let mut devices = devices.map_err(|e| named(path, &e))?;
    let power = power(&mut devices)?;
    // A read-only mount has nothing that is not durable.
    let picture = (!options.read_only).then(|| OwnFile::beside(path, ".graph.svg"));
    let picture = picture.transpose().map_err(|e| about(path, e))?;
    Ok(Prepared {
        source: path.display().to_string(),
        open: Box::new(move || open(path, &stack, options, devices, power, picture)),
    })
}

fn open(
    path: &Path,
    stack: &Stack,
    options: &Options,
    devices: Devices,
    power: Option<Power<'_>>,
    picture: Option<OwnFile>,
) -> Result<Opened, Failure> {
    let mut notes = vec![
        format!("type: ext2, mode {}", stack.mode()),
        format!("stack: {stack}"),
    ];
    if let Some(picture) = &picture {
        notes.extend(tearing(stack, &*devices.disk));
        notes.push(format!(
            "graph: kill -USR2 {} draws what is not durable yet as {}",
            std::process::id(),
            picture.path().display()
        ));
    }
    if let Some((_, switch)) = &power {
        let seed = switch.seed();
        notes.push(format!("simulation: slower than a real mount; seed {seed}"));
    }
    let mount = MountOptions {
        read_only: options.read_only,
        atime: options.atime,
        on_error: options.on_error,
        ..MountOptions::default()
    };
    let mounted = ext2::mount(stack, devices, &mount).map_err(|e| named(path, &e))?;
    let mounted = Arc::new(mounted);
    let mut fs: Arc<dyn FileSystem> = mounted.file_system().clone();
    if let Some((spec, switch)) = &power {
        fs = switch.arm(spec, fs);
    }
    Ok(Opened {
        fs,
        durability: None,
        about: told(stack, &mounted, picture.as_ref()),
        stats: Some(stats(&mounted)),
        notes,
        switch: power.map(|(_, switch)| switch),
        draw: picture.map(|picture| draw(&mounted, picture)),
        close: close(mounted, path),
    })
}

fn stats(mounted: &Arc<Mounted>) -> Fact {
    let mounted = Arc::clone(mounted);
    Fact::new(move || json!(mounted.cache().stats()).to_string())
}

fn close(mounted: Arc<Mounted>, path: &Path) -> Close {
    let path = path.to_owned();
    Box::new(move || {
        let closed = mounted.close();
        closed.map_err(|e| format!("{}: {e}", path.display()))
    })
}

fn draw(mounted: &Arc<Mounted>, picture: OwnFile) -> Draw {
    let mounted = Arc::clone(mounted);
    Box::new(move || {
        let written = picture.write(drawing(&mounted).svg(), own_file::PRIVATE);
        written.map_err(|e| format!("{}: {e}", picture.path().display()))
    })
}

/// What the mount tells of itself, under the names that `info` shows.
fn told(stack: &Stack, mounted: &Mounted, picture: Option<&OwnFile>) -> Map<String, Value> {
    let geometry = mounted.disk().geometry();
    let told = [
        ("type", json!("ext2")),
        ("mode", json!(stack.mode().to_string())),
        ("stack", json!(stack.to_string())),
        ("size_bytes", json!(geometry.bytes())),
        ("block_bytes", json!(geometry.block_bytes)),
        ("blocks", json!(geometry.blocks)),
    ];
    let graph = picture.map(|picture| ("graph", json!(picture.path())));
    let told = told.into_iter().chain(graph);
    told.map(|(name, value)| (name.into(), value)).collect()
}

/// The graph of what is mounted, its blocks named.
pub fn drawing(mounted: &Mounted) -> Drawing {
    let mut drawing = mounted.cache().draw();
    let fs = mounted.file_system();
    drawing.name_blocks(|device, lba| match device {
        0 => fs.low().describe(medium::block::Lba(lba)),
        _ => Some("log".into()),
    });
    drawing
}

/// Errors that do not name the file get its name.
pub fn named(path: &Path, e: &ext2::MountError) -> Failure {
    match e {
        ext2::MountError::Open(e) => Failure::new(e),
        e => about(path, e),
    }
}

/// What soft updates need of a device, and this one does not promise.
fn tearing(stack: &Stack, disk: &dyn BlockDevice) -> Option<String> {
    let (atomic, block) = (disk.persistence().atomic_bytes, disk.geometry().block_bytes);
    (stack.mode() == Mode::SoftUpdates && atomic < block).then(|| {
        format!(
            "note: a power failure may tear blocks of {block} bytes: the device promises \
             {atomic}; journal modes repair that"
        )
    })
}
