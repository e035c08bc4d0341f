//! Protected stores: the same scripts as all others, beside the model. After each call, no user can read a page
//! with what the calls deny this user. Secrets of one user are in no page that another one can read.

use crate::seeded::{Bug, arm, fired};
use crate::{MkfsOptions, Pxfs, mkfs};
use aerie_objects::{
    Contents, Guard, Kind, ObjectId, PAGE, Readers, Result, members, next_page, page,
};
use medium::layer::PmemLayer;
use medium::{MemoryPmem, Pmem};
use oracle::ModelFs;
use oracle::script::{Script, State, generate, run_op};
use oracle::snapshot::Snapshot;
use std::sync::{Arc, Mutex};
use vfs::perm::{Access, access};
use vfs::{
    Atime, Ctx, FileSystem, Ino, ManualClock, Name, NewNode, Removal, RenameFlags, SetAttr,
    Timestamp, XattrMode,
};

/// A memory with the readers of its pages.
struct Pages {
    below: MemoryPmem,
    readers: Mutex<Vec<Readers>>,
}

impl PmemLayer for Pages {
    type Below = MemoryPmem;

    fn below(&self) -> &MemoryPmem {
        &self.below
    }
}

impl Guard for Pages {
    fn readers(&self, page: u64) -> Result<Readers> {
        Ok(self.readers.lock().unwrap()[(page / PAGE) as usize])
    }

    fn protect(&self, page: u64, pages: u64, readers: Readers, contents: Contents) -> Result<()> {
        for page in (page..page + pages * PAGE).step_by(PAGE as usize) {
            if contents == Contents::Dropped {
                Pmem::store(&self.below, page, &[0; PAGE as usize]);
            }
            self.readers.lock().unwrap()[(page / PAGE) as usize] = readers;
        }
        Ok(())
    }
}

struct World {
    memory: Arc<Pages>,
    fs: Pxfs<Arc<Pages>>,
}

impl World {
    fn new() -> Self {
        let memory = Arc::new(Pages {
            below: MemoryPmem::new(super::IMAGE),
            readers: Mutex::new(vec![Readers::NOBODY; (super::IMAGE / PAGE) as usize]),
        });
        mkfs(&memory, &MkfsOptions::default()).unwrap();
        let fs = Self::open(&memory);
        Self { memory, fs }
    }

    fn open(memory: &Arc<Pages>) -> Pxfs<Arc<Pages>> {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000));
        Pxfs::open_protected(memory.clone(), memory.clone(), clock, Atime::Never).unwrap()
    }

    fn readers(&self, page: u64) -> Readers {
        self.memory.readers(page).unwrap()
    }

    /// A page that a user can read, of an object in or below `dir` that the calls deny this user. `is_reached`:
    /// whether they permit the user to search `dir` and all directories above.
    fn denied(&self, user: u32, dir: ObjectId, is_reached: bool) -> Option<String> {
        let cx = Ctx::user(user, user);
        let may = |object, want| {
            let inode = self.fs.load(&self.memory, object).unwrap();
            access(&cx, &inode.attr, want).is_ok()
        };
        let is_reached = is_reached && may(dir, Access::EXEC);
        let seed = self.fs.superblock().seed;
        for entry in aerie_objects::list_all(&self.memory, dir, seed).unwrap() {
            let object = entry.object;
            if members(&self.memory, object).unwrap() > 1 {
                continue;
            }
            let has = |page| self.readers(page).has(user, &[user]);
            if has(object.header() / PAGE * PAGE) && !is_reached {
                return Some(format!("user {user} can read the header of {object}"));
            }
            let is_readable = is_reached && may(object, Access::READ);
            let mut next = 0;
            while let Some(index) = next_page(&self.memory, object, next).unwrap() {
                let page = page(&self.memory, object, index).unwrap().unwrap();
                if has(page) && !is_readable {
                    return Some(format!("user {user} can read {object}"));
                }
                next = index + 1;
            }
            if object.kind() == Kind::Collection {
                let below = self.denied(user, object, is_reached);
                if below.is_some() {
                    return below;
                }
            }
        }
        None
    }

    fn leak(&self) -> Option<String> {
        let root = self.fs.superblock().root;
        [7, 8, 9]
            .into_iter()
            .find_map(|user| self.denied(user, root, true))
    }
}

