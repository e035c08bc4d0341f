//! Accepted and refused operations, one rule at a time.

use super::super::{Answer, Authority, Invariant, Refusal, apply};
use super::{
    ALL, AllBut, empty, link, make_directory, make_file, rename, reserved, truncate, unlink,
    unlink_one, whole, write,
};
use aerie_objects::{Kind, ObjectId, Reserve, Store, lookup, page, size};
use aerie_proto::batch::{Builder, Collection, File, FileOp, Malformed, Storage};
use medium::{MemoryPmem, Pmem};
use std::sync::Arc;

/// A store with two directories and two files, and a client's reserve.
struct World {
    store: Store<Arc<MemoryPmem>>,
    reserve: Reserve,
    a: ObjectId,
    b: ObjectId,
    file: ObjectId,
    other: ObjectId,
}

impl World {
    /// `/a`, `/a/b`, `/a/file` of two pages and `/other`.
    fn new() -> Self {
        let store = empty(1 << 20);
        let reserve = store.reserve(20, 20);
        let root = store.root();
        let mut dirs: Vec<_> = reserve.objects(Kind::Collection).collect();
        let mut files: Vec<_> = reserve.objects(Kind::MFile).collect();
        dirs.sort();
        files.sort();
        let (a, b, file, other) = (dirs[0], dirs[1], files[2], files[3]);
        let mut world = Self {
            store,
            reserve,
            a,
            b,
            file,
            other,
        };
        let pages = world.pages(2);
        world.accepts(|batch| {
            make_directory(batch, root, b"a", a, 1);
            make_directory(batch, a, b"b", b, 2);
            make_file(batch, a, b"file", file, 3);
            write(batch, file, 0, &pages, 4);
            make_file(batch, root, b"other", other, 5);
        });
        world
    }

    /// Reserved pages.
    fn pages(&self, count: usize) -> Vec<u64> {
        let mut pages: Vec<_> = self.reserve.pages().collect();
        pages.sort_unstable();
        pages.truncate(count);
        pages
    }

    fn apply(&mut self, authority: &dyn Authority, batch: &Builder) -> Vec<Answer> {
        let answers = apply(&self.store, &mut self.reserve, authority, batch.bytes()).unwrap();
        whole(&self.store, &self.reserve).unwrap();
        answers
    }

    fn accepts(&mut self, build: impl FnOnce(&mut Builder)) {
        let mut batch = Builder::default();
        build(&mut batch);
        for (number, answer) in self.apply(&ALL, &batch) {
            assert_eq!(answer, Ok(()), "operation {number:?}");
        }
    }

    /// Demands that the last operation is refused, and changes nothing. Returns the reason.
    fn refuses(&mut self, build: impl FnOnce(&mut Builder)) -> Refusal {
        let before = self.reserve.clone();
        let mut batch = Builder::default();
        build(&mut batch);
        let (_, answer) = self.apply(&ALL, &batch).pop().unwrap();
        assert_eq!(
            self.reserve, before,
            "the refused operation took from the reserve"
        );
        answer.unwrap_err()
    }

    fn violates(&mut self, invariant: Invariant, build: impl FnOnce(&mut Builder)) {
        let refusal = self.refuses(build);
        let is_it =
            matches!(refusal, Refusal::Violation { invariant: found, .. } if found == invariant);
        assert!(is_it, "{refusal}");
    }

    fn find(&self, directory: ObjectId, name: &[u8]) -> Option<ObjectId> {
        lookup(self.store.memory(), directory, self.store.seed(), name).unwrap()
    }
}

#[test]
fn operations_do_what_they_say() {
    let mut world = World::new();
    let World {
        a, b, file, other, ..
    } = world;
    let root = world.store.root();
    let pages = world.pages(3);
    assert_eq!(world.find(a, b"file"), Some(file));
    assert_eq!(size(world.store.memory(), file).unwrap(), 8192);
    world.accepts(|batch| {
        // A hole, then an extent.
        write(batch, other, 1000, &pages, 1);
        rename(batch, (root, b"other"), (b, b"moved"), other, None, 2);
        link(batch, root, b"link", file, 3);
    });
    assert_eq!(world.find(root, b"other"), None);
    assert_eq!(world.find(b, b"moved"), Some(other));
    assert_eq!(
        page(world.store.memory(), other, 1002).unwrap(),
        Some(pages[2])
    );
    moves_and_removes(world);
}

