//! The layers of a mounted file system, as text that reads from the front end down to the
//! device:
//!
//! ```text
//! uhfs > ext2 > journal(full, internal, commit=5s) > cache(256M, durable=flush) > disk
//! uhfs > ext2 > journal(full, log=1) > cache > [disk, delay(ssd) > disk(/dev/sdb)]
//! ```
//!
//! # Grammar
//!
//! ```text
//! stack   = "uhfs" ">" format ">" layers
//! layers  = layer { ">" layer } [ ">" "[" layers { "," layers } "]" ]
//! layer   = name [ "(" [ option { "," option } ] ")" ]
//! option  = word | name "=" word
//! ```
//!
//! A word that contains a space or one of `> ( ) [ ] , = " \` stands in quotes, with `\` before
//! `"` and `\`. Between parentheses, brackets need no quotes.
//!
//! [`KINDS`] lists the layers with their options, and [`Shape`] defines the layers that each may
//! stand on. A format stands on a *store* (changes of blocks), a store on a store or on
//! *devices*, and a device on a device. A journal needs a store that obeys befores. The devices
//! below a cache are numbered from 0; the file system is on number 0.
//!
//! With neither `async` nor `journal` the cache obeys the format's own order: soft updates.
//! [`Mode`] has short names for the usual stacks.

mod error;
mod help;
mod kind;
mod layers;
mod mode;
mod option;
mod text;

pub use error::{StackError, ValueError};
pub use help::{NOTATION, list};
pub use kind::{
    About, Assembly, Build, BuildError, BuildStore, Device, Image, Interface, Kind, Shape,
};
pub use layers::{
    AsyncLayer, CacheLayer, Delay, DelayLayer, DiskLayer, JournalLayer, KINDS, Layer, LogLocation,
    PartitionLayer, TraceLayer, VerifyLayer,
};
pub use mode::Mode;
pub use option::Opt;

use crate::journal::{LogBlocks, Seconds};
use crate::optimise::Optimised;
use crate::{Cache, Journal, Store};
use kind::Built;
use option::{Names, choose, name_of};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use text::{Quoted, Term, Tree};

/// The layers of a file system, each on one that it may stand on.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    format: String,
    layers: Layers,
}

/// Layers from the top down, and those below the last one if it stands on several.
#[derive(Debug, Clone, PartialEq)]
struct Layers {
    list: Vec<Layer>,
    below: Vec<Layers>,
}

impl Layers {
    fn for_each<'a>(&'a self, f: &mut impl FnMut(&'a Layer)) {
        self.list.iter().for_each(&mut *f);
        self.below.iter().for_each(|layers| layers.for_each(f));
    }

    fn for_each_mut(&mut self, f: &mut impl FnMut(&mut Layer)) {
        self.list.iter_mut().for_each(&mut *f);
        self.below
            .iter_mut()
            .for_each(|layers| layers.for_each_mut(f));
    }
}

impl Stack {
    /// The usual stack for a format in a mode.
    pub fn new(format: &str, mode: Mode) -> Self {
        let mut list: Vec<Layer> = mode.layer().into_iter().collect();
        list.push(CacheLayer::default().into());
        list.push(DiskLayer::default().into());
        Self {
            format: format.into(),
            layers: Layers {
                list,
                below: Vec::new(),
            },
        }
    }

    /// The format's name.
    pub fn format(&self) -> &str {
        &self.format
    }

    /// The mode of the stack.
    pub fn mode(&self) -> Mode {
        let mut modes = self.layers.list.iter().filter_map(Mode::of);
        modes.next_back().unwrap_or_default()
    }

    /// All layers below the format, from the top down.
    pub fn layers(&self) -> Vec<&Layer> {
        let mut all = Vec::new();
        self.layers.for_each(&mut |layer| all.push(layer));
        all
    }

    /// The options of the cache.
    pub fn cache(&self) -> CacheLayer {
        let caches = self.layers.list.iter().find_map(|layer| match layer {
            Layer::CacheLayer(cache) => Some(*cache),
            _ => None,
        });
        caches.unwrap_or_default()
    }

