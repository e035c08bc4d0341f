//! Makes an empty file system.

use crate::alloc::reserved_pages;
use crate::error::Error;
use crate::format::{
    Line, MAGIC, MAX_PAGES, MIN_PAGES, PAGE, Page, UNMOUNTED, VERSION, at, bitmap_pages,
    bitmap_word, mode_word, pair,
};
use crate::seeded::{Bug, hit};
use medium::{Pmem, Rule};
use vfs::{FileType, Ino, Timestamp};

/// Options of [`mkfs`].
#[derive(Debug, Clone, Default)]
pub struct MkfsOptions {
    /// UUID.
    pub uuid: [u8; 16],
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Time of all stamps.
    pub now: Timestamp,
}

/// Makes an empty file system on the whole medium. A crash on the way leaves none.
///
/// # Errors
/// [`Error::Size`] if the medium is too small or too large, [`Error::Medium`].
pub fn mkfs<P: Pmem + ?Sized>(pm: &P, options: &MkfsOptions) -> Result<(), Error> {
    let pages = pm.len() / PAGE;
    if !(MIN_PAGES..=MAX_PAGES).contains(&pages) {
        return Err(Error::Size {
            need: pages.clamp(MIN_PAGES, MAX_PAGES) * PAGE,
            have: pm.len(),
        });
    }
    // Without a signature until all else is durable. An older file system loses it first, so that no
    // part of this one is taken for a part of that one.
    pm.store_word(0, 0);
    pm.flush(0, 8);
    if !hit(Bug::NoEraseFence) {
        pm.fence(Rule::NullifyBeforeReuse)?;
    }
    pm.store(0, &[0; PAGE as usize]);
    for page in 0..bitmap_pages(pages) {
        pm.store_nt((1 + page) * PAGE, &[0; PAGE as usize]);
    }
    for page in 0..reserved_pages(pages) {
        pm.store_word(bitmap_word(Page(page)), u64::MAX);
        pm.flush(bitmap_word(Page(page)), 8);
    }
    let mut head = [0; at::CRC as usize];
    head[..8].copy_from_slice(&MAGIC);
    head[at::VERSION as usize..][..4].copy_from_slice(&VERSION.to_le_bytes());
    head[at::UUID as usize..][..16].copy_from_slice(&options.uuid);
    head[at::PAGES as usize..][..8].copy_from_slice(&pages.to_le_bytes());
    head[at::MADE as usize..][..8].copy_from_slice(&options.now.0.to_le_bytes());
    pm.store(8, &head[8..]);
    pm.store_word(at::CRC, u64::from(crc32fast::hash(&head)));
    let now = options.now.0 as u64;
    let mode = FileType::Directory.mode_bits() | 0o755;
    let root = [
        mode_word(mode, 0, 2),
        pair(options.uid, options.gid),
        Ino::ROOT.0,
        0,
        0,
        now,
        now,
        now,
    ];
    for (n, word) in root.into_iter().enumerate() {
        pm.store_word(Line(Ino::ROOT.0).word(n as u64), word);
    }
    pm.store_word(at::EPOCH, 1);
    pm.store_word(at::CLEAN, UNMOUNTED);
    pm.flush(0, PAGE);
    if !hit(Bug::NoMakeFence) {
        pm.fence(Rule::InitialiseBeforePoint)?;
    }
    pm.store(0, &MAGIC);
    pm.flush(0, 8);
    if !hit(Bug::NoMadeFence) {
        pm.fence(Rule::DurableBeforeReturn)?;
    }
    Ok(())
}
