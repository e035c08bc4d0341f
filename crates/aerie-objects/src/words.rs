//! The words that a transaction has changed, and not stored yet. They are kept by lines, since those of an object's header
//! are read and changed together.

use hashbrown::HashMap;
use medium::{LINE_BYTES, WORD_BYTES};

/// Words of a line.
const LINE: usize = (LINE_BYTES / WORD_BYTES) as usize;

/// A line with changed words.
#[derive(Default)]
struct Line {
    /// The words that are changed.
    changed: u8,
    words: [u64; LINE],
}
const _: () = assert!(LINE == u8::BITS as usize);

impl Line {
    fn has(&self, word: usize) -> bool {
        self.changed & 1 << word != 0
    }
}

/// Changed words, by their byte offsets.
#[derive(Default)]
pub(crate) struct Words {
    lines: HashMap<u64, Line>,
    count: usize,
}

/// The line of a word, and its place there.
fn place(off: u64) -> (u64, usize) {
    (off / LINE_BYTES, (off % LINE_BYTES / WORD_BYTES) as usize)
}

impl Words {
    /// Number of changed words.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Lines for which there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.lines.capacity()
    }

    /// The word at this offset, if it is changed.
    pub(crate) fn get(&self, off: u64) -> Option<u64> {
        let (line, word) = place(off);
        let line = self.lines.get(&line).filter(|line| line.has(word))?;
        Some(line.words[word])
    }

    /// Replaces those of `words`, which begin at byte `off`, that are changed.
    pub(crate) fn replace(&self, off: u64, words: &mut [u64]) {
        let mut at = off;
        let mut rest = words;
        while !rest.is_empty() && !self.is_empty() {
            let (line, first) = place(at);
            let (part, more) = rest.split_at_mut(rest.len().min(LINE - first));
            if let Some(line) = self.lines.get(&line) {
                let changed = (first..)
                    .zip(&mut *part)
                    .filter(|(word, _)| line.has(*word));
                changed.for_each(|(word, to)| *to = line.words[word]);
            }
            at += part.len() as u64 * WORD_BYTES;
            rest = more;
        }
    }

    /// Changes a word. Returns what it was changed to before.
    pub(crate) fn insert(&mut self, off: u64, value: u64) -> Option<u64> {
        let (line, word) = place(off);
        let line = self.lines.entry(line).or_default();
        let old = line.has(word).then_some(line.words[word]);
        line.changed |= 1 << word;
        line.words[word] = value;
        self.count += usize::from(old.is_none());
        old
    }

    /// Undoes all changes of a word.
    pub(crate) fn remove(&mut self, off: u64) {
        let (number, word) = place(off);
        let Some(line) = self.lines.get_mut(&number).filter(|line| line.has(word)) else {
            return;
        };
        line.changed &= !(1 << word);
        if line.changed == 0 {
            self.lines.remove(&number);
        }
        self.count -= 1;
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.count = 0;
    }

    /// Returns the words in the order of their offsets, and forgets them.
    pub(crate) fn take(&mut self) -> Vec<(u64, u64)> {
        let mut lines: Vec<(u64, Line)> = self.lines.drain().collect();
        lines.sort_unstable_by_key(|(number, _)| *number);
        let mut words = Vec::with_capacity(self.count);
        self.count = 0;
        for (number, line) in &lines {
            let changed = (0..LINE).filter(|word| line.has(*word));
            let at = |word: usize| number * LINE_BYTES + word as u64 * WORD_BYTES;
            words.extend(changed.map(|word| (at(word), line.words[word])));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn words_are_a_map(steps in prop::collection::vec((0..3_u8, 0..40_u64, any::<u64>()), 0..200)) {
            let (mut words, mut map) = (Words::default(), BTreeMap::new());
            for (step, number, value) in steps {
                let off = number * WORD_BYTES;
                match step {
                    0 => {
                        words.remove(off);
                        map.remove(&off);
                    }
                    _ => assert_eq!(words.insert(off, value), map.insert(off, value)),
                }
                assert_eq!((words.len(), words.is_empty()), (map.len(), map.is_empty()));
                assert_eq!(words.get(off), map.get(&off).copied());
            }
            for first in [0, 3, 8] {
                let mut loaded = [7; 32];
                words.replace(first * WORD_BYTES, &mut loaded);
                for (n, loaded) in (first..).zip(loaded) {
                    assert_eq!(loaded, map.get(&(n * WORD_BYTES)).copied().unwrap_or(7));
                }
            }
            assert_eq!(words.take(), map.into_iter().collect::<Vec<_>>());
            assert!(words.is_empty() && words.take().is_empty());
        }
    }
}
