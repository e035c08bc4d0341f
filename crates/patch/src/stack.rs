//! What a mounted file system is put together from, as text that reads from the front end
//! down to the device:
//!
//! ```text
//! uhfs > ext2 > journal(full, internal, commit=5s) > cache(256M, durable=flush) > disk
//! ```
//!
//! | module | what it does | options |
//! |---|---|---|
//! | `uhfs` | system calls as steps of a format, in soft-updates order | |
//! | a format, such as `ext2` | steps as changes of blocks, with their order | |
//! | `trace` | logs every change (`-vvv` shows it) | |
//! | `async` | drops the order | |
//! | `journal` | makes it an order of transactions | `metadata`, `ordered` or `full`; `internal` or `external=PATH`; `commit=TIME` |
//! | `cache` | obeys the order when it writes | `SIZE`; `dirty=SIZE`; `wave=BLOCKS`; `interval=TIME` or `interval=never`; `durable=auto`, `flush`, `fua` or `unsafe`; `optimise=none`, `hard`, `overlap` or `both` |
//! | `delay` | makes the device as slow as another | `disk` or `ssd` |
//! | `disk` | the file or device that is mounted | `io=auto`, `uring` or `pwrite`; `direct=auto`, `on` or `off`; `unsafe-no-flush` |
//!
//! `wave` bounds what one flush of a sync covers ([`CacheOptions::wave`]). Operations wait
//! for write-back when patches take a quarter of the cache's `SIZE` besides.
//! With neither `async` nor `journal` the format's own order is what reaches the device:
//! soft updates. [`Mode`] has short names for the usual stacks.

mod text;

use crate::optimise::Optimised;
use crate::{CacheOptions, Durable, Optimise, journal};
use medium::block::{DelayModel, DeviceOptions, Direct, Io};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use text::{Arg, Quoted, Term};

/// Why a text is no stack. One line, which says what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StackError(String);

impl StackError {
    fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

/// How the order of changes is kept: short names for the usual stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(into = "String")]
pub enum Mode {
    /// Not at all.
    Async,
    /// As the file system states it.
    #[default]
    SoftUpdates,
    /// Metadata in transactions, data at any time.
    JournalMetadata,
    /// Metadata in transactions, data before them.
    JournalOrdered,
    /// Metadata and data in transactions.
    Journal,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Async,
        Self::SoftUpdates,
        Self::JournalMetadata,
        Self::JournalOrdered,
        Self::Journal,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::SoftUpdates => "softupdates",
            Self::JournalMetadata => "journal-metadata",
            Self::JournalOrdered => "journal-ordered",
            Self::Journal => "journal",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.name().into()
    }
}

impl FromStr for Mode {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        choose(text, Self::ALL.map(|mode| (mode.name(), mode)).as_slice())
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// The format's name.
    pub format: String,
    /// Whether there is `trace` beneath it.
    pub trace: bool,
    /// What stands between the format and the cache, `trace` apart.
    pub module: Module,
    /// The cache.
    pub cache: CacheModule,
    /// What the device is slowed down to.
    pub delay: Option<Delay>,
    /// The device.
    pub disk: DeviceOptions,
}

/// `delay(...)`: the device that the one beneath is made as slow as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// A disk of a notebook: [`DelayModel::TRAVELSTAR_7K320`].
    Disk,
    /// An SSD for consumers: [`DelayModel::SAMSUNG_970_EVO`].
    Ssd,
}

impl Delay {
    /// The times.
    pub fn model(self) -> DelayModel {
        match self {
            Self::Disk => DelayModel::TRAVELSTAR_7K320,
            Self::Ssd => DelayModel::SAMSUNG_970_EVO,
        }
    }
}

/// What stands between a format and the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Module {
    /// Nothing: soft updates.
    None,
    /// `async`
    Async,
    /// `journal(...)`
    Journal(JournalModule),
}

/// `journal(...)`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalModule {
    /// What goes through the log.
    pub what: journal::Mode,
    /// Where the log is.
    pub log: Log,
    /// A transaction commits at this age at the latest.
    pub commit: Duration,
}

/// Where the log is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Log {
    /// In a file of the file system.
    Internal,
    /// On a device or in a file of its own.
    External(PathBuf),
}

