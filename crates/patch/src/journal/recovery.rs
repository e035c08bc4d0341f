//! What happens before anything is read: the log's committed transactions go home.
//!
//! Works on bare devices, below any cache. Everything that it writes home it would write
//! again, so a crash within it does no harm (J8).

use super::format::{COMMIT, Codec, DESCRIPTOR, Header, REVOKE, Super, Tag, unescape};
use super::{JournalError, Place};
use crate::seeded::{Bug, hit};
use medium::Rule;
use medium::block::{BlockDevice, Buffer, Lba, Write};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What [`replay`] found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Replayed {
    /// Whole transactions.
    pub transactions: u64,
    /// Blocks written home.
    pub blocks: u64,
    /// Logged copies that were skipped since their blocks had been freed.
    pub revoked: u64,
}

/// Makes an empty log. `uuid`: of the file system; it tells logs apart.
///
/// # Errors
/// Of the device; a place too small or a block size below 1,024.
pub fn format(log: &dyn BlockDevice, place: &Place, uuid: [u8; 16]) -> Result<(), JournalError> {
    let block_bytes = log.geometry().block_bytes;
    let blocks = u32::try_from(place.blocks()).unwrap_or(u32::MAX);
    let mut superblock = Super::new(block_bytes, blocks, uuid);
    superblock.use_our_features(true);
    let mut block = vec![0; block_bytes as usize];
    if block.len() >= superblock.encode().len() {
        let bytes = superblock.encode();
        block[..bytes.len()].copy_from_slice(bytes);
    }
    Super::parse(&block, place.blocks())?;
    write_all(log, vec![(place.lba(0), block)])
}

/// Whether the log holds anything that must go home before the device is read.
///
/// # Errors
/// Of the device; a superblock that is none, or that asks for unknown features.
pub fn needs_recovery(log: &dyn BlockDevice, place: &Place) -> Result<bool, JournalError> {
    Ok(Reader::open(log, place)?.superblock.start() != 0)
}

/// Writes home what was committed, and empties the log. Does nothing to an empty one.
/// `home` and `log` may be one device.
///
/// # Errors
/// Of the devices; a log that contradicts itself before its end, or names blocks that
/// `home` does not have: then nothing has been written.
pub fn replay(
    home: &dyn BlockDevice,
    log: &dyn BlockDevice,
    place: &Place,
) -> Result<Replayed, JournalError> {
    let mut reader = Reader::open(log, place)?;
    if reader.superblock.start() == 0 {
        return Ok(Replayed::default());
    }
    let found = reader.scan()?;
    let next = found.next;
    let mut replayed = Replayed {
        transactions: u64::from(next.wrapping_sub(reader.superblock.sequence())),
        ..Replayed::default()
    };
    let (keep, revoked) = found.newest(home.geometry().blocks)?;
    replayed.revoked = revoked;
    replayed.blocks = keep.len() as u64;
    let mut writes = Vec::new();
    for (to, (position, escaped)) in keep {
        let mut block = reader.read(position)?;
        if escaped && !hit(Bug::LoseEscape) {
            unescape(&mut block);
        }
        writes.push((Lba(to), block));
        if writes.len() == 256 {
            submit(home, std::mem::take(&mut writes))?;
        }
    }
    submit(home, writes)?;
    home.flush(Rule::HomeBeforeReclaim)?;
    // One number is left out: a block of the transaction that was not whole must never
    // pass for one of a later transaction.
    reader.superblock.set_tail(0, next.wrapping_add(1));
    let mut block = reader.read(0)?;
    let bytes = reader.superblock.encode();
    block[..bytes.len()].copy_from_slice(bytes);
    write_all(log, vec![(place.lba(0), block)])?;
    tracing::info!(?replayed, "journal replayed");
    Ok(replayed)
}

struct Reader<'a> {
    log: &'a dyn BlockDevice,
    place: &'a Place,
    superblock: Super,
    codec: Codec,
}

/// What a scan has found.
struct Found {
    /// The first transaction that is not whole.
    next: u32,
    /// Of each home block, its newest logged copy: transaction, place in the log, whether
    /// it is escaped.
    copies: BTreeMap<u64, (u32, u32, bool)>,
    /// The newest transaction that revokes a block.
    revoked: HashMap<u64, u32>,
}

/// One transaction as it is collected.
#[derive(Default)]
struct Collected {
    copies: Vec<(u32, Tag)>,
    revoked: Vec<u64>,
}