    /// The stack with this cache instead of its own.
    pub fn with_cache(mut self, cache: CacheLayer) -> Self {
        self.set_cache(|old| *old = cache);
        self
    }

    /// Changes the cache's options. [`Stack::checked`] finds those that do not fit.
    pub fn set_cache(&mut self, set: impl FnOnce(&mut CacheLayer)) {
        let cache = self.layers.list.iter_mut().find_map(|layer| match layer {
            Layer::CacheLayer(cache) => Some(cache),
            _ => None,
        });
        if let Some(cache) = cache {
            set(cache);
        }
    }

    /// The journal, if there is one.
    pub fn journal(&self) -> Option<&JournalLayer> {
        self.layers.list.iter().find_map(|layer| match layer {
            Layer::JournalLayer(journal) => Some(journal),
            _ => None,
        })
    }

    /// Changes the journal's options, if there is one.
    pub fn set_journal(&mut self, set: impl FnOnce(&mut JournalLayer)) {
        let journal = self.layers.list.iter_mut().find_map(|layer| match layer {
            Layer::JournalLayer(journal) => Some(journal),
            _ => None,
        });
        if let Some(journal) = journal {
            set(journal);
        }
    }

    /// Changes the options of each disk.
    pub fn set_disks(&mut self, mut set: impl FnMut(&mut DiskLayer)) {
        self.layers.for_each_mut(&mut |layer| {
            if let Layer::DiskLayer(disk) = layer {
                set(disk);
            }
        });
    }

    /// Checks that the options are consistent.
    ///
    /// # Errors
    /// The first that is not, with its place in the stack's text.
    pub fn checked(&self) -> Result<(), StackError> {
        self.to_string().parse::<Self>().map(drop)
    }

    /// Index of the cache among the layers; the layers after it are devices.
    fn cache_index(&self) -> usize {
        let is_cache = |layer: &Layer| layer.about().shape == Shape::OnDevices;
        let index = self.layers.list.iter().position(is_cache);
        index.expect("the reader checks what stands on what")
    }

    // --- building -------------------------------------------------------------------

    /// Opens the devices below the cache, by number, and then the device of an external log.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn devices(&self, image: &mut Image<'_>) -> Result<Vec<Device>, BuildError> {
        let trunk = &self.layers.list[self.cache_index() + 1..];
        let mut devices = devices(trunk, &self.layers.below, image)?;
        if let Some(LogLocation::External(path)) = self.journal().map(|journal| &journal.log) {
            devices.push(devices_of_log(self.home(), path, image)?);
        }
        Ok(devices)
    }

    /// Number of the log's own device, if it has one.
    pub fn log_device(&self) -> Option<u8> {
        let branches = self.layers.below.len().max(1) as u8;
        match self.journal()?.log {
            LogLocation::Internal => None,
            LogLocation::External(_) => Some(branches),
            LogLocation::Device(number) => Some(number),
        }
    }

    /// The layers of device number 0.
    fn home(&self) -> &[Layer] {
        match self.layers.below.first() {
            Some(first) => &first.list,
            None => &self.layers.list[self.cache_index() + 1..],
        }
    }

    /// Opens the file system's device, number 0 below the cache.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn home_device(&self, image: &mut Image<'_>) -> Result<Device, BuildError> {
        let home = devices(self.home(), &[], image)?.into_iter().next();
        Ok(home.expect("a cache stands on at least one device"))
    }

    /// Builds the cache on these devices, and all stores above it. `log` is the number of the
    /// log's device, and the log's place there. Without it, journals are left out, as in a
    /// read-only mount. `seconds` is the clock of commit blocks.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn assemble(
        &self,
        devices: Vec<Device>,
        log: Option<(u8, LogBlocks)>,
        seconds: Seconds,
    ) -> Result<Assembled, BuildError> {
        let is_verify = |layer: &&Layer| matches!(layer, Layer::VerifyLayer(_));
        let verify = self.layers.list.iter().find(is_verify);
        let mut assembly = Assembly {
            log,
            verifier: verify.map(|_| Arc::default()),
            seconds,
            cache: None,
            journal: None,
        };
        let mut above = self.layers.list[..=self.cache_index()].iter().rev();
        let devices = devices.into_iter().map(Built::Device).collect();
        let cache = above.next().expect("the cache is among the layers");
        let mut store = cache.store(devices, &mut assembly)?;
        for layer in above {
            store = layer.store(vec![Built::Store(store)], &mut assembly)?;
        }
        Ok(Assembled {
            store,
            cache: assembly.cache.expect("the cache leaves itself"),
            journal: assembly.journal,
        })
    }
}