/// `cache(...)`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheModule {
    /// Memory for blocks.
    pub bytes: u64,
    /// Memory for dirty blocks, before operations wait; `None`: half of it.
    pub dirty_bytes: Option<u64>,
    /// [`CacheOptions::wave`].
    pub wave: usize,
    /// How waves become durable.
    pub durable: Durable,
    /// The age at which dirt is written back; `None`: only when somebody waits for it.
    pub interval: Option<Duration>,
    /// Which optimisations of the graph are in force.
    pub optimise: Optimised,
}

/// The least cache that has room for the largest operations.
const MIN_CACHE: u64 = 4 << 20;

impl Default for CacheModule {
    fn default() -> Self {
        let CacheOptions {
            wave,
            durable,
            interval,
            ..
        } = CacheOptions::default();
        Self {
            bytes: 256 << 20,
            dirty_bytes: None,
            wave,
            durable,
            interval,
            optimise: Optimised::Both,
        }
    }
}

impl CacheModule {
    /// The same in blocks.
    pub fn options(&self, block_bytes: u32) -> CacheOptions {
        // A small block takes a page, too.
        let blocks = |bytes: u64| (bytes / u64::from(block_bytes.max(4096))) as usize;
        CacheOptions {
            blocks: blocks(self.bytes),
            dirty_limit: blocks(self.dirty_bytes.unwrap_or(self.bytes / 2)),
            patch_bytes: self.bytes / 4,
            wave: self.wave,
            durable: self.durable,
            interval: self.interval,
            optimise: Optimise::from(self.optimise),
        }
    }
}

impl Default for JournalModule {
    fn default() -> Self {
        Self {
            what: journal::Mode::Ordered,
            log: Log::Internal,
            commit: Duration::from_secs(5),
        }
    }
}

impl Stack {
    /// The usual stack for a format in a mode.
    pub fn new(format: &str, mode: Mode) -> Self {
        let journal = |what| {
            Module::Journal(JournalModule {
                what,
                ..JournalModule::default()
            })
        };
        Self {
            format: format.into(),
            trace: false,
            module: match mode {
                Mode::Async => Module::Async,
                Mode::SoftUpdates => Module::None,
                Mode::JournalMetadata => journal(journal::Mode::Metadata),
                Mode::JournalOrdered => journal(journal::Mode::Ordered),
                Mode::Journal => journal(journal::Mode::Full),
            },
            cache: CacheModule::default(),
            delay: None,
            disk: DeviceOptions::default(),
        }
    }

    /// The mode that this is a stack of.
    pub fn mode(&self) -> Mode {
        match &self.module {
            Module::None => Mode::SoftUpdates,
            Module::Async => Mode::Async,
            Module::Journal(journal) => match journal.what {
                journal::Mode::Metadata => Mode::JournalMetadata,
                journal::Mode::Ordered => Mode::JournalOrdered,
                journal::Mode::Full => Mode::Journal,
            },
        }
    }
}

// --- reading ------------------------------------------------------------------------

const JOURNALED: &[(&str, journal::Mode)] = &[
    ("metadata", journal::Mode::Metadata),
    ("ordered", journal::Mode::Ordered),
    ("full", journal::Mode::Full),
];
const DURABLE: &[(&str, Durable)] = &[
    ("auto", Durable::Auto),
    ("flush", Durable::Flush),
    ("fua", Durable::ForceUnitAccess),
    ("unsafe", Durable::Unsafe),
];
const OPTIMISE: &[(&str, Optimised)] = &[
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
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        choose(text, OPTIMISE)
    }
}

const DELAY: &[(&str, Delay)] = &[("disk", Delay::Disk), ("ssd", Delay::Ssd)];
const IO: &[(&str, Io)] = &[
    ("auto", Io::Auto),
    ("uring", Io::Uring),
    ("pwrite", Io::Pwrite),
];
const DIRECT: &[(&str, Direct)] = &[
    ("auto", Direct::Auto),
    ("on", Direct::On),
    ("off", Direct::Off),
];

/// The value of that name.
fn choose<T: Clone>(text: &str, known: &[(&str, T)]) -> Result<T, StackError> {
    let found = known.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        StackError::new(format_args!("'{text}' is not one of {}", names.join(", ")))
    })
}

