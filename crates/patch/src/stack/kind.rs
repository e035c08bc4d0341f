//! Kinds of layers, and how stacks are built of them.

use super::option::Opt;
use super::text::{Arg, Quoted, Term};
use super::{StackError, ValueError};
use crate::journal::{JournalError, LogBlocks, Seconds};
use crate::partition::PartitionError;
use crate::verify::{Verifier, Verify};
use crate::{Cache, Journal, Store};
use medium::OpenError;
use medium::block::{BlockDevice, FileDevice};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A device that a layer provides or stands on.
pub type Device = Arc<dyn BlockDevice>;

/// A kind of layer. A value holds the options of one layer.
pub trait Kind: Clone + Default + PartialEq + fmt::Debug + 'static {
    /// Name of the layer in a stack.
    const NAME: &'static str;
    /// Short description for lists.
    const ABOUT: &'static str;
    /// The options. Among those without a key, the first that accepts a word gets it.
    const OPTIONS: &'static [Opt<Self>];
    /// The layer below, and the function that builds this one on it.
    const BUILD: Build<Self>;

    /// Checks that the options are consistent.
    ///
    /// # Errors
    /// The defect, and the correct values.
    fn check(&self) -> Result<(), ValueError> {
        Ok(())
    }
}

/// A function that builds the store of the layer `L` on `Below`.
pub type BuildStore<L, Below> = fn(&L, Below, &mut Assembly) -> Result<Arc<dyn Store>, BuildError>;

/// The function that builds a layer, by the interfaces that it needs and provides.
pub enum Build<L> {
    /// A device on nothing.
    Device(fn(&L, &mut Image) -> Result<Device, BuildError>),
    /// A device on a device.
    OnDevice(fn(&L, Device, &mut Image) -> Result<Device, BuildError>),
    /// A store that obeys befores, on devices.
    OnDevices(BuildStore<L, Vec<Device>>),
    /// A store on a store. It obeys befores if the one below does.
    OnStore(BuildStore<L, Arc<dyn Store>>),
    /// A store that obeys befores, on another that does.
    OrderedOnOrdered(BuildStore<L, Arc<dyn Store>>),
    /// A store on a store that obeys befores. It drops or replaces them.
    OnOrdered(BuildStore<L, Arc<dyn Store>>),
}

impl<L> Build<L> {
    const fn shape(&self) -> Shape {
        match self {
            Self::Device(_) => Shape::Device,
            Self::OnDevice(_) => Shape::OnDevice,
            Self::OnDevices(_) => Shape::OnDevices,
            Self::OnStore(_) => Shape::OnStore,
            Self::OrderedOnOrdered(_) => Shape::OrderedOnOrdered,
            Self::OnOrdered(_) => Shape::OnOrdered,
        }
    }
}

/// The interfaces that a layer needs and provides: [`Build`] without the functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A device on nothing.
    Device,
    /// A device on a device.
    OnDevice,
    /// An ordered store on devices.
    OnDevices,
    /// A store on a store, ordered if the one below is.
    OnStore,
    /// An ordered store on an ordered store.
    OrderedOnOrdered,
    /// A store on an ordered store.
    OnOrdered,
}

/// The interface between two layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// [`Store`].
    Store,
    /// [`Store`] that obeys befores.
    Ordered,
    /// [`BlockDevice`].
    Device,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Store => "a store",
            Self::Ordered => "an ordered store",
            Self::Device => "a device",
        })
    }
}

impl Shape {
    /// The interface that the layer provides.
    pub fn gives(self) -> Interface {
        match self {
            Self::Device | Self::OnDevice => Interface::Device,
            Self::OnDevices | Self::OrderedOnOrdered => Interface::Ordered,
            Self::OnStore | Self::OnOrdered => Interface::Store,
        }
    }

    /// The interface that must be below a layer which provides `needed`.
    pub fn takes(self, needed: Interface) -> Option<Interface> {
        match self {
            Self::Device => None,
            Self::OnDevice | Self::OnDevices => Some(Interface::Device),
            Self::OnStore => Some(needed),
            Self::OrderedOnOrdered | Self::OnOrdered => Some(Interface::Ordered),
        }
    }

