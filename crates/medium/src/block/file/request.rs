//! Requests to write to a file: merged where adjacent, continued where cut short.
//!
//! Guarantees: every write ends in exactly one completion. The error of a failed write names
//! its own block, even if the write was merged with others. A short write is continued.

use crate::block::{BlockError, Completion, Write};
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;

/// Consecutive blocks, written by one call.
pub(super) struct Request {
    writes: Vec<Write>,
    /// The position of block 0 in the file, in bytes.
    base: u64,
    /// Bytes written by earlier calls.
    done: usize,
}

/// The result of a call: the request is finished, or parts of it are left.
pub(super) enum Next {
    Finished(Vec<Completion>),
    Again(Vec<Request>),
}

/// Sorts writes by block and merges neighbours, at most `most` blocks in one request.
/// All are one block long. Block 0 begins at byte `base` of the file.
pub(super) fn merge(mut writes: Vec<Write>, most: usize, base: u64) -> Vec<Request> {
    writes.sort_by_key(|write| write.lba);
    let mut requests: Vec<Request> = Vec::new();
    for write in writes {
        match requests.last_mut() {
            Some(last) if last.writes.len() < most && last.is_followed_by(&write) => {
                last.writes.push(write);
            }
            _ => requests.push(Request::one(write, base)),
        }
    }
    requests
}

impl Request {
    fn one(write: Write, base: u64) -> Self {
        Self {
            writes: vec![write],
            base,
            done: 0,
        }
    }

    fn is_followed_by(&self, write: &Write) -> bool {
        self.writes.last().is_some_and(|last| {
            last.lba.0.checked_add(1) == Some(write.lba.0)
                && last.is_durable() == write.is_durable()
        })
    }

    /// Whether the writes must be durable when the request ends.
    pub(super) fn is_durable(&self) -> bool {
        self.writes.iter().any(Write::is_durable)
    }

    /// The position of the rest in the file, in bytes.
    pub(super) fn offset(&self) -> u64 {
        let first = self.writes.first();
        let start = first.map_or(0, |write| write.lba.0 * write.data.len() as u64);
        self.base + start + self.done as u64
    }

    /// The bytes that are not yet written, in one piece for each block.
    pub(super) fn rest(&self) -> impl Iterator<Item = IoSlice<'_>> {
        let mut skip = self.done;
        self.writes.iter().filter_map(move |write| {
            let rest = write.data.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(write.data.len());
            (!rest.is_empty()).then(|| IoSlice::new(rest))
        })
    }

    /// The state after a call with this result.
    pub(super) fn after(mut self, result: Result<usize, Errno>, device: &Arc<str>) -> Next {
        match result {
            // The kernel cancels a request whose thread ends; the request itself is valid.
            Err(Errno::INTR | Errno::CANCELED) => Next::Again(vec![self]),
            Ok(0) => self.failed(Errno::IO, device),
            Ok(written) => {
                self.done += written;
                let len: usize = self.writes.iter().map(|write| write.data.len()).sum();
                if self.done < len {
                    return Next::Again(vec![self]);
                }
                let ended = |write: Write| completion(&write, Ok(()));
                Next::Finished(self.writes.into_iter().map(ended).collect())
            }
            Err(error) => self.failed(error, device),
        }
    }

    /// Splits a request that failed: one block may be at fault, so each is tried by itself.
    fn failed(self, error: Errno, device: &Arc<str>) -> Next {
        if self.writes.len() > 1 {
            let one = |write| Request::one(write, self.base);
            return Next::Again(self.writes.into_iter().map(one).collect());
        }
        let ended = |write: Write| completion(&write, Err(writing(device, &write, error)));
        Next::Finished(self.writes.into_iter().map(ended).collect())
    }
}

/// The end of `write`.
pub(super) fn completion(write: &Write, result: Result<(), BlockError>) -> Completion {
    let tag = write.tag;
    Completion { tag, result }
}

