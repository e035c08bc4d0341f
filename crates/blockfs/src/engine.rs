//! The common part of the engines of block formats: the options of a mount, and mounting.

use crate::OnError;
use crate::mount::{Devices, MountError, MountOptions, Mountable, Mounted, mount};
use clap::Args;
use engine::values::{Listed, explained, listed};
use engine::{Draw, Error, Interposer, MountRequest, Opened, Prepared, Result, size};
use medium::block::BlockDevice;
use patch::stack::{Mode, Stack};
use patch::{CacheOptions, Durable};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options of `mount`.
#[derive(Args)]
pub struct MountArgs {
    /// How the order of changes is kept, by default softupdates
    #[arg(long, value_name = "MODE", value_parser = listed::<Mode>(Mode::ALL))]
    mode: Option<Mode>,
    /// The layers of the mount, such as 'uhfs > ext2 > journal(full, internal) >
    /// cache(256M, durable=flush) > disk'; 'selvedge stack' lists them
    #[arg(
        long,
        value_name = "STACK",
        conflicts_with = "mode",
        value_parser = stack_text,
        long_help = stack_help(),
    )]
    stack: Option<Stack>,
    /// Memory for blocks
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cache: Option<u64>,
    /// Memory for changed blocks
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    dirty: Option<u64>,
    /// The age at which changes are written back, 1 to 86400
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    commit: Option<Duration>,
    /// The reaction to a damaged image, by default as the superblock says
    #[arg(long, value_name = "ACTION", value_parser = actions())]
    errors: Option<Action>,
    /// Use an image also where flushing does not work: a crash can leave anything
    #[arg(long)]
    unsafe_no_flush: bool,
}

fn stack_help() -> String {
    format!(
        "The layers of the mount\n\n{} The layers:\n\n{}",
        patch::stack::NOTATION,
        patch::stack::list()
    )
}

/// Parses a stack, with quotes around it or without.
///
/// # Errors
/// What is wrong with it.
pub fn stack_text(text: &str) -> std::result::Result<Stack, String> {
    let parsed: std::result::Result<Stack, _> = text.trim_matches('"').parse();
    parsed.map_err(|e| e.to_string())
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("a number of seconds from 1 to 86400 is needed".into()),
    }
}

/// `--errors`, by its names.
#[derive(Clone, Copy)]
struct Action(OnError);

impl std::str::FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "continue" => Ok(Self(OnError::Continue)),
            "remount-ro" => Ok(Self(OnError::ReadOnly)),
            "panic" => Ok(Self(OnError::Halt)),
            _ => Err("continue, remount-ro or panic is needed".into()),
        }
    }
}

fn actions() -> Listed<Action> {
    explained([
        ("continue", "the call fails, and the mount goes on"),
        ("remount-ro", "the mount refuses changes from then on"),
        ("panic", "the mount refuses all calls from then on"),
    ])
}