    /// Whether the layer can provide `needed`.
    pub fn can_provide(self, needed: Interface) -> bool {
        match needed {
            Interface::Store => self.gives() != Interface::Device,
            Interface::Ordered => matches!(
                self,
                Self::OnDevices | Self::OnStore | Self::OrderedOnOrdered
            ),
            Interface::Device => self.gives() == Interface::Device,
        }
    }

    /// Whether the layer can stand on several others.
    pub fn can_stand_on_several(self) -> bool {
        self == Self::OnDevices
    }
}

/// A kind of layer, for lists and help texts.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Name of the layer in a stack.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    /// The interfaces that the layer needs and provides.
    pub shape: Shape,
    /// Form and description of each option.
    pub options: fn() -> Vec<(&'static str, &'static str)>,
}

impl About {
    pub(super) const fn of<K: Kind>() -> Self {
        Self {
            name: K::NAME,
            about: K::ABOUT,
            shape: K::BUILD.shape(),
            options: || K::OPTIONS.iter().map(|o| (o.form, o.help)).collect(),
        }
    }
}

/// Parses the options of a layer.
pub(super) fn parse<K: Kind>(text: &str, term: &Term) -> Result<K, StackError> {
    let failed =
        |at, e: &dyn fmt::Display| StackError::new(text, at, format_args!("{}: {e}", K::NAME));
    let mut layer = K::default();
    let mut given = vec![false; K::OPTIONS.len()];
    for arg in &term.args {
        let set = set(&mut layer, arg).map_err(|(at, e)| failed(at, &e))?;
        given[set] = true;
    }
    let missing = K::OPTIONS
        .iter()
        .zip(given)
        .find(|(option, given)| option.is_required && !given);
    if let Some((option, _)) = missing {
        let what = ValueError::new(format_args!("{} is missing: {}", option.form, option.help));
        return Err(failed(term.name.at, &what));
    }
    layer.check().map_err(|e| failed(term.name.at, &e))?;
    Ok(layer)
}

/// Sets an option. Returns its index, or an error and its place.
fn set<K: Kind>(layer: &mut K, arg: &Arg) -> Result<usize, (usize, ValueError)> {
    let key = arg.key.as_ref().map(|key| key.value.as_str());
    let value = &arg.value.value;
    let matching: Vec<usize> = (0..K::OPTIONS.len())
        .filter(|index| K::OPTIONS[*index].key() == key)
        .collect();
    let mut error = None;
    for &index in &matching {
        match (K::OPTIONS[index].set)(layer, value) {
            Ok(()) => return Ok(index),
            Err(e) => error = Some(e),
        }
    }
    match (error, matching.len(), key) {
        (Some(e), 1, None) => Err((arg.value.at, e)),
        (Some(e), 1, Some(key)) => Err((arg.value.at, ValueError::new(format_args!("{key}: {e}")))),
        _ => Err((arg.at(), unknown::<K>(arg))),
    }
}

fn unknown<K: Kind>(arg: &Arg) -> ValueError {
    let known: Vec<&str> = K::OPTIONS.iter().map(|option| option.form).collect();
    ValueError::new(match known.as_slice() {
        [] => format!("the option '{arg}' is unknown; there are none"),
        known => format!("the option '{arg}' is unknown; known: {}", known.join(", ")),
    })
}

/// Formats a layer as it is parsed, without most options that have default values.
pub(super) fn show<K: Kind>(layer: &K, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let args = K::OPTIONS.iter().filter_map(|option| {
        let value = (option.get)(layer)?;
        Some(match option.key() {
            Some(key) => format!("{key}={}", Quoted(&value)),
            None => Quoted(&value).to_string(),
        })
    });
    match args.collect::<Vec<_>>().as_slice() {
        [] => f.write_str(K::NAME),
        args => write!(f, "{}({})", K::NAME, args.join(", ")),
    }
}

// --- building -----------------------------------------------------------------------

/// Why a stack cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A file or device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The journal's log cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The partition cannot be opened.
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