/// The name of a value.
fn name_of<T: PartialEq>(value: &T, known: &[(&'static str, T)]) -> &'static str {
    let found = known.iter().find(|(_, other)| other == value);
    found.map_or("?", |(name, _)| name)
}

impl FromStr for Stack {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        let terms = text::terms(text)?;
        let (delay, terms) = match terms.as_slice() {
            [above @ .., delay, disk] if delay.name == "delay" => (
                Some(delay_module(delay)?),
                [above, std::slice::from_ref(disk)].concat(),
            ),
            terms => (None, terms.to_vec()),
        };
        let [uhfs, format, modules @ .., cache, disk] = terms.as_slice() else {
            return Err(shape());
        };
        let format = plain(uhfs, format)?;
        if cache.name != "cache" || disk.name != "disk" {
            return Err(shape());
        }
        let traced = |term: &&Term| term.name == "trace" && term.args.is_empty();
        let trace = modules.first().is_some_and(|term| traced(&term));
        let module = match &modules[usize::from(trace)..] {
            [] => Module::None,
            [term] => module(term)?,
            _ => return Err(shape()),
        };
        Ok(Self {
            format,
            trace,
            module,
            cache: cache_module(&cache.args)?,
            delay,
            disk: disk_module(&disk.args)?,
        })
    }
}

fn shape() -> StackError {
    StackError::new(
        "a stack reads 'uhfs > FORMAT > cache(...) > disk(...)'; before the cache there may \
         be trace, then async or journal(...); with neither of these it is soft updates; \
         before the disk there may be delay(disk) or delay(ssd)",
    )
}

fn module(term: &Term) -> Result<Module, StackError> {
    match (term.name.as_str(), term.args.first()) {
        ("async", None) => Ok(Module::Async),
        ("async" | "trace", Some(arg)) => Err(unknown_option(&term.name, arg, "none")),
        ("journal", _) => Ok(Module::Journal(journal_module(&term.args)?)),
        (other, _) => Err(StackError::new(format_args!(
            "the module '{other}' is not one of trace, async, journal"
        ))),
    }
}

/// The format, beneath `uhfs`; neither has options.
fn plain(uhfs: &Term, format: &Term) -> Result<String, StackError> {
    if uhfs.name != "uhfs" {
        return Err(shape());
    }
    for term in [uhfs, format] {
        if let Some(arg) = term.args.first() {
            return Err(unknown_option(&term.name, arg, "none"));
        }
    }
    Ok(format.name.clone())
}

fn unknown_option(module: &str, arg: &Arg, known: &str) -> StackError {
    StackError::new(format_args!(
        "{module}: the option '{arg}' is unknown; known: {known}"
    ))
}

fn about(module: &str) -> impl Fn(StackError) -> StackError {
    move |e| StackError::new(format_args!("{module}: {e}"))
}

fn journal_module(args: &[Arg]) -> Result<JournalModule, StackError> {
    let mut module = JournalModule::default();
    for arg in args {
        match (arg.key.as_deref(), arg.value.as_str()) {
            (None, "internal") => module.log = Log::Internal,
            (Some("external"), path) => module.log = Log::External(path.into()),
            (Some("commit"), time) => {
                module.commit = text::duration(time).map_err(about("journal: commit"))?;
            }
            (None, what) if choose(what, JOURNALED).is_ok() => {
                module.what = choose(what, JOURNALED)?;
            }
            _ => {
                let known = "metadata, ordered, full, internal, external=PATH, commit=TIME";
                return Err(unknown_option("journal", arg, known));
            }
        }
    }
    Ok(module)
}

fn cache_module(args: &[Arg]) -> Result<CacheModule, StackError> {
    let mut module = CacheModule::default();
    for arg in args {
        let value = arg.value.as_str();
        let set = match arg.key.as_deref() {
            None => text::bytes(value).map(|bytes| module.bytes = bytes),
            Some("dirty") => text::bytes(value).map(|bytes| module.dirty_bytes = Some(bytes)),
            Some("wave") => match value.parse() {
                Ok(wave) if wave > 0 => {
                    module.wave = wave;
                    Ok(())
                }
                _ => Err(StackError::new(format_args!(
                    "'{value}' is no number of blocks"
                ))),
            },
            Some("interval") if value == "never" => {
                module.interval = None;
                Ok(())
            }
            Some("interval") => text::duration(value).map(|time| module.interval = Some(time)),
            Some("durable") => choose(value, DURABLE).map(|durable| module.durable = durable),
            Some("optimise") => choose(value, OPTIMISE).map(|o| module.optimise = o),
            Some(_) => {
                let known =
                    "SIZE, dirty=SIZE, wave=BLOCKS, interval=TIME, durable=HOW, optimise=WHICH";
                return Err(unknown_option("cache", arg, known));
            }
        };
        set.map_err(about(&format!(
            "cache: {}",
            arg.key.as_deref().unwrap_or("SIZE")
        )))?;
    }
    let dirty = module.dirty_bytes.unwrap_or(module.bytes / 2);
    if dirty < MIN_CACHE / 2 || module.bytes < dirty {
        return Err(StackError::new(format_args!(
            "cache: at least {} are needed, and half of that for dirty blocks",
            text::show_bytes(MIN_CACHE)
        )));
    }
    Ok(module)
}

fn delay_module(term: &Term) -> Result<Delay, StackError> {
    match term.args.as_slice() {
        [arg] if arg.key.is_none() => choose(&arg.value, DELAY).map_err(about("delay")),
        _ => Err(StackError::new("delay: needs one of disk, ssd")),
    }
}

fn disk_module(args: &[Arg]) -> Result<DeviceOptions, StackError> {
    let mut options = DeviceOptions::default();
    for arg in args {
        match (arg.key.as_deref(), arg.value.as_str()) {
            (Some("io"), io) => options.io = choose(io, IO).map_err(about("disk: io"))?,
            (Some("direct"), direct) => {
                options.direct = choose(direct, DIRECT).map_err(about("disk: direct"))?;
            }
            (None, "unsafe-no-flush") => options.unsafe_no_flush = true,
            _ => {
                let known = "io=HOW, direct=auto|on|off, unsafe-no-flush";
                return Err(unknown_option("disk", arg, known));
            }
        }
    }
    Ok(options)
}

// --- writing ------------------------------------------------------------------------

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uhfs > {} > ", Quoted(&self.format))?;
        if self.trace {
            f.write_str("trace > ")?;
        }
        match &self.module {
            Module::None => {}
            Module::Async => f.write_str("async > ")?,
            Module::Journal(journal) => write!(f, "{journal} > ")?,
        }
        write!(f, "{} > ", self.cache)?;
        if let Some(delay) = &self.delay {
            show(f, "delay", &[name_of(delay, DELAY).into()])?;
            f.write_str(" > ")?;
        }
        show(f, "disk", &disk_args(&self.disk))
    }
}

