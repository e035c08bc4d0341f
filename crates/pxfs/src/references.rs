//! References of callers to objects ([`vfs::FileSystem`]), or holds of the service.
//!
//! They are in several parts, so that threads which use different objects seldom wait for each other.

use aerie_objects::{HEADER_BYTES, ObjectId};
use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use vfs::sync::Mutex;

/// Parts of the table. Neighbouring headers are in different ones.
const PARTS: u64 = 32;

type Part = CachePadded<Mutex<HashMap<ObjectId, u64>>>;

/// The objects with references, and how many each has.
pub(crate) struct References(Box<[Part]>);

impl Default for References {
    fn default() -> Self {
        Self((0..PARTS).map(|_| Part::default()).collect())
    }
}

impl References {
    fn part(&self, object: ObjectId) -> &Part {
        &self.0[(object.header() / HEADER_BYTES % PARTS) as usize]
    }

    /// Takes a reference.
    pub(crate) fn add(&self, object: ObjectId) {
        *self.part(object).lock().entry(object).or_default() += 1;
    }

    /// Gives back references. Returns whether they were the last ones.
    pub(crate) fn give_back(&self, object: ObjectId, count: u64) -> bool {
        let mut counts = self.part(object).lock();
        match counts.get_mut(&object) {
            Some(left) if *left > count => {
                *left -= count;
                false
            }
            _ => {
                counts.remove(&object);
                true
            }
        }
    }

    /// The number of references to an object.
    pub(crate) fn count(&self, object: ObjectId) -> u64 {
        let counts = self.part(object).lock();
        counts.get(&object).copied().unwrap_or(0)
    }

    /// Gives back all references to an object, and returns their number.
    pub(crate) fn take(&self, object: ObjectId) -> u64 {
        self.part(object).lock().remove(&object).unwrap_or(0)
    }

    /// Gives back all references.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|part| part.lock().clear());
    }

    /// The objects with references. Some may be from before a change that another thread makes meanwhile.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        let of_part = |part: &Part| part.lock().keys().copied().collect::<Vec<_>>();
        self.0.iter().flat_map(of_part).collect()
    }
}
