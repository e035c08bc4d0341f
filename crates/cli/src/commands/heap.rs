//! `selvedge heap`: the durable memory of a program, looked at while the program does not
//! run. All but `repair` only read; what a crash left is recovered in memory first.

use crate::failure::{Failure, Outcome, code};
use crate::output;
use medium::{Arena, ArenaError, Pmem};
use mnemosyne::memory::{
    self, Allocated, BackingError, DirectoryOptions, Finding, Inspection, Loss, MemoryError,
    Region, RegionKind, Root,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Bytes of addresses, as for programs with durable memory.
const BYTES: &str = "SELVEDGE_BYTES";

/// Examine the durable memory of a program that does not run
///
/// All commands but repair change nothing. Records that a crash left in the logs are applied.
/// Where addresses are limited (ulimit -v), set SELVEDGE_BYTES, as for the program.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show regions, roots, and how full the heap is
    Info(HeapDir),
    /// Check all of it, and list blocks that nothing points to
    ///
    /// Violations of the format are listed by the numbers of its format.md, with file,
    /// structure, place in the file, and the way out. So is a directory that was in use with
    /// durability 'process' when the machine went down (boot): programs are refused until the
    /// loss is accepted.
    ///
    /// A block counts as reached if a root, a region of the program or a block that is
    /// reached holds a word that looks like a pointer into it: what is listed was lost, but
    /// some of what was lost may not be listed.
    ///
    /// Exit codes: 0 nothing is wrong, 4 blocks were lost or something is damaged, 8 the check
    /// could not be made.
    Check(HeapDir),
    /// Give up what is damaged, so that the rest can be used
    ///
    /// Without --accept-loss it lists what would be given up, by the numbers of the format.md, and
    /// changes nothing: damaged records of logs with those after them (M10, M11), roots that are
    /// damaged or not the only ones of their name (M6) or name what is not there (M16), and which
    /// blocks of a page are free (M13);
    /// and what was stored last before a crash of the machine (boot). If there is other damage,
    /// nothing is repaired. Copy the directory first.
    ///
    /// Exit codes: 0 nothing is wrong, 1 repaired, 4 something is wrong and was not changed, 8
    /// damage that cannot be repaired, or another error.
    Repair {
        /// The directory of its regions
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Give up what is listed
        #[arg(long)]
        accept_loss: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List all blocks, or show the bytes of one (as text only)
    Dump {
        #[command(flatten)]
        heap: HeapDir,
        /// The block at this offset (hexadecimal with 0x)
        #[arg(long, value_name = "OFFSET", value_parser = number, conflicts_with = "json")]
        block: Option<u64>,
    },
}

#[derive(Debug, clap::Args)]
struct HeapDir {
    /// The directory of its regions
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The address at which the program has its memory, for pointers that are addresses;
    /// programs in C leave a note of it
    #[arg(long, value_name = "ADDRESS", value_parser = number)]
    base: Option<u64>,
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| e.to_string())
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        match &self.what {
            What::Info(heap) => heap.info(),
            What::Check(heap) => heap.check(),
            What::Repair {
                dir,
                accept_loss,
                json,
            } => repair(dir, *accept_loss, *json),
            What::Dump { heap, block } => match block {
                Some(off) => heap.dump_block(*off),
                None => heap.dump(),
            },
        }
    }
}

/// The output of `info` as JSON.
#[derive(Serialize)]
struct Info<'a> {
    directory: &'a Path,
    system_bytes: u64,
    log_bytes: u64,
    pool: Option<JsonPool>,
    regions: Vec<JsonRegion>,
    roots: Vec<JsonRoot>,
    heap: Heap,
}

/// The pool of pages of the regions.
#[derive(Serialize)]
struct JsonPool {
    file: PathBuf,
    page_bytes: u64,
    frames: u32,
    frames_in_use: u32,
}