/// Runs a script beside the model. Returns the first difference, or page that a user should not read.
fn failure(script: &Script) -> Option<String> {
    let world = World::new();
    let model = ModelFs::new(oracle::ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    for (at, op) in script.ops.iter().enumerate() {
        let (got, want) = (
            run_op(&world.fs, &mut here, op),
            run_op(&model, &mut there, op),
        );
        if got != want {
            return Some(format!("op {at} ({op}): {got:?}, the model {want:?}"));
        }
        if let Some(leak) = world.leak() {
            return Some(format!("after op {at} ({op}): {leak}"));
        }
    }
    let (a, b) = (
        Snapshot::take(&world.fs).unwrap(),
        Snapshot::take(&model).unwrap(),
    );
    if !a.is_same_except_times(&b) {
        return Some(format!("{:#?}", a.diff(&b)));
    }
    here.close_all(&world.fs);
    let findings = world.fs.audit();
    (!findings.is_empty()).then(|| format!("{findings:#?}"))
}

const SECRET: [u8; 8] = *b"A SECRET";

/// The super-user's calls. After each one, user 9 looks for secrets.
struct Keeper(World);

const ROOT: Ino = Ino::ROOT;

impl Keeper {
    fn look(&self) -> std::result::Result<(), String> {
        let memory = &self.0.memory;
        let secret = u64::from_le_bytes(SECRET);
        let pages = (0..Pmem::len(&memory.below)).step_by(PAGE as usize);
        for page in pages.filter(|page| self.0.readers(*page).has(9, &[9])) {
            let mut words = (page..page + PAGE).step_by(8);
            if words.any(|at| Pmem::load(&memory.below, at) == Ok(secret)) {
                return Err(format!("page {page:#x} has a secret"));
            }
        }
        self.0.leak().map_or(Ok(()), Err)
    }

    fn does<T>(&self, done: vfs::Result<T>) -> std::result::Result<T, String> {
        self.look()?;
        done.map_err(|errno| errno.to_string())
    }

    fn make(&self, dir: Ino, name: &str, mode: u32) -> std::result::Result<Ino, String> {
        let made = self.0.fs.create(&Ctx::root(), dir, name.as_bytes(), mode);
        self.does(made).map(|attr| attr.ino)
    }

    fn mkdir(&self, dir: Ino, name: &str, mode: u32) -> std::result::Result<Ino, String> {
        let made = self.0.fs.mkdir(&Ctx::root(), dir, name.as_bytes(), mode);
        self.does(made).map(|attr| attr.ino)
    }

    fn write(&self, ino: Ino, words: [u8; 8]) -> std::result::Result<(), String> {
        let bytes = words.repeat(3 * PAGE as usize / 8);
        let written = self.0.fs.write(&Ctx::root(), ino, 0, &bytes);
        self.does(written).map(drop)
    }

    fn set(&self, ino: Ino, set: SetAttr) -> std::result::Result<(), String> {
        self.does(self.0.fs.setattr(&Ctx::root(), ino, &set))
            .map(drop)
    }

    fn chmod(&self, ino: Ino, mode: u32) -> std::result::Result<(), String> {
        let perm = Some(mode);
        self.set(
            ino,
            SetAttr {
                perm,
                ..SetAttr::default()
            },
        )
    }

    fn remove(&self, dir: Ino, name: &str) -> std::result::Result<(), String> {
        let at = Name::new(dir, name.as_bytes());
        self.does(self.0.fs.remove(&Ctx::root(), at, Removal::Unlink))
    }
}

/// Secrets in all places, and in memory that was used for them before.
fn secrets() -> std::result::Result<(), String> {
    let keeper = Keeper(World::new());
    let cx = &Ctx::root();
    let home = keeper.mkdir(ROOT, "home", 0o700)?;
    let file = keeper.make(ROOT, "file", 0o600)?;
    keeper.write(file, SECRET)?;
    let below = keeper.make(home, "A SECRET", 0o644)?;
    keeper.write(below, SECRET)?;
    let target = NewNode::symlink(&SECRET).unwrap();
    keeper.does(keeper.0.fs.make(cx, Name::new(home, b"link"), &target))?;
    let set = keeper
        .0
        .fs
        .setxattr(cx, file, b"user.a", &SECRET.repeat(9), XattrMode::Set);
    keeper.does(set)?;
    // Public before, and not any more.
    for n in 0..3 {
        let later = keeper.make(ROOT, &format!("later{n}"), 0o644)?;
        keeper.write(later, *b"public  ")?;
        match n {
            0 => keeper.chmod(later, 0o600)?,
            1 => {
                let (from, to) = (Name::new(ROOT, b"later1"), Name::new(home, b"later1"));
                let moved = keeper.0.fs.rename(cx, from, to, RenameFlags::empty());
                keeper.does(moved)?;
            }
            _ => {
                let (uid, perm) = (Some(7), Some(0o640));
                let set = SetAttr {
                    uid,
                    perm,
                    ..SetAttr::default()
                };
                keeper.set(later, set)?;
            }
        }
        keeper.write(later, SECRET)?;
    }
    // Memory of secrets becomes public.
    keeper.remove(ROOT, "file")?;
    for n in 0..40 {
        let public = keeper.make(ROOT, &format!("public{n}"), 0o644)?;
        keeper.write(public, *b"public  ")?;
    }
    let cut = keeper.make(ROOT, "cut", 0o600)?;
    keeper.write(cut, SECRET)?;
    keeper.set(
        cut,
        SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
    )?;
    keeper.chmod(cut, 0o644)?;
    keeper.remove(home, "A SECRET")?;
    keeper.remove(home, "link")?;
    keeper.remove(home, "later1")?;
    keeper.chmod(home, 0o755)?;
    keeper.chmod(home, 0o711)?;
    keeper.make(home, "A SECRET", 0o644)?;
    // Users may list it, and reach nothing in it.
    keeper.chmod(home, 0o744)?;
    let listed = keeper.make(home, "listed", 0o644)?;
    keeper.write(listed, SECRET)
}

#[test]
fn a_user_finds_no_secret_in_pages() {
    secrets().unwrap();
}

#[test]
fn scripts_show_users_no_more_than_the_calls() {
    for seed in 0..6 {
        let script = generate::setup().then(&generate::random(seed, 120));
        assert_eq!(failure(&script), None, "seed {seed}");
    }
}

#[test]
fn a_directory_above_that_is_ignored_is_found() {
    arm(Some(Bug::ParentIgnored));
    let found = secrets();
    let has_fired = fired() > 0;
    arm(None);
    assert!(found.is_err() && has_fired);
}

/// Everyone can map what everyone may read, also after a change of modes and another start.
#[test]
fn public_files_are_public() {
    let keeper = Keeper(World::new());
    let home = keeper.mkdir(ROOT, "home", 0o700).unwrap();
    let dir = keeper.mkdir(home, "dir", 0o755).unwrap();
    let file = keeper.make(dir, "file", 0o644).unwrap();
    keeper.write(file, *b"contents").unwrap();
    let pages = |world: &World| {
        let memory = &world.memory;
        let mut found = Vec::new();
        for ino in [home, dir, file] {
            let object = ObjectId::from_bits(ino.0).unwrap();
            found.push(object.header() / PAGE * PAGE);
            found.extend(page(memory, object, 0).unwrap());
        }
        found
            .into_iter()
            .map(|page| world.readers(page))
            .collect::<Vec<_>>()
    };
    assert!(pages(&keeper.0)[1..].contains(&Readers::user(0)));
    keeper.chmod(home, 0o755).unwrap();
    let all = [Readers::Everyone; 6];
    assert_eq!(pages(&keeper.0), all);
    let World { memory, fs } = keeper.0;
    drop(fs);
    memory.readers.lock().unwrap().fill(Readers::NOBODY);
    let fs = World::open(&memory);
    assert_eq!(pages(&World { memory, fs }), all);
}