/// The second half: `/link` and `/a/file` are a file, and `/a/b/moved` is another one.
fn moves_and_removes(mut world: World) {
    let World {
        a, b, file, other, ..
    } = world;
    let root = world.store.root();
    world.accepts(|batch| {
        truncate(batch, other, 1001 * 4096 - 5, 1);
        // The file has another name.
        unlink_one(batch, a, b"file", file, 2);
        rename(batch, (root, b"link"), (b, b"moved"), file, Some(other), 3);
        // Directories, with what is in them.
        rename(batch, (a, b"b"), (root, b"b"), b, None, 4);
        rename(batch, (root, b"a"), (b, b"a"), a, None, 5);
    });
    assert_eq!(world.find(b, b"moved"), Some(file));
    assert_eq!(world.find(b, b"a"), Some(a));
    world.accepts(|batch| {
        unlink(batch, b, b"moved", file, 1);
        unlink(batch, b, b"a", a, 2);
        unlink(batch, root, b"b", b, 3);
    });
    assert_eq!(
        aerie_objects::entries(world.store.memory(), root).unwrap(),
        0
    );
}

#[test]
fn a_refused_operation_leaves_the_others() {
    let mut world = World::new();
    let (root, file) = (world.store.root(), reserved(&world.reserve, Kind::MFile));
    let mut batch = Builder::default();
    make_file(&mut batch, root, b"other", file, 1);
    make_file(&mut batch, root, b"new", file, 2);
    make_file(&mut batch, root, b"again", file, 3);
    let answers = world.apply(&ALL, &batch);
    let numbers: Vec<_> = answers.iter().map(|(number, _)| number.unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3]);
    let results: Vec<_> = answers.iter().map(|(_, answer)| answer.is_ok()).collect();
    assert_eq!(results, [false, true, false]);
    let text = answers[0].1.as_ref().unwrap_err().to_string();
    assert_eq!(text, "invariant 4.6: the collection has the key already");
    assert_eq!(world.find(root, b"new"), Some(file));
}

#[test]
fn changes_need_a_lock_on_each_object() {
    for locked in 0..4 {
        let mut world = World::new();
        let World {
            a, b, file, other, ..
        } = world;
        let root = world.store.root();
        let authority = AllBut(vec![[a, b, file, other][locked]]);
        let mut batch = Builder::default();
        let pages = world.pages(1);
        rename(&mut batch, (a, b"file"), (b, b"moved"), file, None, 1);
        rename(&mut batch, (root, b"other"), (b, b"other"), other, None, 2);
        write(&mut batch, other, 7, &pages, 3);
        let answers = world.apply(&authority, &batch);
        let refused = answers.iter().map(|(_, answer)| answer.is_err());
        let expected = [
            [true, false, false],
            [true, true, false],
            [true, false, false],
            [false, true, true],
        ];
        assert!(refused.eq(expected[locked]), "{answers:?}");
        let text = answers
            .iter()
            .find_map(|(_, answer)| answer.as_ref().err())
            .unwrap()
            .to_string();
        assert!(text.ends_with("no lock of the client covers it"), "{text}");
    }
}

