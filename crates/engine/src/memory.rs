//! Parts of engines whose images are mapped memory: options, the region of a mount, refusals.

use crate::values::{Listed, explained};
use crate::{Error, Image, Interposer, Result};
use clap::Args;
use medium::{Durability, Latency, LatencyModel, MapOptions, MappedPmem, Pmem};
use std::path::Path;

/// Options of a mount on mapped memory.
#[derive(Debug, Args)]
pub struct MapArgs {
    /// The crashes that durable changes survive
    #[arg(long, value_name = "LEVEL", value_parser = levels())]
    durability: Option<Durability>,
    /// Make durable stores slower by NS nanoseconds per line and per fence, and streaming
    /// stores no faster than MB megabytes per second; without a value as phase-change
    /// memory (150,4000)
    #[arg(long, value_name = "NS[,MB]", num_args = 0..=1, require_equals = true, default_missing_value = "150,4000", value_parser = latency)]
    emulate_latency: Option<LatencyModel>,
}

/// The values of `--durability`.
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

/// Parses `NS[,MB]`.
fn latency(text: &str) -> std::result::Result<LatencyModel, String> {
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

impl MapArgs {
    /// Whether an option is given.
    pub fn are_given(&self) -> bool {
        self.durability.is_some() || self.emulate_latency.is_some()
    }

    /// Maps an image for a mount.
    ///
    /// # Errors
    /// It cannot be mapped, or is in use.
    pub fn map(&self, path: &Path, read_only: bool) -> Result<MappedPmem> {
        Ok(MappedPmem::open(path, &self.options(read_only))?)
    }

    /// The options of such a mapping.
    pub fn options(&self, read_only: bool) -> MapOptions {
        MapOptions {
            durability: self.durability.unwrap_or_default(),
            read_only,
            ..MapOptions::default()
        }
    }

    /// Whether slower memory is simulated.
    pub fn simulates(&self) -> bool {
        self.emulate_latency.is_some()
    }

    /// The region of a mount, and a note if it simulates slower memory.
    ///
    /// # Errors
    /// That of `between`.
    pub fn region(
        &self,
        pm: MappedPmem,
        between: Option<&mut dyn Interposer>,
    ) -> Result<(Region, Option<String>)> {
        let note = "simulation: slower than a real mount";
        let note = self.emulate_latency.map(|_| note.to_owned());
        Ok((Region::new(pm, self.emulate_latency, between)?, note))
    }
}

/// The medium of a mount. A mount that simulates nothing makes no call through a pointer.
pub enum Region {
    /// The mapped image.
    Plain(Box<MappedPmem>),
    /// The image below a simulation.
    Wrapped(Box<dyn Pmem>),
}

impl Region {
    fn new(
        pm: MappedPmem,
        latency: Option<LatencyModel>,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Self> {
        let slow: Box<dyn Pmem> = match (latency, &between) {
            (None, None) => return Ok(Self::Plain(Box::new(pm))),
            (None, Some(_)) => Box::new(pm),
            (Some(model), _) => Box::new(Latency::new(pm, model)),
        };
        Ok(Self::Wrapped(match between {
            Some(between) => between.memory(slow)?,
            None => slow,
        }))
    }
}

/// The path of an image of `engine`. An offset is an error, since the whole file is mapped.
///
/// # Errors
/// The image has an offset.
pub fn at_start<'i>(engine: &str, image: &'i Image) -> Result<&'i Path> {
    let refused = format!("{engine} takes a whole file or device; leave the offset out");
    match image.offset_bytes {
        0 => Ok(&image.path),
        _ => Err(Error::about(&image.path, refused)),
    }
}

/// Maps an image that is not changed.
///
/// # Errors
/// It cannot be mapped, or is in use.
pub fn open_read_only(path: &Path) -> Result<MappedPmem> {
    let options = MapOptions {
        read_only: true,
        ..MapOptions::default()
    };
    Ok(MappedPmem::open(path, &options)?)
}