#[derive(Serialize)]
struct JsonRegion {
    slot: u64,
    kind: &'static str,
    offset: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct JsonRoot {
    name: String,
    layout: String,
    offset: u64,
}

/// The use of the heap.
#[derive(Serialize)]
struct Heap {
    bytes: u64,
    allocated_bytes: u64,
    blocks: u64,
    /// Blocks by their size.
    sizes: BTreeMap<u64, u64>,
}

#[derive(Serialize)]
struct JsonBlock {
    offset: u64,
    bytes: u64,
    reached: bool,
}

/// The output of `check` as JSON.
#[derive(Serialize)]
struct Checked<'a> {
    directory: &'a Path,
    clean: bool,
    findings: Vec<Finding>,
    /// Whether there are more findings.
    truncated: bool,
    /// Whether parts were not checked, because they depend on damaged ones.
    partial: bool,
    /// Number of blocks. `None`: damage prevents a count.
    blocks: Option<u64>,
    lost: Vec<JsonBlock>,
    lost_bytes: u64,
}

/// The output of `repair` as JSON.
#[derive(Serialize)]
struct Repaired<'a> {
    directory: &'a Path,
    /// Whether the lost blocks were given up.
    accepted: bool,
    losses: Vec<Loss>,
    /// Violations that remain.
    findings: Vec<Finding>,
}

fn repair(dir: &Path, is_accepted: bool, json: bool) -> Outcome {
    let operational = |why: MemoryError| about(dir, why).with_code(code::FSCK_OPERATIONAL);
    let bytes = addresses()?;
    let losses = memory::repair_within(dir, bytes, is_accepted).map_err(operational)?;
    let findings = match is_accepted || losses.is_empty() {
        true => {
            memory::check_within(dir, bytes)
                .map_err(operational)?
                .findings
        }
        false => Vec::new(),
    };
    let exit = match (losses.is_empty(), is_accepted && findings.is_empty()) {
        (true, _) if findings.is_empty() => ExitCode::SUCCESS,
        (false, true) => code::FSCK_CORRECTED.into(),
        _ => code::FSCK_ERRORS_LEFT.into(),
    };
    let repaired = Repaired {
        directory: dir,
        accepted: is_accepted,
        losses,
        findings,
    };
    match json {
        true => output::print_json(&repaired)?,
        false => output::print(repaired.text())?,
    }
    Ok(exit)
}

/// An error about a directory, and what helps.
fn about(dir: &Path, why: MemoryError) -> Failure {
    let help = match &why {
        MemoryError::Backing(BackingError::Arena(ArenaError::Reserve { .. })) => {
            "; if the addresses of the process are limited (ulimit -v), set SELVEDGE_BYTES to fewer \
             bytes"
        }
        MemoryError::Beyond { .. } => "; set SELVEDGE_BYTES to more bytes",
        _ => "",
    };
    Failure::new(format_args!("{}: {why}{help}", dir.display()))
}

/// Bytes of addresses to reserve, as for the programs whose memory it is.
fn addresses() -> Result<u64, Failure> {
    let Some(text) = std::env::var_os(BYTES) else {
        return Ok(DirectoryOptions::default().bytes);
    };
    let bytes = text.to_str().and_then(|text| text.parse().ok());
    let is_usable = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(Arena::GRANULE_BYTES);
    bytes.filter(is_usable).ok_or_else(|| {
        let text = text.display();
        Failure::new(format_args!(
            "{BYTES} is '{text}', which is not a multiple of 2097152"
        ))
        .with_code(code::FSCK_OPERATIONAL)
    })
}

fn kind(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Heap => "heap",
        RegionKind::Program => "program",
        RegionKind::Static => "static",
    }
}

impl From<&Region> for JsonRegion {
    fn from(region: &Region) -> Self {
        Self {
            slot: region.slot,
            kind: kind(region.kind),
            offset: region.start,
            bytes: region.len,
        }
    }
}

impl From<&Root> for JsonRoot {
    fn from(root: &Root) -> Self {
        Self {
            name: root.name.clone(),
            layout: format!("{:016x}", root.layout),
            offset: root.off,
        }
    }
}

impl From<&Allocated> for JsonBlock {
    fn from(block: &Allocated) -> Self {
        Self {
            offset: block.off,
            bytes: block.bytes,
            reached: block.is_reached,
        }
    }
}