impl fmt::Display for JournalModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut args = vec![name_of(&self.what, JOURNALED).to_string()];
        args.push(match &self.log {
            Log::Internal => "internal".into(),
            Log::External(path) => format!("external={}", Quoted(&path.to_string_lossy())),
        });
        if self.commit != Self::default().commit {
            args.push(format!("commit={}", text::show_duration(self.commit)));
        }
        show(f, "journal", &args)
    }
}

impl fmt::Display for CacheModule {
    /// The size, and what is not as usual.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        let mut args = vec![text::show_bytes(self.bytes)];
        if let Some(dirty) = self.dirty_bytes {
            args.push(format!("dirty={}", text::show_bytes(dirty)));
        }
        if self.wave != usual.wave {
            args.push(format!("wave={}", self.wave));
        }
        if self.interval != usual.interval {
            let time = self.interval.map(text::show_duration);
            args.push(format!("interval={}", time.as_deref().unwrap_or("never")));
        }
        if self.durable != usual.durable {
            args.push(format!("durable={}", name_of(&self.durable, DURABLE)));
        }
        if self.optimise != usual.optimise {
            args.push(format!("optimise={}", name_of(&self.optimise, OPTIMISE)));
        }
        show(f, "cache", &args)
    }
}

/// What is not as usual.
fn disk_args(options: &DeviceOptions) -> Vec<String> {
    let usual = DeviceOptions::default();
    let mut args = Vec::new();
    if options.io != usual.io {
        args.push(format!("io={}", name_of(&options.io, IO)));
    }
    if options.direct != usual.direct {
        args.push(format!("direct={}", name_of(&options.direct, DIRECT)));
    }
    if options.unsafe_no_flush {
        args.push("unsafe-no-flush".into());
    }
    args
}

fn show(f: &mut fmt::Formatter<'_>, name: &str, args: &[String]) -> fmt::Result {
    match args {
        [] => f.write_str(name),
        args => write!(f, "{name}({})", args.join(", ")),
    }
}

#[cfg(test)]
mod tests;