/// Whether transaction `a` comes after `b`; numbers wrap.
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl<'a> Reader<'a> {
    fn open(log: &'a dyn BlockDevice, place: &'a Place) -> Result<Self, JournalError> {
        place.check(log)?;
        let mut block = Buffer::zeroed(log.geometry().block_bytes as usize);
        log.read(place.lba(0), &mut block)?;
        let superblock = Super::parse(&block, place.blocks())?;
        let codec = superblock.codec();
        Ok(Self {
            log,
            place,
            superblock,
            codec,
        })
    }

    fn read(&self, position: u32) -> Result<Vec<u8>, JournalError> {
        let mut block = Buffer::zeroed(self.codec.block_bytes);
        self.log.read(self.place.lba(position), &mut block)?;
        Ok(block.to_vec())
    }

    /// Collects whole transactions from the tail on. The first block that is not what
    /// must come next ends the log.
    fn scan(&self) -> Result<Found, JournalError> {
        let mut found = Found {
            next: self.superblock.sequence(),
            copies: BTreeMap::new(),
            revoked: HashMap::new(),
        };
        let (first, end) = (self.superblock.first(), self.superblock.end());
        let mut position = self.superblock.start();
        let mut left = end - first;
        while let Some(transaction) = self.collect(&mut position, &mut left, found.next)? {
            for (position, tag) in transaction.copies {
                let copy = (found.next, position, tag.escaped);
                found.copies.insert(tag.home, copy);
            }
            for home in transaction.revoked {
                found.revoked.insert(home, found.next);
            }
            found.next = found.next.wrapping_add(1);
        }
        Ok(found)
    }

    /// Reads one transaction; `None` if it is not whole. `left`: blocks of the log not
    /// looked at yet.
    fn collect(
        &self,
        position: &mut u32,
        left: &mut u32,
        sequence: u32,
    ) -> Result<Option<Collected>, JournalError> {
        let mut collected = Collected::default();
        let torn = |collected: Collected| {
            Ok((!collected.copies.is_empty() && hit(Bug::ReplayUncommitted)).then_some(collected))
        };
        loop {
            let Some((_, block)) = self.next(position, left)? else {
                return Ok(None);
            };
            let kind = match Header::parse(&block) {
                Some(header) if header.sequence == sequence => header.kind,
                _ => return torn(collected),
            };
            match kind {
                DESCRIPTOR => {
                    let Some(tags) = self.codec.parse_descriptor(&block) else {
                        return Ok(None);
                    };
                    for tag in tags {
                        let Some((at, copy)) = self.next(position, left)? else {
                            return Ok(None);
                        };
                        let whole = self.codec.is_whole(&tag, sequence, &copy);
                        if !whole && !hit(Bug::ReplayUncommitted) {
                            return Ok(None);
                        }
                        collected.copies.push((at, tag));
                    }
                }
                REVOKE => match self.codec.parse_revoke(&block) {
                    Some(homes) => collected.revoked.extend(homes),
                    None => return Ok(None),
                },
                COMMIT => return Ok(self.codec.is_commit(&block).then_some(collected)),
                _ => return Ok(None),
            }
        }
    }

    /// The next block of the log, in its circle.
    fn next(
        &self,
        position: &mut u32,
        left: &mut u32,
    ) -> Result<Option<(u32, Vec<u8>)>, JournalError> {
        if *left == 0 {
            return Ok(None);
        }
        *left -= 1;
        let at = *position;
        *position = if at + 1 == self.superblock.end() {
            self.superblock.first()
        } else {
            at + 1
        };
        Ok(Some((at, self.read(at)?)))
    }
}

/// Of each home block, the copy to be written, and how many blocks were revoked.
type Newest = (BTreeMap<u64, (u32, bool)>, u64);

impl Found {
    fn newest(self, blocks: u64) -> Result<Newest, JournalError> {
        let mut keep = BTreeMap::new();
        let mut revoked = 0;
        for (home, (sequence, position, escaped)) in self.copies {
            if home >= blocks {
                return Err(JournalError::Superblock {
                    what: "a logged block beyond the end of the device",
                });
            }
            match self.revoked.get(&home) {
                // A copy counts again if it was logged after the block was freed.
                Some(&by) if !is_after(sequence, by) => revoked += 1,
                _ => {
                    keep.insert(home, (position, escaped));
                }
            }
        }
        Ok((keep, revoked))
    }
}

/// Writes blocks and waits for them.
fn submit(device: &dyn BlockDevice, blocks: Vec<(Lba, Vec<u8>)>) -> Result<(), JournalError> {
    let mut left = blocks.len();
    let writes = blocks
        .into_iter()
        .enumerate()
        .map(|(tag, (lba, data))| Write {
            tag: tag as u64,
            lba,
            data: Arc::new(Buffer::from_slice(&data)),
            durable: false,
        });
    let writes = writes.collect::<Vec<_>>();
    if left > 0 {
        device.submit(writes);
    }
    let mut first_error = None;
    while left > 0 {
        for done in device.reap(1) {
            left -= 1;
            if let Err(error) = done.result {
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(()), |error| Err(error.into()))
}

fn write_all(device: &dyn BlockDevice, blocks: Vec<(Lba, Vec<u8>)>) -> Result<(), JournalError> {
    submit(device, blocks)?;
    Ok(device.flush(Rule::DurableBeforeReturn)?)
}
