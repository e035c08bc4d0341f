//! The list of engines. Commands, benchmarks and the explorer's command line read it, and name
//! no engine themselves.
//!
//! # Adding an engine
//! Its crate implements [`Engine`]. This crate depends on it, and `BUILT_IN` gets a line.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod model;

pub use engine::Engine;
pub use model::ModelEngine;

use std::path::Path;
use std::sync::OnceLock;

/// The engines of this program. The first is the default of `mkfs`, and the engine of an unknown
/// image.
const BUILT_IN: &[&dyn Engine] = &[
    &bpfs::BpfsEngine,
    &soupfs::SoupEngine,
    &aerie::PxfsEngine,
    &ext2::Ext2Engine,
    &wholedisk::WholeDiskEngine,
    &ModelEngine,
];

static ALL: OnceLock<Vec<&'static dyn Engine>> = OnceLock::new();

/// All engines, the default first.
pub fn all() -> &'static [&'static dyn Engine] {
    ALL.get_or_init(|| BUILT_IN.to_vec())
}

/// Appends a further engine, for a test, before the first use of the list.
///
/// # Panics
/// If the list was read already.
pub fn add(engine: &'static dyn Engine) {
    let longer = BUILT_IN.iter().copied().chain([engine]).collect();
    assert!(ALL.set(longer).is_ok(), "the list is read already");
}

/// The engine that is taken if none is named.
pub fn default() -> &'static dyn Engine {
    all()[0]
}

/// The engine of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Engine> {
    all().iter().copied().find(|engine| engine.name() == name)
}

/// The engines that have images.
pub fn with_images() -> impl Iterator<Item = &'static dyn Engine> {
    all()
        .iter()
        .copied()
        .filter(|engine| engine.magic().is_some())
}

/// The engine of an image's format, or of a directory.
///
/// # Errors
/// If the image cannot be read.
pub fn of_image(path: &Path, offset_bytes: u64) -> std::io::Result<Option<&'static dyn Engine>> {
    if let Some(found) = all().iter().find(|engine| engine.is_directory(path)) {
        return Ok(Some(*found));
    }
    Ok(match engine::magic::find(all(), path, offset_bytes)? {
        Some(engine::magic::Held::Engine(engine)) => Some(engine),
        Some(engine::magic::Held::Foreign(_)) | None => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Scratch, ScratchKind, ScratchOptions, Verb};
    use medium::MemoryPmem;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use vfs::{Ctx, Errno, FileSystem, Ino, Name, NewNode};

    #[test]
    fn names_and_magic_numbers_are_unique() {
        let names: BTreeSet<&str> = all().iter().map(|engine| engine.name()).collect();
        assert_eq!(names.len(), all().len());
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        assert!(names.iter().all(|name| name.chars().all(is_plain)));
        let marks: Vec<_> = all().iter().filter_map(|engine| engine.magic()).collect();
        for (i, mark) in marks.iter().enumerate() {
            let is_other =
                |other: &engine::Magic| (other.offset, other.bytes) != (mark.offset, mark.bytes);
            assert!(marks[i + 1..].iter().all(is_other));
        }
    }

    #[test]
    fn every_option_has_a_long_name_and_a_help_text() {
        for engine in all() {
            for verb in [
                Verb::Mkfs,
                Verb::Mount,
                Verb::Fsck,
                Verb::CrashTest,
                Verb::Graph,
                Verb::Serve,
            ] {
                engine.options(verb).debug_assert();
                for arg in engine.options(verb).get_arguments() {
                    assert!(
                        arg.get_long().is_some() && arg.get_help().is_some(),
                        "{arg:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_mode_has_its_promises() {
        for engine in all() {
            let promised = engine.guarantees().unwrap();
            assert_eq!(
                promised.len(),
                engine.modes().len().max(1),
                "{}",
                engine.name()
            );
        }
    }

    #[test]
    fn subjects_have_ids_of_their_own() {
        let subjects = all().iter().flat_map(|engine| engine.subjects());
        let ids: Vec<String> = subjects.map(|subject| subject.id()).collect();
        assert!(!ids.is_empty());
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    }

    /// Each engine of files in memory, in each mode.
    fn each_fresh(mut test: impl FnMut(&str, &dyn FileSystem)) {
        let mut tested = 0;
        for engine in all() {
            let Some(kind) = engine.scratch() else {
                continue;
            };
            let modes: Vec<_> = engine.modes().into_iter().map(Some).collect();
            let modes = if modes.is_empty() { vec![None] } else { modes };
            for mode in modes {
                let scratch = match kind {
                    ScratchKind::Own => Scratch::Own,
                    ScratchKind::Memory => Scratch::Any(Arc::new(MemoryPmem::new(64 << 20))),
                };
                let options = ScratchOptions {
                    mode,
                    writes_back_alone: false,
                    ..ScratchOptions::default()
                };
                let fs = engine.fresh(scratch, &options).unwrap();
                test(&format!("{} {mode:?}", engine.name()), &*fs);
                tested += 1;
            }
        }
        assert!(tested > 10, "{tested}");
    }

    /// File handles outlive the inodes. No matter what the engine has still to do for a removed inode, its number
    /// finds nothing; and a name that comes then, and may get the number, is not found by the old handle.
    #[test]
    fn a_removed_inode_is_not_found_by_its_number() {
        let (cx, root) = (Ctx::root(), Ino::ROOT);
        each_fresh(|engine, fs| {
            let kinds = [
                NewNode::file(0o644),
                NewNode::directory(0o755),
                NewNode::symlink(b"target").unwrap(),
            ];
            for new in kinds {
                for is_synced in [false, true] {
                    let sync = || is_synced.then(|| fs.sync().unwrap());
                    let made = fs.make(&cx, Name::new(root, b"name"), &new).unwrap();
                    sync();
                    match new.is_directory() {
                        true => fs.rmdir(&cx, root, b"name").unwrap(),
                        false => fs.unlink(&cx, root, b"name").unwrap(),
                    }
                    sync();
                    // Still referenced.
                    assert_eq!(fs.by_number(made.ino).unwrap().kind, made.kind, "{engine}");
                    fs.forget(made.ino, 2);
                    let found = fs.by_number(made.ino).map(|attr| attr.nlink);
                    assert_eq!(found, Err(Errno::STALE), "{engine}, {:?}", made.kind);
                    let next = fs.create(&cx, root, b"next", 0o600).unwrap();
                    let is_other = (next.ino, next.generation) != (made.ino, made.generation);
                    assert!(is_other, "{engine}, {:?}", made.kind);
                    fs.unlink(&cx, root, b"next").unwrap();
                    fs.forget(next.ino, 1);
                }
            }
        });
    }
}
