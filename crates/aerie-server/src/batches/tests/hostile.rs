//! A client that sends anything: no panic, no damage, and no change of what it may not change.

use super::super::apply::{Shape, apply, apply_by};
use super::super::seeded::{Bug, arm, fired};
use super::super::shape;
use super::{
    AllBut, empty, link, make_directory, make_file, rename, truncate, unlink, unlink_one, whole,
    write,
};
use aerie_objects::{Kind, ObjectId, Reserve, Store, entries, list_all, pages, size};
use aerie_proto::batch::{Builder, Collection, File, FileOp, Storage};
use fastrand::Rng;
use medium::{MemoryPmem, Pmem};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Memory = Arc<MemoryPmem>;

/// A store with a hostile client.
struct World {
    store: Store<Memory>,
    reserve: Reserve,
    /// Objects of others, with their names.
    guarded: Vec<ObjectId>,
    rng: Rng,
}

/// The client writes copies of the header of an object into its pages.
fn forge(store: &Store<Memory>, reserve: &Reserve, model: ObjectId) {
    let mut header = [0; aerie_objects::HEADER_BYTES as usize];
    store.memory().read(model.header(), &mut header).unwrap();
    for page in reserve.pages() {
        store.memory().store(page, &header);
    }
}

const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"mine", b"yours"];

impl World {
    fn new(seed: u64) -> Self {
        let store = empty(1 << 19);
        let root = store.root();
        let mut reserve = store.reserve(6, 12);
        let mut dirs: Vec<_> = reserve.objects(Kind::Collection).collect();
        let mut files: Vec<_> = reserve.objects(Kind::MFile).collect();
        let mut free: Vec<_> = reserve.pages().collect();
        dirs.sort();
        files.sort();
        free.sort_unstable();
        let mut batch = Builder::default();
        make_directory(&mut batch, root, b"yours", dirs[0], 0);
        make_file(&mut batch, dirs[0], b"a", files[1], 0);
        write(&mut batch, files[1], 0, &free[..2], 0);
        make_directory(&mut batch, root, b"mine", dirs[2], 0);
        make_file(&mut batch, dirs[2], b"a", files[3], 0);
        let answers = apply(&store, &mut reserve, &super::ALL, batch.bytes()).unwrap();
        assert!(answers.iter().all(|(_, answer)| answer.is_ok()));
        let guarded = vec![dirs[0], files[1]];
        forge(&store, &reserve, dirs[0]);
        let rng = Rng::with_seed(seed);
        Self {
            store,
            reserve,
            guarded,
            rng,
        }
    }

    /// All objects that exist, some that could, and some that could not.
    fn universe(&self) -> Vec<ObjectId> {
        let memory = self.store.memory();
        let mut found = vec![self.store.root(), self.store.superblock().open];
        let mut next = 0;
        while let Some(object) = found.get(next).copied() {
            next += 1;
            if object.kind() == Kind::Collection && found.len() < 100 {
                let listed = list_all(memory, object, self.store.seed()).unwrap_or_default();
                found.extend(listed.into_iter().map(|entry| entry.object));
            }
        }
        found.extend(self.reserve.objects(Kind::MFile).take(3));
        found.extend(self.reserve.objects(Kind::Collection).take(3));
        found.extend(
            [(1 << 18) + 1, (1 << 18) + 130, (1 << 45) + 2]
                .map(|bits| ObjectId::from_bits(bits).expect("these are ids")),
        );
        found
    }

