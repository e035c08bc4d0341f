//! The durable memory of this process.
//!
//! # Guarantees
//!
//! 1. Durable memory is opened and recovered once: at the first call that needs it, or before
//!    `main` if the program has persistent variables. No access precedes the recovery.
//! 2. It stays open until the process ends in any way.
//! 3. Its addresses are the same in each run: those with which the directory was made. A different
//!    base address in the environment is refused.
//! 4. After an orderly end of the process, plain stores are durable too.
//! 5. A child made by `fork` cannot use it: one process at a time can. The child has neither the
//!    memory nor its locks, and ends with a message if it tries.

use crate::elf::{self, ElfError};
use crate::errno::errno_of_store;
use crate::fatal::die;
use crate::space::{Machine, Memory, canonical};
use crate::statics::{self, StaticsError};
use libc::c_int;
use medium::{ArenaError, Durability, MapOptions, OpenError, UnknownDurability, without_signals};
use mnemosyne::memory::{
    self, BASE_ROOT, BackingError, Directory, DirectoryOptions, DurableMemory, Layout, MemoryError,
    PoolOptions,
};
use mnemosyne::tx::{self, Space, Stop, TxError};
use paging::PoolError;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::ffi::{CStr, OsString, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first address of a new directory, unless [`BASE`] is set. It is far from the addresses that
/// the system maps and below the end of those of valgrind. The shadow memory of AddressSanitizer
/// ends at `0x1000_7fff_8000`, below it.
const DEFAULT_BASE: u64 = 0x2000_0000_0000;
/// Bytes of addresses, unless [`BYTES`] is set.
const DEFAULT_BYTES: u64 = 1 << 40;
// The environment variables.
const BASE: &str = "SELVEDGE_BASE";
const BYTES: &str = "SELVEDGE_BYTES";
const LOG_BYTES: &str = "SELVEDGE_LOG_BYTES";
const REGION_PATH: &str = "SELVEDGE_REGION_PATH";
const DURABILITY: &str = "SELVEDGE_DURABILITY";
const POOL_PATH: &str = "SELVEDGE_POOL_PATH";
const POOL_BYTES: &str = "SELVEDGE_POOL_BYTES";
/// Bytes of a new pool, unless [`POOL_BYTES`] is set.
const DEFAULT_POOL_BYTES: u64 = 256 << 20;
const FORCE_FLUSH: &str = "SELVEDGE_FORCE_FLUSH";
const ACCEPT_LOSS: &str = "SELVEDGE_ACCEPT_LOSS";
const SIMULATE_POWER_CUT: &str = "SELVEDGE_SIMULATE_POWER_CUT";

/// The durable memory, and its first address.
pub(crate) struct Program {
    pub memory: Memory,
    pub base: u64,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();
/// Whether this process is a child, by `fork`, of a process with durable memory.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The reason why durable memory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{BASE}={}: not a multiple of 0x200000, such as {DEFAULT_BASE:#x}", .0.display())]
    Base(OsString),
    #[error("{BYTES}={}: not a multiple of 2097152, such as {DEFAULT_BYTES}", .0.display())]
    Bytes(OsString),
    #[error("{LOG_BYTES}={}: not a multiple of 65536, such as 2097152", .0.display())]
    LogBytes(OsString),
    #[error("{DURABILITY}: {0}")]
    Durability(UnknownDurability),
    #[error("{DURABILITY}={}: not text", .0.display())]
    NotText(OsString),
    #[error("{POOL_BYTES}={}: not a multiple of 4096, such as {DEFAULT_POOL_BYTES}", .0.display())]
    PoolBytes(OsString),
    #[error("{0}={value}: neither 0 nor 1", value = .1.display())]
    Flag(&'static str, OsString),
    #[error("{SIMULATE_POWER_CUT} and {POOL_PATH}: one of them only")]
    PoolAndPowerCut,
    #[error(
        "durable memory in {}: {why}{}", path.display(), way_out(why)
    )]
    Memory { path: PathBuf, why: MemoryError },
    #[error(
        "durable memory in {}: the pointers in it are for {BASE}={was:#x}, and not for {is:#x}",
        path.display()
    )]
    Moved { path: PathBuf, was: u64, is: u64 },
    #[error(
        "durable memory in {}: all roots are in use, so the base address cannot be recorded; a C \
         program has not made this directory", path.display()
    )]
    NoBase { path: PathBuf },
    #[error("durable memory in {}: {why}", path.display())]
    Refused {
        path: PathBuf,
        why: TxError<Infallible>,
    },
    #[error(
        "{library} comes before libselvedge, and would run this program's transactions: link \
         without -litm, or name -lselvedge before it"
    )]
    OtherLibrary { library: String },
    #[error(transparent)]
    Statics(#[from] StaticsError),
    #[error(
        "durable memory is not for a child made by fork: let the child run another program, or \
         fork before durable memory is opened (with persistent variables it is open \
         when `main` begins)"
    )]
    Forked,
}

