//! Chains below two tables, of whose links the latest view has copies. A debug build compares each copy
//! that is used with its chain.

use medium::MemoryPmem;
use soupfs::format::Hash;
use soupfs::{Atime, MkfsOptions, MountOptions, check, mkfs};
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::{Ctx, Errno, FileSystem, Ino, Name, RenameFlags};

use crate::Fs;

/// Names that make chains: `wide` share the bits of one table, and each set of `deep` those of two.
struct Pool {
    wide: Vec<String>,
    deep: Vec<String>,
}

impl Pool {
    /// `chains`: the number of names for each chain below two tables.
    fn new(chains: &[usize]) -> Self {
        // The seed of an image whose UUID is 0.
        let hash = |name: &String| Hash::of(name.as_bytes(), 0);
        let names = (0_u32..).map(|n| n.to_string());
        let mut below = names.filter(|name| hash(name).index(0) == 0);
        let wide = below.by_ref().take(20).collect();
        let mut deep: Vec<Vec<String>> = vec![Vec::new(); chains.len()];
        while deep
            .iter()
            .zip(chains)
            .any(|(names, most)| names.len() < *most)
        {
            let name = below.next().unwrap();
            let chain = deep.get_mut(hash(&name).index(1) as usize);
            chain.into_iter().for_each(|names| names.push(name.clone()));
        }
        let most = deep.into_iter().zip(chains);
        let deep = most.flat_map(|(names, most)| names.into_iter().take(*most));
        Self {
            wide,
            deep: deep.collect(),
        }
    }
}

fn open(pm: &Arc<MemoryPmem>) -> Fs {
    let options = MountOptions {
        atime: Atime::Never,
        bound_s: None,
        ..MountOptions::default()
    };
    crate::open(Arc::clone(pm), options).unwrap()
}

/// The inode that a name has, which is looked up.
fn found(fs: &Fs, name: &str) -> Option<Ino> {
    match fs.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes()) {
        Ok(attr) => {
            fs.forget(attr.ino, 1);
            Some(attr.ino)
        }
        Err(e) => {
            assert_eq!(e, Errno::NOENT, "{name}");
            None
        }
    }
}

/// Changes, drawn from a range that has more of some.
const MAKE_AND_SYNC: u32 = 0;
const MAKE: u32 = 5;
const REMOVE: u32 = 7;

/// Makes a name, removes it, or moves it to another one; `names` are all names and their inodes.
fn change(fs: &Fs, names: &mut BTreeMap<String, Ino>, [name, other]: [&String; 2], what: u32) {
    let cx = Ctx::root();
    let (at, to) = (
        Name::new(Ino::ROOT, name.as_bytes()),
        Name::new(Ino::ROOT, other.as_bytes()),
    );
    if what <= MAKE && !names.contains_key(name) {
        let made = fs.create(&cx, at.dir, at.name, 0o644).unwrap();
        if what == MAKE_AND_SYNC {
            fs.fsync(&cx, made.ino, false).unwrap();
        }
        fs.forget(made.ino, 1);
        names.insert(name.clone(), made.ino);
    } else if what <= REMOVE {
        let removed = fs.unlink(&cx, at.dir, at.name);
        assert_eq!(removed.is_ok(), names.remove(name).is_some(), "{name}");
    } else {
        let moved = fs.rename(&cx, at, to, RenameFlags::empty());
        assert_eq!(moved.is_ok(), names.contains_key(name), "{name}");
        if let Some(ino) = names.remove(name) {
            names.insert(other.clone(), ino);
        }
    }
}

fn churn(pool: &Pool, seed: u64) {
    let pm = Arc::new(MemoryPmem::new(8 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let mut fs = open(&pm);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut names = BTreeMap::new();
    for name in &pool.wide {
        change(&fs, &mut names, [name, name], MAKE);
    }
    for step in 0..300 {
        if random.u32(..30) == 0 {
            fs.sync().unwrap();
        }
        if random.u32(..100) == 0 {
            fs.close().unwrap();
            assert!(check(&*pm).is_clean());
            fs = open(&pm);
        }
        let [name, other] = [(); 2].map(|()| random.choice(&pool.deep).unwrap());
        // More names at first, fewer later, and so on.
        let what = random.u32(..if step / 50 % 2 == 0 { 7 } else { 10 });
        change(&fs, &mut names, [name, other], what);
        for name in pool.deep.iter().chain(&pool.wide) {
            let ino = names.get(name).copied();
            assert_eq!(found(&fs, name), ino, "seed {seed}, step {step}, {name}");
        }
    }
}

#[test]
fn names_of_chains_with_copies_come_and_go() {
    let pool = Pool::new(&[5, 9, 14]);
    for seed in 0..30 {
        churn(&pool, seed);
    }
}

#[test]
fn a_chain_that_only_the_medium_has_split_loses_its_copy() {
    let pm = Arc::new(MemoryPmem::new(8 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = open(&pm);
    let pool = Pool::new(&[14]);
    let mut names = BTreeMap::new();
    let check = |names: &BTreeMap<String, Ino>| {
        for name in pool.deep.iter().chain(&pool.wide) {
            assert_eq!(found(&fs, name), names.get(name).copied(), "{name}");
        }
    };
    // Each sync splits a chain once at most.
    for name in pool.wide.iter().chain(&pool.deep[..12]) {
        change(&fs, &mut names, [name, name], MAKE);
        fs.sync().unwrap();
    }
    for name in &pool.deep[..6] {
        change(&fs, &mut names, [name, name], REMOVE);
    }
    check(&names);
    // On the medium the chain has 13 names, and is split. In the latest view it has 7.
    change(&fs, &mut names, [&pool.deep[12]; 2], MAKE_AND_SYNC);
    check(&names);
    fs.sync().unwrap();
    check(&names);
    change(&fs, &mut names, [&pool.deep[13]; 2], MAKE);
    check(&names);
}

#[test]
fn a_new_directory_that_became_empty_has_no_copies() {
    let pm = Arc::new(MemoryPmem::new(8 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = open(&pm);
    let cx = Ctx::root();
    let dir = fs.mkdir(&cx, Ino::ROOT, b"new", 0o755).unwrap().ino;
    let pool = Pool::new(&[5, 5]);
    let names = || pool.wide.iter().chain(&pool.deep).map(String::as_bytes);
    for round in 0..2 {
        for name in names() {
            fs.create(&cx, dir, name, 0o644).unwrap();
        }
        for name in names() {
            fs.lookup(&cx, dir, name).unwrap();
        }
        if round == 0 {
            names().for_each(|name| fs.unlink(&cx, dir, name).unwrap());
        }
        // The first round finds a directory without names, and without a slot on the medium.
        fs.sync().unwrap();
    }
    fs.close().unwrap();
    assert!(check(&*pm).is_clean());
}
