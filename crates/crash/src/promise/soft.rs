//! Soft updates, on any medium (the rules U1 to U5 of `blockfs::BlockFs`). The file system is
//! usable without recovery. The worst damage is leaks, and link counts that are too high.
//!
//! *Allowed states* are those from the last sync to the newest. For an inode that was synced by
//! itself they are the states since then; an `fdatasync` covers all but the times. The
//! attributes, names and data of a recovered inode must be those of one file:
//!
//! - S1. A name leads to an inode that it led to in an allowed state. It may be missing only if
//!   it was missing in one of them (U1, U4).
//! - S2. Generation, kind, owner, mode, times, attributes and target are each those of an allowed
//!   state. The size lies between the least and the greatest.
//! - S3. Each byte of data is that of an allowed state, zero where there was none (U2). If blocks
//!   change as a whole, all bytes of a block are those of one state.
//! - S4. The link count is at least the number of names (U3).
//! - S5. A file that had a name in all allowed states, or since it was synced, has one (U4, U5).
//! - S6. A directory has at most two names (U4).

use super::{Floors, Window};
use crate::handles::FileId;
use crate::past::Known;
use crate::world::{Inode, PIECE, Pieces, World};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use vfs::{Attr, FileSystem, FileType, Ino, Timestamp};

pub(super) fn judge(window: &Window<'_>, fs: &dyn FileSystem) -> Result<(), String> {
    let block_bytes = match window.promise.whole_blocks {
        true => Some(fs.statfs().map_err(|e| format!("statfs: {e}"))?.block_bytes),
        false => None,
    };
    let allowed = Allowed {
        block_bytes: block_bytes.map(u64::from),
        states: window.past.iter().map(|past| &past.known).collect(),
        floors: window.floors,
        newest: window.newest,
    };
    allowed.check(&World::read(fs)?)
}

/// The allowed states.
struct Allowed<'a> {
    /// All states, from before the first operation on.
    states: Vec<&'a Known>,
    floors: &'a Floors,
    newest: usize,
    /// Bytes of the blocks that change as a whole.
    block_bytes: Option<u64>,
}

/// One file in the states in which it may be found.
struct Candidate<'a> {
    file: FileId,
    /// The allowed states that have it, each with its inode.
    forms: Vec<(&'a Known, &'a Inode)>,
    /// The states in which its times are allowed.
    timed: Vec<(&'a Known, &'a Inode)>,
    /// Whether it did not exist in the oldest allowed state.
    born: bool,
}

