//! Regions: ranges of durable memory, each with a kind and a slot in the region table.

/// The use of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionKind {
    /// A segment of the heap.
    Heap = 1,
    /// Memory of a program.
    Program = 2,
    /// Static variables.
    Static = 3,
}

/// A region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Its slot in the region table, which is also in the name of its file.
    pub slot: u64,
    /// Its use.
    pub kind: RegionKind,
    /// The offset of its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// A word that the region's owner chooses to find it again.
    pub tag: u64,
}

impl Region {
    /// Whether byte `off` lies in the region.
    pub fn has_byte(&self, off: u64) -> bool {
        (self.start..self.start + self.len).contains(&off)
    }
}