/// The stores of a stack.
pub struct Assembled {
    /// The store below the format.
    pub store: Arc<dyn Store>,
    /// The cache.
    pub cache: Arc<Cache>,
    /// The journal, if there is one.
    pub journal: Option<Arc<Journal>>,
}

/// Builds the devices directly below a layer.
fn devices(
    list: &[Layer],
    below: &[Layers],
    image: &mut Image<'_>,
) -> Result<Vec<Device>, BuildError> {
    let Some((first, rest)) = list.split_first() else {
        let branches = below.iter().map(|layers| {
            let devices = devices(&layers.list, &layers.below, image)?;
            Ok(devices.into_iter().next())
        });
        let branches: Result<Vec<_>, BuildError> = branches.collect();
        return Ok(branches?.into_iter().flatten().collect());
    };
    let below = devices(rest, below, image)?;
    Ok(vec![first.device(below, image)?])
}

/// Opens an external log with the delay and the options of the home device.
fn devices_of_log(
    home: &[Layer],
    path: &Path,
    image: &mut Image<'_>,
) -> Result<Device, BuildError> {
    let mut list = Vec::new();
    for layer in home {
        match layer {
            Layer::DelayLayer(delay) => list.push((*delay).into()),
            Layer::DiskLayer(disk) => {
                let mut disk = disk.clone();
                disk.path = Some(path.into());
                disk.options.offset_bytes = 0;
                list.push(disk.into());
            }
            // The log fills its file.
            Layer::PartitionLayer(_) => {}
            // No layer of a device.
            Layer::TraceLayer(_)
            | Layer::AsyncLayer(_)
            | Layer::JournalLayer(_)
            | Layer::VerifyLayer(_)
            | Layer::CacheLayer(_) => {}
        }
    }
    let log = devices(&list, &[], image)?.into_iter().next();
    Ok(log.expect("every device stands on a disk"))
}

// --- reading ------------------------------------------------------------------------

pub(crate) const OPTIMISE: &Names<Optimised> = &[
    ("none", Optimised::None),
    ("hard", Optimised::Hard),
    ("overlap", Optimised::Overlap),
    ("both", Optimised::Both),
];

impl fmt::Display for Optimised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(self, OPTIMISE))
    }
}

impl FromStr for Optimised {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        choose(text, OPTIMISE)
    }
}

impl FromStr for Stack {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        let tree = text::parse(text)?;
        let mut terms = tree.terms.iter();
        let expected = |term: Option<&Term>, what: &str| {
            let at = term.map_or(tree.end, |term| term.name.at);
            let form = "a stack reads 'uhfs > FORMAT > ... > cache > ... > disk'";
            StackError::new(text, at, format_args!("{what} is expected here; {form}"))
        };
        let head = [terms.next(), terms.next()];
        let format = match head {
            [Some(uhfs), _] if uhfs.name.value != "uhfs" => {
                return Err(expected(Some(uhfs), "uhfs"));
            }
            [_, Some(format)] => format,
            _ => return Err(expected(None, "the name of a format")),
        };
        for term in head.into_iter().flatten() {
            if let Some(arg) = term.args.first() {
                let name = &term.name.value;
                let what = format!("{name}: the option '{arg}' is unknown; there are none");
                return Err(StackError::new(text, arg.at(), what));
            }
        }
        let name = &format.name.value;
        if KINDS.iter().any(|kind| kind.name == name) {
            return Err(expected(Some(format), "the name of a format"));
        }
        let reader = Reader { text };
        let layers = reader.layers(&tree, 2, (name, Interface::Store))?;
        let stack = Self {
            format: name.clone(),
            layers,
        };
        reader.check_log(&stack, &tree)?;
        Ok(stack)
    }
}

