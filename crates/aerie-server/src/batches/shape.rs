//! The parts of which each operation of a file system consists.
//!
//! The checker of the parts sees to the invariants of storage objects. Here an operation that says one
//! thing and does another is refused, so that a log of operations can be believed.

use super::refusal::{Refusal, Stop};
use super::seeded::{Bug, hit};
use aerie_objects::{Kind, ObjectId, PAGE};
use aerie_proto::batch::{Collection, File, FileOp, Storage};

/// Checks that these are the parts of such an operation.
pub(crate) fn check(op: &FileOp<'_>, parts: &[Storage<'_>]) -> Result<(), Stop> {
    if fits(op, parts) || hit(Bug::ShapeNotChecked) {
        return Ok(());
    }
    let what = format!("{op:?} does not consist of {} such parts", parts.len());
    Err(Refusal::Parts(what).into())
}

fn fits(op: &FileOp<'_>, parts: &[Storage<'_>]) -> bool {
    match (*op, parts) {
        (FileOp::MakeFile { parent, file, name }, [Storage::CreateMFile { file: made }, add]) => {
            *made == file && adds(add, parent, name, file.0)
        }
        (
            FileOp::MakeDirectory {
                parent,
                directory,
                name,
            },
            [Storage::CreateCollection { collection: made }, add],
        ) => *made == directory && adds(add, parent, name, directory.0),
        (FileOp::Link { parent, file, name }, [add]) => adds(add, parent, name, file.0),
        (FileOp::Unlink { parent, name }, [remove, rest @ ..]) => {
            removes(remove, parent, name).is_some_and(|object| deletes(rest, object))
        }
        (
            FileOp::Rename {
                parent,
                new_parent,
                name,
                new_name,
            },
            parts,
        ) => renames(parts, (parent, name), (new_parent, new_name)),
        (FileOp::Write { file, bytes }, [extents @ .., last]) => {
            let (pairs, rest) = extents.as_chunks();
            let is_new = |pair: &[Storage<'_>; 2]| adds_extent(pair, file);
            rest.is_empty() && pairs.iter().all(is_new) && sets_size(last, file, bytes)
        }
        (FileOp::Truncate { file, bytes }, [Storage::CutExtents { file: cut, from }, last]) => {
            *cut == file && *from == bytes.div_ceil(PAGE) && sets_size(last, file, bytes)
        }
        _ => false,
    }
}

fn adds(part: &Storage<'_>, parent: Collection, name: &[u8], object: ObjectId) -> bool {
    let (collection, key) = (parent, name);
    *part
        == Storage::AddObject {
            collection,
            object,
            key,
        }
}

/// The object whose name this part removes.
fn removes(part: &Storage<'_>, parent: Collection, name: &[u8]) -> Option<ObjectId> {
    match *part {
        Storage::RemoveObject {
            collection,
            object,
            key,
        } if collection == parent && key == name => Some(object),
        _ => None,
    }
}

/// Whether these parts delete an object, or do nothing.
fn deletes(parts: &[Storage<'_>], object: ObjectId) -> bool {
    match (object.kind(), parts) {
        (_, []) => true,
        (Kind::MFile, [Storage::DeleteMFile { file }]) => *file == File(object),
        (Kind::Collection, [Storage::DeleteCollection { collection }]) => {
            *collection == Collection(object)
        }
        _ => false,
    }
}

/// Whether these parts remove a name, then another one if something has it, and add that to the object
/// of the first.
fn renames(
    parts: &[Storage<'_>],
    (parent, name): (Collection, &[u8]),
    (new_parent, new_name): (Collection, &[u8]),
) -> bool {
    let [first, replaced @ .., last] = parts else {
        return false;
    };
    let moved = removes(first, parent, name);
    let is_replaced = match replaced {
        [] => true,
        [remove, rest @ ..] => {
            removes(remove, new_parent, new_name).is_some_and(|object| deletes(rest, object))
        }
    };
    is_replaced && moved.is_some_and(|object| adds(last, new_parent, new_name, object))
}

fn adds_extent(pair: &[Storage<'_>; 2], to: File) -> bool {
    match pair {
        [
            Storage::CreateExtent { extent: made },
            Storage::AddExtent { file, extent, .. },
        ] => made == extent && *file == to,
        _ => false,
    }
}

fn sets_size(part: &Storage<'_>, file: File, bytes: u64) -> bool {
    *part == Storage::SetSize { file, bytes }
}
