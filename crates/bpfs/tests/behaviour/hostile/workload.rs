//! Uses a file system that may be damaged: reads, changes and deletes everything. The results
//! are ignored; the calls must return.

use vfs::{
    Attr, Cookie, Ctx, Fallocate, FileSystem, FileType, Ino, Name, RenameFlags, SeekKind, SetAttr,
    SetTime, Timestamp, XattrMode,
};

/// Most entries that are used of one file system.
const ENTRIES: usize = 400;
/// Most steps along a file's holes.
const STEPS: usize = 20;

struct Entry {
    dir: Ino,
    name: Vec<u8>,
    attr: Attr,
}

/// Runs all calls on the whole of `fs`.
pub fn run(fs: &dyn FileSystem) {
    let cx = Ctx::root();
    let entries = list(fs, &cx);
    for e in &entries {
        look(fs, &cx, e);
    }
    for e in &entries {
        change(fs, &cx, e);
    }
    for dir in entries
        .iter()
        .filter(|e| e.attr.kind == FileType::Directory)
    {
        make(fs, &cx, dir.attr.ino);
    }
    make(fs, &cx, Ino::ROOT);
    delete(fs, &cx);
    make(fs, &cx, Ino::ROOT);
    for e in entries {
        fs.forget(e.attr.ino, 1);
    }
    let _ = (fs.statfs(), fs.sync());
}

/// Lists all entries, breadth first. Each entry holds a reference.
fn list(fs: &dyn FileSystem, cx: &Ctx) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    let (mut dir, mut next) = (Ino::ROOT, 0);
    loop {
        let room = ENTRIES - all.len();
        let mut count = 0;
        let mut found = Vec::new();
        let _ = fs.readdirplus(cx, dir, Cookie(0), &mut |e, attr| {
            count += 1;
            let dots = e.cookie.0 <= 2;
            if let Some(attr) = attr.filter(|_| !dots) {
                let (name, attr) = (e.name.to_vec(), *attr);
                found.push(Entry { dir, name, attr });
            }
            count < room
        });
        all.extend(found);
        loop {
            let Some(entry) = all.get(next) else {
                return all;
            };
            next += 1;
            if entry.attr.kind == FileType::Directory {
                dir = entry.attr.ino;
                break;
            }
        }
        if all.len() >= ENTRIES - 1 {
            return all;
        }
    }
}

fn look(fs: &dyn FileSystem, cx: &Ctx, e: &Entry) {
    let ino = e.attr.ino;
    if let Ok(attr) = fs.lookup(cx, e.dir, &e.name) {
        fs.forget(attr.ino, 1);
    }
    let _ = fs.getattr(cx, ino);
    let _ = fs.readlink(cx, ino);
    let mut count = 0;
    let _ = fs.readdir(cx, ino, Cookie(3), &mut |_| {
        count += 1;
        count < ENTRIES
    });
    let mut buf = vec![0; 20_000];
    for off in [
        0,
        1,
        4096,
        e.attr.size / 2,
        e.attr.size.saturating_sub(5000),
    ] {
        let _ = fs.read(cx, ino, off, &mut buf);
    }
    for kind in [SeekKind::Data, SeekKind::Hole] {
        let mut at = 0;
        for _ in 0..STEPS {
            match fs.seek(cx, ino, at, kind) {
                Ok(found) => at = found.saturating_add(4096),
                Err(_) => break,
            }
        }
    }
    for name in fs.listxattr(cx, ino).unwrap_or_default() {
        let _ = fs.getxattr(cx, ino, &name);
    }
}

fn change(fs: &dyn FileSystem, cx: &Ctx, e: &Entry) {
    let (ino, size) = (e.attr.ino, e.attr.size);
    for (off, len) in [
        (0, 8),
        (4090, 20),
        (size, 5000),
        (size.saturating_sub(9000), 10_000),
        (size / 2, 4096),
        (1 << 40, 1),
    ] {
        let _ = fs.write(cx, ino, off, &vec![3; len]);
    }
    for kind in [
        Fallocate::PunchHole,
        Fallocate::ZeroRange { keep_size: true },
        Fallocate::Allocate { keep_size: false },
    ] {
        let _ = fs.fallocate(cx, ino, kind, 5000, 20_000);
        let _ = fs.fallocate(cx, ino, kind, size / 2, 9000);
    }
    let set = SetAttr {
        perm: Some(0o4755),
        uid: Some(1),
        gid: Some(2),
        mtime: Some(SetTime::At(Timestamp(5))),
        ..SetAttr::default()
    };
    let _ = fs.setattr(cx, ino, &set);
    for size in [size / 2, 3, size.saturating_add(4096), 0, 10_000] {
        let _ = fs.truncate(cx, ino, size);
    }
    let _ = fs.setxattr(cx, ino, b"user.new", b"value", XattrMode::Set);
    let _ = fs.removexattr(cx, ino, b"user.one");
    if fs.link(cx, ino, Ino::ROOT, b"linked").is_ok() {
        fs.forget(ino, 1);
        let _ = fs.unlink(cx, Ino::ROOT, b"linked");
    }
    for flags in [
        RenameFlags::NO_REPLACE,
        RenameFlags::EXCHANGE,
        RenameFlags::empty(),
    ] {
        let _ = fs.rename(
            cx,
            Name::new(e.dir, &e.name),
            Name::new(Ino::ROOT, b"moved"),
            flags,
        );
        let _ = fs.rename(
            cx,
            Name::new(Ino::ROOT, b"moved"),
            Name::new(e.dir, &e.name),
            flags,
        );
    }
    let _ = fs.rename(
        cx,
        Name::new(Ino::ROOT, b"dir"),
        Name::new(ino, b"into"),
        RenameFlags::empty(),
    );
    let _ = fs.rename(
        cx,
        Name::new(ino, b"into"),
        Name::new(Ino::ROOT, b"dir"),
        RenameFlags::empty(),
    );
}

fn make(fs: &dyn FileSystem, cx: &Ctx, dir: Ino) {
    for n in 0..3 {
        let name = format!("new file {n} {:x>1$}", "", 60 * n);
        if let Ok(attr) = fs.create(cx, dir, name.as_bytes(), 0o644) {
            let _ = fs.write(cx, attr.ino, 4000, &[9; 200]);
            fs.forget(attr.ino, 1);
        }
    }
    if let Ok(attr) = fs.mkdir(cx, dir, b"new directory", 0o755) {
        fs.forget(attr.ino, 1);
    }
    let _ = fs
        .symlink(cx, dir, b"new link", b"to")
        .map(|a| fs.forget(a.ino, 1));
    let _ = fs.tmpfile(cx, dir, 0o600).map(|a| fs.forget(a.ino, 1));
}

/// Deletes until no entry can be deleted any more.
fn delete(fs: &dyn FileSystem, cx: &Ctx) {
    for _ in 0..12 {
        let entries = list(fs, cx);
        let mut gone = 0;
        for e in entries.iter().rev() {
            let unlinked = fs.unlink(cx, e.dir, &e.name).is_ok();
            gone += u32::from(unlinked || fs.rmdir(cx, e.dir, &e.name).is_ok());
        }
        for e in entries {
            fs.forget(e.attr.ino, 1);
        }
        if gone == 0 {
            return;
        }
    }
}