/// The end of the message: what the user can do.
fn way_out(why: &MemoryError) -> &'static str {
    let why = match why {
        MemoryError::Backing(why) => why,
        MemoryError::Beyond { .. } => return "; set SELVEDGE_BYTES to more bytes",
        _ => return "",
    };
    match why {
        BackingError::File(OpenError::InUse { .. })
        | BackingError::Arena(ArenaError::Open(OpenError::InUse { .. }))
        | BackingError::Pool(PoolError::Open(OpenError::InUse { .. })) => {
            "; wait for its end, or set SELVEDGE_REGION_PATH to another directory"
        }
        BackingError::Arena(ArenaError::Taken { .. }) => " (SELVEDGE_BASE)",
        BackingError::Arena(ArenaError::Reserve { .. }) => {
            "; if the addresses of the process are limited (ulimit -v), set SELVEDGE_BYTES to fewer \
             bytes"
        }
        BackingError::Mismatch(_) => " (SELVEDGE_POOL_PATH)",
        BackingError::Crashed { .. } => " (SELVEDGE_ACCEPT_LOSS=1)",
        BackingError::InTheWay { .. } => " (SELVEDGE_REGION_PATH)",
        _ => "",
    }
}

impl StartError {
    /// The closest errno.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::Memory { why, .. } => errno_of_store(why),
            Self::Refused { .. } => libc::EIO,
            Self::Forked => libc::EBUSY,
            Self::Base(_)
            | Self::Bytes(_)
            | Self::LogBytes(_)
            | Self::Durability(_)
            | Self::NotText(_)
            | Self::PoolBytes(_)
            | Self::Flag(..)
            | Self::PoolAndPowerCut
            | Self::Moved { .. }
            | Self::NoBase { .. }
            | Self::OtherLibrary { .. }
            | Self::Statics(_) => libc::EINVAL,
        }
    }
}

/// The durable memory, which is opened at the first call.
pub(crate) fn start() -> Result<&'static Program, StartError> {
    static TURN: Mutex<()> = Mutex::new(());
    if FORKED.load(Ordering::Relaxed) {
        return Err(StartError::Forked);
    }
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let _turn = TURN.lock();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let program = open()?;
    // SAFETY: the handler only loads and stores atomics, and makes system calls.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    Ok(PROGRAM.get_or_init(|| program))
}

/// The durable memory. The process ends if it cannot be opened.
pub(crate) fn started() -> &'static Program {
    match PROGRAM.get() {
        Some(program) if !FORKED.load(Ordering::Relaxed) => program,
        _ => start().unwrap_or_else(|why| die(why)),
    }
}

extern "C" fn in_child() {
    let is_child_of_child = FORKED.swap(true, Ordering::Relaxed);
    // The descriptors of a child's child are not those of the memory any more.
    let Some(program) = PROGRAM.get().filter(|_| !is_child_of_child) else {
        return;
    };
    let directory = program.memory.backing();
    // SAFETY: from here on every use of the memory is refused, and no static is dropped.
    unsafe {
        directory.arena().abandon();
        if let Some(pool) = directory.pool() {
            pool.abandon();
        }
    }
    // SAFETY: zeros are a `sigaction` that the call replaces; `on_fault` has the arguments of a
    // handler with `SA_SIGINFO`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut action);
        if action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        }
    }
}