impl Allowed<'_> {
    fn oldest(&self, file: FileId) -> usize {
        self.since(&self.floors.files, file)
    }

    fn since(&self, floors: &BTreeMap<FileId, usize>, file: FileId) -> usize {
        let own = floors.get(&file).copied().unwrap_or(0);
        own.max(self.floors.all)
    }

    fn check(&self, seen: &World) -> Result<(), String> {
        let links = seen.links();
        let mut found = BTreeSet::new();
        for (ino, inode) in &seen.nodes {
            let mut wrong = format!("inode {ino} has a name, and never had one");
            let mut fits = |candidate: &Candidate<'_>| {
                let fit = candidate
                    .fits(inode)
                    .and_then(|()| candidate.blocks_fit(inode, self.block_bytes))
                    .and_then(|()| self.names_fit(candidate, *ino, seen));
                match fit {
                    Ok(()) => true,
                    Err(e) => {
                        wrong = format!("inode {ino}: {e}");
                        false
                    }
                }
            };
            let Some(candidate) = self.candidates(*ino).into_iter().find(|c| fits(c)) else {
                return Err(wrong);
            };
            found.insert(candidate.file);
            let (nlink, names) = (inode.attr.nlink, links[ino]);
            if nlink < names {
                return Err(format!("inode {ino} has {nlink} links and {names} names"));
            }
            let named = |names: &BTreeMap<_, Ino>| names.values().filter(|i| *i == ino).count();
            let names: usize = seen.names.values().map(named).sum();
            if inode.attr.kind == FileType::Directory && names > 2 {
                return Err(format!("inode {ino}, a directory, has {names} names"));
            }
        }
        self.nothing_lost(&found)
    }

    /// The files that an inode number may lead to, with their states.
    fn candidates(&self, ino: Ino) -> Vec<Candidate<'_>> {
        let window = &self.states[self.floors.all..=self.newest];
        let files: BTreeSet<FileId> = window
            .iter()
            .filter_map(|s| s.files.get(&ino))
            .copied()
            .collect();
        let candidate = |file: FileId| {
            let is_it = |s: &&&Known| s.files.get(&ino) == Some(&file);
            let forms = |from: usize| -> Vec<(&Known, &Inode)> {
                let window = self.states[from..=self.newest].iter().filter(is_it);
                window.map(|s| (*s, &s.world.nodes[&ino])).collect()
            };
            let oldest = self.oldest(file);
            Candidate {
                file,
                forms: forms(oldest),
                timed: forms(self.since(&self.floors.times, file)),
                born: !is_it(&&self.states[oldest]),
            }
        };
        let all = files.into_iter().map(candidate);
        all.filter(|c| !c.forms.is_empty()).collect()
    }

    /// S1.
    fn names_fit(&self, dir: &Candidate<'_>, ino: Ino, seen: &World) -> Result<(), String> {
        let Some(names) = seen.names.get(&ino) else {
            return Ok(());
        };
        let none = BTreeMap::new();
        let then: Vec<&BTreeMap<Vec<u8>, Ino>> = (dir.forms.iter())
            .map(|(state, _)| state.world.names.get(&ino).unwrap_or(&none))
            .collect();
        for (name, target) in names {
            if !then.iter().any(|names| names.get(name) == Some(target)) {
                let name = name.escape_ascii();
                return Err(format!("the name {name} never meant inode {target}"));
            }
        }
        let (first, rest) = then.split_first().ok_or("no state")?;
        for name in first.keys().filter(|name| !names.contains_key(*name)) {
            if !dir.born && rest.iter().all(|names| names.contains_key(name)) {
                return Err(format!("the name {} is gone", name.escape_ascii()));
            }
        }
        Ok(())
    }

    /// S5.
    fn nothing_lost(&self, found: &BTreeSet<FileId>) -> Result<(), String> {
        let window = &self.states[self.floors.all..=self.newest];
        let named = |state: &&Known| state.files.values().copied().collect::<BTreeSet<FileId>>();
        let mut always = window.iter().map(named);
        let Some(first) = always.next() else {
            return Ok(());
        };
        let always = always.fold(first, |all, now| &all & &now);
        if let Some(file) = always.difference(found).next() {
            return Err(format!("file {file} has lost its last name"));
        }
        let is_kept = |file: FileId| {
            let since = &self.states[self.oldest(file)..=self.newest];
            since.iter().all(|s| s.files.values().any(|f| *f == file))
        };
        let mut synced = self.floors.files.keys().copied();
        match synced.find(|file| !found.contains(file) && is_kept(*file)) {
            None => Ok(()),
            Some(file) => Err(format!("file {file}, which was synced, has no name")),
        }
    }
}

