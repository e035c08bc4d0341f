//! Persistent variables of a program: the region that keeps them.
//!
//! # Format
//!
//! A region begins with a *table*. At the next multiple of 4,096 follow the bytes of the section.
//! After them are the bytes of variables that the program no longer has. The table is these words,
//! and then the program's name:
//!
//! 1. magic and version;
//! 2. a CRC32C of the words and names that follow;
//! 3. the bytes of the table;
//! 4. the offset of the section's bytes in the region;
//! 5. their number;
//! 6. the generation;
//! 7. the number of variables;
//! 8. the bytes of the program's name.
//!
//! Three words describe each variable: its offset from the section's start, its length, and the
//! bytes of its name. The name follows. If a crash leaves several regions of one program, the
//! highest generation counts. A region's tag is a checksum of the program's name.

use crate::region::Region;
use medium::{MediumError, Pmem, WORD_BYTES};
use std::collections::BTreeMap;

/// "SELVSTA" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVSTA\x01");
/// The section's offset is a multiple of this.
const PAGE_BYTES: u64 = 4096;
/// Words in front of the program's name.
const HEAD_WORDS: usize = 8;
/// Words of the head that the checksum does not cover.
const UNCHECKED_WORDS: usize = 2;
/// Bytes of the longest table, which is read as a whole.
const TABLE_MAX: u64 = 64 << 20;

/// A persistent variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// The offset of its first byte from the section's start.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Variables by name.
pub type Variables = BTreeMap<String, Variable>;

/// The contents of a region of variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The file name of the executable.
    pub program: String,
    /// The age of the table: of several tables of a program, the highest generation counts.
    pub generation: u64,
    /// The offset of the section's bytes in the region.
    pub data: u64,
    /// The length of the section in bytes.
    pub section: u64,
    /// All variables. Those after the section are kept in case the program has them again.
    pub variables: Variables,
}

/// The reason why a table cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The table is damaged.
    #[error("the table of persistent variables {0}")]
    Damaged(&'static str),
    /// The memory cannot be read.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// The tag of a program's regions.
pub fn tag(program: &str) -> u64 {
    crc32c::crc32c(program.as_bytes()).into()
}

impl Table {
    /// Encodes the table, and sets `data`, the offset of the section's bytes. `None`: the table is
    /// too long.
    pub fn encode(&mut self) -> Option<Vec<u8>> {
        let mut body = self.program.as_bytes().to_vec();
        for (name, variable) in &self.variables {
            for word in [variable.start, variable.len, name.len() as u64] {
                body.extend_from_slice(&word.to_le_bytes());
            }
            body.extend_from_slice(name.as_bytes());
        }
        let len = (HEAD_WORDS * WORD_BYTES as usize + body.len()) as u64;
        self.data = len.next_multiple_of(PAGE_BYTES);
        let head = [
            len,
            self.data,
            self.section,
            self.generation,
            self.variables.len() as u64,
            self.program.len() as u64,
        ];
        let mut checked: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        checked.extend(body);
        let crc = u64::from(crc32c::crc32c(&checked));
        let mut bytes = [MAGIC, crc].map(u64::to_le_bytes).concat();
        bytes.extend(checked);
        (len <= TABLE_MAX).then_some(bytes)
    }

    /// Reads the table of a region.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn read<P: Pmem>(pm: &P, region: &Region) -> Result<Self, TableError> {
        let word = |n: usize| pm.load(region.start + n as u64 * WORD_BYTES);
        let (magic, crc, len) = (word(0)?, word(1)?, word(2)?);
        let unchecked = (UNCHECKED_WORDS as u64) * WORD_BYTES;
        if magic != MAGIC {
            return Err(TableError::Damaged(
                "has no magic, or that of another version",
            ));
        }
        let is_possible = len >= HEAD_WORDS as u64 * WORD_BYTES && len <= TABLE_MAX;
        if !is_possible || len > region.len {
            return Err(TableError::Damaged("has no possible length"));
        }
        let mut bytes = vec![0; (len - unchecked) as usize];
        pm.read(region.start + unchecked, &mut bytes)?;
        if u64::from(crc32c::crc32c(&bytes)) != crc {
            return Err(TableError::Damaged(
                "has changed: its checksum does not match",
            ));
        }
        let table =
            Self::decode(&bytes).filter(|table| table.data >= len && table.is_within(region));
        table.ok_or(TableError::Damaged(
            "is malformed, or does not fit its region",
        ))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut take = |len: u64| {
            let (part, more) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            rest = more;
            Some(part)
        };
        let mut words = [0; HEAD_WORDS - UNCHECKED_WORDS];
        for word in &mut words {
            *word = u64::from_le_bytes(take(WORD_BYTES)?.try_into().ok()?);
        }
        let [_, data, section, generation, count, name_len] = words;
        let program = String::from_utf8(take(name_len)?.to_vec()).ok()?;
        let mut variables = Variables::new();
        for _ in 0..count {
            let mut words = [0; 3];
            for word in &mut words {
                *word = u64::from_le_bytes(take(WORD_BYTES)?.try_into().ok()?);
            }
            let [start, len, name_len] = words;
            let name = String::from_utf8(take(name_len)?.to_vec()).ok()?;
            variables.insert(name, Variable { start, len });
        }
        let is_whole = rest.is_empty() && variables.len() as u64 == count;
        is_whole.then_some(Self {
            program,
            generation,
            data,
            section,
            variables,
        })
    }

    /// Whether the table, the section and all variables lie inside the region.
    fn is_within(&self, region: &Region) -> bool {
        let Some(room) = region.len.checked_sub(self.data) else {
            return false;
        };
        let is_inside = |variable: &Variable| {
            let end = variable.start.checked_add(variable.len);
            end.is_some_and(|end| end <= room)
        };
        let is_aligned = self.data.is_multiple_of(PAGE_BYTES) && self.data > 0;
        let is_ours = region.tag == tag(&self.program);
        is_aligned && is_ours && self.section <= room && self.variables.values().all(is_inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::RegionKind;
    use medium::MemoryPmem;

    #[test]
    fn variables_do_not_overlap_their_table() {
        let variable = Variable { start: 0, len: 8 };
        let names = (0..200).map(|n| (format!("variable{n}"), variable));
        let mut table = Table {
            program: "program".to_owned(),
            generation: 1,
            data: 0,
            section: 8,
            variables: names.collect(),
        };
        let encoded = table.encode().unwrap();
        assert_eq!(table.data, 2 * PAGE_BYTES);
        let region = Region {
            slot: 0,
            kind: RegionKind::Static,
            start: 0,
            len: 3 * PAGE_BYTES,
            tag: tag(&table.program),
        };
        for data in [PAGE_BYTES, 2 * PAGE_BYTES] {
            let mut bytes = encoded.clone();
            bytes[24..32].copy_from_slice(&data.to_le_bytes());
            let crc = u64::from(crc32c::crc32c(&bytes[16..]));
            bytes[8..16].copy_from_slice(&crc.to_le_bytes());
            let pm = MemoryPmem::new(region.len);
            pm.store(0, &bytes);
            let read = Table::read(&pm, &region);
            assert_eq!(read.is_ok(), data > PAGE_BYTES, "{read:?}");
        }
    }
}
