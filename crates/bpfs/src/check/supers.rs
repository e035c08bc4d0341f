//! Super blocks and redo log: B1 to B4.

use super::image::{Image, Patch};
use super::{Ground, bad, readable};
use crate::format::{BLOCK, BlockNo, LOG_BLOCKS, LOG_SLOT, MAGIC, MIN_BLOCKS, Super, VERSION, at};
use crate::mode::Mode;
use medium::Pmem;
use vfs::check::Report;
use zerocopy::FromBytes;

/// Bytes of the super block that mkfs fixes, checksum included.
const STATIC: usize = 60;

/// Checks the super blocks and the redo log. Returns `None` if the rest cannot be found.
pub(super) fn check<'p, P: Pmem + ?Sized>(pm: &'p P, report: &mut Report) -> Option<Ground<'p, P>> {
    if pm.len() < MIN_BLOCKS * BLOCK {
        let have = pm.len();
        bad(
            report,
            "B1",
            format_args!("medium: {have} bytes are too few"),
        );
        return None;
    }
    let mut bytes = [0; BLOCK as usize];
    readable(report, pm.read(0, &mut bytes), "super block")?;
    let sup = Super::read_from_bytes(&bytes).ok()?;
    sizes(pm, &sup, report)?;
    if sup.crc.get() != crc32fast::hash(&bytes[..STATIC - 4]) {
        bad(report, "B2", format_args!("super block: checksum"));
    }
    copy(pm, &bytes[..STATIC], report);
    let root = root(pm, &sup, report);
    let (log, blocks) = (sup.log_start.get(), sup.blocks.get());
    let first = log + sup.log_blocks.get();
    let mut patches = Vec::new();
    for slot in (log * BLOCK..first * BLOCK).step_by(LOG_SLOT as usize) {
        self::slot(
            pm,
            slot,
            (first * BLOCK, blocks * BLOCK),
            &mut patches,
            report,
        );
    }
    Some(Ground {
        image: Image { pm, patches },
        blocks,
        first,
        root: BlockNo(root),
    })
}

/// Checks signature, version and sizes. Returns `None` if this is not a BPFS or its parts
/// cannot be found.
fn sizes<P: Pmem + ?Sized>(pm: &P, sup: &Super, report: &mut Report) -> Option<()> {
    let mut sound = true;
    let mut must = |good: bool, what: &str, value: u64| {
        if !good {
            bad(report, "B2", format_args!("super block: {what} {value}"));
            sound = false;
        }
    };
    let magic = u64::from_le_bytes(sup.magic);
    must(sup.magic == MAGIC, "signature", magic);
    must(
        sup.version.get() == VERSION,
        "version",
        sup.version.get().into(),
    );
    let block_bytes = u64::from(sup.block_bytes.get());
    must(block_bytes == BLOCK, "block size", block_bytes);
    must(sup.log_start.get() == 2, "log start", sup.log_start.get());
    let log = sup.log_blocks.get();
    must(log == LOG_BLOCKS, "log length", log);
    let blocks = sup.blocks.get();
    must(
        (MIN_BLOCKS..=pm.len() / BLOCK).contains(&blocks),
        "number of blocks",
        blocks,
    );
    sound.then_some(())
}

fn copy<P: Pmem + ?Sized>(pm: &P, fixed: &[u8], report: &mut Report) {
    let mut bytes = [0; STATIC];
    let what = "super block's copy";
    if readable(report, pm.read(BLOCK, &mut bytes), what).is_some() && bytes != *fixed {
        bad(report, "B2", format_args!("{what}: differs from it"));
    }
}

/// The block of the root record that a mount would choose.
fn root<P: Pmem + ?Sized>(pm: &P, sup: &Super, report: &mut Report) -> u64 {
    let mode = Mode::from_code(sup.mode.get());
    if mode.is_none() {
        bad(
            report,
            "B3",
            format_args!("super block: mode {}", sup.mode.get()),
        );
    }
    let root = sup.root.get();
    if mode != Some(Mode::Sp) || root == sup.root_copy.get() {
        return root;
    }
    let pair = pm
        .load(BLOCK + at::SUPER_ROOT)
        .and_then(|a| Ok((a, pm.load(BLOCK + at::SUPER_ROOT_COPY)?)));
    match readable(report, pair, "super block's copy") {
        Some((first, last)) if first == last => first,
        _ => {
            bad(
                report,
                "B3",
                format_args!("super block: torn, as is its copy"),
            );
            root
        }
    }
}

/// Checks one slot of the redo log. Adds a committed, sound record to `patches`.
fn slot<P: Pmem + ?Sized>(
    pm: &P,
    slot: u64,
    range: (u64, u64),
    patches: &mut Vec<Patch>,
    report: &mut Report,
) {
    let Some(header) = readable(report, pm.load(slot), "redo log") else {
        return;
    };
    if header == 0 {
        return;
    }
    let mut buf = [0; LOG_SLOT as usize - 8];
    let len = (header & 0xffff_ffff) as usize;
    let Some(payload) = buf.get_mut(..len) else {
        bad(
            report,
            "B4",
            format_args!("redo log slot at byte {slot}: length {len}"),
        );
        return;
    };
    if readable(report, pm.read(slot + 8, payload), "redo log").is_none() {
        return;
    }
    if u64::from(crc32fast::hash(payload)) != header >> 32 {
        bad(
            report,
            "B4",
            format_args!("redo log slot at byte {slot}: checksum"),
        );
        return;
    }
    let before = patches.len();
    if !records(payload, range, patches) {
        patches.truncate(before);
        bad(
            report,
            "B4",
            format_args!("redo log slot at byte {slot}: a record is malformed"),
        );
    }
}

/// Decodes a payload. Returns false unless every record lies inside `range`.
fn records(mut rest: &[u8], range: (u64, u64), patches: &mut Vec<Patch>) -> bool {
    while let Some((head, tail)) = rest.split_first_chunk::<16>() {
        let word = |at: usize| {
            head[at..at + 8]
                .iter()
                .rfold(0, |n, b| n << 8 | u64::from(*b))
        };
        let (addr, len) = (word(0), word(8));
        let end = addr.checked_add(len);
        let padded = len.checked_next_multiple_of(8);
        let (Some(end), Some(padded)) = (end, padded) else {
            return false;
        };
        let padded = usize::try_from(padded).unwrap_or(usize::MAX);
        if addr < range.0 || end > range.1 || padded > tail.len() {
            return false;
        }
        let bytes = tail[..len as usize].to_vec();
        patches.push(Patch { addr, bytes });
        rest = &tail[padded..];
    }
    rest.is_empty()
}