/// Names of the layers that provide an interface.
fn that_give(needed: Interface) -> String {
    let fitting = KINDS.iter().filter(|kind| kind.shape.can_provide(needed));
    let names: Vec<&str> = fitting.map(|kind| kind.name).collect();
    names.join(", ")
}

/// Turns terms into layers, and checks that each may stand on the one below.
struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn error(&self, at: usize, what: impl fmt::Display) -> StackError {
        StackError::new(self.text, at, what)
    }

    /// The layers of a tree without the first `skip` ones. `above`: the layer above them, and
    /// the interface that it needs.
    fn layers(
        &self,
        tree: &Tree,
        skip: usize,
        above: (&str, Interface),
    ) -> Result<Layers, StackError> {
        let (mut above, mut needed) = (above.0.to_owned(), Some(above.1));
        let mut on_several = false;
        let mut list = Vec::new();
        for term in &tree.terms[skip..] {
            let layer = self.layer(term, &above, needed)?;
            let about = layer.about();
            needed = needed.and_then(|needed| about.shape.takes(needed));
            on_several = about.shape.can_stand_on_several();
            above = about.name.into();
            list.push(layer);
        }
        let mut below = Vec::new();
        match (&tree.below, needed) {
            (None, None) => {}
            (None, Some(needed)) => {
                let what = format!(
                    "{above} stands on {needed}: '> ' and one of {} must follow",
                    that_give(needed)
                );
                return Err(self.error(tree.end, what));
            }
            (Some(trees), None) => {
                return Err(self.error(trees.at, format_args!("{above} stands on nothing")));
            }
            (Some(trees), Some(needed)) => {
                if trees.value.len() > 1 && !on_several {
                    let what = format!("{above} stands on one layer, not on several");
                    return Err(self.error(trees.at, what));
                }
                for tree in &trees.value {
                    below.push(self.layers(tree, 0, (&above, needed))?);
                }
            }
        }
        if below.len() == 1 {
            let only = below.remove(0);
            list.extend(only.list);
            below = only.below;
        }
        Ok(Layers { list, below })
    }

    fn layer(
        &self,
        term: &Term,
        above: &str,
        needed: Option<Interface>,
    ) -> Result<Layer, StackError> {
        let (name, at) = (&term.name.value, term.name.at);
        let Some(needed) = needed else {
            return Err(self.error(at, format_args!("{above} stands on nothing")));
        };
        let names = that_give(needed);
        let Some(layer) = Layer::parse(self.text, term) else {
            let what = format!("there is no layer '{name}'; {above} can stand on {names}");
            return Err(self.error(at, what));
        };
        let layer = layer?;
        match layer.about().shape.can_provide(needed) {
            true => Ok(layer),
            false => {
                let what = format!(
                    "{above} cannot stand on {name}: it needs {needed}, which {names} can give"
                );
                Err(self.error(at, what))
            }
        }
    }

    /// Checks that the device of a log exists.
    fn check_log(&self, stack: &Stack, tree: &Tree) -> Result<(), StackError> {
        let Some(LogLocation::Device(number)) = stack.journal().map(|journal| &journal.log) else {
            return Ok(());
        };
        let devices = stack.layers.below.len().max(1);
        if usize::from(*number) < devices {
            return Ok(());
        }
        let journal = tree
            .terms
            .iter()
            .find(|term| term.name.value == JournalLayer::NAME);
        let what = match devices {
            1 => "there is only device 0 below the cache".into(),
            n => format!(
                "the devices below the cache have the numbers 0 to {}",
                n - 1
            ),
        };
        let at = journal.map_or(0, |term| term.name.at);
        Err(self.error(at, format_args!("journal: log={number}: {what}")))
    }
}

// --- writing ------------------------------------------------------------------------

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uhfs > {} > {}", Quoted(&self.format), self.layers)
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, layer) in self.list.iter().enumerate() {
            let before = if n > 0 { " > " } else { "" };
            write!(f, "{before}{layer}")?;
        }
        for (n, layers) in self.below.iter().enumerate() {
            let before = if n > 0 { ", " } else { " > [" };
            write!(f, "{before}{layers}")?;
        }
        f.write_str(if self.below.is_empty() { "" } else { "]" })
    }
}

#[cfg(test)]
mod tests;
