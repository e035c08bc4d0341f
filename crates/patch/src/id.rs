//! Names of patches that stay safe to keep.

/// A patch. A name, not a pointer: once the patch is durable its id means nothing any
/// more, and may be kept, compared and passed on without harm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PatchId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl PatchId {
    /// A patch that has been durable for ever.
    pub const DURABLE: Self = Self {
        slot: u32::MAX,
        generation: 0,
    };
}

impl std::fmt::Debug for PatchId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p{}.{}", self.slot, self.generation)
    }
}