#[test]
fn extents_are_allocated_exactly_if_a_file_has_them() {
    let mut world = World::new();
    let World { file, other, .. } = world;
    let [extent, second] = world.pages(2).try_into().unwrap();
    let used = page(world.store.memory(), file, 0).unwrap().unwrap();
    let write_of = |batch: &mut Builder, parts: &[Storage<'_>]| {
        let bytes = 4096;
        batch.operation(
            &FileOp::Write {
                file: File(other),
                bytes,
            },
            1,
        );
        parts.iter().for_each(|part| batch.storage(part));
        batch.storage(&Storage::SetSize {
            file: File(other),
            bytes,
        });
    };
    let create = |extent| Storage::CreateExtent { extent };
    let add = |extent, index| Storage::AddExtent {
        file: File(other),
        index,
        extent,
    };
    for foreign in [
        used,
        4096,
        0,
        second + 8,
        u64::MAX,
        world.store.root().header(),
    ] {
        let parts = [create(foreign), add(foreign, 0)];
        world.violates(Invariant::ExtentMapped, |batch| write_of(batch, &parts));
    }
    // Twice, in one operation and in another.
    let twice = [
        create(extent),
        add(extent, 0),
        create(extent),
        add(extent, 1),
    ];
    world.violates(Invariant::ExtentMapped, |batch| write_of(batch, &twice));
    let occupied = [
        create(extent),
        add(extent, 5),
        create(second),
        add(second, 5),
    ];
    world.violates(Invariant::Covered, |batch| write_of(batch, &occupied));
    let too_far = [create(extent), add(extent, 1 << 36)];
    world.violates(Invariant::Covered, |batch| write_of(batch, &too_far));
    world.accepts(|batch| write_of(batch, &[create(extent), add(extent, 0)]));
    world.violates(Invariant::ExtentMapped, |batch| {
        write_of(batch, &[create(extent), add(extent, 1)]);
    });
}

#[test]
fn objects_exist_exactly_if_a_collection_has_them() {
    let mut world = World::new();
    let World { a, b, file, .. } = world;
    let root = world.store.root();
    let new = reserved(&world.reserve, Kind::MFile);
    // Used, or not reserved.
    world.violates(Invariant::ObjectLinked, |batch| {
        make_file(batch, root, b"x", file, 1)
    });
    let beside = ObjectId::from_bits((1 << 19) + 2).unwrap();
    world.violates(Invariant::ObjectLinked, |batch| {
        make_file(batch, root, b"x", beside, 1)
    });
    let far = ObjectId::from_bits((1 << 40) + 2).unwrap();
    world.violates(Invariant::ObjectLinked, |batch| {
        make_file(batch, root, b"x", far, 1)
    });
    // A link of what does not exist.
    for missing in [new, far] {
        let refusal = world.refuses(|batch| link(batch, root, b"x", missing, 1));
        assert!(matches!(refusal, Refusal::NoObject(_)), "{refusal}");
    }
    // Orphans: the last name, without the object.
    world.violates(Invariant::NoOrphans, |batch| {
        unlink_one(batch, a, b"file", file, 1)
    });
    // A directory that is not empty.
    world.violates(Invariant::NoOrphans, |batch| {
        unlink(batch, root, b"a", a, 1)
    });
    // A name that leads elsewhere, and one that is not there.
    world.violates(Invariant::Covered, |batch| unlink(batch, a, b"file", b, 1));
    world.violates(Invariant::Covered, |batch| {
        unlink(batch, a, b"nothing", file, 1)
    });
}

/// A client can write to the pages of its files, and so copy the header of a directory there.
#[test]
fn a_header_inside_a_file_is_not_an_object() {
    let mut world = World::new();
    let World { a, b, file, .. } = world;
    let forged = page(world.store.memory(), file, 0).unwrap().unwrap();
    let mut header = [0; aerie_objects::HEADER_BYTES as usize];
    world.store.memory().read(a.header(), &mut header).unwrap();
    world.store.memory().store(forged, &header);
    let forged = ObjectId::from_bits(forged + 1).unwrap();
    let new = reserved(&world.reserve, Kind::MFile);
    let refusal = world.refuses(|batch| make_file(batch, forged, b"new", new, 1));
    assert_eq!(refusal, Refusal::NoObject(forged));
    let refusal = world.refuses(|batch| rename(batch, (a, b"b"), (forged, b"b"), b, None, 1));
    assert_eq!(refusal, Refusal::NoObject(forged));
}