impl HeapDir {
    fn about(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(format_args!("{}: {why}", self.dir.display()))
    }

    fn open(&self) -> Result<Inspection, Failure> {
        Inspection::open_within(&self.dir, addresses()?).map_err(|e| about(&self.dir, e))
    }

    /// All allocated blocks.
    fn blocks(&self, inspection: &Inspection) -> Result<Vec<Allocated>, MemoryError> {
        let base = match self.base {
            Some(base) => base,
            None => inspection.base()?.unwrap_or(0),
        };
        inspection.blocks(base)
    }

    fn info(&self) -> Outcome {
        let inspection = self.open()?;
        let about = |e: MemoryError| self.about(e);
        let regions = inspection.regions().map_err(about)?;
        let blocks = self.blocks(&inspection).map_err(about)?;
        let mut sizes = BTreeMap::new();
        for block in &blocks {
            *sizes.entry(block.bytes).or_default() += 1;
        }
        let of_heap = regions
            .iter()
            .filter(|region| region.kind == RegionKind::Heap);
        let (system_bytes, log_bytes) = inspection.system_bytes();
        let info = Info {
            directory: &self.dir,
            system_bytes,
            log_bytes,
            pool: inspection.pool().map(|pool| JsonPool {
                file: pool.path().to_owned(),
                page_bytes: pool.page_bytes(),
                frames: pool.frames(),
                frames_in_use: pool.frames_in_use(),
            }),
            heap: Heap {
                bytes: of_heap.map(|region| region.len).sum(),
                allocated_bytes: blocks.iter().map(|block| block.bytes).sum(),
                blocks: blocks.len() as u64,
                sizes,
            },
            roots: inspection
                .roots()
                .map_err(about)?
                .iter()
                .map(Into::into)
                .collect(),
            regions: regions.iter().map(Into::into).collect(),
        };
        match self.json {
            true => output::print_json(&info)?,
            false => output::print(info.text())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn check(&self) -> Outcome {
        let operational =
            |error: MemoryError| about(&self.dir, error).with_code(code::FSCK_OPERATIONAL);
        let bytes = addresses()?;
        let report = memory::check_within(&self.dir, bytes).map_err(operational)?;
        let opened = Inspection::open_within(&self.dir, bytes);
        let blocks = match opened.and_then(|inspection| self.blocks(&inspection)) {
            Ok(blocks) => Some(blocks),
            Err(_) if !report.is_clean() => None,
            Err(error) => return Err(operational(error)),
        };
        let lost = blocks.iter().flatten().filter(|block| !block.is_reached);
        let lost: Vec<JsonBlock> = lost.map(Into::into).collect();
        let checked = Checked {
            directory: &self.dir,
            clean: report.is_clean() && lost.is_empty(),
            truncated: report.is_truncated,
            partial: report.is_partial,
            findings: report.findings,
            blocks: blocks.map(|blocks| blocks.len() as u64),
            lost_bytes: lost.iter().map(|block| block.bytes).sum(),
            lost,
        };
        match self.json {
            true => output::print_json(&checked)?,
            false => output::print(checked.text())?,
        }
        Ok(match checked.clean {
            true => ExitCode::SUCCESS,
            false => code::FSCK_ERRORS_LEFT.into(),
        })
    }

    fn dump(&self) -> Outcome {
        let blocks = self.blocks(&self.open()?).map_err(|e| self.about(e))?;
        let blocks: Vec<JsonBlock> = blocks.iter().map(Into::into).collect();
        if self.json {
            output::print_json(&blocks)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = String::new();
        for block in blocks {
            text.push_str(&block.line());
        }
        output::print(text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn dump_block(&self, off: u64) -> Outcome {
        let inspection = self.open()?;
        let blocks = self.blocks(&inspection).map_err(|e| self.about(e))?;
        let Some(block) = blocks.iter().find(|block| block.off == off) else {
            let why = format!("no block begins at {off:#x}; without --block all are listed");
            return Err(self.about(why));
        };
        let mut line = [0; 16];
        for at in (off..off + block.bytes).step_by(line.len()) {
            let read = inspection.memory().read(at, &mut line);
            read.map_err(|e| self.about(e))?;
            let mut text = format!("{at:#014x} ");
            for byte in line {
                let _ = write!(text, " {byte:02x}");
            }
            let shown = line.map(|byte| match byte.is_ascii_graphic() {
                true => char::from(byte),
                false => '.',
            });
            output::print(format!("{text}  {}\n", shown.iter().collect::<String>()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl JsonBlock {
    fn line(&self) -> String {
        let lost = if self.reached {
            ""
        } else {
            "  nothing points to it"
        };
        format!("{:#014x} {:>12}{lost}\n", self.offset, self.bytes)
    }
}

impl Info<'_> {
    fn text(&self) -> String {
        let mut text = format!(
            "{}\nsystem region: {} bytes, {} of them for logs\n",
            self.directory.display(),
            self.system_bytes,
            self.log_bytes
        );
        if let Some(pool) = &self.pool {
            let _ = writeln!(
                text,
                "pool {}: {} of {} frames of {} bytes in use",
                pool.file.display(),
                pool.frames_in_use,
                pool.frames,
                pool.page_bytes
            );
        }
        for region in &self.regions {
            let JsonRegion {
                slot,
                kind,
                offset,
                bytes,
            } = region;
            let _ = writeln!(text, "region {slot} at {offset:#x}: {bytes} bytes, {kind}");
        }
        for root in &self.roots {
            let JsonRoot {
                name,
                layout,
                offset,
            } = root;
            let _ = writeln!(text, "root {name:?} at {offset:#x}, layout {layout}");
        }
        let Heap {
            bytes,
            allocated_bytes,
            blocks,
            sizes,
        } = &self.heap;
        let _ = writeln!(
            text,
            "heap: {bytes} bytes, {allocated_bytes} of them in {blocks} blocks"
        );
        for (size, count) in sizes {
            let _ = writeln!(text, "  {count} of {size} bytes");
        }
        text
    }
}

impl Repaired<'_> {
    fn text(&self) -> String {
        let dir = self.directory.display();
        let mut text = String::new();
        let lost = if self.accepted { "lost" } else { "to be lost" };
        for loss in &self.losses {
            let _ = writeln!(text, "{dir}: {lost}: {loss}");
        }
        for finding in &self.findings {
            let _ = writeln!(text, "{dir}: error: {finding}");
        }
        let _ = match (self.losses.len(), self.accepted, self.findings.len()) {
            (0, _, 0) => writeln!(text, "{dir}: nothing to repair"),
            (_, _, 1..) => writeln!(text, "{dir}: what else is wrong cannot be repaired"),
            (_, true, _) => writeln!(text, "{dir}: repaired"),
            (_, false, _) => writeln!(
                text,
                "{dir}: not changed; copy the directory, then repair it with --accept-loss"
            ),
        };
        text
    }
}

impl Checked<'_> {
    fn text(&self) -> String {
        let dir = self.directory.display();
        let mut text = String::new();
        for finding in &self.findings {
            let _ = writeln!(text, "{dir}: error: {finding}");
        }
        for block in &self.lost {
            text.push_str(&block.line());
        }
        if !self.findings.is_empty() {
            let found = output::count(self.findings.len() as u64, "error");
            let more = if self.truncated { " or more" } else { "" };
            let rest = match self.partial {
                true => "; what depends on it was not checked",
                false => "",
            };
            let _ = writeln!(text, "{dir}: {found}{more}{rest}");
        }
        let Some(blocks) = self.blocks.map(|blocks| output::count(blocks, "block")) else {
            return text;
        };
        let _ = match (self.clean, self.lost.len()) {
            (true, _) => writeln!(text, "{dir}: clean, {blocks}"),
            (false, 0) => Ok(()),
            (false, lost) => {
                writeln!(
                    text,
                    "{dir}: {lost} of {blocks} lost, {} bytes",
                    self.lost_bytes
                )
            }
        };
        text
    }
}
