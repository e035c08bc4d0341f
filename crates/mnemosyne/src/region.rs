//! Regions: pieces of durable memory, each with a kind and a place.

/// What a region is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionKind {
    /// A segment of the heap.
    Heap = 1,
    /// A program's own.
    Program = 2,
    /// Static variables.
    Static = 3,
}

/// A region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Its place in the region table, and in the name of its file.
    pub slot: u64,
    /// What it is for.
    pub kind: RegionKind,
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// What its user keeps there to know it by.
    pub tag: u64,
}

impl Region {
    /// Whether byte `off` lies in it.
    pub fn holds(&self, off: u64) -> bool {
        (self.start..self.start + self.len).contains(&off)
    }
}