    fn any<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.rng.usize(..all.len())]
    }

    fn object(&mut self, kind: Kind) -> ObjectId {
        let of_kind = |id: &ObjectId| id.kind() == kind;
        let all: Vec<_> = self.universe().into_iter().filter(of_kind).collect();
        self.any(&all)
    }

    fn extent(&mut self) -> u64 {
        let reserved: Vec<_> = self.reserve.pages().collect();
        match self.rng.u32(..4) {
            0 => self.any(&[0, 4096, 8, 1 << 18, u64::MAX, 1 << 40]),
            1 => self.rng.u64(..128) * 4096,
            _ if reserved.is_empty() => 12,
            _ => self.any(&reserved),
        }
    }

    /// The parts of one operation, more often than not those that belong to it.
    fn operation(&mut self, batch: &mut Builder) {
        let (name, new_name) = (self.any(&NAMES), self.any(&NAMES));
        let [dir, other] = [(); 2].map(|()| self.object(Kind::Collection));
        let file = self.object(Kind::MFile);
        let find = |dir, name| {
            aerie_objects::lookup(self.store.memory(), dir, self.store.seed(), name)
                .ok()
                .flatten()
        };
        let (found, replaced) = (find(dir, name), find(other, new_name));
        let any = self.any(&[file, dir, other]);
        let found = found.filter(|_| self.rng.u32(..4) > 0).unwrap_or(any);
        match self.rng.u32(..10) {
            0 => make_file(batch, dir, name, file, 1),
            1 => make_directory(batch, dir, name, other, 1),
            2 => unlink(batch, dir, name, found, 1),
            3 => rename(batch, (dir, name), (other, new_name), found, replaced, 1),
            4 => {
                let extents: Vec<_> = (0..self.rng.usize(..4)).map(|_| self.extent()).collect();
                let first = self.any(&[0, 1, 600, 1 << 36, u64::MAX - 9]);
                write(batch, file, first, &extents, 1);
            }
            5 => {
                let bytes = self.any(&[0, 1, 4096, 1 << 48, u64::MAX]);
                truncate(batch, file, bytes, 1);
            }
            6 => link(batch, dir, name, file, 1),
            7 => unlink_one(batch, dir, name, found, 1),
            _ => {
                batch.operation(
                    &FileOp::Unlink {
                        parent: Collection(dir),
                        name,
                    },
                    1,
                );
                for _ in 0..self.rng.usize(..5) {
                    let part = self.part(name);
                    batch.storage(&part);
                }
            }
        }
    }

    fn part<'a>(&mut self, key: &'a [u8]) -> Storage<'a> {
        let (extent, index) = (self.extent(), self.rng.u64(..3));
        let (file, collection) = (self.object(Kind::MFile), self.object(Kind::Collection));
        let object = self.any(&[file, collection]);
        let (file, collection) = (File(file), Collection(collection));
        match self.rng.u32(..12) {
            0 => Storage::CreateExtent { extent },
            1 => Storage::DeleteExtent { extent },
            2 => Storage::CreateMFile { file },
            3 => Storage::DeleteMFile { file },
            4 => Storage::AddExtent {
                file,
                index,
                extent,
            },
            5 => Storage::RemoveExtent {
                file,
                index,
                extent,
            },
            6 => Storage::CutExtents { file, from: index },
            7 => Storage::SetSize { file, bytes: index },
            8 => Storage::CreateCollection { collection },
            9 => Storage::DeleteCollection { collection },
            10 => Storage::AddObject {
                collection,
                object,
                key,
            },
            _ => Storage::RemoveObject {
                collection,
                object,
                key,
            },
        }
    }

    /// All that the client may not change.
    fn guarded(&self) -> String {
        let memory = self.store.memory();
        let [dir, file] = self.guarded[..] else {
            unreachable!("two objects are guarded")
        };
        let listed = list_all(memory, dir, self.store.seed()).unwrap();
        let file = (size(memory, file).unwrap(), pages(memory, file).unwrap());
        format!("{listed:?} {file:?} {}", entries(memory, dir).unwrap())
    }

    /// Sends a few batches.
    fn attack(&mut self, shape: Shape) -> Result<(), String> {
        let authority = AllBut(
            self.guarded
                .iter()
                .copied()
                .chain([self.store.superblock().open])
                .collect(),
        );
        for _ in 0..6 {
            let before = self.guarded();
            let mut batch = Builder::default();
            for _ in 0..self.rng.usize(1..4) {
                self.operation(&mut batch);
            }
            let mut bytes = batch.bytes().to_vec();
            if self.rng.u32(..4) == 0 {
                let at = self.rng.usize(..bytes.len());
                bytes[at] = self.rng.u8(..);
            }
            let done = apply_by(shape, &self.store, &mut self.reserve, &authority, &bytes);
            done.map_err(|error| error.to_string())?;
            whole(&self.store, &self.reserve)?;
            if self.guarded() != before {
                return Err("a guarded object has changed".into());
            }
        }
        Ok(())
    }
}

/// No check of shapes, which hides the rules of parts.
const ANY: Shape = |_, _| Ok(());

/// The failures of attacks with these seeds.
fn failures(shape: Shape, seeds: Range<u64>) -> impl Iterator<Item = String> {
    let attack = move |seed| {
        let attacked = catch_unwind(AssertUnwindSafe(|| World::new(seed).attack(shape)));
        attacked.unwrap_or_else(|_| Err("it panicked".into())).err()
    };
    seeds.filter_map(attack)
}

#[test]
fn a_hostile_client_damages_nothing() {
    for shape in [shape::check, ANY] {
        assert_eq!(failures(shape, 0..400).next(), None);
    }
}

/// The client says that it sets a size, and removes a name.
fn believes_a_lie() -> bool {
    let World {
        store, mut reserve, ..
    } = World::new(0);
    let seed = store.seed();
    let find = |dir, name: &[u8]| aerie_objects::lookup(store.memory(), dir, seed, name).unwrap();
    let mine = find(store.root(), b"mine").unwrap();
    let file = find(mine, b"a").unwrap();
    let mut batch = Builder::default();
    batch.operation(
        &FileOp::Write {
            file: File(file),
            bytes: 1,
        },
        1,
    );
    super::remove_parts(&mut batch, mine, b"a", file);
    let answers = apply(&store, &mut reserve, &super::ALL, batch.bytes()).unwrap();
    answers[0].1.is_ok()
}

#[test]
fn seeded_bugs_are_found() {
    assert!(!believes_a_lie());
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // some bugs make assertions fail
    let missed: Vec<_> = Bug::ALL
        .iter()
        .filter(|bug| {
            arm(Some(**bug));
            let mut found = [shape::check, ANY]
                .into_iter()
                .flat_map(|shape| failures(shape, 0..400));
            let is_found = found.next().is_some() || believes_a_lie();
            assert!(!is_found || fired() > 0, "{bug:?} had no part in it");
            arm(None);
            !is_found
        })
        .collect();
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