impl MountArgs {
    /// Opens the devices of a mount. The mount is made when the result is opened.
    ///
    /// # Errors
    /// What is wrong with the image or the options.
    pub fn prepare<F: Mountable>(
        &self,
        request: &MountRequest,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared> {
        request.without_sync(F::NAME)?;
        let path = request.image.path.clone();
        let stack = self.stack(F::NAME, request.image.offset_bytes)?;
        let devices = Devices::open::<F>(&path, &stack, request.read_only);
        let mut devices = devices.map_err(|e| named(&path, e))?;
        if let Some(between) = between {
            let disk = std::iter::once(&mut devices.disk);
            between.blocks(disk.chain(&mut devices.log).collect())?;
        }
        let options = MountOptions {
            read_only: request.read_only,
            atime: request.atime,
            on_error: self.errors.map(|action| action.0),
            ..MountOptions::default()
        };
        Ok(Prepared {
            source: path.display().to_string(),
            // A read-only mount has nothing that is not durable.
            draws: !request.read_only,
            shared: false,
            open: Box::new(move || opened::<F>(&path, &stack, devices, &options)),
        })
    }

    /// The stack that the options ask for.
    fn stack(&self, format: &str, offset_bytes: u64) -> Result<Stack> {
        let mut stack = match &self.stack {
            Some(stack) => stack.clone(),
            None => Stack::new(format, self.mode.unwrap_or_default()),
        };
        stack.set_disks(|disk| disk.options.unsafe_no_flush |= self.unsafe_no_flush);
        stack.set_cache(|cache| {
            cache.bytes = self.cache.unwrap_or(cache.bytes);
            cache.dirty_bytes = self.dirty.or(cache.dirty_bytes);
            cache.interval = self.commit.or(cache.interval);
        });
        stack.set_journal(|journal| journal.commit = self.commit.unwrap_or(journal.commit));
        let checked = stack.checked();
        checked.map_err(|e| Error::new(format_args!("stack: {e}")))?;
        stack.set_disks(|disk| {
            if disk.path.is_none() {
                disk.options.offset_bytes = offset_bytes;
            }
        });
        Ok(stack)
    }
}

/// Returns the error of a command. Errors without the image's name get it.
pub fn named(path: &Path, e: MountError) -> Error {
    match e {
        MountError::Open(e) => e.into(),
        e => Error::about(path, e),
    }
}

fn opened<F: Mountable>(
    path: &Path,
    stack: &Stack,
    devices: Devices,
    options: &MountOptions,
) -> Result<Opened> {
    let mut notes = vec![
        format!("type: {}, mode {}", F::NAME, stack.mode()),
        format!("stack: {stack}"),
    ];
    if !options.read_only {
        notes.extend(tearing::<F>(stack, &*devices.disk));
    }
    let mounted = mount::<F>(stack, devices, options).map_err(|e| named(path, e))?;
    if !options.read_only {
        notes.insert(1, durability(stack, mounted.cache().options()));
    }
    let mounted = Arc::new(mounted);
    let (closed, counted, drawn) = (mounted.clone(), mounted.clone(), mounted.clone());
    let name = path.display().to_string();
    Ok(Opened {
        fs: F::served(mounted.file_system().clone()),
        durability: None,
        about: about(stack, &mounted),
        stats: Some(Box::new(move || json!(counted.cache().stats()).to_string())),
        notes,
        close: Box::new(move || closed.close().map_err(|e| format!("{name}: {e}"))),
        draw: (!options.read_only).then(|| {
            let draw = move || drawn.drawing().svg();
            Box::new(draw) as Draw
        }),
    })
}

/// The mount's description, under the names that `info` shows.
fn about<F: Mountable>(stack: &Stack, mounted: &Mounted<F>) -> Map<String, Value> {
    let geometry = mounted.disk().geometry();
    let about = [
        ("type", json!(F::NAME)),
        ("mode", json!(stack.mode().to_string())),
        ("stack", json!(stack.to_string())),
        ("size_bytes", json!(geometry.bytes())),
        ("block_bytes", json!(geometry.block_bytes)),
        ("blocks", json!(geometry.blocks)),
    ];
    let named = |(name, value): (&str, Value)| (name.to_owned(), value);
    about.map(named).into_iter().collect()
}

/// A note of when changes are durable.
fn durability(stack: &Stack, cache: &CacheOptions) -> String {
    let mut may_not_flush = cache.durable == Durable::Unsafe;
    stack
        .clone()
        .set_disks(|disk| may_not_flush |= disk.options.unsafe_no_flush);
    if may_not_flush {
        return "durability: perhaps none: the options accept a device that does not flush".into();
    }
    let age = cache.interval;
    let age = age.map(|age| format!(", or after {} s", age.as_secs_f64()));
    format!(
        "durability: changes survive a power failure after an fsync{}",
        age.unwrap_or_default()
    )
}

/// A note, if soft updates need untorn blocks and the device does not promise them.
fn tearing<F: Mountable>(stack: &Stack, disk: &dyn BlockDevice) -> Option<String> {
    let (atomic, block) = (disk.persistence().atomic_bytes, disk.geometry().block_bytes);
    (stack.mode() == Mode::SoftUpdates && atomic < block).then(|| {
        format!(
            "note: a power failure may tear blocks of {block} bytes: the device promises \
             {atomic}; {}",
            F::ABOUT_TORN_BLOCKS
        )
    })
}