/// The error of a write that the system refused.
pub(super) fn writing(device: &Arc<str>, write: &Write, error: Errno) -> BlockError {
    BlockError::Io {
        device: device.clone(),
        what: "writing",
        lba: write.lba,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;
    use crate::block::{Buffer, Lba};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BLOCK: usize = 512;

    fn write(tag: u64, lba: u64, durable: bool) -> Write {
        let data = Arc::new(Buffer::from_slice(&[tag as u8; BLOCK]));
        Write {
            tag,
            lba: Lba(lba),
            data,
            durable: durable.then_some(Rule::DurableBeforeReturn),
        }
    }

    /// A file whose calls return the results of the script, and then write everything.
    struct Script {
        image: Vec<u8>,
        bad: Vec<u64>,
        results: Vec<Result<usize, Errno>>,
    }

    impl Script {
        fn call(&mut self, request: &Request) -> Result<usize, Errno> {
            let start = request.offset() as usize;
            let bytes: Vec<u8> = request.rest().flat_map(|part| part.to_vec()).collect();
            let blocks = start / BLOCK..(start + bytes.len()).div_ceil(BLOCK);
            if self.bad.iter().any(|bad| blocks.contains(&(*bad as usize))) {
                return Err(Errno::IO);
            }
            let len = self
                .results
                .pop()
                .unwrap_or(Ok(usize::MAX))?
                .min(bytes.len());
            self.image[start..start + len].copy_from_slice(&bytes[..len]);
            Ok(len)
        }
    }

    fn result() -> impl Strategy<Value = Result<usize, Errno>> {
        prop_oneof![
            3 => (1usize..2000).prop_map(Ok),
            1 => Just(Err(Errno::INTR)),
            1 => Just(Err(Errno::CANCELED)),
        ]
    }

    proptest! {
        /// Each write ends once, however calls are cut short and whichever blocks are bad.
        /// Writes of bad blocks end with an error that names them; the others are written.
        #[test]
        fn every_write_ends_once_with_its_own_result(
            lbas in prop::collection::btree_map(0u64..40, any::<bool>(), 0..30),
            bad in prop::collection::vec(0u64..40, 0..4),
            results in prop::collection::vec(result(), 0..20),
            most in 1usize..9,
        ) {
            let device: Arc<str> = "test".into();
            let writes = lbas.iter().rev().map(|(lba, fua)| write(lba + 1, *lba, *fua)).collect();
            let mut script = Script { image: vec![0; 40 * BLOCK], bad, results };
            let mut open = merge(writes, most, 0);
            prop_assert!(open.iter().all(|r| r.writes.len() <= most));
            let mut ends = BTreeMap::new();
            while let Some(request) = open.pop() {
                let durable = request.is_durable();
                prop_assert!(request.writes.iter().all(|write| write.is_durable() == durable));
                let result = script.call(&request);
                match request.after(result, &device) {
                    Next::Again(requests) => open.extend(requests),
                    Next::Finished(done) => for c in done {
                        prop_assert!(ends.insert(c.tag - 1, c.result).is_none());
                    }
                }
            }
            prop_assert!(ends.keys().eq(lbas.keys()));
            for (lba, end) in ends {
                let at = lba as usize * BLOCK;
                let image = &script.image[at..at + BLOCK];
                match end {
                    Ok(()) => prop_assert!(image.iter().all(|b| *b == (lba + 1) as u8)),
                    Err(BlockError::Io { lba: named, .. }) => prop_assert_eq!(named, Lba(lba)),
                    Err(other) => prop_assert!(false, "{}", other),
                }
                prop_assert_eq!(script.bad.contains(&lba), script.image[at] == 0);
            }
        }

        /// Checks that neighbours are never in separate requests.
        #[test]
        fn neighbours_are_merged_into_one_request(lbas in prop::collection::btree_set(0u64..60, 1..60)) {
            let runs = lbas.iter().filter(|lba| **lba == 0 || !lbas.contains(&(**lba - 1))).count();
            let writes = lbas.iter().rev().map(|lba| write(*lba, *lba, false)).collect();
            prop_assert_eq!(merge(writes, 100, 0).len(), runs);
        }
    }

    #[test]
    fn a_call_that_writes_nothing_fails_without_a_retry() {
        let device: Arc<str> = "test".into();
        let request = Request::one(write(1, 1, false), 0);
        let Next::Finished(done) = request.after(Ok(0), &device) else {
            panic!("tried again");
        };
        assert!(done[0].result.is_err());
    }
}
