//! Replay, before anything is read: it writes the log's committed transactions home.
//!
//! It works on devices, below any cache. It is idempotent, so it may be repeated after a crash
//! (J8).

use super::format::{COMMIT, Codec, DESCRIPTOR, Header, REVOKE, Super, Tag, unescape};
use super::{JournalError, LogBlocks};
use crate::seeded::{Bug, hit};
use medium::Rule;
use medium::block::{BlockDevice, Buffer, Lba, Write};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Counts of a [`replay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Replayed {
    /// Complete transactions.
    pub transactions: u64,
    /// Blocks written home.
    pub blocks: u64,
    /// Logged copies skipped because their blocks were freed.
    pub revoked: u64,
}

/// Makes an empty log. `uuid`: the id of the file system, which distinguishes its log from
/// others.
///
/// # Errors
/// An error of the device; a place too small or a block size below 1,024.
pub fn format(
    log: &dyn BlockDevice,
    place: &LogBlocks,
    uuid: [u8; 16],
) -> Result<(), JournalError> {
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

/// Whether the log must be replayed before the device is read.
///
/// # Errors
/// An error of the device; an invalid superblock, or one with unknown features.
pub fn needs_recovery(log: &dyn BlockDevice, place: &LogBlocks) -> Result<bool, JournalError> {
    Ok(Reader::open(log, place)?.superblock.start() != 0)
}

/// Writes committed transactions home, and empties the log. Does nothing to an empty log.
/// `home` and `log` may be one device.
///
/// # Errors
/// An error of the devices; an invalid superblock, or a logged block beyond the end of `home`:
/// then nothing has been written.
pub fn replay(
    home: &dyn BlockDevice,
    log: &dyn BlockDevice,
    place: &LogBlocks,
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
    // Skip one number, so that a block of the incomplete transaction never passes for a block
    // of a later one.
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
    place: &'a LogBlocks,
    superblock: Super,
    codec: Codec,
}

/// The result of a scan of the log.
struct Found {
    /// The first transaction that is not complete.
    next: u32,
    /// For each home block, its newest logged copy: transaction, place in the log, whether it
    /// is escaped.
    copies: BTreeMap<u64, (u32, u32, bool)>,
    /// For each revoked block, the newest transaction that revokes it.
    revoked: HashMap<u64, u32>,
}

/// The blocks of one transaction.
#[derive(Default)]
struct Collected {
    copies: Vec<(u32, Tag)>,
    revoked: Vec<u64>,
}

/// Whether transaction `a` comes after `b`; the numbers wrap.
fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl<'a> Reader<'a> {
    fn open(log: &'a dyn BlockDevice, place: &'a LogBlocks) -> Result<Self, JournalError> {
        place.check(log.geometry().blocks)?;
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

    /// Collects complete transactions from the tail on. The first block of a wrong type, number
    /// or checksum ends the log.
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

    /// Reads one transaction; `None` if it is not complete. `left`: number of blocks of the
    /// log not read yet.
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

    /// Reads the next block of the log's ring.
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

/// For each home block, the place of the copy to be written and whether it is escaped; and the
/// number of revoked blocks.
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
                // A copy logged after the revoke is written.
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
            durable: None,
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