#[test]
fn names_are_unique_and_directories_form_a_tree() {
    let mut world = World::new();
    let World {
        a, b, file, other, ..
    } = world;
    let root = world.store.root();
    world.violates(Invariant::UniqueKeys, |batch| {
        rename(batch, (a, b"file"), (root, b"other"), file, None, 1);
    });
    // Into itself, and below.
    for below in [a, b] {
        world.violates(Invariant::NoCycle, |batch| {
            rename(batch, (root, b"a"), (below, b"x"), a, None, 1);
        });
    }
    // The root has no name that could be removed, and gets none.
    let refusal = world.refuses(|batch| {
        rename(batch, (root, b"other"), (b, b"x"), root, None, 1);
    });
    assert!(matches!(refusal, Refusal::Violation { .. }), "{refusal}");
    assert_eq!(world.find(root, b"other"), Some(other));
}

#[test]
fn the_parts_must_be_those_of_the_operation() {
    let mut world = World::new();
    let World { a, file, other, .. } = world;
    let root = world.store.root();
    let is_parts = |refusal: Refusal| assert!(matches!(refusal, Refusal::Parts(_)), "{refusal}");
    // Says that it makes a file, and removes another one.
    is_parts(world.refuses(|batch| {
        let new = FileOp::MakeFile {
            parent: Collection(root),
            file: File(other),
            name: b"new",
        };
        batch.operation(&new, 1);
        super::remove_parts(batch, a, b"file", file);
    }));
    // Another size, another file, another name, no parts.
    is_parts(world.refuses(|batch| {
        batch.operation(
            &FileOp::Write {
                file: File(file),
                bytes: 5,
            },
            1,
        );
        batch.storage(&Storage::SetSize {
            file: File(file),
            bytes: 6,
        });
    }));
    is_parts(world.refuses(|batch| {
        batch.operation(
            &FileOp::Truncate {
                file: File(file),
                bytes: 0,
            },
            1,
        );
        batch.storage(&Storage::CutExtents {
            file: File(other),
            from: 0,
        });
        batch.storage(&Storage::SetSize {
            file: File(file),
            bytes: 0,
        });
    }));
    is_parts(world.refuses(|batch| {
        batch.operation(
            &FileOp::Unlink {
                parent: Collection(root),
                name: b"other",
            },
            1,
        );
        super::remove_parts(batch, a, b"file", file);
    }));
    is_parts(world.refuses(|batch| {
        batch.operation(
            &FileOp::Unlink {
                parent: Collection(root),
                name: b"other",
            },
            1,
        );
    }));
}

#[test]
fn a_batch_larger_than_the_log_is_applied_in_parts() {
    let mut world = World::new();
    let root = world.store.root();
    // The log of this store takes about 8,000 words, and each of these operations some twenty.
    for round in 0..30 {
        let more = world.store.reserve(0, 100);
        let mut files: Vec<_> = more.objects(Kind::MFile).collect();
        files.sort();
        world.reserve.append(more);
        world.accepts(|batch| {
            for (n, file) in files.iter().enumerate() {
                let name = format!("a file with a name of some length {round} {n}");
                make_file(batch, root, name.as_bytes(), *file, n as u32);
            }
        });
    }
    let names = aerie_objects::list_all(world.store.memory(), root, world.store.seed()).unwrap();
    world.accepts(|batch| {
        for (n, entry) in names.iter().enumerate() {
            if entry.object.kind() == Kind::MFile {
                unlink(batch, root, &entry.key, entry.object, n as u32);
            }
        }
    });
    assert_eq!(
        aerie_objects::entries(world.store.memory(), root).unwrap(),
        1
    );
}

#[test]
fn malformed_operations_are_named() {
    let mut world = World::new();
    let mut batch = Builder::default();
    let new = reserved(&world.reserve, Kind::MFile);
    make_file(&mut batch, world.store.root(), b"new", new, 8);
    let torn = &batch.bytes()[..batch.bytes().len() - 8];
    let answers = apply(&world.store, &mut world.reserve, &ALL, torn).unwrap();
    assert_eq!(answers, [(None, Err(Refusal::Malformed(Malformed::Short)))]);
    assert!(world.reserve.take_object(new).is_some());
}