/// The handler of a child's fault. An access to its parent's durable memory ends it with a message.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, and for this signal with an address.
    let at = unsafe { (*info).si_addr() } as u64;
    let is_ours = |program: &Program| {
        let space = program.memory.memory().space();
        space.offset(canonical(at)).is_some()
    };
    if PROGRAM.get().is_some_and(is_ours) {
        die(StartError::Forked);
    }
    // The repeated access then has the default effect.
    // SAFETY: any thread may set the action of a signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

// Runs before the program's own constructors, which may use the variables.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    match elf::section() {
        Ok(Some(_)) => {
            started();
        }
        Err(why @ ElfError::Loader { .. }) => die(why),
        // If the executable cannot be read, the first call of the library returns the error.
        Ok(None) | Err(_) => {}
    }
}

// Runs after the program's own destructors and its functions of `atexit`.
#[used]
#[unsafe(link_section = ".fini_array.00101")]
static AFTER_MAIN: extern "C" fn() = after_main;

/// Truncates the logs, so that recovery does not undo plain stores that were never flushed, and makes these durable.
/// With durability `process` the next start is then not refused.
extern "C" fn after_main() {
    if let Some(program) = PROGRAM.get()
        && !FORKED.load(Ordering::Relaxed)
    {
        // An error is ignored: committed and flushed data are as safe as before.
        let _ = program.memory.memory().truncate();
        let _ = program.memory.backing().sync();
    }
}

fn open() -> Result<Program, StartError> {
    check_symbols()?;
    let path = PathBuf::from(std::env::var_os(REGION_PATH).unwrap_or_else(|| ".".into()));
    let wanted = base()?;
    let options = DirectoryOptions {
        base: Some(wanted.unwrap_or(DEFAULT_BASE)),
        bytes: bytes()?,
        layout: layout()?,
        map: MapOptions {
            durability: durability()?,
            force_flush: is_set(FORCE_FLUSH)?,
            simulate_power_cut: is_set(SIMULATE_POWER_CUT)?,
            ..MapOptions::default()
        },
        pool: pool()?,
        accept_loss: is_set(ACCEPT_LOSS)?,
        ..DirectoryOptions::default()
    };
    // The pages of the pool are shared with its file, so a power cut cannot be simulated.
    if options.map.simulate_power_cut && options.pool.is_some() {
        return Err(StartError::PoolAndPowerCut);
    }
    let mut memory = open_at(&path, &options)?;
    let mut base = memory.backing().arena().base();
    let was = base_of(&memory, base)?;
    if was != base {
        if wanted.is_some() {
            let (path, is) = (memory.backing().path().to_owned(), base);
            return Err(StartError::Moved { path, was, is });
        }
        // The directory was made with another default or another SELVEDGE_BASE.
        drop(memory);
        base = was;
        let base = Some(base);
        memory = open_at(
            &path,
            &DirectoryOptions {
                base,
                ..options.clone()
            },
        )?;
    }
    without_signals(|| memory.truncate_in_background());
    statics::attach(&memory)?;
    Ok(Program { memory, base })
}

fn open_at(path: &Path, options: &DirectoryOptions) -> Result<Memory, StartError> {
    let failed = |why| {
        let path = path.to_owned();
        StartError::Memory { path, why }
    };
    let directory = Directory::open(path, options).map_err(failed)?;
    let machine = Machine::new(directory.arena().clone());
    let store_options = memory::Options {
        tx: tx::Options {
            privatise: true,
            ..tx::Options::default()
        },
        ..memory::Options::default()
    };
    DurableMemory::open(directory, machine, store_options).map_err(failed)
}

fn base() -> Result<Option<u64>, StartError> {
    let Some(text) = std::env::var_os(BASE) else {
        return Ok(None);
    };
    let digits = text.to_str().and_then(|text| text.strip_prefix("0x"));
    let base = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let base = base.filter(is_granules).ok_or(StartError::Base(text))?;
    Ok(Some(base))
}

