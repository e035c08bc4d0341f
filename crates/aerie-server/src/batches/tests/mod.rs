//! Tests.

mod crashes;
mod hostile;
mod requests;

use super::Authority;
use aerie_objects::{Kind, ObjectId, Reserve, Store};
use aerie_proto::batch::{Builder, Collection, File, FileOp, Storage};
use medium::{MemoryPmem, Pmem};
use std::sync::Arc;

/// A client that may change all objects but these.
struct AllBut(Vec<ObjectId>);

impl Authority for AllBut {
    fn may_change(&self, object: ObjectId) -> Result<(), String> {
        match self.0.contains(&object) {
            true => Err("no lock of the client covers it".into()),
            false => Ok(()),
        }
    }
}

const ALL: AllBut = AllBut(Vec::new());

fn empty(bytes: u64) -> Store<Arc<MemoryPmem>> {
    let memory = Arc::new(MemoryPmem::new(bytes));
    aerie_objects::format(&memory, 7).unwrap();
    Store::open(memory).unwrap()
}

/// An object of this kind that the client could make.
fn reserved(reserve: &Reserve, kind: Kind) -> ObjectId {
    reserve
        .objects(kind)
        .min()
        .expect("the reserve has headers")
}

/// Adds the making of a file with these pages to a batch.
fn make_file(batch: &mut Builder, parent: ObjectId, name: &[u8], file: ObjectId, number: u32) {
    let (parent, file) = (Collection(parent), File(file));
    batch.operation(&FileOp::MakeFile { parent, file, name }, number);
    batch.storage(&Storage::CreateMFile { file });
    let (collection, object, key) = (parent, file.0, name);
    batch.storage(&Storage::AddObject {
        collection,
        object,
        key,
    });
}

fn make_directory(batch: &mut Builder, parent: ObjectId, name: &[u8], made: ObjectId, number: u32) {
    let (parent, directory) = (Collection(parent), Collection(made));
    batch.operation(
        &FileOp::MakeDirectory {
            parent,
            directory,
            name,
        },
        number,
    );
    batch.storage(&Storage::CreateCollection {
        collection: directory,
    });
    let (collection, object, key) = (parent, made, name);
    batch.storage(&Storage::AddObject {
        collection,
        object,
        key,
    });
}

/// Adds a write of these pages, from an index on.
fn write(batch: &mut Builder, file: ObjectId, first: u64, pages: &[u64], number: u32) {
    let file = File(file);
    let end = first.wrapping_add(pages.len() as u64);
    let bytes = end.wrapping_mul(aerie_objects::PAGE);
    batch.operation(&FileOp::Write { file, bytes }, number);
    for (n, extent) in pages.iter().copied().enumerate() {
        let index = first.wrapping_add(n as u64);
        batch.storage(&Storage::CreateExtent { extent });
        batch.storage(&Storage::AddExtent {
            file,
            index,
            extent,
        });
    }
    batch.storage(&Storage::SetSize { file, bytes });
}

/// Adds the parts that remove a name and delete its object, which has no other.
fn remove_parts(batch: &mut Builder, parent: ObjectId, key: &[u8], object: ObjectId) {
    let collection = Collection(parent);
    batch.storage(&Storage::RemoveObject {
        collection,
        object,
        key,
    });
    match object.kind() {
        Kind::MFile => {
            let file = File(object);
            batch.storage(&Storage::DeleteMFile { file });
        }
        Kind::Collection => {
            let collection = Collection(object);
            batch.storage(&Storage::DeleteCollection { collection });
        }
    }
}

fn unlink(batch: &mut Builder, parent: ObjectId, name: &[u8], object: ObjectId, number: u32) {
    batch.operation(
        &FileOp::Unlink {
            parent: Collection(parent),
            name,
        },
        number,
    );
    remove_parts(batch, parent, name, object);
}

/// Adds the removal of one name of several.
fn unlink_one(batch: &mut Builder, parent: ObjectId, name: &[u8], object: ObjectId, number: u32) {
    let parent = Collection(parent);
    batch.operation(&FileOp::Unlink { parent, name }, number);
    let (collection, key) = (parent, name);
    batch.storage(&Storage::RemoveObject {
        collection,
        object,
        key,
    });
}

fn link(batch: &mut Builder, parent: ObjectId, name: &[u8], file: ObjectId, number: u32) {
    let (parent, object) = (Collection(parent), file);
    batch.operation(
        &FileOp::Link {
            parent,
            file: File(file),
            name,
        },
        number,
    );
    let (collection, key) = (parent, name);
    batch.storage(&Storage::AddObject {
        collection,
        object,
        key,
    });
}

fn truncate(batch: &mut Builder, file: ObjectId, bytes: u64, number: u32) {
    let (file, from) = (File(file), bytes.div_ceil(aerie_objects::PAGE));
    batch.operation(&FileOp::Truncate { file, bytes }, number);
    batch.storage(&Storage::CutExtents { file, from });
    batch.storage(&Storage::SetSize { file, bytes });
}

/// A directory, and a name in it.
type Place<'a> = (ObjectId, &'a [u8]);

/// Adds a rename, which replaces `replaced`.
fn rename(
    batch: &mut Builder,
    (from, name): Place<'_>,
    (to, new_name): Place<'_>,
    object: ObjectId,
    replaced: Option<ObjectId>,
    number: u32,
) {
    let (parent, new_parent) = (Collection(from), Collection(to));
    batch.operation(
        &FileOp::Rename {
            parent,
            new_parent,
            name,
            new_name,
        },
        number,
    );
    batch.storage(&Storage::RemoveObject {
        collection: parent,
        object,
        key: name,
    });
    if let Some(replaced) = replaced {
        remove_parts(batch, to, new_name, replaced);
    }
    batch.storage(&Storage::AddObject {
        collection: new_parent,
        object,
        key: new_name,
    });
}

/// Demands that the checker finds nothing, that nothing in the reserve is used, and that nothing else
/// is lost.
fn whole<P: Pmem + Clone>(store: &Store<P>, reserve: &Reserve) -> Result<(), String> {
    let report = aerie_objects::check(store.memory());
    if let Some(finding) = report.findings.first() {
        return Err(finding.to_string());
    }
    let again = Store::open(store.memory().clone()).map_err(|error| error.to_string())?;
    let reserved = reserve.pages().count() as u64;
    let all = again.free_pages();
    let free = again.reserve(usize::MAX, 0);
    let mut free: Vec<u64> = free.pages().collect();
    free.sort_unstable();
    if reserve
        .pages()
        .any(|page| free.binary_search(&page).is_err())
    {
        return Err("a reserved page is used".into());
    }
    // Reserved headers may have pages of their own, which a new start finds free.
    let known = store.free_pages() + reserved;
    let headers = reserve
        .objects(Kind::MFile)
        .map(|object| object.header() / aerie_objects::PAGE);
    let pages = headers.collect::<std::collections::BTreeSet<_>>().len() as u64;
    match (known..=known + pages).contains(&all) {
        true => Ok(()),
        false => Err(format!("{all} pages are free, and {known} are known to be")),
    }
}
