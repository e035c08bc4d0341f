//! Files by their paths, beside those of the kernel: the same calls have the same results, also when the client
//! has cached the directory of a path.

use crate::bounds::bound;
use crate::world::World;
use aerie_client::{Client, Files, OFlags};
use aerie_server::Limits;
use rustix::fs::{AtFlags, Mode, mkdirat, openat, renameat, statat, symlinkat, unlinkat};
use std::os::fd::OwnedFd;
use vfs::{Errno, FileType};

pub(crate) const TESTS: &[(&str, fn())] = &[("paths_lead_where_those_of_the_kernel_lead", same)];

/// Without slashes at the end: the kernel follows links there in other orders of its checks.
const PATHS: &[&str] = &[
    "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b", "d//a", "d/./b", "d/e/../a", "a/b",
    "b/a", "e/a",
];
const OPENS: &[OFlags] = &[
    OFlags::RDONLY,
    OFlags::RDWR,
    OFlags::CREATE.union(OFlags::WRONLY),
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::RDWR),
    OFlags::RDWR.union(OFlags::TRUNC),
    OFlags::RDONLY.union(OFlags::NOFOLLOW),
    OFlags::RDONLY.union(OFlags::DIRECTORY),
];

#[derive(Debug, Clone, Copy)]
enum Call {
    Open(OFlags),
    MakeDirectory,
    Symlink(&'static str),
    Unlink,
    RemoveDirectory,
    Rename(&'static str),
    Attributes,
}

/// The type and the size of a file for calls that show it.
type Seen = Result<Option<(FileType, u64)>, Errno>;

fn seen(kind: FileType, size: u64) -> Option<(FileType, u64)> {
    Some((kind, if kind == FileType::Regular { size } else { 0 }))
}

fn by_the_client((files, root): (&Files<&Client>, &str), path: &str, call: Call) -> Seen {
    let below = |path: &str| format!("{root}/{path}").into_bytes();
    let path = &below(path);
    match call {
        Call::Open(flags) => {
            let file = files.open(path, flags, 0o644)?;
            let wrote = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
            if wrote && file.attributes()?.kind == FileType::Regular {
                file.write_at(b"text", file.attributes()?.size)?;
            }
            let attr = file.attributes()?;
            Ok(seen(attr.kind, attr.size))
        }
        Call::MakeDirectory => files.make_directory(path, 0o755).map(|()| None),
        Call::Symlink(target) => files.symlink(target.as_bytes(), path).map(|()| None),
        Call::Unlink => files.unlink(path).map(|()| None),
        Call::RemoveDirectory => files.remove_directory(path).map(|()| None),
        Call::Rename(to) => files.rename(path, &below(to)).map(|()| None),
        Call::Attributes => files
            .attributes(path)
            .map(|attr| seen(attr.kind, attr.size)),
    }
}

fn by_the_kernel(root: &OwnedFd, path: &str, call: Call) -> Seen {
    let kind = |mode| match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::Directory => FileType::Directory,
        rustix::fs::FileType::RegularFile => FileType::Regular,
        other => panic!("{other:?}"),
    };
    match call {
        Call::Open(flags) => {
            let file = openat(root, path, flags, Mode::from(0o644))?;
            let stat = rustix::fs::fstat(&file)?;
            let wrote = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
            if wrote && kind(stat.st_mode) == FileType::Regular {
                rustix::io::pwrite(&file, b"text", stat.st_size as u64)?;
            }
            let stat = rustix::fs::fstat(&file)?;
            Ok(seen(kind(stat.st_mode), stat.st_size as u64))
        }
        Call::MakeDirectory => mkdirat(root, path, Mode::from(0o755)).map(|()| None),
        Call::Symlink(target) => symlinkat(target, root, path).map(|()| None),
        Call::Unlink => unlinkat(root, path, AtFlags::empty()).map(|()| None),
        Call::RemoveDirectory => unlinkat(root, path, AtFlags::REMOVEDIR).map(|()| None),
        Call::Rename(to) => renameat(root, path, root, to).map(|()| None),
        Call::Attributes => {
            let stat = statat(root, path, AtFlags::empty())?;
            Ok(seen(kind(stat.st_mode), stat.st_size as u64))
        }
    }
}

fn drawn(rng: &mut fastrand::Rng) -> (&'static str, Call) {
    let path = rng.choice(PATHS).unwrap();
    let call = match rng.u8(0..13) {
        0..=4 => Call::Open(*rng.choice(OPENS).unwrap()),
        5 | 6 => Call::MakeDirectory,
        7 => Call::Symlink(rng.choice(["a", "e", "none"]).unwrap()),
        8 | 9 => Call::Unlink,
        10 => Call::RemoveDirectory,
        11 => Call::Rename(rng.choice(PATHS).unwrap()),
        _ => Call::Attributes,
    };
    (path, call)
}

fn same() {
    let world = World::new();
    let service = world.serve(Limits::default());
    let client = world.client();
    let files = Files::new(&client);
    for seed in 0..bound(30, 300) {
        let home = tempfile::tempdir().unwrap();
        let root = rustix::fs::open(home.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let top = format!("{seed}");
        files.make_directory(top.as_bytes(), 0o755).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut done = Vec::new();
        for _ in 0..200 {
            let (path, call) = drawn(&mut rng);
            done.push((path, call));
            let ours = by_the_client((&files, &top), path, call);
            let theirs = by_the_kernel(&root, path, call);
            assert_eq!(ours, theirs, "seed {seed}, after {done:?}");
        }
    }
    drop(client);
    service.stop();
    world.check();
}