fn bytes() -> Result<u64, StartError> {
    let Some(text) = std::env::var_os(BYTES) else {
        return Ok(DEFAULT_BYTES);
    };
    let bytes = text.to_str().and_then(|text| text.parse::<u64>().ok());
    bytes.filter(is_granules).ok_or(StartError::Bytes(text))
}

/// The layout of a new directory.
fn layout() -> Result<Layout, StartError> {
    let layout = Layout::default();
    let Some(text) = std::env::var_os(LOG_BYTES) else {
        return Ok(layout);
    };
    let log_bytes = text.to_str().and_then(|text| text.parse::<u64>().ok());
    let fits = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(1 << 16) && *bytes < 1 << 34;
    let log_bytes = log_bytes.filter(fits).ok_or(StartError::LogBytes(text))?;
    Ok(Layout {
        log_bytes,
        ..layout
    })
}

fn is_granules(number: &u64) -> bool {
    *number > 0 && number.is_multiple_of(medium::Arena::GRANULE_BYTES)
}

fn durability() -> Result<Durability, StartError> {
    let Some(text) = std::env::var_os(DURABILITY) else {
        return Ok(Durability::default());
    };
    let text = text.into_string().map_err(StartError::NotText)?;
    text.parse().map_err(StartError::Durability)
}

fn pool() -> Result<Option<PoolOptions>, StartError> {
    let Some(path) = std::env::var_os(POOL_PATH) else {
        return Ok(None);
    };
    let bytes = match std::env::var_os(POOL_BYTES) {
        None => DEFAULT_POOL_BYTES,
        Some(text) => {
            let bytes = text.to_str().and_then(|text| text.parse::<u64>().ok());
            let fits = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(4096);
            bytes.filter(fits).ok_or(StartError::PoolBytes(text))?
        }
    };
    Ok(Some(PoolOptions {
        path: path.into(),
        bytes,
        page_bytes: None,
    }))
}

fn is_set(name: &'static str) -> Result<bool, StartError> {
    let text = std::env::var_os(name).unwrap_or_default();
    match text.to_str() {
        Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        _ => Err(StartError::Flag(name, text)),
    }
}

/// The base address for which the memory has its pointers: `base`, if the memory is new.
fn base_of(memory: &Memory, base: u64) -> Result<u64, StartError> {
    let path = || memory.backing().path().to_owned();
    let was = memory.session().run(|tx| match tx.root(BASE_ROOT)? {
        Some((was, _)) => Ok::<_, Stop<Infallible>>(Some(was)),
        None => {
            let is_set = tx.set_root(BASE_ROOT, base, 0)?;
            Ok(is_set.then_some(base))
        }
    });
    match was {
        Ok(Some(was)) => Ok(was),
        Ok(None) => Err(StartError::NoBase { path: path() }),
        Err(why) => Err(StartError::Refused { path: path(), why }),
    }
}

/// Refuses a program in which the symbols of gcc's own library precede those of this one. This
/// can happen to the shared library only: a program's own symbols come first.
fn check_symbols() -> Result<(), StartError> {
    let ours = object_at(check_symbols as *const c_void);
    // SAFETY: `getauxval` has no preconditions.
    let program = object_at(unsafe { libc::getauxval(libc::AT_PHDR) } as *const c_void);
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ITM_beginTransaction".as_ptr()) };
    if found.is_null() || ours.0 == program.0 {
        return Ok(());
    }
    let (base, library) = object_at(found);
    match base == ours.0 {
        true => Ok(()),
        false => Err(StartError::OtherLibrary { library }),
    }
}

/// The first address and the name of the program or library that contains `address`.
fn object_at(address: *const c_void) -> (usize, String) {
    // SAFETY: zeros are a `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable; the address is not accessed.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return (0, "another library".to_owned());
    }
    // SAFETY: the name of a loaded program or library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    (info.dli_fbase as usize, name.to_string_lossy().into_owned())
}

/// Opens the memory now. Returns 0, or -1 with `errno` and a message.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selvedge_start() -> c_int {
    match start() {
        Ok(_) => 0,
        Err(why) => {
            crate::message::report(why.errno(), why);
            -1
        }
    }
}