/// The mounted image, for layers that are devices.
pub struct Image<'a> {
    /// The file or device that `disk` without a path opens.
    pub path: &'a Path,
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Whether devices refuse writes.
    pub read_only: bool,
    /// Devices by their paths: several layers may stand on one file.
    opened: HashMap<PathBuf, Device>,
}

impl<'a> Image<'a> {
    /// An image of which no device is open yet.
    pub fn new(path: &'a Path, block_bytes: u32, read_only: bool) -> Self {
        Self {
            path,
            block_bytes,
            read_only,
            opened: HashMap::new(),
        }
    }

    /// The file or device at `path`. Calls `open` unless it is open already. The cache writes to
    /// one device at a time, so layers can share it.
    pub(super) fn device(
        &mut self,
        path: &Path,
        open: impl FnOnce(&Path, u32) -> Result<FileDevice, OpenError>,
    ) -> Result<Device, BuildError> {
        let name = path.canonicalize().unwrap_or_else(|_| path.into());
        if let Some(device) = self.opened.get(&name) {
            return Ok(device.clone());
        }
        let device: Device = Arc::new(open(path, self.block_bytes)?);
        self.opened.insert(name, device.clone());
        Ok(device)
    }
}

/// The inputs of the mount for layers that are stores, and the parts that they return to it.
pub struct Assembly {
    /// The number of the log's device, and the log's place there. Without it, journals are left
    /// out.
    pub(super) log: Option<(u8, LogBlocks)>,
    /// The clock of a journal's commit blocks.
    pub(super) seconds: Seconds,
    /// The checks of the layer `verify`, if the stack has it.
    pub(super) verifier: Option<Arc<Verifier>>,
    /// The cache, after it is built.
    pub(super) cache: Option<Arc<Cache>>,
    /// The journal, after it is built.
    pub(super) journal: Option<Arc<Journal>>,
}

impl Assembly {
    /// The store on a device of the cache, with the checks of the layer `verify` if the stack
    /// has it.
    pub(super) fn store(&self, cache: &Arc<Cache>, number: u8) -> Arc<dyn Store> {
        let volume = cache.store(number);
        match self.verifier.clone() {
            Some(verifier) => Arc::new(Verify::new(volume, number, cache.clone(), verifier, 0)),
            None => Arc::new(volume),
        }
    }
}

/// A layer that is built.
pub(super) enum Built {
    Device(Device),
    Store(Arc<dyn Store>),
}

/// Builds a device on devices.
pub(super) fn device<K: Kind>(
    layer: &K,
    below: Vec<Device>,
    image: &mut Image<'_>,
) -> Result<Device, BuildError> {
    match (K::BUILD, below.into_iter().next()) {
        (Build::Device(build), None) => build(layer, image),
        (Build::OnDevice(build), Some(below)) => build(layer, below, image),
        (
            Build::Device(_)
            | Build::OnDevice(_)
            | Build::OnDevices(_)
            | Build::OnStore(_)
            | Build::OrderedOnOrdered(_)
            | Build::OnOrdered(_),
            _,
        ) => unreachable!("the reader checks what stands on what"),
    }
}

/// Builds a store on devices or a store.
pub(super) fn store<K: Kind>(
    layer: &K,
    below: Vec<Built>,
    assembly: &mut Assembly,
) -> Result<Arc<dyn Store>, BuildError> {
    let mut devices = Vec::new();
    let mut stores = Vec::new();
    for built in below {
        match built {
            Built::Device(device) => devices.push(device),
            Built::Store(store) => stores.push(store),
        }
    }
    match (K::BUILD, stores.pop()) {
        (Build::OnDevices(build), None) => build(layer, devices, assembly),
        (
            Build::OnStore(build) | Build::OrderedOnOrdered(build) | Build::OnOrdered(build),
            Some(below),
        ) => build(layer, below, assembly),
        (
            Build::Device(_)
            | Build::OnDevice(_)
            | Build::OnDevices(_)
            | Build::OnStore(_)
            | Build::OrderedOnOrdered(_)
            | Build::OnOrdered(_),
            _,
        ) => unreachable!("the reader checks what stands on what"),
    }
}
