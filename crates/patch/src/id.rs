//! Names of patches that stay safe to keep.

/// The name of a patch; it may be kept, compared and passed on after the patch is durable,
/// when it refers to nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PatchId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl PatchId {
    /// A patch that is always durable.
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