impl Candidate<'_> {
    /// S2 and S3.
    fn fits(&self, seen: &Inode) -> Result<(), String> {
        let inodes = || self.forms.iter().map(|(_, inode)| *inode);
        let one_of = |what: &str, of: fn(&Attr) -> u32| match inodes()
            .any(|i| of(&i.attr) == of(&seen.attr))
        {
            true => Ok(()),
            false => Err(format!("its {what} is {:o}", of(&seen.attr))),
        };
        let generation = seen.attr.generation;
        if !inodes().any(|i| i.attr.generation == generation) {
            return Err(format!("its generation is {generation}"));
        }
        one_of("kind", |a| a.kind.mode_bits())?;
        one_of("mode", |a| a.perm)?;
        one_of("owner", |a| a.uid)?;
        one_of("group", |a| a.gid)?;
        one_of("device number", |a| a.rdev)?;
        self.times_fit(&seen.attr)?;
        if seen.attr.kind == FileType::Regular {
            let sizes = || inodes().map(|i| i.attr.size);
            let least = sizes().min().filter(|_| !self.born).unwrap_or(0);
            let size = seen.attr.size;
            if size < least || Some(size) > sizes().max() {
                return Err(format!("its size is {size}"));
            }
        }
        if !inodes().any(|i| i.target == seen.target) {
            return Err("its target is another".to_string());
        }
        let bare = self.born && seen.xattrs.is_empty();
        if !bare && !inodes().any(|i| i.xattrs == seen.xattrs) {
            return Err("its attributes are neither old nor new".to_string());
        }
        let data: Vec<&Pieces> = inodes().map(|i| &i.data).collect();
        bytes_fit(&seen.data, &data, self.born)
    }

    /// The second part of S3. A size that is older or newer than a block hides a part of it.
    fn blocks_fit(&self, seen: &Inode, block_bytes: Option<u64>) -> Result<(), String> {
        let Some(bytes) = block_bytes else {
            return Ok(());
        };
        let none = Pieces::new();
        let then = self.forms.iter().map(|(_, inode)| &inode.data);
        let then: Vec<&Pieces> = then.chain(self.born.then_some(&none)).collect();
        let size = seen.attr.size;
        let pieces = then.iter().flat_map(|then| then.keys());
        let blocks: BTreeSet<u64> = pieces.map(|piece| piece * PIECE / bytes).collect();
        let mut blocks = blocks.into_iter().filter(|block| block * bytes < size);
        let torn = blocks.find(|block| {
            let range = block * bytes..size.min((block + 1) * bytes);
            let now = bytes_of(&seen.data, range.clone());
            !then.iter().any(|then| bytes_of(then, range.clone()) == now)
        });
        match torn {
            None => Ok(()),
            Some(block) => Err(format!("block {block} of its data is of several states")),
        }
    }

    fn times_fit(&self, seen: &Attr) -> Result<(), String> {
        let is = |what: &str, of: fn(&Attr) -> Timestamp| {
            let mut timed = self.timed.iter();
            match timed.any(|(s, i)| of(&i.attr) == of(seen) || s.at == of(seen)) {
                true => Ok(()),
                false => Err(format!("its {what} is {}", of(seen).0)),
            }
        };
        is("atime", |a| a.atime)?;
        is("mtime", |a| a.mtime)?;
        is("ctime", |a| a.ctime)
    }
}

/// The bytes of a range, which starts at a piece.
fn bytes_of(pieces: &Pieces, range: Range<u64>) -> Vec<u8> {
    let zeros = vec![0; PIECE as usize];
    let numbers = range.start / PIECE..range.end.div_ceil(PIECE);
    let mut bytes: Vec<u8> = numbers
        .flat_map(|number| pieces.get(&number).unwrap_or(&zeros).iter().copied())
        .collect();
    bytes.truncate((range.end - range.start) as usize);
    bytes
}

/// Whether each byte is as in one of `then`, or zero if `born`.
pub(super) fn bytes_fit(seen: &Pieces, then: &[&Pieces], born: bool) -> Result<(), String> {
    let numbers = seen
        .keys()
        .chain(then.iter().flat_map(|pieces| pieces.keys()));
    let numbers: BTreeSet<u64> = numbers.copied().collect();
    let zeros = vec![0; PIECE as usize];
    for number in numbers {
        let of = |pieces: &'_ &Pieces| pieces.get(&number).cloned();
        let now = seen.get(&number).unwrap_or(&zeros);
        let mut then: Vec<Vec<u8>> = then
            .iter()
            .map(|pieces| of(pieces).unwrap_or_else(|| zeros.clone()))
            .collect();
        if then.iter().any(|bytes| bytes == now) {
            continue;
        }
        if born {
            then.push(zeros.clone());
        }
        let strange = |at: &usize| !then.iter().any(|bytes| bytes[*at] == now[*at]);
        if let Some(at) = (0..now.len()).find(strange) {
            let off = number * PIECE + at as u64;
            return Err(format!("byte {off} of its data was never {:#04x}", now[at]));
        }
    }
    Ok(())
}
